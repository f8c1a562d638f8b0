//! Everything that is known about one lock key, and the transitions of the lock protocol.
//!
//! Every store applies these same functions atomically; none has a rule of its own. They are pure: the time is the
//! store's, given by the caller. A transition that is refused changes nothing.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{
    ids::{Attachment, Generation, LockKey, MaintenanceId, Runner, RunnerId, Uid},
    spec::{Kind, Spec},
    state::{Ending, Maintenance, Phase, Progress},
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
    /// `dropped`, `changed`, `stuck`.
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
    /// Somebody else may act on it now.
    #[error("generation {ours} was replaced by generation {current}")]
    Fenced {
        /// Ours.
        ours: Generation,
        /// The one in force.
        current: Generation,
    },
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
    /// The hold under which something should act does not hold the server.
    #[error("the maintenance it acts under does not hold the server")]
    ParentNotHolding,
    /// Not possible in this state.
    #[error("not possible while {0}")]
    WrongPhase(&'static str),
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
    /// Who asks.
    pub runner: Runner,
    /// Whether it keeps its place without a process.
    pub keeps_place: bool,
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
    pub active: Vec<Maintenance>,
    /// Maintenances that a transition ended; the store moves them to its history.
    #[serde(skip)]
    pub finished: Vec<Maintenance>,
    /// What transitions did; the store appends it to its audit.
    #[serde(skip)]
    pub events: Vec<AuditEvent>,
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
            finished: Vec::new(),
            events: Vec::new(),
        }
    }

    /// An active record.
    #[must_use]
    pub fn get(&self, uid: &Uid) -> Option<&Maintenance> {
        self.active.iter().find(|record| record.uid == *uid)
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

    /// Whether the holder of `generation` of this record may touch the machine now.
    #[must_use]
    pub fn may_act(&self, uid: &Uid, generation: Generation, leases: &Leases, now: Timestamp) -> bool {
        let Some(record) = self.get(uid) else {
            return false;
        };
        let ours = record
            .attachment
            .as_ref()
            .is_some_and(|attachment| attachment.generation == generation && leases.alive(attachment, now));
        let acting =
            record.spec.parent.is_none() || self.slot.as_ref().is_some_and(|slot| slot.acting.as_ref() == Some(uid));
        ours && acting && self.has_slot(record) && self.other_actor(uid, leases, now).is_none()
    }

    fn get_mut(&mut self, uid: &Uid) -> Result<&mut Maintenance, Refusal> {
        self.active.iter_mut().find(|record| record.uid == *uid).ok_or(Refusal::Gone)
    }

    /// The record, if `generation` is the one in force.
    fn ours(&mut self, uid: &Uid, generation: Generation) -> Result<&mut Maintenance, Refusal> {
        let record = self.get_mut(uid)?;
        let attached = record.attachment.as_ref().is_some_and(|a| a.generation == generation);
        if attached { Ok(record) } else { Err(Refusal::Fenced { ours: generation, current: record.generation }) }
    }

    fn audit(&mut self, now: Timestamp, record: &Maintenance, by: &str, what: &str, detail: String) {
        self.events.push(AuditEvent {
            at: now,
            id: record.id.clone(),
            uid: record.uid.clone(),
            generation: record.generation,
            by: by.to_owned(),
            what: what.to_owned(),
            detail,
        });
    }

    fn audit_uid(&mut self, now: Timestamp, uid: &Uid, what: &str, detail: String) {
        if let Some(record) = self.get(uid).cloned() {
            let by = record
                .attachment
                .as_ref()
                .map_or_else(|| record.requester.to_string(), |attachment| attachment.runner.to_string());
            self.audit(now, &record, &by, what, detail);
        }
    }

    /// Asks for a place in the queue, or finds the one that an earlier run of the same request has.
    ///
    /// Idempotent by `namespace/name`: owner and digest must be equal and no living process may be attached.
    pub fn enqueue(&mut self, request: Request, leases: &Leases, now: Timestamp) -> Result<Enqueued, Refusal> {
        let digest = request.spec.digest();
        if let Some(existing) = self.active.iter().find(|record| record.id == request.id) {
            if existing.owner != request.owner {
                return Err(Refusal::OtherOwner {
                    id: request.id,
                    existing: existing.owner.clone(),
                    asked: request.owner,
                });
            }
            if existing.digest != digest {
                return Err(Refusal::OtherSpec {
                    id: request.id,
                    existing: existing.spec.summary(),
                    asked: request.spec.summary(),
                });
            }
            self.refuse_if_in_use(&existing.uid, leases, now)?;
            let uid = existing.uid.clone();
            let record = self.get_mut(&uid)?;
            record.requester = request.runner;
            record.keeps_place = request.keeps_place;
            record.spec.hold_place_for = request.spec.hold_place_for;
            self.audit_uid(now, &uid, "adopted", String::new());
            return Ok(Enqueued::Adopted(uid));
        }
        if let Some(parent) = &request.spec.parent {
            let held = self.slot.as_ref().is_some_and(|slot| slot.uid == *parent);
            if !held {
                return Err(Refusal::ParentNotHolding);
            }
        } else if request.spec.kind == Kind::BootConfiguration {
            let ours =
                self.holder().filter(|holder| holder.owner == request.owner && holder.spec.kind == Kind::Maintenance);
            if let Some(holder) = ours {
                return Err(Refusal::HeldByOurselves { holder: holder.id.clone() });
            }
        }
        self.last_ticket += 1;
        let record = Maintenance {
            uid: request.uid.clone(),
            id: request.id,
            lock_key: self.key.clone(),
            owner: request.owner,
            digest,
            spec: request.spec,
            ticket_number: self.last_ticket,
            requested_at: now,
            requester: request.runner,
            admitted_at: None,
            started_at: None,
            phase: Phase::Pending,
            prior: None,
            booted: false,
            last_power: None,
            attachment: None,
            generation: 0,
            detached_at: Some(now),
            keeps_place: request.keeps_place,
        };
        let detail = record.spec.summary();
        self.active.push(record);
        self.audit_uid(now, &request.uid, "enqueued", detail);
        Ok(Enqueued::New(request.uid))
    }

    /// Our own process counts too: a process that attaches twice to one record is two resources with one name.
    fn refuse_if_in_use(&self, uid: &Uid, leases: &Leases, now: Timestamp) -> Result<(), Refusal> {
        let record = self.get(uid).ok_or(Refusal::Gone)?;
        match &record.attachment {
            Some(attachment) if leases.alive(attachment, now) => Err(Refusal::InUse {
                id: record.id.clone(),
                by: Box::new(attachment.runner.clone()),
                until: leases.until(attachment).unwrap_or(now),
            }),
            _ => Ok(()),
        }
    }

    /// Takes the right to act on a record, under a new generation. Refused while a living process has it.
    pub fn attach(
        &mut self,
        uid: &Uid,
        runner: Runner,
        leases: &Leases,
        now: Timestamp,
    ) -> Result<Generation, Refusal> {
        self.refuse_if_in_use(uid, leases, now)?;
        self.generation += 1;
        let generation = self.generation;
        let record = self.get_mut(uid)?;
        record.generation = generation;
        record.attachment = Some(Attachment { runner, generation, since: now });
        record.detached_at = None;
        Ok(generation)
    }

    /// Gives the right to act back; the record, the slot and the place in the queue stay.
    pub fn detach(&mut self, uid: &Uid, generation: Generation, now: Timestamp) -> Result<(), Refusal> {
        let record = self.ours(uid, generation)?;
        record.attachment = None;
        record.detached_at = Some(now);
        self.stop_acting(uid);
        Ok(())
    }

    fn stop_acting(&mut self, uid: &Uid) {
        if let Some(slot) = self.slot.as_mut().filter(|slot| slot.acting.as_ref() == Some(uid)) {
            slot.acting = None;
        }
    }

    /// Takes the slot (or, for a boot configuration under a hold, the turn to act). The caller has found with
    /// [`super::queue::turn`] in the same transaction that it is this record's turn.
    pub fn admit(&mut self, uid: &Uid, generation: Generation, next: Phase, now: Timestamp) -> Result<(), Refusal> {
        let record = self.ours(uid, generation)?;
        let first = matches!(record.phase, Phase::Pending);
        record.phase = next;
        record.admitted_at.get_or_insert(now);
        let child = record.spec.parent.is_some();
        match &mut self.slot {
            Some(slot) if child => slot.acting = Some(uid.clone()),
            Some(slot) if slot.uid == *uid => {}
            Some(_) => return Err(Refusal::WrongPhase("another maintenance is admitted")),
            None if child => return Err(Refusal::ParentNotHolding),
            None => self.slot = Some(Slot { uid: uid.clone(), since: now, acting: None }),
        }
        if first {
            self.audit_uid(now, uid, "admitted", String::new());
        }
        Ok(())
    }

    /// Replaces what is known about a record. Identity, place and attachment stay as they are.
    pub fn update(
        &mut self,
        uid: &Uid,
        generation: Generation,
        change: impl FnOnce(&mut Maintenance),
    ) -> Result<(), Refusal> {
        change(self.ours(uid, generation)?);
        Ok(())
    }

    /// The server is prepared. A boot configuration with a turn of its own frees the slot here: it needed the server
    /// only for the change.
    pub fn prepared(&mut self, uid: &Uid, generation: Generation, now: Timestamp) -> Result<(), Refusal> {
        let record = self.ours(uid, generation)?;
        record.phase = Phase::InMaintenance { since: now };
        record.started_at.get_or_insert(now);
        let frees = record.spec.kind == Kind::BootConfiguration && record.spec.parent.is_none();
        self.stop_acting(uid);
        if frees {
            self.slot = None;
        }
        self.audit_uid(now, uid, "prepared", String::new());
        Ok(())
    }

    /// Starts to give the server back. The slot stays held until [`Self::finish`].
    pub fn begin_release(
        &mut self,
        uid: &Uid,
        generation: Generation,
        ending: Ending,
        progress: Progress,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let detail = ending.to_string();
        let record = self.ours(uid, generation)?;
        record.phase = Phase::Releasing { ending, progress, stuck: None };
        self.audit_uid(now, uid, "releasing", detail);
        Ok(())
    }

    /// The server is as it was: ends the maintenance and frees the slot. Boot configurations under the hold end with it.
    pub fn finish(&mut self, uid: &Uid, generation: Generation, over: &Phase, now: Timestamp) -> Result<(), Refusal> {
        self.ours(uid, generation)?;
        let what = if matches!(over, Phase::Failed { .. }) { "failed" } else { "released" };
        let detail = match over {
            Phase::Failed { cause, .. } => cause.clone(),
            Phase::Completed { ending, .. } => ending.to_string(),
            _ => return Err(Refusal::WrongPhase("it is not over")),
        };
        self.audit_uid(now, uid, what, detail);
        let holder = self.get(uid).map(|record| record.id.clone());
        let (gone, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut self.active)
            .into_iter()
            .partition(|record| record.uid == *uid || record.spec.parent.as_ref() == Some(uid));
        self.active = stay;
        for mut record in gone {
            record.phase = if record.uid == *uid {
                over.clone()
            } else {
                let by = holder.as_ref().map_or_else(String::new, |id| format!("the end of {id}"));
                Phase::Completed { at: now, ending: Ending::CompletedBy(by) }
            };
            record.attachment = None;
            record.detached_at = Some(now);
            self.finished.push(record);
        }
        self.stop_acting(uid);
        if self.slot.as_ref().is_some_and(|slot| slot.uid == *uid) {
            self.slot = None;
        }
        Ok(())
    }

    /// Leaves the queue. Only for a record that has touched nothing.
    pub fn withdraw(&mut self, uid: &Uid, generation: Generation, now: Timestamp) -> Result<(), Refusal> {
        let record = self.ours(uid, generation)?;
        if !matches!(record.phase, Phase::Pending) {
            return Err(Refusal::WrongPhase(record.phase.name()));
        }
        self.audit_uid(now, uid, "withdrawn", String::new());
        self.active.retain(|record| record.uid != *uid);
        Ok(())
    }

    /// Removes waiters whose process went away longer ago than their place was kept for.
    pub fn drop_absent(&mut self, leases: &Leases, now: Timestamp) {
        let gone: Vec<Uid> = self
            .active
            .iter()
            .filter(|record| matches!(record.phase, Phase::Pending))
            .filter(|record| place_kept_until(record, leases, now).is_some_and(|until| until <= now))
            .map(|record| record.uid.clone())
            .collect();
        for uid in gone {
            self.audit_uid(now, &uid, "dropped", "its process did not come back".to_owned());
            self.active.retain(|record| record.uid != uid);
        }
    }

    /// Takes a hold away from its holder so that the caller can give the server back: raises the generation, which
    /// fences whoever is attached. `seen` is the generation that the person saw.
    ///
    /// Whoever was attached may still be in the middle of a call that it checked before this moment. A call is shorter
    /// than a lease, so the caller touches the machine only after the lease that the returned predecessor has now.
    pub fn seize(
        &mut self,
        uid: &Uid,
        seen: Generation,
        runner: Runner,
        now: Timestamp,
    ) -> Result<(Generation, Option<Attachment>), Refusal> {
        let record = self.get(uid).ok_or(Refusal::Gone)?;
        if record.generation != seen {
            return Err(Refusal::OtherGeneration { named: seen, current: record.generation });
        }
        self.generation += 1;
        let generation = self.generation;
        let record = self.get_mut(uid)?;
        let predecessor = record.attachment.take();
        record.generation = generation;
        let by = runner.to_string();
        record.attachment = Some(Attachment { runner, generation, since: now });
        record.detached_at = None;
        let record = record.clone();
        self.audit(now, &record, &by, "seized", format!("generation {seen} → {generation}"));
        Ok((generation, predecessor))
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
