//! Limits how long one server can delay a plan.
//!
//! A plan reads many servers. A BMC that answers each read just in time would add up to a long
//! delay. So one server's reads share a time limit while a plan or refresh runs. The mark is
//! task-local, like a call's guard (`backend/guard.rs`).

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

tokio::task_local! {
    static PLANNING: ();
}

/// Runs a plan's or refresh's reads. Covers only reads in the same task.
pub async fn planning<T>(reading: impl Future<Output = T> + Send) -> T {
    PLANNING.scope((), reading).await
}

/// The time limit of one server's reads in one plan, as a multiple of the read limit.
const LIMITS: u32 = 2;

/// The time that a BMC's reads took in this process's plan. Concurrent reads count once.
#[derive(Debug, Default)]
pub(super) struct PlanShare(Mutex<Spent>);

#[derive(Debug, Default)]
struct Spent {
    before: Duration,
    /// The number of current reads, and when the first read started.
    current: (usize, Duration),
}

/// A read that counts until it is dropped.
#[derive(Debug)]
pub(super) struct CountedRead<'a> {
    share: &'a PlanShare,
    clock: &'a dyn crate::clock::Clock,
}

impl PlanShare {
    /// Returns the remaining time for a read with this limit, which counts from now on. The BMC's
    /// servers add up their shares. Returns `None` outside a plan.
    pub(super) fn begin<'a>(
        &'a self,
        limit: Duration,
        servers: usize,
        clock: &'a dyn crate::clock::Clock,
    ) -> Option<(Duration, CountedRead<'a>)> {
        PLANNING.try_with(|()| ()).ok()?;
        let now = clock.monotonic();
        let mut spent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spent.current.0 == 0 {
            spent.current.1 = now;
        }
        spent.current.0 += 1;
        let used = spent.before + now.saturating_sub(spent.current.1);
        let servers = u32::try_from(servers.max(1)).unwrap_or(u32::MAX);
        let share = limit.saturating_mul(LIMITS.saturating_mul(servers));
        Some((share.saturating_sub(used), CountedRead { share: self, clock }))
    }
}

impl Drop for CountedRead<'_> {
    fn drop(&mut self) {
        let now = self.clock.monotonic();
        let mut spent = self.share.0.lock().unwrap_or_else(PoisonError::into_inner);
        spent.current.0 -= 1;
        if spent.current.0 == 0 {
            let took = now.saturating_sub(spent.current.1);
            spent.before += took;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    #[tokio::test]
    async fn reads_of_a_plan_share_one_limit_and_others_do_not() {
        let (share, clock, limit) = (PlanShare::default(), SystemClock::default(), Duration::from_millis(100));
        assert!(share.begin(limit, 1, &clock).is_none(), "not in a plan");
        planning(async {
            let (left, one) = share.begin(limit, 1, &clock).unwrap();
            assert!(left > limit && left <= limit * 2, "{left:?}");
            let (_, two) = share.begin(limit, 1, &clock).unwrap();
            crate::clock::within(limit * 2, std::future::pending::<()>()).await;
            drop((one, two));
            assert_eq!(share.begin(limit, 1, &clock).unwrap().0, Duration::ZERO);
            let (left, _) = share.begin(limit, 3, &clock).unwrap();
            assert!(left > limit, "a chassis of slow systems: {left:?}");
        })
        .await;
    }
}
