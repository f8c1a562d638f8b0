//! `metal_server_operation`, as a resource and as an action.

pub(super) mod action;
pub(super) mod action_model;
pub(super) mod model;
pub(super) mod plan;
pub(super) mod resource;
pub(super) mod service_model;
