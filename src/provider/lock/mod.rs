//! `metal_server_lock`.

pub(super) mod ephemeral;
pub(super) mod model;
