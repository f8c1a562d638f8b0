//! Metal3Machines, which link a Metal3 host to its Machine.
//!
//! If the role allows it, each namespace has one list and one watch. A role with only `get` is
//! sufficient; each lookup then sends a request.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use tokio::sync::OnceCell;

use crate::{
    backend::{BackendError, Consumer, cluster},
    kubernetes::{Cluster, ClusterError, Mirror},
};

use super::{
    MachineName,
    clusters::{GROUP, VERSIONS, meaning},
};

/// The Metal3 kind that links a host to its Machine.
const METAL3_MACHINE: &str = "Metal3Machine";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// A management cluster's Metal3Machines.
pub(super) struct Metal3Machines {
    management: Cluster,
    /// The kind in the newest version that both sides support.
    kind: OnceCell<ApiResource>,
    first: tokio::sync::Mutex<()>,
    /// Copies by namespace; `None` without permission to list or watch.
    followed: Mutex<BTreeMap<String, Option<Arc<Mirror>>>>,
}

impl fmt::Debug for Metal3Machines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metal3Machines").finish_non_exhaustive()
    }
}

impl Metal3Machines {
    /// Creates the lookup without sending a request.
    pub(super) fn new(management: Cluster) -> Self {
        Self { management, kind: OnceCell::new(), first: tokio::sync::Mutex::default(), followed: Mutex::default() }
    }

    /// Returns the Machine behind a host's consumer; `None` if the consumer is not part of Cluster
    /// API. With `fresh`, the answer is not older than this call; otherwise it is the watch's last
    /// version.
    ///
    /// # Errors
    /// The consumer belongs to Cluster API, but no Machine owns it. A Node can still run on the
    /// host, in a cluster other than the configured cluster.
    pub(super) async fn owner(&self, consumer: &Consumer, fresh: bool) -> Result<Option<MachineName>, BackendError> {
        if consumer.kind != METAL3_MACHINE {
            return Ok(None);
        }
        // Concurrent lookups wait for the first, which detects the version.
        let first = if self.kind.initialized() { None } else { Some(self.first.lock().await) };
        if !self.kind.initialized() {
            return self.asked(consumer).await.map(Some);
        }
        drop(first);
        if !fresh && let Some(owner) = self.followed(consumer).await? {
            return Ok(Some(owner));
        }
        // The copy can lag behind the host, so it never proves an absence.
        self.asked(consumer).await.map(Some)
    }

    /// Requests a consumer's Machine.
    async fn asked(&self, consumer: &Consumer) -> Result<MachineName, BackendError> {
        let found = self.now(consumer).await?;
        let missing = |what: &str| {
            let Consumer { kind, namespace, name } = consumer;
            BackendError::Missing {
                address: self.management.address().into(),
                what: format!(
                    "{kind} {namespace}/{name}, the host's consumer, {what}, so its Machine cannot be found and its \
                     Node would not be drained. Set cluster_api.context to the host's management cluster; if that \
                     {kind} was deleted, remove the host's spec.consumerRef"
                )
                .into(),
            }
        };
        let found = found.ok_or_else(|| missing("was not found"))?;
        machine_of(&found).ok_or_else(|| missing("does not belong to a Machine"))
    }

    /// Looks up a consumer's Machine in the copy.
    async fn followed(&self, consumer: &Consumer) -> Result<Option<MachineName>, BackendError> {
        let Some(kind) = self.kind.get() else { return Ok(None) };
        let Consumer { namespace, name, .. } = consumer;
        let Some(mirror) = self.mirror(kind, namespace) else { return Ok(None) };
        match mirror.get(Some(namespace), name).await {
            Ok(found) => Ok(found.as_deref().and_then(machine_of)),
            Err(ClusterError::Forbidden { .. }) => {
                tracing::debug!("the role cannot list Metal3Machines in {namespace}: they are read one by one");
                self.all().insert(namespace.clone(), None);
                Ok(None)
            }
            Err(problem) => Err(cluster::unserved(problem).unwrap_or_else(meaning)),
        }
    }

    fn all(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Option<Arc<Mirror>>>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a namespace's copy; `None` without permission.
    fn mirror(&self, kind: &ApiResource, namespace: &str) -> Option<Arc<Mirror>> {
        let new = || Some(Arc::new(Mirror::new(self.management.clone(), kind.clone(), Some(namespace.to_owned()))));
        self.all().entry(namespace.to_owned()).or_insert_with(new).clone()
    }

    /// Reads a Metal3Machine. The first answer reveals the served version.
    async fn now(&self, consumer: &Consumer) -> Result<Option<DynamicObject>, BackendError> {
        let get = async |kind: &ApiResource| {
            cluster::now(&self.management, kind, Some(&consumer.namespace), &consumer.name).await
        };
        if let Some(kind) = self.kind.get() {
            return get(kind).await.map_err(|problem| cluster::unserved(problem).unwrap_or_else(meaning));
        }
        for version in VERSIONS {
            let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(INFRASTRUCTURE, version, METAL3_MACHINE));
            match get(&kind).await {
                Err(ClusterError::NotFound { .. }) => {}
                got => {
                    let found = got.map_err(meaning)?;
                    // Another task could have set the same value.
                    let _ = self.kind.set(kind);
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }
}

/// Returns the Machine that owns a Metal3Machine.
fn machine_of(object: &DynamicObject) -> Option<MachineName> {
    let mut owners = object.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.kind == "Machine" && owner.api_version.starts_with(GROUP))?;
    Some(MachineName { namespace: object.metadata.namespace.clone()?, name: owner.name.clone() })
}
