//! Stand-ins for SAP's runtime extension and maintenance-controller, which answer for the Machines
//! of Cluster API.
//!
//! Nothing here is their code. What they do was read from their sources and compared with what the
//! real ones did (`tests/cluster_api/table.txt`). They get the same events as the real ones and
//! nothing more, they judge by what their caches hold, and they write without a condition, as the
//! real ones do. Cluster API itself does nothing here: [`world::World`] makes its objects and plays
//! the part of its controllers where a test asks for it.

pub mod extension;
pub mod informer;
pub mod journal;
pub mod maintenance;
mod metal3_reboot;
pub mod objects;
pub mod world;

/// Machine label: the runtime extension acts on this Machine.
pub const ENABLED: &str = "runtime-extension-maintenance-controller.cloud.sap/enabled";
/// Machine label: `requested`, then `approved`.
pub const MAINTENANCE: &str = "runtime-extension-maintenance-controller.cloud.sap/maintenance";
/// Node label of the extension: the Machine has a maintenance.
pub const MACHINE_MAINTENANCE: &str = "runtime-extension-maintenance-controller.cloud.sap/machine-maintenance";
/// Node label of the maintenance-controller's profile: the Node is drained.
pub const APPROVE_MAINTENANCE: &str = "runtime-extension-maintenance-controller.cloud.sap/approve-maintenance";
/// Node label of the extension: the Machine is being deleted.
pub const MACHINE_DELETED: &str = "runtime-extension-maintenance-controller.cloud.sap/machine-deleted";
/// Node label of a profile: the Machine may be deleted.
pub const APPROVE_DELETION: &str = "runtime-extension-maintenance-controller.cloud.sap/approve-deletion";
/// Machine annotation of the extension: deletion waits before the drain.
pub const PRE_DRAIN: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io/maintenance-controller";
/// Host annotation of the extension, where it was started for Metal3.
pub const REBOOT: &str = "reboot.metal3.io/runtime-extension-maintenance-controller";
/// Node label of the maintenance-controller: what its profiles are at.
pub const STATE: &str = "cloud.sap/maintenance-state";
/// Node label: the profiles of the maintenance-controller for this Node.
pub const PROFILE: &str = "cloud.sap/maintenance-profile";
/// Node annotation in which the maintenance-controller keeps what it knows.
pub const DATA: &str = "cloud.sap/maintenance-data";
/// Node label that the profiles of these tests look at: while it is there, nothing is approved.
pub const WITHHELD: &str = "tests.example/withheld";
/// Node label: the world that a Node belongs to. Nodes have no namespace.
pub const WORLD: &str = "tests.example/world";
/// The profile that leaves its approval on the Node.
pub const KEEPS: &str = "keeps";

/// Node annotations of Cluster API.
pub const MACHINE: &str = "cluster.x-k8s.io/machine";
pub const CLUSTER_NAMESPACE: &str = "cluster.x-k8s.io/cluster-namespace";
/// Machine label of Cluster API.
pub const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
/// Machine finalizer of Cluster API.
pub const FINALIZER: &str = "machine.cluster.x-k8s.io";
