//! Kubernetes API access, shared by the coordination store and backends.
//!
//! Stores and backends depend on this module but not on each other.

mod cluster;
mod error;
mod exec;
mod follow;
mod kind;
mod kubeconfig;
mod mirror;
mod node_lease;
mod time;

pub use cluster::{Cluster, ClusterSettings, RequestInfo};
pub use error::{ClusterError, FieldProblem, QUOTA_EXCEEDED};
pub use kind::ResourceRef;
pub use mirror::Mirror;
pub use node_lease::{Holder, NAMESPACE as NODE_LEASES, NodeLeaseError, NodeLeases};
