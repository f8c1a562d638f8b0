//! Takes a physical server out of service under a lock that survives the process, boots the
//! maintenance image, restores the prior state and releases the server.
//!
//! Layers and their allowed dependencies (enforced by `tests/layering.rs`): `{provider, cli} →
//! settings → engine → {maintenance, store, backend, probe, clock}`; `{store, backend} →
//! kubernetes → outbound`; `plugin` is the wire protocol, a separate crate.
#![deny(clippy::print_stdout, clippy::print_stderr, reason = "these macros panic when the output cannot be written")]

pub mod backend;
pub mod cli;
pub mod clock;
pub mod engine;
pub mod files;
pub mod kubernetes;
mod loopback;
pub mod outbound;
pub mod probe;
pub mod program;
pub mod provider;
pub mod settings;
pub mod store;
mod tls;

pub use maintenance_protocol as maintenance;
pub use shown_text as shown;
pub use tf_plugin_server as plugin;
