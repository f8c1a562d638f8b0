//! Functions about windows.

pub(super) mod arguments;
pub(super) mod in_window;
pub(super) mod next_window;
