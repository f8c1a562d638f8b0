//! Data types of a lock, and the reasons why a change is refused.

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
use shown_text::OneLine;
use std::collections::HashMap;

/// End of each process's lease, on the store's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases(pub HashMap<RunnerId, Timestamp>);

impl Leases {
    /// Returns true if the attached process's lease has not ended.
    #[must_use]
    pub fn alive(&self, attachment: &Attachment, now: Timestamp) -> bool {
        self.until(attachment).is_some_and(|until| until > now)
    }

    /// Returns when the process's lease ends or ended.
    #[must_use]
    pub fn until(&self, attachment: &Attachment) -> Option<Timestamp> {
        self.0.get(&attachment.runner.id).copied()
    }
}

/// The lock's holder, without a time limit: only a release frees the lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockHolder {
    /// The admitted maintenance.
    pub uid: Uid,
    /// When it acquired the lock, on the store's clock.
    pub since: Timestamp,
    /// The record that currently acts under the lock.
    pub acting: Option<Uid>,
}

/// An audit log entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEvent {
    /// Time of the change, on the store's clock.
    pub at: Timestamp,
    /// The affected maintenance.
    pub id: MaintenanceId,
    /// UID of its record.
    pub uid: Uid,
    /// The current generation.
    pub generation: Generation,
    /// Author of the change: run, host, person.
    pub by: OneLine,
    /// Kind of change, such as `enqueued`, `adopted`, `admitted`, `prepared`, `releasing`,
    /// `released`, `failed`, `withdrawn`, `dropped`, `stuck`, `claimed` or `approved`.
    pub what: OneLine,
    /// Details, for people.
    pub detail: OneLine,
}

/// The reason why a transition was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The maintenance is not active in this lock.
    #[error("the maintenance is not active in this store")]
    Gone,
    /// Another process controls the record. Equal generations mean that the store lost commits.
    #[error("generation {ours} was replaced by generation {current}")]
    Fenced {
        /// This process's generation.
        ours: Generation,
        /// The current generation.
        current: Generation,
    },
    /// The lock has used its largest number.
    #[error(
        "the server's lock has reached its largest {0}: `store check` names it, and an administrator must repair it"
    )]
    NoNumberLeft(&'static str),
    /// The name exists with a different specification.
    #[error("{id} exists with another specification")]
    OtherSpec {
        /// Name of the maintenance.
        id: MaintenanceId,
        /// Summary of the existing record.
        existing: String,
        /// Summary of the request.
        asked: String,
    },
    /// The name exists with a different owner.
    #[error("{id} belongs to owner {existing:?}")]
    OtherOwner {
        /// Name of the maintenance.
        id: MaintenanceId,
        /// Its owner.
        existing: OneLine,
        /// The requesting owner.
        asked: String,
    },
    /// A connected process works on it.
    #[error("{id} is in use by {by}")]
    InUse {
        /// Name of the maintenance.
        id: MaintenanceId,
        /// The attached process.
        by: Box<Runner>,
        /// End of its lease.
        until: Timestamp,
    },
    /// A boot configuration without `maintenance_id`, for a server that the same owner has locked.
    #[error("the server is held by {holder}, which has the same owner")]
    HeldByOurselves {
        /// The lock's holder.
        holder: MaintenanceId,
    },
    /// The request replaces the lock's holder, which is released only afterwards.
    #[error("{id} replaces the holder {holder}, which is only released afterwards")]
    OwnPredecessor {
        /// The lock's holder.
        holder: MaintenanceId,
        /// The request.
        id: MaintenanceId,
    },
    /// The maintenance named in `maintenance_id` does not own the lock.
    #[error("the maintenance in maintenance_id is not the holder")]
    ParentNotHolding,
    /// Another state manages the record.
    #[error("another state manages {id} since {}", known.since)]
    KnownToAnother {
        /// Name of the maintenance.
        id: MaintenanceId,
        /// The state that manages it.
        known: Box<KnownTo>,
    },
    /// A person released this name, and its configuration is unchanged since.
    #[error("{released}")]
    ReleasedBefore {
        /// The release.
        released: Box<ReleasedName>,
    },
    /// The parent maintenance belongs to another owner and does not allow this request.
    #[error("{holder} belongs to owner {existing:?} and does not allow {asked:?} under it")]
    NotAllowedUnder {
        /// The lock's holder.
        holder: MaintenanceId,
        /// Its owner.
        existing: OneLine,
        /// The requesting owner.
        asked: String,
    },
    /// The server is already claimed.
    #[error("{} claims the server as {}", claim.owner, claim.id)]
    Claimed {
        /// The existing claim.
        claim: Box<Claim>,
    },
    /// The server does not have an owner who can approve.
    #[error("the server is not claimed")]
    NotClaimed,
    /// Only the claim's owner can approve.
    #[error("the server is claimed by {:?}, not by {asked:?}", claim.owner)]
    NotTheOwner {
        /// The existing claim.
        claim: Box<Claim>,
        /// The owner that tried to approve.
        asked: String,
    },
    /// The configuration reaches a different location than the record.
    #[error("{id} is active in {recorded}, but this configuration reaches {reached}")]
    Elsewhere {
        /// The maintenance.
        id: MaintenanceId,
        /// The recorded location.
        recorded: Box<Location>,
        /// The location that the configuration reaches.
        reached: Box<Location>,
        /// The difference.
        why: Elsewhere,
    },
    /// The maintenance's state does not allow the transition.
    #[error("not possible while {0}")]
    WrongPhase(&'static str),
    /// The store was restored, and the server still needs an inspection.
    #[error("{id} waits for an inspection since the store was restored ({reason:?})")]
    ToBeInspected {
        /// The maintenance.
        id: MaintenanceId,
        /// Start of the block, on the store's clock.
        since: Timestamp,
        /// The reason from the person who restored the store.
        reason: OneLine,
    },
    /// A server's identifier moved to another lock after it was read.
    #[error("{alias} was moved to another lock")]
    AliasMoved {
        /// The identifier.
        alias: Alias,
    },
    /// The lock is in use, so its identifiers cannot move.
    #[error("the lock {key} is in use by {by}")]
    LockInUse {
        /// The lock.
        key: LockKey,
        /// The record or process that uses it.
        by: String,
    },
    /// This version cannot read the record.
    #[error("{id} cannot be read: {why}")]
    Unreadable {
        /// Name of the maintenance.
        id: MaintenanceId,
        /// The cause.
        why: String,
    },
    /// The requested generation is not current.
    #[error("generation {named} was given, but the current generation is {current}")]
    OtherGeneration {
        /// The requested generation.
        named: Generation,
        /// The current generation.
        current: Generation,
    },
}

/// How a request entered the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// A new record.
    New(Uid),
    /// An earlier run's record for the same request.
    Adopted(Uid),
}

