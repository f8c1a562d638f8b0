//! The server's state between two maintenances.

use serde::Deserialize;
use serde::Serialize;

/// The server's state when a maintenance ends while another request waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandOver {
    /// The maintenance restores it.
    #[default]
    Restore,
    /// The next maintenance takes it over unchanged if its configuration also sets `direct`.
    Direct,
}

impl HandOver {
    /// All names, as spelled in the configuration.
    pub const NAMES: [&'static str; 2] = ["restore", "direct"];

    /// Parses a configured name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "restore" => Self::Restore,
            "direct" => Self::Direct,
            _ => return None,
        })
    }

    /// Returns true for the default.
    #[must_use]
    pub fn is_restore(&self) -> bool {
        *self == Self::Restore
    }
}
