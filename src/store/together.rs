//! Batches one process's requests about different locks.
//!
//! A run with hundreds of servers has as many locks, and each request costs a round trip, a disk
//! flush or a consensus. Requests that arrive while earlier ones are in flight are collected and
//! sent together. A single request is sent immediately.
//!
//! Conditional requests about the same lock are never in one batch: the second condition could be
//! evaluated before the first write.

use std::{
    collections::{HashSet, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use crate::maintenance::ids::LockKey;

/// Batches in flight when order does not matter: the store works on one while we read the replies
/// to the other.
const UNDER_WAY: usize = 2;

/// Batching rules.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// The largest batch.
    most: usize,
    /// True if two requests about one lock need different batches.
    apart: bool,
}

/// A request and its caller's reply channel.
struct Passenger<J, R> {
    key: LockKey,
    job: J,
    reply: oneshot::Sender<R>,
}

struct Queue<J, R> {
    waiting: VecDeque<Passenger<J, R>>,
    under_way: usize,
}

/// Executes requests and returns their replies in order.
type Carry<J, R> = dyn Fn(Vec<J>) -> BoxFuture<'static, Vec<R>> + Send + Sync;

/// Collects requests.
pub(super) struct Together<J, R> {
    queue: Arc<Mutex<Queue<J, R>>>,
    carry: Arc<Carry<J, R>>,
    rules: Rules,
}

impl<J, R> fmt::Debug for Together<J, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Together").field("rules", &self.rules).finish_non_exhaustive()
    }
}

fn locked<J, R>(queue: &Mutex<Queue<J, R>>) -> MutexGuard<'_, Queue<J, R>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A batch slot. It is free again however its task ends.
struct GroupSlot<J, R> {
    queue: Arc<Mutex<Queue<J, R>>>,
    left: bool,
}

impl<J, R> Drop for GroupSlot<J, R> {
    fn drop(&mut self) {
        if !self.left {
            locked(&self.queue).under_way -= 1;
        }
    }
}

impl<J: Send + 'static, R: Send + 'static> Together<J, R> {
    /// Returns batches of up to `most` requests about different locks, executed by `carry`.
    pub(super) fn apart(
        most: usize,
        carry: impl Fn(Vec<J>) -> BoxFuture<'static, Vec<R>> + Send + Sync + 'static,
    ) -> Self {
        Self::new(Rules { most, apart: true }, carry)
    }

    /// Returns batches of up to `most` requests in arrival order, one batch at a time.
    pub(super) fn in_turn(
        most: usize,
        carry: impl Fn(Vec<J>) -> BoxFuture<'static, Vec<R>> + Send + Sync + 'static,
    ) -> Self {
        Self::new(Rules { most, apart: false }, carry)
    }

    fn new(rules: Rules, carry: impl Fn(Vec<J>) -> BoxFuture<'static, Vec<R>> + Send + Sync + 'static) -> Self {
        let queue = Queue { waiting: VecDeque::new(), under_way: 0 };
        Self { queue: Arc::new(Mutex::new(queue)), carry: Arc::new(carry), rules }
    }

    /// Returns the reply to a request, or `None` if its outcome is unknown.
    ///
    /// A request is dropped if its caller ends before the batch is sent.
    pub(super) async fn send(&self, key: &LockKey, job: J) -> Option<R> {
        let (reply, replied) = oneshot::channel();
        let begins = {
            let mut queue = locked(&self.queue);
            queue.waiting.push_back(Passenger { key: key.clone(), job, reply });
            let begins = queue.under_way < if self.rules.apart { UNDER_WAY } else { 1 };
            queue.under_way += usize::from(begins);
            begins
        };
        if begins {
            let place = GroupSlot { queue: Arc::clone(&self.queue), left: false };
            tokio::spawn(go_on(place, Arc::clone(&self.carry), self.rules));
        }
        replied.await.ok()
    }
}

/// Executes batches until no request waits.
async fn go_on<J: Send, R: Send>(mut place: GroupSlot<J, R>, carry: Arc<Carry<J, R>>, rules: Rules) {
    loop {
        // Callers woken by the same replies send their requests now; wait for them.
        tokio::task::yield_now().await;
        let group = {
            let mut queue = locked(&place.queue);
            let group = next(&mut queue.waiting, rules);
            if group.is_empty() {
                queue.under_way -= 1;
                place.left = true;
                return;
            }
            group
        };
        let (jobs, replies): (Vec<J>, Vec<_>) = group.into_iter().map(|one| (one.job, one.reply)).unzip();
        for (reply, result) in replies.into_iter().zip(carry(jobs).await) {
            let _ = reply.send(result);
        }
    }
}

