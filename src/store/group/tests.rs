//! Tests groups against a store with lost replies, lost races and rejected names, and with tasks
//! that end at any time. The conformance suite of the real stores covers the faults that can be
//! injected there.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::{
    clock::SimulatedClock,
    maintenance::{
        ids::{Attachment, Fence, MaintenanceId, Runner, Token, Uid},
        lock::{AuditEvent, EnqueueRequest, Leases, Refusal, ServerLock},
        spec::{MaintenanceKind, Spec},
    },
    store::{
        optimistic::{Commits, CommittedChange, Loaded},
        recall::OwnProcesses,
    },
};

/// A commit's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Made,
    /// Another process writes first.
    Overtaken,
    /// Committed, but the reply is lost.
    ReplyLost,
    /// Neither committed nor answered.
    Lost,
    /// Not answered, and committed just before the next commit.
    Late,
}

#[derive(Debug)]
struct Shelf {
    revision: i64,
    lock: Arc<ServerLock>,
    commits: String,
    enqueued: Vec<Uid>,
    late: Option<(i64, ServerLock, Vec<AuditEvent>, String)>,
    fates: VecDeque<Fate>,
    made: usize,
}

/// An in-memory store with one lock.
#[derive(Debug)]
struct Store {
    shelf: Mutex<Shelf>,
    taken: HashSet<MaintenanceId>,
    most: usize,
    processes: OwnProcesses,
}

impl Shelf {
    fn write(&mut self, expected: i64, after: ServerLock, events: &[AuditEvent], commits: String) -> Option<i64> {
        if expected != self.revision {
            return None;
        }
        self.enqueued.extend(events.iter().filter(|event| event.what == "enqueued").map(|event| event.uid.clone()));
        (self.lock, self.commits, self.revision) = (Arc::new(after), commits, self.revision + 1);
        self.made += 1;
        Some(self.revision)
    }
}

impl Store {
    fn new(fates: impl IntoIterator<Item = Fate>, taken: impl IntoIterator<Item = usize>, most: usize) -> Arc<Self> {
        let lock = Arc::new(ServerLock::new(key()));
        let (fates, taken) = (fates.into_iter().collect(), taken.into_iter().map(id).collect());
        let (commits, enqueued) = (String::new(), Vec::new());
        let first = Shelf { revision: 0, lock, commits, enqueued, late: None, fates, made: 0 };
        let processes = OwnProcesses::default();
        processes.renewed(&runner().id, Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_mins(1));
        Arc::new(Self { shelf: Mutex::new(first), taken, most, processes })
    }
}

#[async_trait]
impl Conditional for Store {
    async fn load(&self, _: &LockKey, _: Option<Stored>) -> Result<Loaded, StoreError> {
        tokio::task::yield_now().await;
        let inner = self.shelf.lock().unwrap();
        Ok(Loaded {
            stored: Stored {
                revision: inner.revision,
                lock: Arc::clone(&inner.lock),
                commits: Arc::new(Commits::parse(&inner.commits, "")),
            },
            leases: Leases::default(),
            now: Timestamp::UNIX_EPOCH,
        })
    }

    async fn recall(&self, own: &Stored) -> Option<Loaded> {
        tokio::task::yield_now().await;
        self.processes.loaded(own, Timestamp::UNIX_EPOCH)
    }

