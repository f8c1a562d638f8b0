//! Watchers of lock keys in this process.

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
    /// The last announced revision. Own commits are noticed twice: here and in the store.
    revision: i64,
    moves: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct WatcherState {
    keys: HashMap<LockKey, Watched>,
    /// True while a task looks for other processes' changes.
    looking: bool,
}

/// All watchers of a store handle. A counter moves once per change, even if the change is noticed
/// twice.
#[derive(Debug, Default)]
pub(super) struct Watchers(Mutex<WatcherState>);

impl Watchers {
    fn inner(&self) -> MutexGuard<'_, WatcherState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a key. Returns true if the caller must start the task that looks for changes.
    pub(super) fn watch(&self, key: &LockKey) -> (watch::Receiver<u64>, bool) {
        let mut inner = self.inner();
        let start = !std::mem::replace(&mut inner.looking, true);
        let watched =
            inner.keys.entry(key.clone()).or_insert_with(|| Watched { revision: 0, moves: watch::Sender::new(0) });
        (watched.moves.subscribe(), start)
    }

    /// Wakes a key's watchers unless `revision` was already announced.
    pub(super) fn moved(&self, key: &LockKey, revision: i64) {
        if let Some(watched) = self.inner().keys.get_mut(key).filter(|watched| watched.revision < revision) {
            watched.revision = revision;
            watched.moves.send_modify(|count| *count += 1);
        }
    }

    /// Wakes a key's watchers and restarts its revisions at 0.
    pub(super) fn went_back(&self, key: &LockKey) {
        if let Some(watched) = self.inner().keys.get_mut(key) {
            watched.revision = 0;
            watched.moves.send_modify(|count| *count += 1);
        }
    }

    /// Returns the watched keys.
    pub(super) fn keys(&self) -> Vec<LockKey> {
        self.inner().keys.keys().cloned().collect()
    }

    /// Returns true if a key is watched.
    pub(super) fn watches(&self, key: &LockKey) -> bool {
        self.inner().keys.contains_key(key)
    }

    /// Wakes all watchers because the store cannot be watched.
    pub(super) fn wake_all(&self) {
        for watched in self.inner().keys.values() {
            watched.moves.send_modify(|count| *count += 1);
        }
    }

    /// Removes keys without an open watch. Returns true if that was the last key; the change task
    /// then stops until the next watcher starts it again.
    pub(super) fn nobody_left(&self) -> bool {
        let mut inner = self.inner();
        inner.keys.retain(|_, watched| watched.moves.receiver_count() > 0);
        inner.looking = !inner.keys.is_empty();
        !inner.looking
    }
}

/// The task that looks for other processes' changes. It runs while watchers exist.
#[derive(Debug)]
pub(super) struct ChangeTask {
    runtime: Handle,
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl ChangeTask {
    /// Returns a task handle for the current runtime.
    pub(super) fn new() -> Self {
        Self { runtime: Handle::current(), stop: CancellationToken::new(), task: Mutex::default() }
    }

    /// Returns the token that ends the task when the store is closed.
    pub(super) fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    fn task(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a key, and starts the task for the first watcher.
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
