//! Reads of one key, shared by every user who asks at the same time.
//!
//! When a lock changes, every waiter of the process wakes and reads it. A read that began after
//! somebody asked is an answer to them too, so that 500 waiters cost one or two reads; and a lock
//! that did not move is not decoded again. Leases are always read: heartbeats move no revision.
//!
//! What is remembered is also compared with what is read: a store that lost commits (a standby that
//! lagged, a backup, a snapshot) must not be taken for one that went on.

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

/// How many keys are remembered. More are possible; they are decoded at each read.
const KEYS: usize = 4096;

/// For how long a process builds on what it wrote itself. A store that went back to an earlier
/// state and on from there needs longer than that before it hands the same revision out again.
const OWN: Duration = Duration::from_secs(10);

/// A lock as it is in the store. Revision and commits tell whether it still is: a store that lost
/// commits gives the same revisions out again, and never the same name of a commit.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    /// 0 for a key nobody asked for yet.
    pub(super) revision: i64,
    pub(super) lock: Arc<ServerLock>,
    /// The last commits of this lock.
    pub(super) commits: Arc<Commits>,
}

impl Stored {
    /// A key that nobody asked for yet.
    pub(super) fn none(key: &LockKey) -> Self {
        Self { revision: 0, lock: Arc::new(ServerLock::new(key.clone())), commits: Arc::default() }
    }

    /// What a commit of ours made of it.
    pub(super) fn after(&self, written: &CommittedChange, lock: ServerLock, commit: &str) -> Self {
        let &CommittedChange { revision, parts } = written;
        Self { revision, lock: Arc::new(lock), commits: Arc::new(self.commits.with(commit, parts)) }
    }

    /// Whether `now`, which was read after this, may be what became of it. Otherwise why not.
    fn leads_to(&self, now: &Self) -> Result<(), String> {
        let key = &now.lock.key;
        if now.revision < self.revision {
            return Err(format!("{key} was at revision {}, and is at {} now", self.revision, now.revision));
        }
        let lost = !now.commits.go_on_from(&self.commits)
            && (now.revision == self.revision || !now.commits.may_have_forgotten(&self.commits));
        if lost {
            return Err(format!("a change of {key} that was seen at revision {} is not in it any more", self.revision));
        }
        Ok(())
    }
}

/// What a read begins with.
#[derive(Debug)]
pub(super) struct ReadStart {
    pub(super) stored: Option<Stored>,
    generation: Generation,
}

/// What is remembered of one key.
#[derive(Debug, Default)]
struct Memory {
    stored: Option<Stored>,
    /// When this process wrote what is stored, on its monotonic clock; no later change of another
    /// process was seen.
    own: Option<Duration>,
    /// The highest generation that was seen. It stays when what is stored is found to be behind it.
    generation: Generation,
}

/// What a read found.
pub(super) type ReadResult = Result<LockView, StoreError>;

/// The lock of one key, as it was read last.
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

    /// The writers of this process.
    pub(super) fn line(&self) -> &Arc<WaitingTransitions> {
        &self.line
    }

    /// The lock as it was read or written last, before it is read again.
    pub(super) fn seen(&self) -> ReadStart {
        let memory = self.memory();
        ReadStart { stored: memory.stored.clone(), generation: memory.generation }
    }

    /// The lock as this process wrote it shortly before, as long as no later change is known.
    pub(super) fn own(&self, monotonic: Duration) -> Option<Stored> {
        let memory = self.memory();
        let fresh = memory.own.is_some_and(|at| monotonic.saturating_sub(at) < OWN);
        memory.stored.clone().filter(|_| fresh)
    }

    /// Remembers what a commit of ours made at a moment of the monotonic clock, unless something
    /// later is known.
    pub(super) fn wrote(&self, new: &Stored, monotonic: Duration) {
        self.keep(new, Some(monotonic));
    }

    /// The cache of a store that reads each time.
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

    /// Remembers what was read, unless something later is known. Refused with a sentence when the
    /// store has lost what was seen before this read: then all that was remembered is forgotten but
    /// the highest generation, and as long as the store is behind that, each read is refused.
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
            return Err(format!("generation {seen} of {key} was given out, and its last one is {found} now"));
        }
        Ok(())
    }

    /// The result of a read that begins after this call: our own, or that of somebody who asked at
    /// the same time.
    pub(super) async fn read(&self, read: impl Future<Output = ReadResult> + Send) -> ReadResult {
        let asked = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.lock().await;
        if let Some((_, snapshot)) = last.as_ref().filter(|(number, _)| *number > asked) {
            return snapshot.clone();
        }
        // One change wakes hundreds. Those who are awake by now ask first, and this read is theirs
        // too.
        tokio::task::yield_now().await;
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let snapshot = read.await;
        *last = Some((number, snapshot.clone()));
        snapshot
    }
}

/// The locks of all keys, as they were read last.
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