    async fn commit(&self, change: &CommitDelta<'_>) -> Result<Option<CommittedChange>, StoreError> {
        tokio::task::yield_now().await;
        let (expected, after, events) = (change.before.revision, change.after.clone(), change.events);
        let answer = {
            let mut inner = self.shelf.lock().unwrap();
            if let Some((expected, after, events, commits)) = inner.late.take() {
                inner.write(expected, after, &events, commits);
            }
            if expected == inner.revision
                && let Some(record) =
                    change.written().find(|record| change.is_new(record) && self.taken.contains(&record.id))
            {
                return Err(StoreError::NameTaken { id: record.id.clone(), key: LockKey::new("other") });
            }
            match inner.fates.pop_front().unwrap_or(Fate::Made) {
                Fate::Made => Ok(inner.write(expected, after, events, change.commits()).map(CommittedChange::from)),
                Fate::Overtaken => {
                    let (same, older) = ((*inner.lock).clone(), inner.commits.clone());
                    let revision = inner.revision;
                    inner.write(revision, same, &[], format!("theirs {older}"));
                    Ok(None)
                }
                Fate::ReplyLost => {
                    inner.write(expected, after, events, change.commits());
                    Err(self.unanswered())
                }
                Fate::Lost => Err(self.unanswered()),
                Fate::Late => {
                    inner.late = Some((expected, after, events.to_vec(), change.commits()));
                    Err(self.unanswered())
                }
            }
        };
        // The reply is in transit: a task can end here.
        tokio::task::yield_now().await;
        answer
    }

    fn together(&self) -> usize {
        self.most
    }

    fn went_back(&self, _: &LockKey, cause: String) -> StoreError {
        panic!("{cause}")
    }

    fn unanswered(&self) -> StoreError {
        StoreError::Unavailable { address: "here".into(), cause: "no reply".into() }
    }
}

fn key() -> LockKey {
    LockKey::new("k")
}

fn id(n: usize) -> MaintenanceId {
    MaintenanceId::new("ops", &format!("m{n}")).unwrap()
}

fn runner() -> Runner {
    Runner::new("r", "ada", "desk", 1)
}

/// Enqueues and attaches. With `refuses`, it changes the draft and then refuses.
async fn join(store: &Store, known: &CachedLock, n: usize, refuses: bool) -> Result<(Uid, Fence), StoreError> {
    let clock = SimulatedClock::starting_at(Timestamp::UNIX_EPOCH);
    let uid = Uid::new(format!("uid-{n}"));
    let mut said = None;
    let mut ask = |lock: &mut ServerLock, leases: &Leases, now: Timestamp| {
        let request = EnqueueRequest {
            uid: uid.clone(),
            id: id(n),
            owner: "team".into(),
            spec: Spec::new(MaintenanceKind::Maintenance, "node"),
            gates: Vec::new(),
            runner: runner(),
            keeps_place: false,
            asking: crate::maintenance::lock::AskingState::default(),
            location: None,
        };
        lock.enqueue(request, leases, now)?;
        let token = Token(Uuid::from_u128(n as u128));
        said = Some(lock.attach(&uid, runner(), token, leases, now)?);
        if refuses { Err(Refusal::WrongPhase("testing")) } else { Ok(()) }
    };
    transact(store, &clock, known, &key(), &mut ask).await?;
    Ok((uid.clone(), said.unwrap()))
}

#[derive(Clone, Copy, Debug)]
struct Task {
    refuses: bool,
    /// The number of polls after which the task ends.
    ends: Option<usize>,
}

