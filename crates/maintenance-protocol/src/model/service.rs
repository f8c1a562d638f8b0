//! Services that the external system performs: request and progress.

use std::fmt;

use serde::Deserialize;
use serde::Serialize;
use shown_text::{self as shown, OneLine};

/// The requested service: a list of steps, or a list's name in the external system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceSpec {
    /// The steps in order; empty with a runbook.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<ServiceStep>,
    /// Name of a step list that the system stores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runbook: Option<OneLine>,
}

/// One step, in the external system's terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStep {
    /// The component that performs the step.
    pub interface: OneLine,
    /// Name of the step.
    pub step: OneLine,
    /// Arguments, as a JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<OneLine>,
}

impl fmt::Display for ServiceStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown::line(&format!("{}.{}", self.interface, self.step)))
    }
}

impl fmt::Display for ServiceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(runbook) = &self.runbook {
            return write!(f, "runbook {runbook}");
        }
        let steps: Vec<String> = self.steps.iter().map(ToString::to_string).collect();
        write!(f, "{} {}", if steps.len() == 1 { "step" } else { "steps" }, steps.join(", "))
    }
}

impl ServiceSpec {
    /// Describes the effect for people, to follow the server's name.
    #[must_use]
    pub fn effect(&self) -> String {
        format!("is serviced by its external system ({self}), which can restart it.")
    }
}

/// A service's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceState {
    /// It can start.
    Ready,
    /// It can start later. The text completes "waiting for".
    Busy(OneLine),
    /// It cannot start, and waiting does not help.
    Impossible(OneLine),
    /// It is running; contains its progress.
    Running(OneLine),
    /// No service is running. `ran` is true if this service completed since its start.
    Idle {
        /// `None` if the system does not record it.
        ran: Option<bool>,
    },
    /// It started and failed.
    Failed(OneLine),
    /// A different service is running.
    Other(OneLine),
}

/// An observed service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceView {
    /// A value that changes whenever work starts or ends. The record keeps the value from before
    /// the start, which distinguishes this service from later services.
    pub stamp: OneLine,
    /// State of the service.
    pub state: ServiceState,
}
