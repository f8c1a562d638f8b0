//! `metal_server_maintenance`.

pub(super) mod end;
pub(super) mod model;
pub(super) mod outcome;
pub(super) mod plan;
pub(super) mod resource;