async fn play(tasks: &[Task], store: &Arc<Store>) {
    let known = Arc::new(CachedLock::default());
    let mut running: Vec<_> = tasks
        .iter()
        .enumerate()
        .map(|(n, task)| {
            let (store, known, refuses) = (Arc::clone(store), Arc::clone(&known), task.refuses);
            Some(tokio::spawn(async move { join(&store, &known, n, refuses).await }))
        })
        .collect();
    for turn in 0..40 {
        for (task, running) in tasks.iter().zip(&mut running) {
            if task.ends == Some(turn)
                && let Some(running) = running.take()
            {
                running.abort();
            }
        }
        tokio::task::yield_now().await;
    }
    let mut results = Vec::new();
    for running in running {
        results.push(match running {
            Some(running) => Some(running.await.unwrap()),
            None => None,
        });
    }
    // All tasks are served, and the next transition succeeds.
    let last = 99;
    join(store, &known, last, false).await.unwrap();
    let shelf = store.shelf.lock().unwrap();
    let times = |uid: &Uid| shelf.enqueued.iter().filter(|enqueued| *enqueued == uid).count();
    for (n, (task, result)) in tasks.iter().zip(results).enumerate() {
        let uid = Uid::new(format!("uid-{n}"));
        match result {
            Some(Ok((uid, fence))) => {
                assert!(!task.refuses && !store.taken.contains(&id(n)), "{n}");
                assert_eq!(times(&uid), 1, "{n}: a success was reported");
                let record = shelf.lock.get(&uid).unwrap();
                let stored = record.attachment.as_ref().map(Attachment::fence);
                assert_eq!(stored, Some(fence), "{n}: the reported fence is not stored");
            }
            // A refused transition also gets the unknown error if its group's commit stays unknown.
            Some(Err(StoreError::Unavailable { .. })) => assert!(times(&uid) <= usize::from(!task.refuses), "{n}"),
            Some(Err(StoreError::Refused(_))) => assert!(task.refuses && times(&uid) == 0, "{n}"),
            Some(Err(StoreError::NameTaken { id: named, .. })) => {
                assert!(named == id(n) && store.taken.contains(&named) && times(&uid) == 0, "{n}: {named}");
            }
            Some(Err(other)) => panic!("{n}: {other}"),
            None => assert!(times(&uid) <= 1 && !(task.refuses && times(&uid) == 1), "{n}"),
        }
    }
    let mut tickets: Vec<u64> = shelf.lock.active.iter().map(|record| record.ticket_number).collect();
    tickets.sort_unstable();
    assert_eq!(tickets, (1..=shelf.lock.last_ticket).collect::<Vec<_>>(), "a refused transition left a trace");
}

/// Polls a future once and returns true if it is pending.
async fn poll(future: impl Future) -> bool {
    tokio::select! {
        biased;
        _ = future => false,
        () = std::future::ready(()) => true,
    }
}

fn in_a_runtime(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(future);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_transition_is_applied_once_or_says_that_it_is_not(
        tasks in prop::collection::vec(
            (prop::bool::weighted(0.2), prop::option::weighted(0.25, 0..30_usize)), 1..14),
        fates in prop::collection::vec(
            prop_oneof![
                3 => Just(Fate::Made),
                1 => Just(Fate::Overtaken),
                1 => Just(Fate::ReplyLost),
                1 => Just(Fate::Lost),
                1 => Just(Fate::Late),
            ], 0..8),
        taken in prop::collection::hash_set(0..20_usize, 0..3),
        most in 1..9_usize,
    ) {
        let tasks: Vec<Task> = tasks.into_iter().map(|(refuses, ends)| Task { refuses, ends }).collect();
        in_a_runtime(async { play(&tasks, &Store::new(fates, taken, most)).await });
    }
}

#[test]
fn a_hundred_that_come_together_need_a_few_commits_and_keep_their_order() {
    in_a_runtime(async {
        let (store, known) = (Store::new([], [], 64), Arc::new(CachedLock::default()));
        let asking = (0..100).map(|n| {
            let (store, known) = (Arc::clone(&store), Arc::clone(&known));
            tokio::spawn(async move { join(&store, &known, n, false).await.unwrap() })
        });
        for asked in asking.collect::<Vec<_>>() {
            asked.await.unwrap();
        }
        let shelf = store.shelf.lock().unwrap();
        assert!(shelf.made <= 3, "{} commits", shelf.made);
        let in_order: Vec<_> = (0..100).map(|n| Uid::new(format!("uid-{n}"))).collect();
        assert_eq!(shelf.enqueued, in_order);
    });
}

#[test]
fn a_member_that_is_not_polled_holds_up_nobody() {
    in_a_runtime(async {
        let (store, known) = (Store::new([], [], 64), Arc::new(CachedLock::default()));
        let mut first = Box::pin(join(&store, &known, 0, false));
        assert!(poll(&mut first).await, "it leads");
        let mut sleeper = Box::pin(join(&store, &known, 1, false));
        assert!(poll(&mut sleeper).await, "it waits in the line");
        let last = join(&store, &known, 2, false);
        let (first, last) = tokio::join!(first, last);
        first.unwrap();
        last.unwrap();
        sleeper.await.unwrap();
        assert_eq!(store.shelf.lock().unwrap().lock.active.len(), 3);
    });
}
