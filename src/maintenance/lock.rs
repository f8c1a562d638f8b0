//! Everything that is known about one lock key; `transitions.rs` has the ways in which it changes.
//!
//! Every store applies these same functions atomically; none has a rule of its own. They are pure: the time is the
//! store's, given by the caller.

use std::collections::HashMap;
use std::ops::Deref;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{
    aliases::Alias,
    approval::Claim,
    extension::Extension,
    gate::System,
    ids::{Attachment, Fence, Generation, LockKey, MaintenanceId, Runner, RunnerId, Uid},
    location::{Elsewhere, Location},
    ownership::Ownership,
    quarantine::Unreadable,
    restrictions::ReleasedName,
    shared::Shared,
    spec::Spec,
    state::{KnownTo, Maintenance, Phase},
};

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
pub struct Slot {
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
    /// Who.
    pub by: String,
    /// What, in one word: `enqueued`, `adopted`, `admitted`, `prepared`, `releasing`, `released`, `failed`, `withdrawn`,
    /// `dropped`, `changed`, `stuck`, `claimed`, `unclaimed`, `approved`.
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
    /// Somebody else may act on it now. Equal generations: the store lost commits since ours.
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
    /// Same name, another wish.
    #[error("{id} exists with another specification")]
    OtherSpec {
        /// The name.
        id: MaintenanceId,
        /// What exists.
        existing: String,
        /// What was asked.
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
        /// Who.
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
    /// The request replaces the maintenance that holds the server, which is only released afterwards.
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
    /// Only the owner's word counts.
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
pub struct Request {
    /// The incarnation to use if it is new.
    pub uid: Uid,
    /// Its name.
    pub id: MaintenanceId,
    /// The provider's owner.
    pub owner: String,
    /// What is asked.
    pub spec: Spec,
    /// Where the server is reached by whoever asks; `None` where that is not known.
    pub location: Option<Location>,
    /// The server's own maintenance system, where it has one.
    pub gates: Vec<System>,
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
    pub slot: Option<Slot>,
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

/// Checks that a configuration reaches the place of a record. Where either is not known, there is nothing to compare.
///
/// # Errors
/// [`Refusal::Elsewhere`].
pub fn reaches(record: &Maintenance, reached: Option<&Location>) -> Result<(), Refusal> {
    let Some((recorded, reached)) = record.location.as_ref().zip(reached) else { return Ok(()) };
    recorded.compare(reached).map_err(|why| Refusal::Elsewhere {
        id: record.id.clone(),
        recorded: Box::new(recorded.clone()),
        reached: Box::new(reached.clone()),
        why,
    })
}

impl ServerLock {
    /// A key nobody has asked for yet.
    #[must_use]
    pub fn new(key: LockKey) -> Self {
        Self {
            key,
            generation: 0,
            last_ticket: 0,
            slot: None,
            active: Vec::new(),
            ownership: Ownership::default(),
            extension: Extension::default(),
            unreadable: Vec::new(),
            finished: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Whether there is nothing to show about it: no record, no owner, and nothing forbidden.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let records = self.active.is_empty() && self.unreadable.is_empty();
        records && self.ownership.is_empty() && self.extension.restrictions.is_empty()
    }

    /// An active record.
    #[must_use]
    pub fn get(&self, uid: &Uid) -> Option<&Maintenance> {
        self.active.iter().find(|record| record.uid == *uid).map(Deref::deref)
    }

    /// The admitted maintenance.
    #[must_use]
    pub fn holder(&self) -> Option<&Maintenance> {
        self.get(&self.slot.as_ref()?.uid)
    }

    /// Whether this record, or the hold it acts under, has the slot.
    #[must_use]
    pub fn has_slot(&self, record: &Maintenance) -> bool {
        let root = record.spec.parent.as_ref().unwrap_or(&record.uid);
        self.slot.as_ref().is_some_and(|slot| slot.uid == *root)
    }

    /// Who else acts under the slot at the moment and is alive.
    #[must_use]
    pub fn other_actor(&self, uid: &Uid, leases: &Leases, now: Timestamp) -> Option<&Maintenance> {
        let slot = self.slot.as_ref()?;
        // Whoever acts under the hold finishes first, whatever became of the hold meanwhile: the hold waits for it.
        if slot.acting.as_ref() == Some(uid) {
            return None;
        }
        let alive =
            |record: &&Maintenance| record.attachment.as_ref().is_some_and(|attachment| leases.alive(attachment, now));
        let acting = slot.acting.as_ref().filter(|acting| *acting != uid);
        if let Some(record) = acting.and_then(|acting| self.get(acting)).filter(alive) {
            return Some(record);
        }
        let holder = self.get(&slot.uid).filter(|holder| holder.uid != *uid).filter(alive)?;
        // A hold that only waits for its end does not act.
        matches!(holder.phase, Phase::Preparing(_) | Phase::Releasing { .. }).then_some(holder)
    }

    /// Until when a call of another process may still change the server: of a process that was
    /// fenced while it called, or of an earlier maintenance whose call outlived its reply.
    /// `None`: no such call is possible for this record.
    #[must_use]
    pub fn calls_until(&self, uid: &Uid, now: Timestamp) -> Option<Timestamp> {
        let fenced = self.active.iter().filter_map(|record| record.calls_until).filter(|until| *until > now);
        fenced.chain(self.foreign_effects(uid, now).map(|effect| effect.until)).max()
    }

    /// Whether the process that shows `fence` for this record may touch the machine now.
    #[must_use]
    pub fn may_act(&self, uid: &Uid, fence: Fence, leases: &Leases, now: Timestamp) -> bool {
        let Some(record) = self.get(uid) else {
            return false;
        };
        let ours =
            record.attachment.as_ref().is_some_and(|attachment| attachment.is(fence) && leases.alive(attachment, now));
        let acting =
            record.spec.parent.is_none() || self.slot.as_ref().is_some_and(|slot| slot.acting.as_ref() == Some(uid));
        let alone = self.other_actor(uid, leases, now).is_none() && self.calls_until(uid, now).is_none();
        let alone = alone && !self.unreadable_acts();
        ours && acting && self.has_slot(record) && alone
    }
}

/// Until when an absent waiter keeps its place; `None` while it is present, or when its place has no limit.
#[must_use]
pub fn place_kept_until(record: &Maintenance, leases: &Leases, now: Timestamp) -> Option<Timestamp> {
    let absent_since = match &record.attachment {
        Some(attachment) if leases.alive(attachment, now) => return None,
        Some(attachment) => leases.until(attachment).unwrap_or(attachment.since),
        None => record.detached_at.unwrap_or(record.requested_at),
    };
    let (from, kept) = if record.keeps_place {
        (record.requested_at, record.spec.expires_after?)
    } else {
        (absent_since, record.spec.hold_place_for)
    };
    from.checked_add(SignedDuration::try_from(kept).ok()?).ok()
}
