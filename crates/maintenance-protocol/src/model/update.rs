//! Configuration changes while the server is locked, as recorded.

use super::spec::Spec;
use super::state::PriorState;
use jiff::Timestamp;
use serde::Deserialize;
use serde::Serialize;
use shown_text::OneLine;

/// A change in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    /// The specification for which the server was prepared.
    pub previous: Spec,
    /// The new specification.
    pub wanted: Spec,
    /// Start of the period in which the server matched `previous`, on the store's clock.
    pub since: Timestamp,
    /// The server's state before the change.
    pub before: Option<PriorState>,
    /// True if a call that changes the server was sent.
    pub touched: bool,
    /// True if the server possibly booted under the previous configuration.
    pub booted_before: bool,
    /// The change's stage.
    pub stage: Stage,
    /// Time of the change request, on the store's clock; `None` if the server drifted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_at: Option<Timestamp>,
}

/// How far a change has progressed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// The maintenance is `InMaintenance` under its previous specification, and the provider checks
    /// preconditions.
    Checking,
    /// The server is being prepared for the new specification.
    Applying,
    /// Rolling back to the previous specification, which is current again.
    Undoing {
        /// Why the change failed; `None` if the configuration now requests the previous
        /// specification.
        cause: Option<OneLine>,
        /// Why the rollback stopped. The next apply or destroy resumes it.
        stuck: Option<OneLine>,
    },
}

/// The server's state after a failed change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undone {
    /// The server was not changed.
    NothingChanged,
    /// The server matches the previous specification.
    Done,
    /// The rollback failed, and the server is between both specifications.
    Failed(OneLine),
}
