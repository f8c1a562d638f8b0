//! `metal_server_claim`: resource, data source and list, with the store or a cluster as the one who knows.

pub(super) mod cluster;
pub(super) mod data_source;
pub(super) mod end;
pub(super) mod list;
pub(super) mod model;
pub(super) mod resource;
