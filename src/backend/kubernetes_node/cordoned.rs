//! The cordoned Nodes as refreshes see them: the first few are read one by one, more of them from a
//! list of all that are cordoned.
//!
//! A single refresh must not list the Nodes of a large cluster, and a refresh of hundreds must not
//! ask for each.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use kube::{
    api::ListParams,
    core::{ApiResource, DynamicObject},
};
use tokio::sync::Mutex;

use crate::{
    backend::cluster,
    clock::Clock,
    kubernetes::{Cluster, ClusterError},
};

use super::{nodes, request};

/// So many are read one by one in a process.
const FEW: usize = 8;

/// How long a list counts.
const FRESH: Duration = Duration::from_secs(5);

type NodesByName = Arc<BTreeMap<String, DynamicObject>>;

/// The cordoned Nodes as they were listed last.
pub(super) struct CordonedNodes {
    cluster: Cluster,
    clock: Arc<dyn Clock>,
    asked: AtomicUsize,
    last: Mutex<Option<(Duration, NodesByName)>>,
    /// Whether the role does not let Nodes be listed.
    forbidden: AtomicBool,
}

impl fmt::Debug for CordonedNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CordonedNodes").finish_non_exhaustive()
    }
}

impl CordonedNodes {
    /// Sends no request.
    pub(super) fn new(cluster: Cluster, clock: Arc<dyn Clock>) -> Self {
        Self { cluster, clock, asked: AtomicUsize::default(), last: Mutex::default(), forbidden: AtomicBool::default() }
    }

    /// A Node that was cordoned at most [`FRESH`] ago; `None`: it is to be read by itself. Whoever
    /// comes while they are listed waits for that list.
    pub(super) async fn get(&self, name: &str) -> Option<DynamicObject> {
        if self.asked.fetch_add(1, Ordering::Relaxed) < FEW || self.forbidden.load(Ordering::Relaxed) {
            return None;
        }
        let mut last = self.last.lock().await;
        if let Some((_, known)) = last.as_ref().filter(|(at, _)| self.clock.monotonic().saturating_sub(*at) < FRESH) {
            return known.get(name).cloned();
        }
        if self.forbidden.load(Ordering::Relaxed) {
            return None;
        }
        let known = match self.list().await {
            Ok(known) => known,
            Err(problem) => {
                self.forbidden.store(matches!(problem, ClusterError::Forbidden { .. }), Ordering::Relaxed);
                tracing::debug!(%problem, "Nodes are read one by one");
                return None;
            }
        };
        *last = Some((self.clock.monotonic(), Arc::clone(&known)));
        drop(last);
        known.get(name).cloned()
    }

    async fn list(&self) -> Result<NodesByName, ClusterError> {
        let (kind, params): (&ApiResource, _) = (&nodes(), &ListParams::default().fields("spec.unschedulable=true"));
        let listed = self.cluster.call(request("list", "nodes", None, None), |client| async move {
            kube::Api::<DynamicObject>::all_with(client, kind).list(params).await
        });
        let all = listed.await?.items.into_iter().map(|node| (cluster::name(&node).to_owned(), node));
        Ok(Arc::new(all.collect()))
    }
}
