//! A copy of all objects of a kind: one list and one watch, regardless of the number of readers.

use std::{fmt, sync::Arc, time::Duration};

use kube::core::{ApiResource, DynamicObject};
use tokio::{
    sync::{OnceCell, watch},
    task::AbortHandle,
};

use super::{
    Cluster, ClusterError,
    follow::{KindCache, Replica, WatchState},
};
use crate::clock::within;

/// How long a reader waits for the first list.
const PATIENCE: Duration = Duration::from_secs(15);

/// A local copy of a kind's objects. Sends no request before the first reader.
pub struct Mirror {
    copy: Arc<Replica>,
    task: OnceCell<AbortHandle>,
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror").field("of", &self.copy.request("watch").to_string()).finish_non_exhaustive()
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.close();
    }
}

impl Mirror {
    /// Returns a kind's mirror, in one namespace or in all.
    #[must_use]
    pub fn new(cluster: Cluster, kind: ApiResource, namespace: Option<String>) -> Self {
        Self { copy: Arc::new(Replica::new(cluster, kind, namespace, None)), task: OnceCell::new() }
    }

    /// Returns a mirror for the objects in all namespaces that a field selector matches.
    #[must_use]
    pub fn selected(cluster: Cluster, kind: ApiResource, fields: String) -> Self {
        Self { copy: Arc::new(Replica::new(cluster, kind, None, Some(fields))), task: OnceCell::new() }
    }

    /// Adds an index by the text at a JSON pointer: see [`Self::by`].
    #[must_use]
    pub fn indexed(self, pointer: &'static str) -> Self {
        self.copy.known().pointer = Some(pointer);
        self
    }

    /// Returns the objects with this text at the pointer of [`Self::indexed`].
    pub async fn by(&self, text: &str) -> Result<Vec<Arc<DynamicObject>>, ClusterError> {
        self.look(|known| known.with(text)).await
    }

    /// Returns the change counter's receiver.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.copy.changes.subscribe()
    }

    /// Ends the watch.
    pub fn close(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    /// Returns all objects.
    ///
    /// # Errors
    /// The objects cannot be read now. An outdated copy is never returned.
    pub async fn all(&self) -> Result<Vec<Arc<DynamicObject>>, ClusterError> {
        self.look(|known| known.objects.values().cloned().collect()).await
    }

    /// Returns an object.
    pub async fn get(&self, namespace: Option<&str>, name: &str) -> Result<Option<Arc<DynamicObject>>, ClusterError> {
        let key = (namespace.map(str::to_owned), name.to_owned());
        self.look(|known| known.objects.get(&key).cloned()).await
    }

    async fn look<T>(&self, pick: impl Fn(&KindCache) -> T + Send) -> Result<T, ClusterError> {
        self.task.get_or_try_init(|| self.start()).await?;
        match within(PATIENCE, self.picked(pick)).await {
            Some(picked) => picked,
            None => Err(ClusterError::silence(self.copy.request("list"), &self.copy.cluster.address(), PATIENCE)),
        }
    }

    /// After a failure, one new attempt serves all current waiters, because a reopened watch would
    /// not report it.
    async fn picked<T>(&self, pick: impl Fn(&KindCache) -> T + Send) -> Result<T, ClusterError> {
        let mut changes = self.copy.changes.subscribe();
        let before = self.copy.known().failures;
        loop {
            changes.borrow_and_update();
            {
                let known = self.copy.known();
                match &known.state {
                    WatchState::Watching => return Ok(pick(&known)),
                    WatchState::Failed(problem) if known.failures != before => return Err(problem.clone()),
                    WatchState::Failed(_) => self.copy.again.notify_one(),
                    WatchState::Asking => {}
                }
            }
            // The sender lives as long as this mirror.
            let _ = changes.changed().await;
        }
    }

    async fn start(&self) -> Result<AbortHandle, ClusterError> {
        // The first reader receives a configuration error, and the next reader tries again.
        self.copy.cluster.client().await?;
        Ok(tokio::spawn(Arc::clone(&self.copy).keep()).abort_handle())
    }
}