/// Returns the next batch of requests whose callers still wait. Different locks are sorted, so that
/// processes with overlapping batches lock rows in the same order.
fn next<J, R>(waiting: &mut VecDeque<Passenger<J, R>>, rules: Rules) -> Vec<Passenger<J, R>> {
    let mut group: Vec<Passenger<J, R>> = Vec::new();
    let mut keys = HashSet::new();
    let mut later = VecDeque::new();
    while group.len() < rules.most {
        let Some(one) = waiting.pop_front() else { break };
        if one.reply.is_closed() {
            continue;
        }
        if rules.apart && !keys.insert(one.key.clone()) {
            later.push_back(one);
        } else {
            group.push(one);
        }
    }
    later.append(waiting);
    *waiting = later;
    if rules.apart {
        group.sort_by(|one, other| one.key.cmp(&other.key));
    }
    group
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::future::join_all;
    use tokio::{sync::Semaphore, time::timeout};

    use super::*;

    type Groups = Arc<Mutex<Vec<Vec<&'static str>>>>;

    /// Executes a batch per permit, and records the batches.
    fn carrier(most: usize) -> (Together<&'static str, &'static str>, Arc<Semaphore>, Groups) {
        let (leave, groups) = (Arc::new(Semaphore::new(0)), Groups::default());
        let (given, noted) = (Arc::clone(&leave), Arc::clone(&groups));
        let together = Together::apart(most, move |jobs: Vec<&'static str>| {
            let (given, noted) = (Arc::clone(&given), Arc::clone(&noted));
            Box::pin(async move {
                noted.lock().unwrap().push(jobs.clone());
                given.acquire().await.unwrap().forget();
                assert!(!jobs.contains(&"panic"), "as told");
                jobs
            })
        });
        (together, leave, groups)
    }

    fn key(name: &str) -> LockKey {
        LockKey::new(name)
    }

    async fn send(
        together: &Together<&'static str, &'static str>,
        name: &str,
        job: &'static str,
    ) -> Option<&'static str> {
        together.send(&key(name), job).await
    }

    #[tokio::test]
    async fn what_comes_meanwhile_goes_together_and_each_has_its_own_reply() {
        let (together, leave, groups) = carrier(3);
        let sent = ["a", "b", "c", "d", "e", "f"];
        let all = join_all(sent.iter().map(|name| send(&together, name, name)));
        let (replies, ()) = tokio::join!(all, async { leave.add_permits(10) });
        assert_eq!(replies, sent.map(Some));
        let groups = groups.lock().unwrap().clone();
        assert_eq!(groups, [vec!["a", "b", "c"], vec!["d", "e", "f"]], "three at most");
        assert_eq!(send(&together, "a", "alone").await, Some("alone"), "alone, it is sent immediately");
    }

    #[tokio::test]
    async fn two_of_one_lock_never_travel_together_and_keep_their_order() {
        let (together, leave, groups) = carrier(8);
        leave.add_permits(8);
        let all = [("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3")];
        join_all(all.map(|(name, job)| send(&together, name, job))).await;
        let groups = groups.lock().unwrap().clone();
        let mixed = groups.iter().any(|group| group.iter().filter(|job| job.starts_with('a')).count() > 1);
        assert!(!mixed, "{groups:?}");
        let order: Vec<&str> = groups.concat().into_iter().filter(|job| job.starts_with('a')).collect();
        assert_eq!(order, ["a1", "a2", "a3"]);
    }

    #[tokio::test]
    async fn in_turn_the_order_is_that_of_arrival() {
        let groups = Groups::default();
        let noted = Arc::clone(&groups);
        let together = Together::in_turn(3, move |jobs: Vec<&'static str>| {
            noted.lock().unwrap().push(jobs.clone());
            Box::pin(async move { jobs })
        });
        let all = [("b", "1"), ("a", "2"), ("b", "3"), ("b", "4"), ("a", "5")];
        join_all(all.map(|(name, job)| send(&together, name, job))).await;
        assert_eq!(*groups.lock().unwrap(), [vec!["1", "2", "3"], vec!["4", "5"]]);
    }

    #[tokio::test]
    async fn whose_caller_is_gone_is_left_behind_and_a_lost_group_is_unknown() {
        let (together, leave, groups) = carrier(1);
        let together = Arc::new(together);
        let start = |name: &'static str| {
            let together = Arc::clone(&together);
            tokio::spawn(async move { send(&together, name, name).await })
        };
        let begun = |n: usize| {
            let groups = Arc::clone(&groups);
            let begun = async move {
                while groups.lock().unwrap().len() < n {
                    tokio::task::yield_now().await;
                }
            };
            async { timeout(Duration::from_secs(10), begun).await.unwrap() }
        };
        let (first, second) = (start("panic"), start("b"));
        begun(UNDER_WAY).await;
        let (gone, last) = (start("gone"), start("last"));
        while locked(&together.queue).waiting.len() < 2 {
            tokio::task::yield_now().await;
        }
        gone.abort();
        let _ = gone.await;
        leave.add_permits(9);
        assert_eq!(first.await.unwrap(), None, "its outcome is unknown");
        assert_eq!((second.await.unwrap(), last.await.unwrap()), (Some("b"), Some("last")));
        assert!(!groups.lock().unwrap().concat().contains(&"gone"));
        // The lost batch has freed its slot.
        let all = join_all(["c", "d", "e"].map(|name| send(&together, name, name)));
        assert_eq!(timeout(Duration::from_secs(10), all).await.unwrap(), ["c", "d", "e"].map(Some));
    }
}
