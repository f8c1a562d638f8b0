//! The objects of one cluster: one list and one watch for each kind, and the few writes that we
//! make.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use k8s_openapi::ByteString;
use kube::{
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    core::{ApiResource, DynamicObject},
};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{
    backend::{
        BackendError, before_change, cluster,
        redfish::{Clients, Trust},
    },
    clock::Clock,
    kubernetes::{Cluster, ClusterError, Mirror, ResourceRef},
};

use super::{
    MetalOperatorSettings,
    discovery::{ClusterFeatures, discover},
    errors::error,
    objects::{MANAGER, METAL, READINESS, name, namespace, no_server, resource},
};

/// Contents that the configuration gave to this process, by their SHA-256: they are never part of a
/// record.
#[derive(Debug, Default)]
pub(super) struct IgnitionCache(Mutex<HashMap<String, SecretString>>);

impl IgnitionCache {
    /// Keeps a content for as long as the process lives.
    pub(super) fn put(&self, sha256: String, content: SecretString) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(sha256, content);
    }

    fn get(&self, sha256: &str) -> Option<SecretString> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(sha256).cloned()
    }
}

/// One cluster and what is known of it.
pub(super) struct ClusterObjects {
    pub(super) cluster: Cluster,
    /// The cluster whose Nodes run on the servers.
    pub(super) nodes: Cluster,
    /// Where our own objects are.
    pub(super) namespace: String,
    pub(super) shelf: IgnitionCache,
    pub(super) trust: Trust,
    /// Those of all BMCs.
    pub(super) clients: Clients,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) servers: Mirror,
    pub(super) claims: Mirror,
    pub(super) boots: Mirror,
    /// Every `ServerReadinessRule`.
    pub(super) rules: Mirror,
    /// Every `ServerWiring`, by its server.
    pub(super) wirings: Mirror,
    maintenances: OnceCell<Mirror>,
    found: OnceCell<ClusterFeatures>,
    uid: OnceCell<Option<String>>,
    namespace_exists: OnceCell<Option<bool>>,
}

impl fmt::Debug for ClusterObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

/// Where a `ServerMaintenance` names its server.
const SERVER: &str = "/spec/serverRef/name";

impl ClusterObjects {
    pub(super) fn new(settings: MetalOperatorSettings, clock: Arc<dyn Clock>) -> Self {
        let MetalOperatorSettings { cluster, namespace, trust, nodes } = settings;
        let mirror = |kind| Mirror::new(cluster.clone(), resource(METAL, kind), None);
        Self {
            servers: mirror("Server"),
            claims: mirror("ServerClaim"),
            boots: mirror("ServerBootConfiguration"),
            rules: mirror("ServerReadinessRule"),
            wirings: Mirror::new(cluster.clone(), resource(READINESS, "ServerWiring"), None).indexed(SERVER),
            maintenances: OnceCell::new(),
            found: OnceCell::new(),
            uid: OnceCell::new(),
            namespace_exists: OnceCell::new(),
            nodes: nodes.unwrap_or_else(|| cluster.clone()),
            cluster,
            namespace,
            shelf: IgnitionCache::default(),
            trust,
            clients: Clients::default(),
            clock,
        }
    }

    /// What the cluster has. Asked once; again after a failure.
    pub(super) async fn found(&self) -> Result<&ClusterFeatures, BackendError> {
        self.found
            .get_or_try_init(|| async {
                match discover(&self.cluster).await.map_err(error)? {
                    Ok(found) => Ok(found),
                    Err(what) => Err(BackendError::Missing { address: self.cluster.address(), what }),
                }
            })
            .await
    }

    /// The UID of the cluster's namespace `kube-system`, which stands for the cluster; `None` where
    /// a role does not let it be read. Asked once; again after a failure.
    pub(super) async fn uid(&self) -> Result<Option<String>, BackendError> {
        let unserved = |problem| cluster::unserved(problem).unwrap_or_else(error);
        let ask = || cluster::uid(&self.cluster, unserved);
        self.uid.get_or_try_init(ask).await.cloned()
    }

