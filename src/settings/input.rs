//! What was written.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    backend::plug::{BackendPlugin, Block, plugins},
    maintenance::window::WindowSpec,
};

use super::gates::GateBlocks;

/// Everything that can be configured, as it was written.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Where records live.
    pub coordination_url: Option<String>,
    /// Whether an embedded store that is not there yet stays so: what would be written is forgotten
    /// with the process.
    pub makes_no_store: bool,
    /// Whose maintenances these are.
    pub owner: Option<String>,
    /// How this run is called.
    pub run: Option<String>,
    /// After how long a waiter gains one step of priority.
    pub aging: Option<Duration>,
    /// For how many days the store keeps history; 0: forever.
    pub history_days: Option<u32>,
    /// Windows by name.
    pub windows: BTreeMap<String, WindowSpec>,
    /// Whether owners are not asked.
    pub always_perform_maintenance: bool,
    /// How long an operating system may take to shut down.
    pub graceful_shutdown_timeout: Option<Duration>,
    /// How long a forced power change may take.
    pub power_timeout: Option<Duration>,
    /// An authority trusted for images and readiness URLs.
    pub image_ca_certificate_file: Option<String>,
    /// How servers are reached.
    pub backend: BackendInput,
    /// What stands before the servers of any backend.
    pub gates: GateBlocks,
}

/// A backend and its block.
#[derive(Clone, Debug)]
pub struct BackendInput {
    /// The backend.
    pub plugin: &'static dyn BackendPlugin,
    /// Its block, as it was written.
    pub block: Block,
}

impl Default for BackendInput {
    /// The first backend, as its environment variables configure it.
    fn default() -> Self {
        Self { plugin: plugins()[0], block: Block::default() }
    }
}
