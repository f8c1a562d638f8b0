//! Takes a physical server out of service and gives it back exactly as it was.

pub mod plugin;
