//! Cluster API with SAP's maintenance controller: a gate before the server of any backend.
//!
//! The Machine whose Node runs on a server is labelled `requested`; the runtime extension tells the
//! maintenance controller of the workload cluster, which drains the Node by its own rules, and
//! labels the Machine `approved`. Then the server is taken. The label is removed once the server is
//! back and its Node Ready, and the request is over once both labels of the Node are gone.
//!
//! The label has no author and the system no queue: our annotations, written in the same patch, say
//! whose request it is. Facts: sapcc/runtime-extension-maintenance-controller at 39b2933, Cluster
//! API v1.11, cluster-api-provider-metal3 at 2f6d76b.

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

/// The name of this gate, as records and the provider block have it.
pub const ID: &str = "cluster_api";

/// The key of the annotation with which the runtime extension keeps a `BareMetalHost` off from its
/// approval on, where it is run with `--enable-metal3-maintenance`
/// (`metal3/machine_controller.go:68-73`).
pub const EXTENSION_KEY: &str = "reboot.metal3.io/runtime-extension-maintenance-controller";

/// A Machine, by its namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MachineName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl MachineName {
    /// Reads `namespace/name`; `None`: it is not that.
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

/// What the configuration says of it.
#[derive(Clone, Debug)]
pub struct ClusterApiSettings {
    /// The cluster with the Machines.
    pub management: Cluster,
    /// The cluster with their Nodes.
    pub workload: Cluster,
    /// The Machine of each server; those of Metal3 hosts are found through their consumers where
    /// `follows` says so.
    pub machines: BTreeMap<String, MachineName>,
    /// Whether the gate is configured, so that the Machine of a server that is not named is looked
    /// for.
    pub follows: bool,
    /// Whether requests of ours are looked for, also where no server is named: the command line
    /// withdraws those of other runs.
    pub lists: bool,
    /// Where they are looked for if the role lets the Machines of some namespaces be listed only,
    /// beside the namespaces of `machines`.
    pub namespace: Option<String>,
    /// How long a Node that was Ready before may take to be Ready again.
    pub ready_timeout: Duration,
}

/// The gate of each server.
#[derive(Debug)]
pub struct ClusterApi(Arc<Clusters>);

impl ClusterApi {
    /// Sends no request.
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
