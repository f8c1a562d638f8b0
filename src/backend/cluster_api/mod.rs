//! Gate for Cluster API with SAP's maintenance controller, for servers of any backend.
//!
//! We label the server's Machine `requested`. The runtime extension notifies the workload cluster's
//! maintenance controller, which drains the Node by its own rules. The extension then labels the
//! Machine `approved`, and the maintenance can start. We remove the label after the server runs
//! again and its Node is Ready. The request ends when the Node has lost both labels.
//!
//! The label lacks an author and the system lacks a queue. Our annotations, written in the same
//! patch, identify the requester. Sources: sapcc/runtime-extension-maintenance-controller at
//! 39b2933, Cluster API v1.11, cluster-api-provider-metal3 at 2f6d76b.

mod change;
mod clusters;
mod gate;
mod machine;
mod metal3_machines;
mod plug;
mod standing;
#[cfg(test)]
mod testing;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::clock::Clock;
use crate::kubernetes::Cluster;

use super::{BackendError, ExternalRequestRef, Gate, GateKind, Machine};
use clusters::Clusters;
use gate::MachineGate;

pub use plug::{NAMESPACE, Plugin};

/// The gate's name in records and in the provider block.
pub const ID: &str = "cluster_api";

/// The annotation key with which the runtime extension keeps an approved `BareMetalHost` off, if it
/// runs with `--enable-metal3-maintenance` (`metal3/machine_controller.go:68-73`).
pub const EXTENSION_KEY: &str = "reboot.metal3.io/runtime-extension-maintenance-controller";

/// A Machine's namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MachineName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl MachineName {
    /// Parses `namespace/name`; `None` for anything else.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        let whole = !namespace.is_empty() && !name.is_empty() && !name.contains('/');
        whole.then(|| Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

impl std::fmt::Display for MachineName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The gate's settings.
#[derive(Clone, Debug)]
pub struct ClusterApiSettings {
    /// The cluster with the Machines.
    pub management: Cluster,
    /// The cluster with their Nodes.
    pub workload: Cluster,
    /// Each server's Machine. With `follows`, Metal3 hosts do not need an entry: their consumers
    /// lead to the Machines.
    pub machines: BTreeMap<String, MachineName>,
    /// True if the gate is configured, so that servers without an entry are looked up too.
    pub follows: bool,
    /// True if our requests are listed, even without configured servers: the command line withdraws
    /// other runs' requests.
    pub lists: bool,
    /// An additional namespace to search if the role cannot list Machines in all namespaces.
    pub namespace: Option<String>,
    /// How long a previously Ready Node can take to become Ready again.
    pub ready_timeout: Duration,
}

/// The gates of all servers.
#[derive(Debug)]
pub struct ClusterApi(Arc<Clusters>);

impl ClusterApi {
    /// Returns the gates without sending a request.
    #[must_use]
    pub fn new(settings: ClusterApiSettings, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Clusters::new(settings, clock)))
    }
}

#[async_trait]
impl GateKind for ClusterApi {
    fn id(&self) -> &'static str {
        ID
    }

    fn of(&self, server: &str, machine: Option<Arc<dyn Machine>>) -> Arc<dyn Gate> {
        Arc::new(MachineGate { clusters: Arc::clone(&self.0), server: server.to_owned(), machine })
    }

    async fn requests(&self) -> Option<Result<Vec<ExternalRequestRef>, BackendError>> {
        let settings = &self.0.settings;
        if !settings.lists {
            return None;
        }
        Some(self.0.requests().await)
    }
}
