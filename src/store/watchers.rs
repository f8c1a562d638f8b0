//! Who watches which lock key inside this process.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use futures_util::future::BoxFuture;
use tokio::{runtime::Handle, sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::maintenance::ids::LockKey;

#[derive(Debug)]
struct Watched {
    /// The last revision that the watchers were woken for: a commit of our own is noticed twice,
    /// here and on the disk.
    revision: i64,
    moves: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct WatcherState {
    keys: HashMap<LockKey, Watched>,
    /// Whether something looks for the changes of other processes.
    looking: bool,
}

/// All watchers of one store handle. A counter moves once per change, however many places notice
/// it.
#[derive(Debug, Default)]
pub(super) struct Watchers(Mutex<WatcherState>);

impl Watchers {
    fn inner(&self) -> MutexGuard<'_, WatcherState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a key, and says whether the caller has to start looking for changes of other
    /// processes.
    pub(super) fn watch(&self, key: &LockKey) -> (watch::Receiver<u64>, bool) {
        let mut inner = self.inner();
        let start = !std::mem::replace(&mut inner.looking, true);
        let watched =
            inner.keys.entry(key.clone()).or_insert_with(|| Watched { revision: 0, moves: watch::Sender::new(0) });
        (watched.moves.subscribe(), start)
    }

    /// Wakes the watchers of a key that is at `revision` now, unless they were woken for it before.
    pub(super) fn moved(&self, key: &LockKey, revision: i64) {
        if let Some(watched) = self.inner().keys.get_mut(key).filter(|watched| watched.revision < revision) {
            watched.revision = revision;
            watched.moves.send_modify(|count| *count += 1);
        }
    }

    /// Wakes the watchers of a key whose revisions begin again, and for each of them from now on.
    pub(super) fn went_back(&self, key: &LockKey) {
        if let Some(watched) = self.inner().keys.get_mut(key) {
            watched.revision = 0;
            watched.moves.send_modify(|count| *count += 1);
        }
    }

    /// The keys that somebody watches.
    pub(super) fn keys(&self) -> Vec<LockKey> {
        self.inner().keys.keys().cloned().collect()
    }

    /// Whether a key is watched.
    pub(super) fn watches(&self, key: &LockKey) -> bool {
        self.inner().keys.contains_key(key)
    }

    /// Wakes everybody: the store cannot be watched at the moment, and they will want to know.
    pub(super) fn wake_all(&self) {
        for watched in self.inner().keys.values() {
            watched.moves.send_modify(|count| *count += 1);
        }
    }

    /// Forgets keys that no watch is open any more. `true` when none is left: the task that looks
    /// for changes stops, and the next watcher starts anew.
    pub(super) fn nobody_left(&self) -> bool {
        let mut inner = self.inner();
        inner.keys.retain(|_, watched| watched.moves.receiver_count() > 0);
        inner.looking = !inner.keys.is_empty();
        !inner.looking
    }
}

/// The one task of a store handle that looks for the changes of other processes. It begins with the
/// first watcher, ends with the last one, and begins anew with the next.
#[derive(Debug)]
pub(super) struct ChangeTask {
    runtime: Handle,
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl ChangeTask {
    /// One on the runtime in which it is made.
    pub(super) fn new() -> Self {
        Self { runtime: Handle::current(), stop: CancellationToken::new(), task: Mutex::default() }
    }

    /// Cancelled when the store is closed: the task ends by it.
    pub(super) fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    fn task(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a key, and starts the task when nobody was watching.
    pub(super) fn watch(
        &self,
        watchers: &Watchers,
        key: &LockKey,
        run: impl FnOnce() -> BoxFuture<'static, ()>,
    ) -> watch::Receiver<u64> {
        let (changes, start) = watchers.watch(key);
        if start && !self.stop.is_cancelled() {
            *self.task() = Some(self.runtime.spawn(run()));
        }
        changes
    }

    /// Ends the task.
    pub(super) async fn end(&self) {
        self.stop.cancel();
        let task = self.task().take();
        if let Some(task) = task {
            let _ = task.await;
        }
    }
}
