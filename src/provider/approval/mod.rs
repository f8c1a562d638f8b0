//! `metal_maintenance_approval`.

pub(super) mod cluster;
pub(super) mod list;
pub(super) mod model;
pub(super) mod resource;
