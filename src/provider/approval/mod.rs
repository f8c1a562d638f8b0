//! `metal_maintenance_approval`, over one port with two implementations: the store, and a cluster.

pub(super) mod lifecycle;
pub(super) mod list;
pub(super) mod model;
mod of_cluster;
mod of_store;
pub(super) mod resource;
