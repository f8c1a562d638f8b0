//! Reads of one key, shared by everybody who asks at the same time.
//!
//! When a lock changes, every waiter of the process wakes and reads it. A read that began after somebody asked is an
//! answer to them too, so that 500 waiters cost one or two reads; and a lock whose revision did not move is not decoded
//! again. Leases are always read: heartbeats move no revision.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    maintenance::{ids::LockKey, lock::ServerLock},
    store::{LockView, StoreError},
};

/// How many keys are remembered. More are possible; they are decoded at each read.
const KEYS: usize = 4096;

/// A lock as it is in the store. The revision tells whether it still is.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    /// 0 for a key nobody asked for yet.
    pub(super) revision: i64,
    pub(super) lock: Arc<ServerLock>,
}

/// What a read found.
pub(super) type Snapshot = Result<LockView, StoreError>;

/// What is known about one key.
#[derive(Debug, Default)]
pub(super) struct Known {
    begun: AtomicU64,
    last: tokio::sync::Mutex<Option<(u64, Snapshot)>>,
    stored: Mutex<Option<Stored>>,
    writing: tokio::sync::Mutex<()>,
}

impl Known {
    fn stored(&self) -> MutexGuard<'_, Option<Stored>> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the other writers of this process.
    pub(super) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.writing.lock().await
    }

    /// The lock as it was read or written last.
    pub(super) fn latest(&self) -> Option<Stored> {
        self.stored().clone()
    }

    /// Remembers a lock unless a later one is known.
    pub(super) fn remember(&self, new: &Stored) {
        let mut stored = self.stored();
        if stored.as_ref().is_none_or(|old| old.revision < new.revision) {
            *stored = Some(new.clone());
        }
    }

    /// The result of a read that begins after this call: our own, or that of somebody who asked at the same time.
    pub(super) async fn read(&self, read: impl Future<Output = Snapshot> + Send) -> Snapshot {
        let asked = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.lock().await;
        if let Some((_, snapshot)) = last.as_ref().filter(|(number, _)| *number > asked) {
            return snapshot.clone();
        }
        // One change wakes hundreds. Those who are awake by now ask first, and this read is theirs too.
        tokio::task::yield_now().await;
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let snapshot = read.await;
        *last = Some((number, snapshot.clone()));
        snapshot
    }
}

/// What is known about all keys.
#[derive(Debug, Default)]
pub(super) struct Views(Mutex<HashMap<LockKey, Arc<Known>>>);

impl Views {
    pub(super) fn of(&self, key: &LockKey) -> Arc<Known> {
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
