//! Shared reads of one lock key.
//!
//! A change wakes every waiter of the process. A read that started after a waiter's request answers
//! that waiter too, so 500 waiters cost one or two reads. An unchanged lock is not decoded again.
//! Leases are always read, because heartbeats do not change the revision.
//!
//! Each read is compared with the cache. That detects a store that lost commits: a lagging standby,
//! a backup or a snapshot.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    maintenance::{
        ids::{Generation, LockKey},
        lock::ServerLock,
    },
    store::{
        LockView, StoreError,
        group::WaitingTransitions,
        optimistic::{Commits, CommittedChange},
    },
};

/// Cached keys. Other keys are decoded at each read.
const KEYS: usize = 4096;

/// How long a process relies on its own last write. A restored store needs longer before it reaches
/// the same revision again.
const OWN: Duration = Duration::from_secs(10);

/// A stored lock. A store that lost commits reuses revisions but never commit names, so both
/// together identify a version.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    /// 0 for an unused key.
    pub(super) revision: i64,
    pub(super) lock: Arc<ServerLock>,
    /// The lock's last commits.
    pub(super) commits: Arc<Commits>,
}

impl Stored {
    /// Returns the empty lock of an unused key.
    pub(super) fn none(key: &LockKey) -> Self {
        Self { revision: 0, lock: Arc::new(ServerLock::new(key.clone())), commits: Arc::default() }
    }

    /// Returns the lock after this process's commit.
    pub(super) fn after(&self, written: &CommittedChange, lock: ServerLock, commit: &str) -> Self {
        let &CommittedChange { revision, parts } = written;
        Self { revision, lock: Arc::new(lock), commits: Arc::new(self.commits.with(commit, parts)) }
    }

    /// Checks that `now` can be a later version of this lock; the error explains why not.
    fn leads_to(&self, now: &Self) -> Result<(), String> {
        let key = &now.lock.key;
        if now.revision < self.revision {
            return Err(format!("{key} was at revision {}, but is at {} now", self.revision, now.revision));
        }
        let lost = !now.commits.go_on_from(&self.commits)
            && (now.revision == self.revision || !now.commits.may_have_forgotten(&self.commits));
        if lost {
            return Err(format!("a change of {key} that was seen at revision {} is missing", self.revision));
        }
        Ok(())
    }
}

/// Cached state when a read starts.
#[derive(Debug)]
pub(super) struct ReadStart {
    pub(super) stored: Option<Stored>,
    generation: Generation,
}

/// The cached state of one key.
#[derive(Debug, Default)]
struct Memory {
    stored: Option<Stored>,
    /// The monotonic time of this process's write, unless another process has written since.
    own: Option<Duration>,
    /// The highest generation read so far. It is kept when the store falls behind it.
    generation: Generation,
}

/// A read's result.
pub(super) type ReadResult = Result<LockView, StoreError>;

/// The last read of one key's lock.
#[derive(Debug, Default)]
pub(super) struct CachedLock {
    begun: AtomicU64,
    last: tokio::sync::Mutex<Option<(u64, ReadResult)>>,
    memory: Mutex<Memory>,
    line: Arc<WaitingTransitions>,
}

impl CachedLock {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns this process's waiting writers.
    pub(super) fn line(&self) -> &Arc<WaitingTransitions> {
        &self.line
    }

    /// Returns the cached lock before a read.
    pub(super) fn seen(&self) -> ReadStart {
        let memory = self.memory();
        ReadStart { stored: memory.stored.clone(), generation: memory.generation }
    }

    /// Returns the lock if this process wrote it recently and no later change was read.
    pub(super) fn own(&self, monotonic: Duration) -> Option<Stored> {
        let memory = self.memory();
        let fresh = memory.own.is_some_and(|at| monotonic.saturating_sub(at) < OWN);
        memory.stored.clone().filter(|_| fresh)
    }

    /// Caches this process's commit with its monotonic time, unless a later version is cached.
    pub(super) fn wrote(&self, new: &Stored, monotonic: Duration) {
        self.keep(new, Some(monotonic));
    }

    /// Caches a lock for a store that reads each time.
    pub(super) fn remember(&self, new: &Stored) {
        self.keep(new, None);
    }

    fn keep(&self, new: &Stored, own: Option<Duration>) {
        let mut memory = self.memory();
        memory.generation = memory.generation.max(new.lock.generation);
        if memory.stored.as_ref().is_none_or(|old| old.revision < new.revision) {
            memory.stored = Some(new.clone());
            memory.own = own;
        }
    }

    /// Caches a read, unless a later version is cached. Returns an error if the store has lost
    /// changes. Only the highest generation is then kept, and reads fail while the store is behind
    /// it.
    pub(super) fn settle(&self, seen: &ReadStart, now: &Stored) -> Result<(), String> {
        let follows = seen.stored.as_ref().map_or(Ok(()), |before| before.leads_to(now));
        if let Err(lost) = follows {
            let mut memory = self.memory();
            (memory.stored, memory.own) = (Some(now.clone()), None);
            return Err(lost);
        }
        self.remember(now);
        let (key, seen, found) = (&now.lock.key, seen.generation, now.lock.generation);
        if found < seen {
            return Err(format!("generation {seen} of {key} was issued, but its last generation is {found} now"));
        }
        Ok(())
    }

    /// Returns a read that starts after this call, its own or another caller's.
    pub(super) async fn read(&self, read: impl Future<Output = ReadResult> + Send) -> ReadResult {
        let asked = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.lock().await;
        if let Some((_, snapshot)) = last.as_ref().filter(|(number, _)| *number > asked) {
            return snapshot.clone();
        }
        // One change wakes hundreds of tasks. Yield, so that those already awake share this read.
        tokio::task::yield_now().await;
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let snapshot = read.await;
        *last = Some((number, snapshot.clone()));
        snapshot
    }
}

/// The cached locks by key.
#[derive(Debug, Default)]
pub(super) struct LockCache(Mutex<HashMap<LockKey, Arc<CachedLock>>>);

impl LockCache {
    pub(super) fn of(&self, key: &LockKey) -> Arc<CachedLock> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(key) {
            return known.clone();
        }
        if known.len() >= KEYS {
            known.retain(|_, known| Arc::strong_count(known) > 1);
        }
        known.entry(key.clone()).or_default().clone()
    }
}
