//! The hosts of one namespace: one list and one watch, and the few other reads.

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::{
    backend::{
        BackendError, cluster,
        redfish::{Clients, Trust},
    },
    clock::Clock,
    kubernetes::{Cluster, ClusterError, Mirror},
    maintenance::gate::ExternalRequest,
};

use super::{
    Metal3Settings,
    health_checks::{self, HealthChecks},
    host::{Hold, resource},
    secrets::{Account, Secrets},
};

/// A cluster's error as a machine's. Nothing of a host that we write is made from one attribute
/// alone.
pub(super) fn error(problem: ClusterError) -> BackendError {
    cluster::error(problem, |_| None)
}

/// The hosts of a namespace, and how they are held.
pub(super) struct Hosts {
    pub(super) cluster: Cluster,
    pub(super) namespace: String,
    pub(super) hold: Hold,
    pub(super) trust: Trust,
    /// Those of all BMCs.
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
            clients: Clients::default(),
            clock,
            settings,
            secrets: Secrets::default(),
            uid: OnceCell::new(),
            health_checks: OnceCell::new(),
        }
    }

    /// The time by which a host that we released is judged.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A host; fresh: not older than this call, otherwise as the watch told last.
    pub(super) async fn host(&self, name: &str, fresh: bool) -> Result<Option<Arc<DynamicObject>>, BackendError> {
        if fresh {
            Ok(self.object("BareMetalHost", name).await?.map(Arc::new))
        } else {
            self.mirror.get(Some(&self.namespace), name).await.map_err(error)
        }
    }

    /// A host that has to be there.
    pub(super) async fn known(&self, name: &str, fresh: bool) -> Result<Arc<DynamicObject>, BackendError> {
        let missing = || BackendError::Missing { address: self.cluster.address(), what: self.absent(name) };
        self.host(name, fresh).await?.ok_or_else(missing)
    }

    /// Words for a host that does not exist.
    pub(super) fn absent(&self, name: &str) -> String {
        format!("namespace {} has no BareMetalHost {name:?}", self.namespace)
    }

    /// An object of the namespace as it is now.
    pub(super) async fn object(&self, kind: &str, name: &str) -> Result<Option<DynamicObject>, BackendError> {
        let got = cluster::now(&self.cluster, &resource(kind), Some(&self.namespace), name).await;
        got.map_err(|problem| cluster::unserved(problem).unwrap_or_else(error))
    }

    /// An object of a kind that older operators do not have.
    pub(super) async fn optional(&self, kind: &str, name: &str) -> Result<Option<DynamicObject>, BackendError> {
        match cluster::now(&self.cluster, &resource(kind), Some(&self.namespace), name).await {
            Err(ClusterError::NotFound { .. }) => Ok(None),
            got => got.map_err(error),
        }
    }

    /// Changes a host on the condition that it is still the one that was read.
    pub(super) async fn patch(&self, read: &DynamicObject, change: Value) -> Result<(), BackendError> {
        cluster::patched(&self.cluster, &resource("BareMetalHost"), read, change, error).await.map(drop)
    }

    /// All hosts, as the watch told last.
    pub(super) async fn all(&self) -> Result<Vec<Arc<DynamicObject>>, BackendError> {
        self.mirror.all().await.map_err(error)
    }

    /// The UID of the namespace `kube-system`, which stands for the cluster; `None` where a role
    /// does not let it be read.
    pub(super) async fn uid(&self) -> Result<Option<String>, BackendError> {
        let ask = || cluster::uid(&self.cluster, error);
        self.uid.get_or_try_init(ask).await.cloned()
    }

    /// The MachineHealthChecks of the namespace, read once: only plans tell of them.
    pub(super) async fn health_checks(&self) -> &HealthChecks {
        self.health_checks.get_or_init(|| health_checks::read(self)).await
    }

    /// User name and password of a BMC.
    pub(super) async fn credentials(&self, secret: &str) -> Result<Account, BackendError> {
        self.secrets.account(self, secret).await
    }

    /// Refuses a record whose hosts are in another namespace: a host of that name here is another
    /// machine.
    pub(super) fn reaches(&self, wish: &ExternalRequest) -> Result<(), BackendError> {
        match &wish.namespace {
            Some(theirs) if *theirs != self.namespace => Err(BackendError::Elsewhere {
                message: format!(
                    "{} is a maintenance of a BareMetalHost in namespace {theirs:?}, and this configuration reaches namespace \
                     {:?}: set metal3.namespace",
                    wish.id, self.namespace
                ),
            }),
            _ => Ok(()),
        }
    }
}
