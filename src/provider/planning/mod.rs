//! Data sources for reviews before an apply: queue, preview and windows.

pub(super) mod preview;
pub(super) mod queue;
pub(super) mod window;
