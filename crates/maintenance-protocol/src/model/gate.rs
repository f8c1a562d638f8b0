//! Gates: what is recorded and told of the external systems between a request and its start.

use super::ids::Uid;
use super::machine::PowerTarget;
use jiff::Timestamp;
use serde::Deserialize;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Who decides whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueAuthority {
    /// The server's own system has a queue: it is asked before our slot is taken.
    Theirs,
    /// It allows the start, and has no queue: it is asked before our slot is taken, once it is our
    /// turn.
    OnTurn,
    /// It has none: our queue orders, and it is entered under our slot.
    Ours,
}

/// What a server's own system is like.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own that is stored")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalSystem {
    /// Its name, for people.
    pub name: String,
    /// Who orders.
    pub order: QueueAuthority,
    /// Whether a maintenance enters it at all; an operation only asks whether it may go on beside
    /// it.
    pub enters: bool,
    /// Whether it prepares what is booted, and says when that is ready.
    pub boots: bool,
    /// Whether it knows the owners of its servers and asks them. Where it does not, claims and
    /// approvals are those of the coordination store.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub owners: bool,
    /// The gate that it is, where it stands before the server's own system (`cluster_api`); `None`:
    /// it is that system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<String>,
    /// What follows when it takes a server away.
    #[serde(default, skip_serializing_if = "Loss::is_end")]
    pub loss: Loss,
    /// Whether it brings a server that it gets back to the power that it wants by itself, so that
    /// the power before need not be known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restores_power: bool,
}

/// What was true of every system before it was recorded.
fn yes() -> bool {
    true
}

/// The power of a server once its external system has it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PowerAfter {
    /// The one that its owner wants now: the system brings it there by itself.
    Wanted(PowerTarget),
    /// Off, whatever it is when it is left: the system ends its use, and switches it off by itself.
    EndsOff,
}

/// What follows when a gate no longer holds a server for us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loss {
    /// The server is not ours any more: it is not touched again.
    #[default]
    EndsHold,
    /// It stays ours, and is restored.
    Restore,
}

impl Loss {
    /// Whether it is the one that every system had before it was recorded.
    #[must_use]
    pub fn is_end(&self) -> bool {
        *self == Self::EndsHold
    }
}

impl ExternalSystem {
    /// A server's own maintenance system that prepares no boot and knows no owners.
    #[must_use]
    pub fn own(name: impl Into<String>, order: QueueAuthority, enters: bool) -> Self {
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

    /// Who this is, in a message about a server.
    #[must_use]
    pub fn shown(&self) -> &str {
        if self.gate.is_some() { &self.name } else { "the external system" }
    }
}

/// The state of our request to an external system. Part of a maintenance's record.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own that is stored")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateRecord {
    /// The system.
    pub system: ExternalSystem,
    /// Whether a request may be there: recorded before it is made.
    pub asked: bool,
    /// Whether it was seen to allow the start.
    pub granted: bool,
    /// Whether the server was entered under our slot, so that it has to be left.
    pub entered: bool,
    /// What it waits for, as seen last.
    pub said: Option<String>,
    /// Why it is ours no more, once that was seen: then the server is not touched again.
    pub lost: Option<String>,
    /// What the backend wants to know again when the server is left: how things were before it was
    /// entered.
    pub memory: BTreeMap<String, String>,
    /// Whether it was seen to be left again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    /// What the release restores instead of the recorded power, because the system said so by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_after: Option<PowerAfter>,
}

impl GateRecord {
    /// Nothing was asked yet.
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
            left: false,
            power_after: None,
        }
    }

    /// Whether it is asked before our slot is taken.
    #[must_use]
    pub fn is_external(&self) -> bool {
        self.system.order != QueueAuthority::Ours
    }

    /// Whether it still has a request of ours.
    pub(crate) fn must_be_left(&self) -> bool {
        self.system.enters && self.asked && !self.left
    }
}

