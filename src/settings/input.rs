//! What was written.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    backend::{
        cluster_api::MachineName,
        plug::{BackendPlugin, Block, plugins},
    },
    maintenance::window::WindowSpec,
};

/// Everything that can be configured, as it was written.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Where records live.
    pub coordination_url: Option<String>,
    /// Whether that store is opened to be migrated, also with a schema that is too old for this
    /// version.
    pub migrating: bool,
    /// Whether an embedded store that is not there yet stays so: what would be written is forgotten
    /// with the process.
    pub makes_no_store: bool,
    /// Whose maintenances these are.
    pub owner: Option<String>,
    /// How this run is called.
    pub run: Option<String>,
    /// After how long a waiter gains one step of priority.
    pub aging: Option<Duration>,
    /// For how many days the store keeps history; 0: forever.
    pub history_days: Option<u32>,
    /// Windows by name.
    pub windows: BTreeMap<String, WindowSpec>,
    /// Whether owners are not asked.
    pub always_perform_maintenance: bool,
    /// How long an operating system may take to shut down.
    pub graceful_shutdown_timeout: Option<Duration>,
    /// How long a forced power change may take.
    pub power_timeout: Option<Duration>,
    /// An authority trusted for images and readiness URLs.
    pub image_ca_certificate_file: Option<String>,
    /// How servers are reached.
    pub backend: BackendInput,
    /// The Kubernetes Nodes that run on the servers.
    pub node_leases: Option<NodeLeasesInput>,
    /// How those are drained.
    pub kubernetes_node: Option<KubernetesNodeInput>,
    /// The Machines of Cluster API that the servers are.
    pub cluster_api: Option<ClusterApiInput>,
}

/// A backend and its block.
#[derive(Clone, Debug)]
pub struct BackendInput {
    /// The backend.
    pub plugin: &'static dyn BackendPlugin,
    /// Its block, as it was written.
    pub block: Block,
}

impl Default for BackendInput {
    /// The first backend, as its environment variables configure it.
    fn default() -> Self {
        Self { plugin: plugins()[0], block: Block::default() }
    }
}

/// Which Machines of Cluster API the servers are, as it was written.
#[derive(Clone, Debug, Default)]
pub struct ClusterApiInput {
    /// The Machine of a server, by the server's name.
    pub machines: BTreeMap<String, MachineName>,
    /// The kubeconfig file of the management cluster.
    pub kubeconfig: Option<String>,
    /// Which of its contexts.
    pub context: Option<String>,
    /// The kubeconfig file of the workload cluster.
    pub workload_kubeconfig: Option<String>,
    /// Which of its contexts.
    pub workload_context: Option<String>,
    /// How long a Node may take to be Ready again.
    pub ready_timeout: Option<Duration>,
}

/// Which Kubernetes Nodes run on which servers, as it was written.
#[derive(Clone, Debug, Default)]
pub struct NodeLeasesInput {
    /// The Node of a server, by the server's name.
    pub nodes: BTreeMap<String, String>,
    /// Whether a maintenance takes the Lease, and does not only wait until no other component holds
    /// it.
    pub take: bool,
    /// The namespace of the Leases.
    pub namespace: Option<String>,
    /// The kubeconfig file of their cluster.
    pub kubeconfig: Option<String>,
    /// Which of its contexts.
    pub context: Option<String>,
}

/// Which Kubernetes Nodes are drained for which servers, as it was written.
#[derive(Clone, Debug, Default)]
pub struct KubernetesNodeInput {
    /// The Node of a server, by the server's name.
    pub nodes: BTreeMap<String, String>,
    /// The kubeconfig file of their cluster.
    pub kubeconfig: Option<String>,
    /// Which of its contexts.
    pub context: Option<String>,
    /// How long evicting may take.
    pub drain_timeout: Option<Duration>,
    /// How long a Node may take to be Ready again.
    pub ready_timeout: Option<Duration>,
    /// Whether Pods are evicted whose `emptyDir` volumes are lost with them.
    pub delete_emptydir_data: bool,
    /// Whether Pods are evicted that no controller starts again.
    pub force: bool,
}
