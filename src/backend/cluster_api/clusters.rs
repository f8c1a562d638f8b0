//! Access to both clusters: one list and one watch per kind, regardless of the number of servers.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::{
    backend::{
        BackendError, ExternalRequestRef,
        cluster::{self, annotation},
    },
    clock::Clock,
    kubernetes::{ClusterError, Mirror, RequestInfo},
};

use super::{
    ClusterApiSettings, ID, MachineName,
    gate::MACHINE,
    machine::{Machine, OUR_SERVER, replaces_by_hand},
    metal3_machines::Metal3Machines,
};

pub(super) const GROUP: &str = "cluster.x-k8s.io";
/// The supported versions, newest first.
pub(super) const VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

pub(super) fn meaning(problem: ClusterError) -> BackendError {
    cluster::error(problem, |_| None)
}

/// One configuration's clusters.
pub(super) struct Clusters {
    pub(super) settings: ClusterApiSettings,
    pub(super) clock: Arc<dyn Clock>,
    kind: OnceCell<ApiResource>,
    /// The UIDs of management and workload cluster, if roles allow reading them.
    uids: OnceCell<(Option<String>, Option<String>)>,
    machines: Mutex<BTreeMap<String, Arc<Mirror>>>,
    pub(super) nodes: Mirror,
    pub(super) metal3_machines: Metal3Machines,
}

