//! `metal_server_claim`: resource, data source and list, over one port with two implementations:
//! the store, and a cluster.

mod cluster_wish;
pub(super) mod data_source;
mod end;
pub(super) mod lifecycle;
pub(super) mod list;
pub(super) mod model;
mod of_cluster;
mod of_store;
pub(super) mod resource;
