//! Everything that is known about one lock key, and why a change of it is refused.

use super::aliases::Alias;
use super::approval::Claim;
use super::extension::Extension;
use super::gate::ExternalSystem;
use super::ids::Attachment;
use super::ids::Generation;
use super::ids::LockKey;
use super::ids::MaintenanceId;
use super::ids::Runner;
use super::ids::RunnerId;
use super::ids::Uid;
use super::location::Elsewhere;
use super::location::Location;
use super::ownership::Ownership;
use super::restrictions::ReleasedName;
use super::shared::Shared;
use super::spec::Spec;
use super::state::KnownTo;
use super::state::Maintenance;
use super::unreadable::Unreadable;
use jiff::Timestamp;
use serde::Deserialize;
use serde::Serialize;
use std::collections::HashMap;

/// Until when each process may act, on the store's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases(pub HashMap<RunnerId, Timestamp>);

impl Leases {
    /// Whether the process behind an attachment is alive.
    #[must_use]
    pub fn alive(&self, attachment: &Attachment, now: Timestamp) -> bool {
        self.until(attachment).is_some_and(|until| until > now)
    }

    /// When its lease ends, or ended.
    #[must_use]
    pub fn until(&self, attachment: &Attachment) -> Option<Timestamp> {
        self.0.get(&attachment.runner.id).copied()
    }
}

/// Which maintenance is admitted. Has no time limit: it is freed by release only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockHolder {
    /// The admitted maintenance.
    pub uid: Uid,
    /// Since when, on the store's clock.
    pub since: Timestamp,
    /// The boot configuration that acts under the hold at the moment.
    pub acting: Option<Uid>,
}

/// One line of the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEvent {
    /// When, on the store's clock.
    pub at: Timestamp,
    /// Which maintenance.
    pub id: MaintenanceId,
    /// Which incarnation.
    pub uid: Uid,
    /// The generation in force.
    pub generation: Generation,
    /// The author of the change: run, host, person.
    pub by: String,
    /// What, in one word: `enqueued`, `adopted`, `admitted`, `prepared`, `releasing`, `released`,
    /// `failed`, `withdrawn`, `dropped`, `changed`, `stuck`, `claimed`, `unclaimed`, `approved`.
    pub what: String,
    /// More, for people.
    pub detail: String,
}

