//! What becomes of a server between two maintenances.

use serde::Deserialize;
use serde::Serialize;

/// What becomes of the server when a maintenance ends and another one waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandOver {
    /// It is restored.
    #[default]
    Restore,
    /// The next one takes it as it is, if that one says the same.
    Direct,
}

impl HandOver {
    /// Both in the spelling of the configuration.
    pub const NAMES: [&'static str; 2] = ["restore", "direct"];

    /// The one of that name.
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
