//! A service that the external system carries out: the request and its progress.

use serde::Deserialize;
use serde::Serialize;
use shown_text as shown;
use std::fmt;

/// What the external system is told to do: its own steps, or a list of them that it keeps under a
/// name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceSpec {
    /// The steps, in order; empty with a runbook.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<ServiceStep>,
    /// The name of a list of steps that the system keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runbook: Option<String>,
}

/// One step, in the words of the external system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStep {
    /// The part of the system that carries it out.
    pub interface: String,
    /// Its name there.
    pub step: String,
    /// Its arguments, a JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<String>,
}

impl fmt::Display for ServiceStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown::line(&format!("{}.{}", self.interface, self.step)))
    }
}

impl fmt::Display for ServiceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(runbook) = &self.runbook {
            return write!(f, "runbook {}", shown::line(runbook));
        }
        let steps: Vec<String> = self.steps.iter().map(ToString::to_string).collect();
        write!(f, "{} {}", if steps.len() == 1 { "step" } else { "steps" }, steps.join(", "))
    }
}

impl ServiceSpec {
    /// In words, after the server's name.
    #[must_use]
    pub fn effect(&self) -> String {
        format!("is serviced by its external system ({self}), which may restart it.")
    }
}

/// Where a service stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceState {
    /// It may begin.
    Ready,
    /// It may begin later. The words complete "waiting for".
    Busy(String),
    /// It cannot begin, and waiting does not help.
    Impossible(String),
    /// It is carried out. The words tell how far it is.
    Running(String),
    /// Nothing runs. `ran`: whether this service was carried out to its end since it was begun,
    /// where that is recorded.
    Idle {
        /// `None`: nothing tells.
        ran: Option<bool>,
    },
    /// It was begun and failed.
    Failed(String),
    /// Another one runs in its place.
    Other(String),
}

/// The observation of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceView {
    /// What the external system shows that changes whenever work begins or ends: kept from before a
    /// service is begun, so that a later one is told from it.
    pub stamp: String,
    /// Where it stands.
    pub state: ServiceState,
}
