//! The configuration before it is interpreted.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    backend::plug::{BackendPlugin, Block, plugins},
    maintenance::window::WindowSpec,
};

use super::gates::GateBlocks;

/// The configured values, unchanged.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// The coordination store's URL.
    pub coordination_url: Option<String>,
    /// True if a missing embedded store is not created: changes are lost when the process ends.
    pub makes_no_store: bool,
    /// The owner for this configuration's maintenances.
    pub owner: Option<String>,
    /// This run's name.
    pub run: Option<String>,
    /// The waiting time after which a waiter gains one step of priority.
    pub aging: Option<Duration>,
    /// Days for which the store keeps history; 0: forever.
    pub history_days: Option<u32>,
    /// Windows by name.
    pub windows: BTreeMap<String, WindowSpec>,
    /// True if the owners' approval is not required.
    pub always_perform_maintenance: bool,
    /// How long an operating system can take to shut down.
    pub graceful_shutdown_timeout: Option<Duration>,
    /// How long a forced power change can take.
    pub power_timeout: Option<Duration>,
    /// An authority trusted for images and readiness URLs.
    pub image_ca_certificate_file: Option<String>,
    /// True if an image host can redirect to loopback, link-local and metadata addresses.
    pub allow_local_image_redirects: bool,
    /// True if files that other users can change are accepted; `None`: the environment decides.
    pub trust_world_writable_paths: Option<bool>,
    /// Access to the servers.
    pub backend: BackendInput,
    /// Gates in front of any backend's servers.
    pub gates: GateBlocks,
}

/// A backend and its block.
#[derive(Clone, Debug)]
pub struct BackendInput {
    /// The backend.
    pub plugin: &'static dyn BackendPlugin,
    /// Its block, unchanged.
    pub block: Block,
}

impl Default for BackendInput {
    /// Returns the first backend, configured by its environment variables.
    fn default() -> Self {
        Self { plugin: plugins()[0], block: Block::default() }
    }
}