impl fmt::Debug for Clusters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clusters").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Clusters {
    pub(super) fn new(settings: ClusterApiSettings, clock: Arc<dyn Clock>) -> Self {
        Self {
            nodes: Mirror::new(settings.workload.clone(), ApiResource::erase::<core::Node>(&()), None),
            metal3_machines: Metal3Machines::new(settings.management.clone()),
            settings,
            clock,
            kind: OnceCell::new(),
            uids: OnceCell::new(),
            machines: Mutex::default(),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the Machine kind in the newest version that both sides support.
    pub(super) async fn kind(&self) -> Result<&ApiResource, BackendError> {
        let management = &self.settings.management;
        let found = self.kind.get_or_try_init(|| async {
            let about = RequestInfo { verb: "get", resource: GROUP, namespace: None, name: None };
            let groups = management.call(about, |client| async move { client.list_api_groups().await });
            let groups = groups.await.map_err(meaning)?;
            let group = groups.groups.into_iter().find(|group| group.name == GROUP);
            let served: Vec<String> = group.into_iter().flat_map(|it| it.versions).map(|it| it.version).collect();
            let version = VERSIONS.into_iter().find(|version| served.iter().any(|it| it == version));
            let version = version.ok_or_else(|| BackendError::Unsupported {
                address: management.address().into(),
                what: format!("it serves no Machines of {GROUP} in {}", VERSIONS.join(" or ")).into(),
            })?;
            Ok(ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, version, "Machine")))
        });
        found.await
    }

    pub(super) async fn uids(&self) -> Result<&(Option<String>, Option<String>), BackendError> {
        let ClusterApiSettings { management, workload, .. } = &self.settings;
        let ask = || async { Ok((cluster::uid(management, meaning).await?, cluster::uid(workload, meaning).await?)) };
        self.uids.get_or_try_init(ask).await
    }

    /// Returns a namespace's Machines.
    pub(super) async fn machines(&self, namespace: &str) -> Result<Arc<Mirror>, BackendError> {
        let kind = self.kind().await?;
        let mut known = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            let (cluster, kind) = (self.settings.management.clone(), kind.clone());
            Arc::new(Mirror::new(cluster, kind, Some(namespace.to_owned())))
        };
        Ok(Arc::clone(known.entry(namespace.to_owned()).or_insert_with(new)))
    }

    /// Returns a Machine. With `fresh`, it is not older than this call; otherwise it is the watch's
    /// last version.
    pub(super) async fn machine(
        &self,
        of: &MachineName,
        fresh: bool,
    ) -> Result<Option<Arc<DynamicObject>>, BackendError> {
        let MachineName { namespace, name } = of;
        if fresh {
            let got = cluster::now(&self.settings.management, self.kind().await?, Some(namespace), name).await;
            return Ok(got.map_err(|problem| cluster::unserved(problem).unwrap_or_else(meaning))?.map(Arc::new));
        }
        self.machines(namespace).await?.get(Some(namespace), name).await.map_err(meaning)
    }

    /// Returns true if an outdated Machine stays until a person acts; false without permission to
    /// read its MachineDeployment.
    pub(super) async fn stays_outdated(&self, machine: Machine<'_>) -> Result<bool, BackendError> {
        let Some(deployment) = machine.deployment().filter(|_| machine.is_outdated()) else { return Ok(false) };
        let version = &self.kind().await?.version;
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, version, "MachineDeployment"));
        let namespace = machine.0.metadata.namespace.as_deref();
        match cluster::now(&self.settings.management, &kind, namespace, deployment).await {
            Ok(found) => Ok(found.is_some_and(|found| replaces_by_hand(&found))),
            Err(ClusterError::Forbidden { .. }) => Ok(false),
            Err(problem) => Err(meaning(problem)),
        }
    }

    /// Returns a workload cluster's Node; `fresh` as in [`Self::machine`].
    pub(super) async fn node(&self, name: &str, fresh: bool) -> Result<Option<Arc<DynamicObject>>, BackendError> {
        if fresh {
            let kind = ApiResource::erase::<core::Node>(&());
            let got = cluster::now(&self.settings.workload, &kind, None, name).await;
            return Ok(got.map_err(meaning)?.map(Arc::new));
        }
        self.nodes.get(None, name).await.map_err(meaning)
    }

    /// Patches a Machine if it has not changed since it was read.
    pub(super) async fn patch(&self, read: &DynamicObject, change: Value) -> Result<(), BackendError> {
        let kind = self.kind().await?;
        cluster::patched(&self.settings.management, kind, read, change, meaning).await.map(drop)
    }

    /// Lists our requests on Machines of all namespaces, or of the configured namespaces without
    /// permission for all.
    pub(super) async fn requests(&self) -> Result<Vec<ExternalRequestRef>, BackendError> {
        let named = self.settings.machines.values().map(|machine| machine.namespace.clone());
        let named = named.chain(self.settings.namespace.clone());
        let named: std::collections::BTreeSet<String> = named.collect();
        let (management, kind) = (&self.settings.management, self.kind().await?);
        let mut found = Vec::new();
        match cluster::list(management, kind, None).await.map_err(meaning) {
            Ok(all) => return Ok(all.iter().filter_map(request).collect()),
            // The role is limited to some namespaces.
            Err(BackendError::Denied { .. }) if !named.is_empty() => {}
            Err(BackendError::Denied { message }) => {
                return Err(BackendError::Denied {
                    message: format!("{message}. Set METAL_CLUSTER_API_NAMESPACE to the namespace of the Machines")
                        .into(),
                });
            }
            Err(error) => return Err(error),
        }
        for namespace in named {
            let all = cluster::list(management, kind, Some(&namespace)).await.map_err(meaning)?;
            found.extend(all.iter().filter_map(request));
        }
        Ok(found)
    }
}

/// Reads our request from a Machine, whichever maintenance created it.
pub(super) fn request(object: &DynamicObject) -> Option<ExternalRequestRef> {
    let machine = Machine(object);
    let author = machine.author()?;
    let server = annotation(object, OUR_SERVER).map(str::to_owned).or_else(|| Some(machine.hook()?.server))?;
    Some(ExternalRequestRef {
        store: author.store,
        uid: author.uid,
        name: format!("the maintenance of {machine}"),
        server,
        parks: true,
        gate: Some(ID),
        memory: [(MACHINE.to_owned(), machine.place())].into(),
    })
}
