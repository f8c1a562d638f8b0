//! Takes a physical server out of service, holds it under a lock that survives the process, boots it into what the
//! maintenance needs, and gives it back exactly as it was.
//!
//! The rooms, and who may know whom (held by `tests/layering.rs`):
//! `provider → engine → {maintenance, store, backend, probe, clock}`; `plugin` is the wire and knows no maintenance.

pub mod backend;
pub mod clock;
pub mod engine;
pub mod maintenance;
pub mod probe;
pub mod store;
