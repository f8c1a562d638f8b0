//! A cluster's objects: one list and one watch per kind, and our writes.

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
        BackendError, before_change, cluster, cluster_block,
        redfish::{Clients, Trust},
    },
    clock::Clock,
    kubernetes::{Cluster, ClusterError, Mirror, ResourceRef},
    outbound::Route,
};

use super::{
    MetalOperatorSettings,
    discovery::{ClusterFeatures, discover},
    errors::error,
    objects::{MANAGER, METAL, READINESS, name, namespace, no_server, resource},
};

/// This process's configuration contents by SHA-256. They are never stored in records.
#[derive(Debug, Default)]
pub(super) struct IgnitionCache(Mutex<HashMap<String, SecretString>>);

impl IgnitionCache {
    /// Stores a content until the process ends.
    pub(super) fn put(&self, sha256: String, content: SecretString) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(sha256, content);
    }

    fn get(&self, sha256: &str) -> Option<SecretString> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(sha256).cloned()
    }
}

/// A cluster and its cached state.
pub(super) struct ClusterObjects {
    pub(super) cluster: Cluster,
    /// The cluster whose Nodes run on the servers.
    pub(super) nodes: Cluster,
    pub(super) namespace: String,
    pub(super) shelf: IgnitionCache,
    pub(super) trust: Trust,
    /// The addresses that can receive BMC credentials.
    pub(super) route: Route,
    /// HTTP clients shared by all BMCs.
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

/// The server name's JSON pointer in a `ServerMaintenance`.
const SERVER: &str = "/spec/serverRef/name";

impl ClusterObjects {
    pub(super) fn new(settings: MetalOperatorSettings, clock: Arc<dyn Clock>) -> Self {
        let MetalOperatorSettings { cluster, namespace, trust, bmc_networks, nodes } = settings;
        let route = cluster_block::bmc_route(
            &bmc_networks,
            &trust,
            "metal_operator.bmc_networks",
            "metal_operator.bmc_insecure = true",
        );
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
            route,
            clients: Clients::default(),
            clock,
        }
    }

    /// Returns the cluster's features, cached after the first success.
    pub(super) async fn found(&self) -> Result<&ClusterFeatures, BackendError> {
        self.found
            .get_or_try_init(|| async {
                match discover(&self.cluster).await.map_err(error)? {
                    Ok(found) => Ok(found),
                    Err(what) => {
                        Err(BackendError::Missing { address: self.cluster.address().into(), what: what.into() })
                    }
                }
            })
            .await
    }

    /// Returns the UID of the namespace `kube-system`, which identifies the cluster; `None` without
    /// permission to read it. Cached after the first success.
    pub(super) async fn uid(&self) -> Result<Option<String>, BackendError> {
        let unserved = |problem| cluster::unserved(problem).unwrap_or_else(error);
        let ask = || cluster::uid(&self.cluster, unserved);
        self.uid.get_or_try_init(ask).await.cloned()
    }

    /// Returns true if our objects' namespace exists, for a plan; `None` without permission to read
    /// it.
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

    /// Returns the `ServerMaintenance` objects of the group in use; `None` if the cluster lacks the
    /// kind.
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

    /// Returns an object, either freshly read (`fresh`) or from the watch.
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