    /// Whether the namespace of our own objects exists; `None` where a role does not let that be
    /// read. For a plan.
    pub(super) async fn namespace_exists(&self) -> Result<Option<bool>, BackendError> {
        let ask = || async {
            match self.now(&resource("", "Namespace"), None, &self.namespace).await {
                Ok(namespace) => Ok(Some(namespace.is_some())),
                Err(BackendError::Denied { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        self.namespace_exists.get_or_try_init(ask).await.copied()
    }

    /// All `ServerMaintenance` of the group that is used; `None` where there is none.
    pub(super) async fn maintenances(&self) -> Result<Option<(&Mirror, ApiResource)>, BackendError> {
        let Some(group) = self.found().await?.group() else { return Ok(None) };
        let kind = resource(group, "ServerMaintenance");
        let mirror = self
            .maintenances
            .get_or_init(|| async { Mirror::new(self.cluster.clone(), kind.clone(), None).indexed(SERVER) })
            .await;
        Ok(Some((mirror, kind)))
    }

    pub(super) fn close(&self) {
        for mirror in [&self.servers, &self.claims, &self.boots, &self.rules, &self.wirings] {
            mirror.close();
        }
        if let Some(mirror) = self.maintenances.get() {
            mirror.close();
        }
    }

    /// One object as it is now (`fresh`), or as the watch told last.
    pub(super) async fn get(
        &self,
        mirror: &Mirror,
        kind: &ApiResource,
        namespace: Option<&str>,
        name: &str,
        fresh: bool,
    ) -> Result<Option<Arc<DynamicObject>>, BackendError> {
        if fresh {
            Ok(self.now(kind, namespace, name).await?.map(Arc::new))
        } else {
            mirror.get(namespace, name).await.map_err(error)
        }
    }

    /// One object as it is now.
    pub(super) async fn now(
        &self,
        kind: &ApiResource,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<DynamicObject>, BackendError> {
        self.now_in(&self.cluster, kind, namespace, name).await
    }

    /// Reads an object of one of the clusters.
    pub(super) async fn now_in(
        &self,
        cluster: &Cluster,
        kind: &ApiResource,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<DynamicObject>, BackendError> {
        cluster::now(cluster, kind, namespace, name)
            .await
            .map_err(|problem| cluster::unserved(problem).unwrap_or_else(error))
    }

    /// All objects of a kind as they are now.
    pub(super) async fn list(&self, kind: &ApiResource) -> Result<Vec<DynamicObject>, BackendError> {
        cluster::list(&self.cluster, kind, None).await.map_err(error)
    }

    /// The labels of all servers, by name.
    pub(super) async fn all_servers(&self) -> Result<BTreeMap<String, BTreeMap<String, String>>, BackendError> {
        let servers = self.list(&resource(METAL, "Server")).await?;
        Ok(servers
            .into_iter()
            .filter_map(|one| Some((one.metadata.name?, one.metadata.labels.unwrap_or_default())))
            .collect())
    }

    /// A server. Fresh: not older than this call.
    pub(super) async fn server(&self, name: &str, fresh: bool) -> Result<Option<Arc<DynamicObject>>, BackendError> {
        self.get(&self.servers, &resource(METAL, "Server"), None, name, fresh).await
    }

    /// A server that has to be there.
    pub(super) async fn known(&self, name: &str, fresh: bool) -> Result<Arc<DynamicObject>, BackendError> {
        self.server(name, fresh)
            .await?
            .ok_or_else(|| BackendError::Missing { address: self.cluster.address(), what: no_server(name) })
    }

    /// A claim by `namespace/name`.
    pub(super) async fn claim(&self, reference: &str, fresh: bool) -> Result<Option<Arc<DynamicObject>>, BackendError> {
        let Some((namespace, name)) = reference.split_once('/') else { return Ok(None) };
        self.get(&self.claims, &resource(METAL, "ServerClaim"), Some(namespace), name, fresh).await
    }

    /// Changes an object on the condition that it is still the one that was read.
    pub(super) async fn patch(
        &self,
        kind: &ApiResource,
        read: &DynamicObject,
        change: Value,
    ) -> Result<(), BackendError> {
        self.patched(kind, read, change).await.map(drop)
    }

    /// Patches an object of one of the clusters.
    pub(super) async fn patch_in(
        &self,
        cluster: &Cluster,
        kind: &ApiResource,
        read: &DynamicObject,
        change: Value,
    ) -> Result<(), BackendError> {
        cluster::patched(cluster, kind, read, change, error).await.map(drop)
    }

    /// Patches like [`ClusterObjects::patch`], and returns the object as it is now.
    pub(super) async fn patched(
        &self,
        kind: &ApiResource,
        read: &DynamicObject,
        change: Value,
    ) -> Result<DynamicObject, BackendError> {
        cluster::patched(&self.cluster, kind, read, change, error).await
    }

    /// Makes an object what we want of it (server-side apply): what others say of other fields
    /// stays, and what others own is not taken from them.
    pub(super) async fn apply(
        &self,
        kind: &ApiResource,
        namespace: &str,
        name: &str,
        wanted: &Value,
    ) -> Result<DynamicObject, BackendError> {
        let params = &PatchParams::apply(MANAGER).validation_strict();
        let about = ResourceRef { kind, namespace: Some(namespace), name: Some(name) };
        before_change(&format!("patch {} {name}", kind.kind)).await?;
        let applied =
            self.cluster.ask("patch", about, |api| async move { api.patch(name, params, &Patch::Apply(wanted)).await });
        applied.await.map_err(error)
    }

    /// Deletes exactly the object that was read; `unchanged`: only as it was read. One that is gone
    /// is fine.
    pub(super) async fn delete(
        &self,
        kind: &ApiResource,
        read: &DynamicObject,
        unchanged: bool,
    ) -> Result<(), BackendError> {
        let (namespace, name) = (Some(namespace(read)), name(read));
        let resource_version = read.metadata.resource_version.clone().filter(|_| unchanged);
        let only = Preconditions { uid: read.metadata.uid.clone(), resource_version };
        let params = &DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
        before_change(&format!("delete {} {name}", kind.kind)).await?;
        let deleted = self.cluster.ask("delete", ResourceRef { kind, namespace, name: Some(name) }, |api| async move {
            api.delete(name, params).await.map(drop)
        });
        match deleted.await {
            Ok(()) | Err(ClusterError::NotFound { .. }) => Ok(()),
            // Another one of that name: ours is gone.
            Err(ClusterError::Conflict { .. }) if !unchanged => Ok(()),
            Err(problem) => Err(error(problem)),
        }
    }

    /// A Secret with what the configuration gave, owned by `owner`, so that it goes with it. Its
    /// name tells its content: one that is there is the right one.
    pub(super) async fn ignition_secret(
        &self,
        space: &str,
        secret: &str,
        sha256: &str,
        owner: Option<&DynamicObject>,
    ) -> Result<(), BackendError> {
        let kind = resource("", "Secret");
        let Some(content) = self.shelf.get(sha256) else {
            if self.secret_exists(space, secret).await? {
                return Ok(());
            }
            return Err(BackendError::Unsupported {
                address: self.cluster.address(),
                what: "the ignition's content is not known to this process: apply the configuration that has it"
                    .to_owned(),
            });
        };
        let owners = owner.map(|owner| {
            let kind = owner.types.clone().unwrap_or_default();
            json!([{
                "apiVersion": kind.api_version, "kind": kind.kind, "name": name(owner), "uid": owner.metadata.uid,
            }])
        });
        let mut wanted = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {
                "name": secret, "namespace": space, "labels": { "app.kubernetes.io/managed-by": MANAGER },
            },
            "data": { "ignition": ByteString(content.expose_secret().as_bytes().to_vec()) },
        });
        if let Some(owners) = owners {
            wanted["metadata"]["ownerReferences"] = owners;
        }
        self.apply(&kind, space, secret, &wanted).await.map(drop)
    }

    /// Whether a Secret is there. Its content is not asked for.
    async fn secret_exists(&self, space: &str, secret: &str) -> Result<bool, BackendError> {
        let about = ResourceRef { kind: &resource("", "Secret"), namespace: Some(space), name: Some(secret) };
        let got = self.cluster.ask("get", about, |api| async move { api.get_metadata_opt(secret).await });
        Ok(got.await.map_err(error)?.is_some())
    }

    /// User name and password of a BMC, from its secret.
    pub(super) async fn bmc_credentials(&self, secret: &str) -> Result<(String, SecretString), BackendError> {
        let found = self.now(&resource(METAL, "BMCSecret"), None, secret).await?;
        cluster::credentials(found.as_ref(), &self.cluster.address(), &format!("BMCSecret {secret}"))
    }

    /// Every `ServerMaintenance` for a server, as the watch told last.
    pub(super) async fn maintenances_of(&self, server: &str) -> Result<Vec<Arc<DynamicObject>>, BackendError> {
        let Some((mirror, _)) = self.maintenances().await? else { return Ok(Vec::new()) };
        mirror.by(server).await.map_err(error)
    }
}
