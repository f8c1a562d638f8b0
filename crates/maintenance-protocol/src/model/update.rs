//! A change of a maintenance that holds its server, as it is recorded.

use super::spec::Spec;
use super::state::PriorState;
use jiff::Timestamp;
use serde::Deserialize;
use serde::Serialize;

/// A change of a maintenance that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    /// The specification that the server was prepared for.
    pub previous: Spec,
    /// The digest of `previous`.
    pub previous_digest: String,
    /// The specification that is wanted.
    pub wanted: Spec,
    /// The digest of `wanted`.
    pub wanted_digest: String,
    /// Since when the server has been as `previous` asks, on the store's clock.
    pub since: Timestamp,
    /// How the server was before the first step of the change.
    pub before: Option<PriorState>,
    /// Whether anything was called that changes the server.
    pub touched: bool,
    /// Whether the server may have run a boot configuration of this maintenance before.
    pub booted_before: bool,
    /// Where it has got to.
    pub stage: Stage,
    /// When the change was asked for, on the store's clock; `None`: a version that did not keep it
    /// asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_at: Option<Timestamp>,
}

/// Where an update has got to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// The maintenance is `InMaintenance` under its previous specification. What can be checked is
    /// checked.
    Checking,
    /// The server is being prepared for the wanted specification.
    Applying,
    /// The server is on its way back to the previous specification, which is in force again.
    Undoing {
        /// Why the change failed; `None`: the previous specification is what is wanted now.
        cause: Option<String>,
        /// Why undoing could not go on. The next apply or destroy resumes.
        stuck: Option<String>,
    },
}

/// What was done about the server after an update that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undone {
    /// The server had not been changed.
    NothingChanged,
    /// The server is as the previous specification asks.
    Done,
    /// The server may be anything between both specifications.
    Failed(String),
}