impl Enqueued {
    /// Returns the record's UID.
    #[must_use]
    pub fn uid(&self) -> &Uid {
        match self {
            Self::New(uid) | Self::Adopted(uid) => uid,
        }
    }
}

/// A request before it has a record.
#[derive(Clone, Debug)]
pub struct EnqueueRequest {
    /// UID for a new record.
    pub uid: Uid,
    /// Name of the maintenance.
    pub id: MaintenanceId,
    /// The provider's owner.
    pub owner: String,
    /// The specification.
    pub spec: Spec,
    /// The location that the requesting process reaches; `None` if unknown.
    pub location: Option<Location>,
    /// The external systems that must allow the start.
    pub gates: Vec<ExternalSystem>,
    /// The requesting process.
    pub runner: Runner,
    /// True if the request keeps its queue position while its process is disconnected.
    pub keeps_place: bool,
    /// The requesting state.
    pub asking: AskingState,
}

/// The requesting Terraform state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskingState {
    /// The state's random number; empty without one.
    pub state: String,
    /// True if it can adopt a record that another state manages.
    pub adopt: bool,
    /// The record that this request replaces in its state.
    pub replaces: Option<Uid>,
    /// True if no state stores the record, which therefore ends with its process.
    pub ephemeral: bool,
}

/// The stored contents of one lock key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerLock {
    /// The locked machine.
    pub key: LockKey,
    /// The last generation issued. It never decreases, even after a release.
    pub generation: Generation,
    /// The last ticket number issued.
    pub last_ticket: u64,
    /// The lock's holder.
    pub slot: Option<LockHolder>,
    /// All pending and active maintenances, unordered.
    pub active: Vec<Shared<Maintenance>>,
    /// The claim and the owner's approvals.
    pub ownership: Ownership,
    /// Further contents of the lock.
    #[serde(default, skip_serializing_if = "Extension::is_empty")]
    pub extension: Extension,
    /// Records that this version cannot parse. Transitions do not change them.
    #[serde(skip)]
    pub unreadable: Vec<Unreadable>,
    /// Maintenances that a transition ended; the store moves them to its history.
    #[serde(skip)]
    pub finished: Vec<Maintenance>,
    /// Audit events of transitions; the store appends them to its audit log.
    #[serde(skip)]
    pub events: Vec<AuditEvent>,
}
