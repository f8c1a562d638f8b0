//! A one-shot power operation, and how it ended.

use super::machine::{PowerTarget, ResetType};
use serde::Deserialize;
use serde::Serialize;
use std::fmt;

/// What a restart, a power cycle or an NMI does to a server that is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenOff {
    /// Nothing.
    Skip,
    /// Switches it on instead.
    PowerOn,
    /// Fails.
    Error,
}

impl WhenOff {
    /// All values in the spelling of the configuration.
    pub const NAMES: [&'static str; 3] = ["skip", "power_on", "error"];

    /// The value of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "skip" => Self::Skip,
            "power_on" => Self::PowerOn,
            "error" => Self::Error,
            _ => return None,
        })
    }
}

/// What has to be seen before an operation counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompletionProof {
    /// The machine accepted it.
    Accepted,
    /// The power it leads to, and, where the machine tells when it was reset last, that it was
    /// reset.
    Power,
    /// That, and that the operating system runs again, as boot progress tells.
    Boot,
}

impl CompletionProof {
    /// All values in the spelling of the configuration.
    pub const NAMES: [&'static str; 3] = ["accepted", "power", "boot"];

    /// The value of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "accepted" => Self::Accepted,
            "power" => Self::Power,
            "boot" => Self::Boot,
            _ => return None,
        })
    }
}

/// A one-shot power operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationSpec {
    /// What is done.
    pub reset: ResetType,
    /// What it does to a server that is off, where it needs one that is on.
    pub when_off: WhenOff,
    /// What has to be seen.
    pub proof: CompletionProof,
}

impl OperationSpec {
    /// The power state that the operation is there to reach; `None`: it needs a server that is on,
    /// and leaves it on.
    #[must_use]
    pub fn target(&self) -> Option<PowerTarget> {
        match self.reset {
            ResetType::On => Some(PowerTarget::On),
            ResetType::ForceOff | ResetType::GracefulShutdown => Some(PowerTarget::Off),
            ResetType::GracefulRestart | ResetType::ForceRestart | ResetType::PowerCycle | ResetType::Nmi => None,
        }
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperationOutcome {
    /// What was asked to be seen was seen.
    Proven,
    /// The machine accepted it, and that was all that was asked.
    Accepted,
    /// The server was in the wanted state already, or was off and is to be left alone.
    Skipped,
    /// It was sent, and nothing tells whether it was carried out. It is not sent again.
    Unproven,
}

impl fmt::Display for OperationOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Proven => "Proven",
            Self::Accepted => "Accepted",
            Self::Skipped => "Skipped",
            Self::Unproven => "Unproven",
        })
    }
}
