//! The provider block.

pub(super) mod backend_block;
pub(super) mod cluster_api;
pub(super) mod kubernetes_node;
pub(super) mod node_leases;
pub(super) mod provider_block;