    /// Reads an object.
    pub(super) async fn now(
        &self,
        kind: &ApiResource,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<DynamicObject>, BackendError> {
        self.now_in(&self.cluster, kind, namespace, name).await
    }

    /// Reads an object from either cluster.
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

    pub(super) async fn list(&self, kind: &ApiResource) -> Result<Vec<DynamicObject>, BackendError> {
        cluster::list(&self.cluster, kind, None).await.map_err(error)
    }

    /// Returns all servers' labels, by name.
    pub(super) async fn all_servers(&self) -> Result<BTreeMap<String, BTreeMap<String, String>>, BackendError> {
        let servers = self.list(&resource(METAL, "Server")).await?;
        Ok(servers
            .into_iter()
            .filter_map(|one| Some((one.metadata.name?, one.metadata.labels.unwrap_or_default())))
            .collect())
    }

    /// Returns a server. With `fresh`, it is not older than this call.
    pub(super) async fn server(&self, name: &str, fresh: bool) -> Result<Option<Arc<DynamicObject>>, BackendError> {
        self.get(&self.servers, &resource(METAL, "Server"), None, name, fresh).await
    }

    /// Returns a server that must exist.
    pub(super) async fn known(&self, name: &str, fresh: bool) -> Result<Arc<DynamicObject>, BackendError> {
        self.server(name, fresh).await?.ok_or_else(|| BackendError::Missing {
            address: self.cluster.address().into(),
            what: no_server(name).into(),
        })
    }

    /// Returns a claim by `namespace/name`.
    pub(super) async fn claim(&self, reference: &str, fresh: bool) -> Result<Option<Arc<DynamicObject>>, BackendError> {
        let Some((namespace, name)) = reference.split_once('/') else { return Ok(None) };
        self.get(&self.claims, &resource(METAL, "ServerClaim"), Some(namespace), name, fresh).await
    }

    /// Patches an object if it has not changed since it was read.
    pub(super) async fn patch(
        &self,
        kind: &ApiResource,
        read: &DynamicObject,
        change: Value,
    ) -> Result<(), BackendError> {
        self.patched(kind, read, change).await.map(drop)
    }

    /// Patches an object in either cluster.
    pub(super) async fn patch_in(
        &self,
        cluster: &Cluster,
        kind: &ApiResource,
        read: &DynamicObject,
        change: Value,
    ) -> Result<(), BackendError> {
        cluster::patched(cluster, kind, read, change, error).await.map(drop)
    }

    /// Patches like [`ClusterObjects::patch`] and returns the result.
    pub(super) async fn patched(
        &self,
        kind: &ApiResource,
        read: &DynamicObject,
        change: Value,
    ) -> Result<DynamicObject, BackendError> {
        cluster::patched(&self.cluster, kind, read, change, error).await
    }

    /// Applies an object (server-side apply). Other authors' fields stay, and conflicts are not
    /// forced.
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

    /// Deletes exactly the object that was read. With `unchanged`, its version must match too. An
    /// absent object counts as success.
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
            // Another object has this name, so ours no longer exists.
            Err(ClusterError::Conflict { .. }) if !unchanged => Ok(()),
            Err(problem) => Err(error(problem)),
        }
    }

    /// Creates a Secret with configuration content, owned by `owner` so that both are deleted
    /// together. Its name contains the content's hash, so an existing Secret is correct.
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
                address: self.cluster.address().into(),
                what: "this process does not have the ignition's content: apply the configuration that contains it"
                    .into(),
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

    /// Returns true if a Secret exists, without reading its content.
    async fn secret_exists(&self, space: &str, secret: &str) -> Result<bool, BackendError> {
        let about = ResourceRef { kind: &resource("", "Secret"), namespace: Some(space), name: Some(secret) };
        let got = self.cluster.ask("get", about, |api| async move { api.get_metadata_opt(secret).await });
        Ok(got.await.map_err(error)?.is_some())
    }

    /// Reads a BMC's user name and password from its secret.
    pub(super) async fn bmc_credentials(&self, secret: &str) -> Result<(String, SecretString), BackendError> {
        let found = self.now(&resource(METAL, "BMCSecret"), None, secret).await?;
        cluster::credentials(found.as_ref(), &self.cluster.address(), &format!("BMCSecret {secret}"))
    }

    /// Returns every `ServerMaintenance` for a server from the watch.
    pub(super) async fn maintenances_of(&self, server: &str) -> Result<Vec<Arc<DynamicObject>>, BackendError> {
        let Some((mirror, _)) = self.maintenances().await? else { return Ok(Vec::new()) };
        mirror.by(server).await.map_err(error)
    }
}
