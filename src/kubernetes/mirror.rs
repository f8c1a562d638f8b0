//! All objects of one kind, as a list followed by one watch: however many ask, the API server is
//! asked once.

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

/// A local copy of all objects of one kind. Nothing is asked before the first reader.
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
    /// All objects of that kind, in one namespace or in all of them.
    #[must_use]
    pub fn new(cluster: Cluster, kind: ApiResource, namespace: Option<String>) -> Self {
        Self { copy: Arc::new(Replica::new(cluster, kind, namespace, None)), task: OnceCell::new() }
    }

    /// The objects of that kind, in all namespaces, that a field selector names.
    #[must_use]
    pub fn selected(cluster: Cluster, kind: ApiResource, fields: String) -> Self {
        Self { copy: Arc::new(Replica::new(cluster, kind, None, Some(fields))), task: OnceCell::new() }
    }

    /// A mirror that also finds by the text at a JSON pointer: see [`Self::by`].
    #[must_use]
    pub fn indexed(self, pointer: &'static str) -> Self {
        self.copy.known().pointer = Some(pointer);
        self
    }

    /// Those with this text at the pointer of [`Self::indexed`]. As quick with thousands of others
    /// as without.
    pub async fn by(&self, text: &str) -> Result<Vec<Arc<DynamicObject>>, ClusterError> {
        self.look(|known| known.with(text)).await
    }

    /// Counts changes.
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

    /// All of them. An error when they cannot be read now; what was known before is not passed off
    /// as what is.
    pub async fn all(&self) -> Result<Vec<Arc<DynamicObject>>, ClusterError> {
        self.look(|known| known.objects.values().cloned().collect()).await
    }

    /// One of them.
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

    /// After a failure it is asked once more, for all who wait at that moment: a watch that is open
    /// again would not say so.
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
        // A configuration that cannot be read is told to the first reader, and read again by the
        // next one.
        self.copy.cluster.client().await?;
        Ok(tokio::spawn(Arc::clone(&self.copy).keep()).abort_handle())
    }
}