/// Why a transition was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The maintenance is not active here (any more).
    #[error("the maintenance is not active in this store")]
    Gone,
    /// Another process may act on it now. Equal generations: the store lost commits since ours.
    #[error("generation {ours} was replaced by generation {current}")]
    Fenced {
        /// Ours.
        ours: Generation,
        /// The one in force.
        current: Generation,
    },
    /// The lock has given out its largest number.
    #[error(
        "the lock of the server has given out its largest {0}: `store check` names it, and an administrator repairs it"
    )]
    NoNumberLeft(&'static str),
    /// Same name, another specification.
    #[error("{id} exists with another specification")]
    OtherSpec {
        /// The name.
        id: MaintenanceId,
        /// What exists.
        existing: String,
        /// The text of the request.
        asked: String,
    },
    /// Same name, another owner.
    #[error("{id} belongs to owner {existing:?}")]
    OtherOwner {
        /// The name.
        id: MaintenanceId,
        /// Its owner.
        existing: String,
        /// Ours.
        asked: String,
    },
    /// A living process works on it.
    #[error("{id} is being worked on by {by}")]
    InUse {
        /// The name.
        id: MaintenanceId,
        /// The attached process.
        by: Box<Runner>,
        /// Until when its lease runs.
        until: Timestamp,
    },
    /// A boot configuration without `maintenance_id` on a server that its own owner holds.
    #[error("the server is held by {holder} of the same owner")]
    HeldByOurselves {
        /// The hold.
        holder: MaintenanceId,
    },
    /// The request replaces the maintenance that holds the server, which is only released
    /// afterwards.
    #[error("{id} replaces {holder}, which holds the server and is only released afterwards")]
    OwnPredecessor {
        /// The holder.
        holder: MaintenanceId,
        /// The request.
        id: MaintenanceId,
    },
    /// The hold under which something should act does not hold the server.
    #[error("the maintenance it acts under does not hold the server")]
    ParentNotHolding,
    /// Another state manages the record.
    #[error("another state manages {id} since {}", known.since)]
    KnownToAnother {
        /// The name.
        id: MaintenanceId,
        /// The state that manages it.
        known: Box<KnownTo>,
    },
    /// A person released this name, and its configuration still asks the same.
    #[error("{released}")]
    ReleasedBefore {
        /// The release.
        released: Box<ReleasedName>,
    },
    /// The maintenance it would act under belongs to another owner, which does not allow it.
    #[error("{holder} belongs to owner {existing:?} and does not allow {asked:?} under it")]
    NotAllowedUnder {
        /// The maintenance that holds the server.
        holder: MaintenanceId,
        /// Its owner.
        existing: String,
        /// Ours.
        asked: String,
    },
    /// The server is claimed already.
    #[error("{} claims the server as {}", claim.owner, claim.id)]
    Claimed {
        /// The claim in force.
        claim: Box<Claim>,
    },
    /// No owner can approve.
    #[error("the server is not claimed")]
    NotClaimed,
    /// Only the owner of the claim approves.
    #[error("the server is claimed by {:?}, not by {asked:?}", claim.owner)]
    NotTheOwner {
        /// The claim in force.
        claim: Box<Claim>,
        /// Whose word was offered.
        asked: String,
    },
    /// The configuration does not reach the place where the maintenance is in force.
    #[error("{id} is in force in {recorded}, and this configuration reaches {reached}")]
    Elsewhere {
        /// The maintenance.
        id: MaintenanceId,
        /// The place that its record names.
        recorded: Box<Location>,
        /// The place that the configuration reaches.
        reached: Box<Location>,
        /// What tells them apart.
        why: Elsewhere,
    },
    /// Not possible in this state.
    #[error("not possible while {0}")]
    WrongPhase(&'static str),
    /// The store was restored, and no person has looked at the server since.
    #[error("{id} waits for an inspection since the store was restored ({reason:?})")]
    ToBeInspected {
        /// The maintenance.
        id: MaintenanceId,
        /// Since when, on the store's clock.
        since: Timestamp,
        /// What the person said who restored it.
        reason: String,
    },
    /// An identifier of the server was moved to another lock since it was read.
    #[error("{alias} was moved to another lock")]
    AliasMoved {
        /// The identifier.
        alias: Alias,
    },
    /// Identifiers stay where they are while the lock is in use.
    #[error("the lock {key} is in use by {by}")]
    LockInUse {
        /// The lock.
        key: LockKey,
        /// What uses it.
        by: String,
    },
    /// This version cannot read the record of this name.
    #[error("{id} cannot be read: {why}")]
    Unreadable {
        /// The name.
        id: MaintenanceId,
        /// The cause.
        why: String,
    },
    /// A release named a generation that is not in force.
    #[error("generation {named} was named, but {current} is in force")]
    OtherGeneration {
        /// What was named.
        named: Generation,
        /// What is in force.
        current: Generation,
    },
}

/// What came of asking for a place in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// A new record.
    New(Uid),
    /// The record of an earlier run of the same request.
    Adopted(Uid),
}

impl Enqueued {
    /// The record.
    #[must_use]
    pub fn uid(&self) -> &Uid {
        match self {
            Self::New(uid) | Self::Adopted(uid) => uid,
        }
    }
}

/// A wish, before it has a record.
#[derive(Clone, Debug)]
pub struct EnqueueRequest {
    /// The incarnation to use if it is new.
    pub uid: Uid,
    /// Its name.
    pub id: MaintenanceId,
    /// The provider's owner.
    pub owner: String,
    /// The specification.
    pub spec: Spec,
    /// Where the server is reached by whoever asks; `None` where that is not known.
    pub location: Option<Location>,
    /// The server's own maintenance system, where it has one.
    pub gates: Vec<ExternalSystem>,
    /// Who asks.
    pub runner: Runner,
    /// Whether it keeps its place without a process.
    pub keeps_place: bool,
    /// The state that asks.
    pub asking: AskingState,
}

/// The state on whose behalf a request is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskingState {
    /// Its random number; empty: it has none.
    pub state: String,
    /// Whether it takes a record over that another state manages.
    pub adopt: bool,
    /// The record that the request replaces in its state.
    pub replaces: Option<Uid>,
    /// No state stores the record: it ends with its process.
    pub ephemeral: bool,
}

/// Everything that is known about one lock key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerLock {
    /// The machine.
    pub key: LockKey,
    /// The last generation given out. Never decreases, also not by release.
    pub generation: Generation,
    /// The last ticket number given out.
    pub last_ticket: u64,
    /// Who is admitted.
    pub slot: Option<LockHolder>,
    /// All maintenances that are not over, in no order.
    pub active: Vec<Shared<Maintenance>>,
    /// Whose server it is, and what its owner allowed.
    pub ownership: Ownership,
    /// What else is known.
    #[serde(default, skip_serializing_if = "Extension::is_empty")]
    pub extension: Extension,
    /// Records that this version cannot read. No transition changes them.
    #[serde(skip)]
    pub unreadable: Vec<Unreadable>,
    /// Maintenances that a transition ended; the store moves them to its history.
    #[serde(skip)]
    pub finished: Vec<Maintenance>,
    /// What transitions did; the store appends it to its audit.
    #[serde(skip)]
    pub events: Vec<AuditEvent>,
}
