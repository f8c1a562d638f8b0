//! Kubernetes API servers: how one is reached, and what its answers mean.
//!
//! Both a coordination store and a backend live on one; neither knows the other, and both know this
//! room.

mod cluster;
mod error;
mod exec;
mod follow;
mod kind;
mod mirror;
mod node_lease;
mod time;

pub use cluster::{Cluster, ClusterSettings, RequestInfo};
pub use error::{ClusterError, FieldProblem, QUOTA_EXCEEDED};
pub use kind::ResourceRef;
pub use mirror::Mirror;
pub use node_lease::{Holder, NAMESPACE as NODE_LEASES, NodeLeaseError, NodeLeases};
