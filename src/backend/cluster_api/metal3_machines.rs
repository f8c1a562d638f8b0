//! Metal3Machines, which stand between a host of Metal3 and its Machine.
//!
//! One list and one watch for each namespace where the role allows it; `get` alone is enough, and
//! is then a request for each question.

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

/// The kind of Metal3 that stands between a host and its Machine.
const METAL3_MACHINE: &str = "Metal3Machine";
/// Its API group.
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// The Metal3Machines of a management cluster.
pub(super) struct Metal3Machines {
    management: Cluster,
    /// In the newest version that is served and known.
    kind: OnceCell<ApiResource>,
    first: tokio::sync::Mutex<()>,
    /// By namespace; `None`: the role does not let them be listed or watched.
    followed: Mutex<BTreeMap<String, Option<Arc<Mirror>>>>,
}

impl fmt::Debug for Metal3Machines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metal3Machines").finish_non_exhaustive()
    }
}

impl Metal3Machines {
    /// Sends no request.
    pub(super) fn new(management: Cluster) -> Self {
        Self { management, kind: OnceCell::new(), first: tokio::sync::Mutex::default(), followed: Mutex::default() }
    }

    /// The Machine that uses a host, by what its backend says of its consumer; `None`: nothing of
    /// Cluster API does. `fresh`: not older than this call, otherwise as the watch told last.
    ///
    /// # Errors
    /// The consumer is one of Cluster API, and leads to no Machine that could be asked. A Node may
    /// run on the host nevertheless: in another cluster than the one that is configured.
    pub(super) async fn owner(&self, consumer: &Consumer, fresh: bool) -> Result<Option<MachineName>, BackendError> {
        if consumer.kind != METAL3_MACHINE {
            return Ok(None);
        }
        // Questions that come together wait for the first one, which finds the version.
        let first = if self.kind.initialized() { None } else { Some(self.first.lock().await) };
        if !self.kind.initialized() {
            return self.asked(consumer).await.map(Some);
        }
        drop(first);
        if !fresh && let Some(owner) = self.followed(consumer).await? {
            return Ok(Some(owner));
        }
        // The copy may lag behind the host, so an absence is never taken from it.
        self.asked(consumer).await.map(Some)
    }

    /// The Machine of a consumer, by a request.
    async fn asked(&self, consumer: &Consumer) -> Result<MachineName, BackendError> {
        let found = self.now(consumer).await?;
        let missing = |what: &str| {
            let Consumer { kind, namespace, name } = consumer;
            BackendError::Missing {
                address: self.management.address(),
                what: format!(
                    "{kind} {namespace}/{name}, which the host names as its consumer, {what}, so that its Machine cannot be asked \
                     and its Node would not be drained. Set cluster_api.context to the management cluster of the host; where that \
                     {kind} is gone for good, remove spec.consumerRef of the host"
                ),
            }
        };
        let found = found.ok_or_else(|| missing("was not found"))?;
        machine_of(&found).ok_or_else(|| missing("has no Machine as its owner"))
    }

    /// What the copy says.
    async fn followed(&self, consumer: &Consumer) -> Result<Option<MachineName>, BackendError> {
        let Some(kind) = self.kind.get() else { return Ok(None) };
        let Consumer { namespace, name, .. } = consumer;
        let Some(mirror) = self.mirror(kind, namespace) else { return Ok(None) };
        match mirror.get(Some(namespace), name).await {
            Ok(found) => Ok(found.as_deref().and_then(machine_of)),
            Err(ClusterError::Forbidden { .. }) => {
                tracing::debug!(
                    "Metal3Machines of {namespace} are read one by one: the role does not let them be listed"
                );
                self.all().insert(namespace.clone(), None);
                Ok(None)
            }
            Err(problem) => Err(cluster::unserved(problem).unwrap_or_else(meaning)),
        }
    }

    fn all(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Option<Arc<Mirror>>>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The copy of a namespace; `None`: there can be none.
    fn mirror(&self, kind: &ApiResource, namespace: &str) -> Option<Arc<Mirror>> {
        let new = || Some(Arc::new(Mirror::new(self.management.clone(), kind.clone(), Some(namespace.to_owned()))));
        self.all().entry(namespace.to_owned()).or_insert_with(new).clone()
    }

    /// One as it is now. The first answer tells which version is served.
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
                    // Another task may have learned it meanwhile: it is the same.
                    let _ = self.kind.set(kind);
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }
}

/// The Machine that owns a Metal3Machine.
fn machine_of(object: &DynamicObject) -> Option<MachineName> {
    let mut owners = object.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.kind == "Machine" && owner.api_version.starts_with(GROUP))?;
    Some(MachineName { namespace: object.metadata.namespace.clone()?, name: owner.name.clone() })
}
