//! A namespace's hosts: one list, one watch, and single reads.

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::{
    backend::{
        BackendError, cluster, cluster_block,
        redfish::{Clients, Trust},
    },
    clock::Clock,
    kubernetes::{Cluster, ClusterError, Mirror},
    maintenance::gate::ExternalRequest,
    outbound::Route,
};

use super::{
    Metal3Settings,
    health_checks::{self, HealthChecks},
    host::{Hold, resource},
    secrets::{Account, Secrets},
};

/// Converts a cluster error into a machine error. It cannot name an attribute, because our patches
/// combine several.
pub(super) fn error(problem: ClusterError) -> BackendError {
    cluster::error(problem, |_| None)
}

/// A namespace's hosts and the configured hold mode.
pub(super) struct Hosts {
    pub(super) cluster: Cluster,
    pub(super) namespace: String,
    pub(super) hold: Hold,
    pub(super) trust: Trust,
    /// The addresses that can receive BMC credentials.
    pub(super) route: Route,
    /// HTTP clients shared by all BMCs.
    pub(super) clients: Clients,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) settings: Metal3Settings,
    pub(super) mirror: Mirror,
    pub(super) secrets: Secrets,
    uid: OnceCell<Option<String>>,
    health_checks: OnceCell<HealthChecks>,
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosts")
            .field("cluster", &self.cluster)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Hosts {
    pub(super) fn new(settings: Metal3Settings, clock: Arc<dyn Clock>) -> Self {
        let (cluster, namespace) = (settings.cluster.clone(), settings.namespace.clone());
        Self {
            mirror: Mirror::new(cluster.clone(), resource("BareMetalHost"), Some(namespace.clone())),
            cluster,
            namespace,
            hold: settings.hold,
            trust: settings.trust.clone(),
            route: cluster_block::bmc_route(
                &settings.bmc_networks,
                &settings.trust,
                "metal3.bmc_networks",
                "metal3.bmc_insecure = true",
            ),
            clients: Clients::default(),
            clock,
            settings,
            secrets: Secrets::default(),
            uid: OnceCell::new(),
            health_checks: OnceCell::new(),
        }
    }

    /// Returns the current time, against which released hosts are judged.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns a host. With `fresh`, it is not older than this call; otherwise it is the watch's
    /// last version.
    pub(super) async fn host(&self, name: &str, fresh: bool) -> Result<Option<Arc<DynamicObject>>, BackendError> {
        if fresh {
            Ok(self.object("BareMetalHost", name).await?.map(Arc::new))
        } else {
            self.mirror.get(Some(&self.namespace), name).await.map_err(error)
        }
    }

    /// Returns a host that must exist.
    pub(super) async fn known(&self, name: &str, fresh: bool) -> Result<Arc<DynamicObject>, BackendError> {
        let missing =
            || BackendError::Missing { address: self.cluster.address().into(), what: self.absent(name).into() };
        self.host(name, fresh).await?.ok_or_else(missing)
    }

    /// Returns the message for a host that does not exist.
    pub(super) fn absent(&self, name: &str) -> String {
        format!("namespace {} does not contain BareMetalHost {name:?}", self.namespace)
    }

    /// Reads an object in the namespace.
    pub(super) async fn object(&self, kind: &str, name: &str) -> Result<Option<DynamicObject>, BackendError> {
        let got = cluster::now(&self.cluster, &resource(kind), Some(&self.namespace), name).await;
        got.map_err(|problem| cluster::unserved(problem).unwrap_or_else(error))
    }

    /// Reads an object whose kind older operators do not have.
    pub(super) async fn optional(&self, kind: &str, name: &str) -> Result<Option<DynamicObject>, BackendError> {
        match cluster::now(&self.cluster, &resource(kind), Some(&self.namespace), name).await {
            Err(ClusterError::NotFound { .. }) => Ok(None),
            got => got.map_err(error),
        }
    }

    /// Patches a host if it has not changed since it was read.
    pub(super) async fn patch(&self, read: &DynamicObject, change: Value) -> Result<(), BackendError> {
        cluster::patched(&self.cluster, &resource("BareMetalHost"), read, change, error).await.map(drop)
    }

    /// Returns all hosts from the watch's last version.
    pub(super) async fn all(&self) -> Result<Vec<Arc<DynamicObject>>, BackendError> {
        self.mirror.all().await.map_err(error)
    }

    /// Returns the UID of the namespace `kube-system`, which identifies the cluster; `None` without
    /// permission.
    pub(super) async fn uid(&self) -> Result<Option<String>, BackendError> {
        let ask = || cluster::uid(&self.cluster, error);
        self.uid.get_or_try_init(ask).await.cloned()
    }

    /// Returns the namespace's MachineHealthChecks. They are read once, because only plans show
    /// them.
    pub(super) async fn health_checks(&self) -> &HealthChecks {
        self.health_checks.get_or_init(|| health_checks::read(self)).await
    }

    pub(super) async fn credentials(&self, secret: &str) -> Result<Account, BackendError> {
        self.secrets.account(self, secret).await
    }

    /// Rejects a record from another namespace: a host with the same name here is another machine.
    pub(super) fn reaches(&self, wish: &ExternalRequest) -> Result<(), BackendError> {
        match &wish.namespace {
            Some(theirs) if *theirs != self.namespace => Err(BackendError::Elsewhere {
                message: format!(
                    "{} is a maintenance of a BareMetalHost in namespace {theirs:?}, but this configuration uses \
                     namespace {:?}: set metal3.namespace",
                    wish.id, self.namespace
                )
                .into(),
            }),
            _ => Ok(()),
        }
    }
}