/// Who asks, and for what: what a request to a server's own system says.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalRequest {
    /// The coordination store that knows the maintenance, by its id.
    pub store: String,
    /// This incarnation of the maintenance.
    pub uid: String,
    /// `namespace/name` of the maintenance.
    pub id: String,
    /// The provider's `owner`.
    pub owner: String,
    /// Who asks: run, host, person.
    pub run: String,
    /// Whether the server's owner is asked.
    pub asks: Asks,
    /// Higher goes first.
    pub priority: i64,
    /// Why, for people.
    pub reason: Option<String>,
    /// Where it is discussed.
    pub ticket: Option<String>,
    /// Whether it may be there already.
    pub asked: bool,
    /// Whether the server was taken with it: see [`GateRecord::entered`].
    pub entered: bool,
    /// See [`ExternalSystem::enters`].
    pub enters: bool,
    /// Whether the server is restored, and the request is withdrawn next.
    pub leaving: bool,
    /// The namespace of our object, as the record keeps it; `None`: that of the configuration.
    pub namespace: Option<String>,
    /// See [`GateRecord::memory`].
    pub memory: BTreeMap<String, String>,
    /// The gates before this one that allow it ([`ExternalSystem::gate`]).
    pub outer: Vec<String>,
}

/// Who is asked before a server is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// Nobody.
    Nobody,
    /// Its owner, if it has one.
    Owner,
    /// Its owner; a server that nobody owns is not taken.
    OwnerItMustHave,
}

/// Where our request stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExternalState {
    /// Nothing of ours is there, and the server may be asked for, or is as it was.
    Absent,
    /// Ours waits, or could not be made now. The words complete "waiting for".
    Waiting(String),
    /// Ours was made and the system acts on it by itself: it is not to be helped, and no limit but
    /// that of the maintenance ends it. The words complete "waiting for".
    Entering(String),
    /// The server is ours: every condition of the system holds.
    Granted,
    /// It was ours and is somebody else's, or nobody's.
    Lost(String),
    /// It will never be granted, and nothing of ours is there.
    Refused(String),
    /// It is there and holds nothing, now or ever: it is to be taken back.
    Failed(String),
    /// It is being taken back, or the server is on its way back; this ends by itself.
    Returning(String),
    /// Ours is gone, and left something behind that the next [`Action::LeaveGate`] removes.
    Leftovers(String),
    /// Nothing of ours is there, and another author's request is: it cannot be made now. The words
    /// complete "waiting for".
    Taken(String),
}

impl fmt::Display for ExternalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("the external request is not there"),
            Self::Waiting(why) | Self::Entering(why) | Self::Taken(why) => write!(f, "waiting for {why}"),
            Self::Granted => f.write_str("granted"),
            Self::Lost(why) | Self::Refused(why) | Self::Failed(why) | Self::Returning(why) | Self::Leftovers(why) => {
                f.write_str(why)
            }
        }
    }
}

/// Whether what shall be booted is ready, as the system says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootReadiness {
    /// Not yet; with its progress.
    Pending(String),
    /// It is.
    Ready,
    /// It cannot be.
    Error(String),
}

/// Our request, as the external system shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateView {
    /// Where it stands.
    pub standing: ExternalState,
    /// What shall be booted, where the system prepares that.
    pub boot: Option<BootReadiness>,
    /// See [`GateRecord::memory`]: what is to be remembered from before the server is entered.
    pub memory: BTreeMap<String, String>,
    /// The maintenance of ours, by its UID, whose request has the server, where the end of that is
    /// all that ours waits for.
    pub behind: Option<Uid>,
    /// What runs on the server and has to be back before our request is withdrawn; `None`: nothing.
    pub awaited: Option<AwaitedNode>,
    /// The power of the server once the system has it again; `None`: not known, or as it is left.
    pub power_after: Option<PowerAfter>,
    /// Why the system ends the use of the server once it has it again, in a sentence; `None`: it
    /// does not.
    pub deletion: Option<String>,
}

impl GateView {
    /// A request of which nothing more than its state is known.
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

/// A Node that was Ready before its server was taken, as a gate shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedNode {
    /// The Node, for people.
    pub node: String,
    /// What is withdrawn once the Node is back, for people.
    pub request: String,
    /// Whether it is Ready.
    pub ready: bool,
    /// When its kubelet was heard last (its clock); `None`: unknown.
    pub heard: Option<Timestamp>,
    /// How long it may take to be Ready again.
    pub timeout: Duration,
}
