//! One-shot power operations and their outcomes.

use super::machine::{PowerTarget, ResetType};
use serde::Deserialize;
use serde::Serialize;
use std::fmt;

/// How a restart, power cycle or NMI treats a server that is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenOff {
    /// It does nothing.
    Skip,
    /// It powers the server on.
    PowerOn,
    /// It fails.
    Error,
}

impl WhenOff {
    /// All names, as spelled in the configuration.
    pub const NAMES: [&'static str; 3] = ["skip", "power_on", "error"];

    /// Parses a configured name.
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

/// The evidence that completes an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompletionProof {
    /// The machine accepted the call.
    Accepted,
    /// The machine reached the power state, and reports a reset if it supports reset times.
    Power,
    /// In addition to `Power`, boot progress reports a running operating system.
    Boot,
}

impl CompletionProof {
    /// All names, as spelled in the configuration.
    pub const NAMES: [&'static str; 3] = ["accepted", "power", "boot"];

    /// Parses a configured name.
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
    /// The power change.
    pub reset: ResetType,
    /// Treatment of a server that is off, for operations that need a running server.
    pub when_off: WhenOff,
    /// The evidence that completes it.
    pub proof: CompletionProof,
}

impl OperationSpec {
    /// Returns the power state that the operation reaches. `None` if it requires a running server
    /// and keeps it on.
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
    /// The required evidence was observed.
    Proven,
    /// The machine accepted it, and no further evidence was required.
    Accepted,
    /// The server was already in the desired state, or off with `WhenOff::Skip`.
    Skipped,
    /// The call's outcome is unknown. The call is not repeated.
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
