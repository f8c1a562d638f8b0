//! Gates: the stored and observed state of external systems that must allow a start.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde::Serialize;
use shown_text::OneLine;

use super::ids::Uid;
use super::machine::PowerTarget;

/// The authority over the queue order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueAuthority {
    /// The external system has a queue. It receives the request before the provider locks the
    /// server.
    Theirs,
    /// The external system grants the start but does not queue requests. It receives a request
    /// before the lock, when the request is next in the queue.
    OnTurn,
    /// The external system does not order requests. The provider's queue decides, and the server
    /// enters the system under the lock.
    Ours,
}

/// Properties of an external maintenance system.
#[allow(clippy::struct_excessive_bools, reason = "independent stored facts")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalSystem {
    /// Its name, for people.
    pub name: OneLine,
    /// Authority over the queue order.
    pub order: QueueAuthority,
    /// True if a maintenance enters the system. An operation only checks whether the system permits
    /// it.
    pub enters: bool,
    /// True if the system prepares the boot image and reports when it is ready.
    pub boots: bool,
    /// True if the system stores owners and requests their approval. Otherwise claims and approvals
    /// come from the coordination store.
    pub owners: bool,
    /// Name of a gate that precedes the server's own system (`cluster_api`); `None` for that system
    /// itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<String>,
    /// Reaction when the system revokes its grant.
    #[serde(default, skip_serializing_if = "Loss::is_end")]
    pub loss: Loss,
    /// True if the system restores the desired power of a returned server, so the prior power is
    /// not needed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restores_power: bool,
}

/// Power of a server after its return to the external system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PowerAfter {
    /// The owner's current desired power, which the system restores automatically.
    Wanted(PowerTarget),
    /// Off, whatever its power at return: the system ends its use and powers it off.
    EndsOff,
}

/// Reaction when a gate revokes its grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loss {
    /// The maintenance loses the server and does not change it again.
    #[default]
    EndsHold,
    /// The maintenance keeps the server and restores it.
    Restore,
}

impl Loss {
    /// Returns true for the default, which is not stored.
    #[must_use]
    pub fn is_end(&self) -> bool {
        *self == Self::EndsHold
    }
}

impl ExternalSystem {
    /// Returns a server's own maintenance system without boot preparation and owners.
    #[must_use]
    pub fn own(name: impl Into<OneLine>, order: QueueAuthority, enters: bool) -> Self {
        Self {
            name: name.into(),
            order,
            enters,
            boots: false,
            owners: false,
            gate: None,
            loss: Loss::EndsHold,
            restores_power: false,
        }
    }

    /// Returns the system's name for messages about a server.
    #[must_use]
    pub fn shown(&self) -> &str {
        if self.gate.is_some() { self.name.shown() } else { "the external system" }
    }
}

/// A request to an external system, as stored in a maintenance's record.
#[allow(clippy::struct_excessive_bools, reason = "independent stored facts")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateRecord {
    /// The external system.
    pub system: ExternalSystem,
    /// True if a request can exist. It is recorded before the request is sent.
    pub asked: bool,
    /// True after the system granted the start.
    pub granted: bool,
    /// True if the server entered the system under the lock and must therefore leave it.
    pub entered: bool,
    /// The last observed blocker.
    pub said: Option<OneLine>,
    /// Why the system revoked the grant. The server is not changed after that.
    pub lost: Option<OneLine>,
    /// Prior state that the backend recorded before the server entered, and needs when it leaves.
    pub memory: BTreeMap<String, String>,
    /// True if a withdrawal of the request can have been sent. It is recorded before the call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub withdrawn: bool,
    /// True after the server was observed to have left the system.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    /// Power that the release restores in place of the recorded power, as the system reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_after: Option<PowerAfter>,
}

impl GateRecord {
    /// Creates the record before any request is sent.
    #[must_use]
    pub fn new(system: ExternalSystem) -> Self {
        Self {
            system,
            asked: false,
            granted: false,
            entered: false,
            said: None,
            lost: None,
            memory: BTreeMap::new(),
            withdrawn: false,
            left: false,
            power_after: None,
        }
    }

    /// Returns true if the system receives the request before the lock is acquired.
    #[must_use]
    pub fn is_external(&self) -> bool {
        self.system.order != QueueAuthority::Ours
    }

    /// Returns true if a request can still exist in the system.
    pub(crate) fn must_be_left(&self) -> bool {
        self.system.enters && self.asked && !self.left
    }
}

