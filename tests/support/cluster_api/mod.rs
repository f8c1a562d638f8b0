//! Stand-ins for SAP's runtime extension and maintenance-controller, which manage Cluster API
//! Machines.
//!
//! The stand-ins share no code with the real programs. Their behaviour was derived from the
//! sources and compared with recordings (`tests/cluster_api/table.txt`). They receive the same
//! events, read from caches and write unconditionally, as the real programs do. Cluster API itself
//! does not run: [`world::World`] creates its objects and acts as its controllers on request.

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
/// Node label of a profile: the Machine can be deleted.
pub const APPROVE_DELETION: &str = "runtime-extension-maintenance-controller.cloud.sap/approve-deletion";
/// Machine annotation of the extension: deletion waits before the drain.
pub const PRE_DRAIN: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io/maintenance-controller";
/// Host annotation of the extension in its Metal3 mode.
pub const REBOOT: &str = "reboot.metal3.io/runtime-extension-maintenance-controller";
/// Node label of the maintenance-controller: state of its profiles.
pub const STATE: &str = "cloud.sap/maintenance-state";
/// Node label: the maintenance-controller's profiles for this Node.
pub const PROFILE: &str = "cloud.sap/maintenance-profile";
/// Node annotation with the maintenance-controller's data.
pub const DATA: &str = "cloud.sap/maintenance-data";
/// Node label checked by these tests' profiles: while set, nothing is approved.
pub const WITHHELD: &str = "tests.example/withheld";
/// Node label: world of a Node, because Nodes lack a namespace.
pub const WORLD: &str = "tests.example/world";
/// Profile that leaves its approval on the Node.
pub const KEEPS: &str = "keeps";

/// Node annotations of Cluster API.
pub const MACHINE: &str = "cluster.x-k8s.io/machine";
pub const CLUSTER_NAMESPACE: &str = "cluster.x-k8s.io/cluster-namespace";
/// Machine label of Cluster API.
pub const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
/// Machine finalizer of Cluster API.
pub const FINALIZER: &str = "machine.cluster.x-k8s.io";
