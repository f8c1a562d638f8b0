//! `metal_server_boot_configuration`.

pub(super) mod model;
pub(super) mod outcome;
pub(super) mod plan;
pub(super) mod resource;
