//! `metal_server` and `metal_servers`.

pub(super) mod check_model;
pub(super) mod data_source;
pub(super) mod data_source_of_many;