/// A request's content, as sent to an external system.
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalRequest {
    /// The ID of the coordination store that contains the maintenance.
    pub store: String,
    /// UID of the maintenance's record.
    pub uid: String,
    /// `namespace/name` of the maintenance.
    pub id: String,
    /// The provider's `owner`.
    pub owner: OneLine,
    /// The requesting run, host and person.
    pub run: OneLine,
    /// The required owner approval.
    pub asks: Asks,
    /// Higher priorities start first.
    pub priority: i64,
    /// The reason, for people.
    pub reason: Option<OneLine>,
    /// Link to its discussion.
    pub ticket: Option<OneLine>,
    /// True if the request can already exist.
    pub asked: bool,
    /// True if the server entered with it; see [`GateRecord::entered`].
    pub entered: bool,
    /// See [`ExternalSystem::enters`].
    pub enters: bool,
    /// True if the server is restored and the request will be withdrawn next.
    pub leaving: bool,
    /// The recorded namespace of the request object; `None` uses the configured one.
    pub namespace: Option<String>,
    /// See [`GateRecord::memory`].
    pub memory: BTreeMap<String, String>,
    /// The preceding gates that granted the start ([`ExternalSystem::gate`]).
    pub outer: Vec<String>,
}

/// The approval needed before a server is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// No approval.
    Nobody,
    /// The owner's approval, if the server has an owner.
    Owner,
    /// The owner's approval; a server without an owner is rejected.
    OwnerItMustHave,
}

/// A request's state in an external system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExternalState {
    /// No request exists. The server is free to be requested, or back in its prior state.
    Absent,
    /// The request waits, or could not be created now. The text completes "waiting for".
    Waiting(OneLine),
    /// The system is acting on the request without further calls. Only the maintenance's own time
    /// limit applies. The text completes "waiting for".
    Entering(OneLine),
    /// The system granted the start; all of its conditions are met.
    Granted,
    /// The system granted the start earlier, and has revoked it.
    Lost(OneLine),
    /// The system rejected the request permanently; no request exists.
    Refused(OneLine),
    /// A request exists that can never be granted and must be withdrawn.
    Failed(OneLine),
    /// The request is being withdrawn, or the server is returning; no further call is needed.
    Returning(OneLine),
    /// The request was deleted and left objects that the next [`Action::LeaveGate`] removes.
    Leftovers(OneLine),
    /// Another author's request exists, so this maintenance cannot create its own. The text
    /// completes "waiting for".
    Taken(OneLine),
}

impl fmt::Display for ExternalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("the external request does not exist"),
            Self::Waiting(why) | Self::Entering(why) | Self::Taken(why) => write!(f, "waiting for {why}"),
            Self::Granted => f.write_str("granted"),
            Self::Lost(why) | Self::Refused(why) | Self::Failed(why) | Self::Returning(why) | Self::Leftovers(why) => {
                write!(f, "{why}")
            }
        }
    }
}

/// Readiness of the boot image, as the system reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootReadiness {
    /// In progress, with a description.
    Pending(OneLine),
    /// Ready to boot.
    Ready,
    /// Failed permanently, with the reason.
    Error(OneLine),
}

/// The external system's view of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateView {
    /// State of the request.
    pub standing: ExternalState,
    /// Readiness of the boot image, if the system prepares it.
    pub boot: Option<BootReadiness>,
    /// Prior state to record before the server enters; see [`GateRecord::memory`].
    pub memory: BTreeMap<String, String>,
    /// This store's maintenance whose request blocks this request. `None` if anything else blocks
    /// it too.
    pub behind: Option<Uid>,
    /// The server's Node that must be Ready before the request is withdrawn; `None` without such a
    /// Node.
    pub awaited: Option<AwaitedNode>,
    /// The server's power after its return to the system; `None` if unknown or unchanged.
    pub power_after: Option<PowerAfter>,
    /// Why the system ends the server's use after its return, as a sentence; `None` if it does not.
    pub deletion: Option<OneLine>,
}

impl GateView {
    /// Creates a view that contains only the request's state.
    #[must_use]
    pub fn of(standing: ExternalState) -> Self {
        Self {
            standing,
            boot: None,
            memory: BTreeMap::new(),
            behind: None,
            awaited: None,
            power_after: None,
            deletion: None,
        }
    }
}

/// A Node that was Ready before its server was taken, as a gate reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedNode {
    /// Name of the Node, for people.
    pub node: OneLine,
    /// Name of the request that is withdrawn after the Node is Ready, for people.
    pub request: OneLine,
    /// True if the Node is Ready.
    pub ready: bool,
    /// The kubelet's last heartbeat, on its own clock; `None` if unknown.
    pub heard: Option<Timestamp>,
    /// Time limit for the Node to become Ready.
    pub timeout: Duration,
}
