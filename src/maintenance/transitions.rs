//! The transitions of the lock protocol. A transition that is refused changes nothing.

use jiff::Timestamp;

use super::{
    approval::{Consent, consent},
    ids::{Attachment, Fence, Runner, Token, Uid},
    lock::{AuditEvent, Enqueued, Leases, Refusal, Request, ServerLock, Slot, place_kept_until, reaches},
    native::{Native, Order},
    node::NodeRecord,
    power::after,
    restore,
    spec::{Kind, Spec},
    state::{Ending, KnownTo, Maintenance, Phase, Progress},
};

/// How many absent waiters one change removes: etcd takes 128 operations at once, and one waiter needs four.
const MOST_DROPPED: usize = 20;

impl ServerLock {
    pub(super) fn get_mut(&mut self, uid: &Uid) -> Result<&mut Maintenance, Refusal> {
        self.active.iter_mut().find(|record| record.uid == *uid).ok_or(Refusal::Gone)
    }

    /// The record, if `fence` is the one in force.
    pub(super) fn ours(&mut self, uid: &Uid, fence: Fence) -> Result<&mut Maintenance, Refusal> {
        let record = self.get_mut(uid)?;
        let attached = record.attachment.as_ref().is_some_and(|a| a.is(fence));
        if attached { Ok(record) } else { Err(Refusal::Fenced { ours: fence.generation, current: record.generation }) }
    }

    pub(super) fn audit(&mut self, now: Timestamp, record: &Maintenance, by: &str, what: &str, detail: String) {
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
        self.refuse_unreadable(&request.id)?;
        let digest = request.spec.digest();
        if let Some(existing) = self.active.iter().find(|record| record.id == request.id) {
            if let Some(refusal) = existing.refuses_request(&request.owner, &request.spec) {
                return Err(refusal);
            }
            reaches(existing, request.location.as_ref())?;
            let asking = &request.asking;
            if let Some(refusal) = existing.refuses_state(&asking.state).filter(|_| !asking.adopt) {
                return Err(refusal);
            }
            self.refuse_if_in_use(&existing.uid, leases, now)?;
            let (uid, known) = (existing.uid.clone(), existing.known_to.clone());
            if known.is_some_and(|known| asking.adopt && known.state != asking.state) {
                let by = request.runner.to_string();
                self.take_over(&uid, KnownTo::new(&asking.state, now, &by), now)?;
            }
            let record = self.get_mut(&uid)?;
            record.requester = request.runner;
            record.keeps_place = request.keeps_place;
            record.spec.hold_place_for = request.spec.hold_place_for;
            record.adopt_update();
            self.audit_uid(now, &uid, "adopted", String::new());
            return Ok(Enqueued::Adopted(uid));
        }
        if let Some(released) = self.released(&request.id, &request.spec.triggers) {
            return Err(Refusal::ReleasedBefore { released: Box::new(released.clone()) });
        }
        if let Some(holder) = self.holder().filter(|holder| holder.is_replaced_by(&request)) {
            return Err(Refusal::OwnPredecessor { holder: holder.id.clone(), id: request.id });
        }
        if let Some(parent) = &request.spec.parent {
            if let Some(refusal) = self.get(parent).and_then(|hold| hold.refuses_under(&request.owner)) {
                return Err(refusal);
            }
            let held = self.slot.as_ref().is_some_and(|slot| slot.uid == *parent);
            if !held {
                return Err(Refusal::ParentNotHolding);
            }
            self.get(parent).map_or(Ok(()), |hold| reaches(hold, request.location.as_ref()))?;
        } else if request.spec.kind != Kind::Maintenance {
            let ours =
                self.holder().filter(|holder| holder.owner == request.owner && holder.spec.kind == Kind::Maintenance);
            if let Some(holder) = ours {
                return Err(Refusal::HeldByOurselves { holder: holder.id.clone() });
            }
        }
        self.accept_name(&request.id, now);
        self.last_ticket = self.last_ticket.checked_add(1).ok_or(Refusal::NoNumberLeft("ticket number"))?;
        let record = Maintenance {
            uid: request.uid.clone(),
            id: request.id,
            lock_key: self.key.clone(),
            owner: request.owner,
            digest,
            location: request.location,
            update: None,
            known_to: None,
            native: request.native.map(Native::new),
            spec: request.spec,
            ticket_number: self.last_ticket,
            requested_at: now,
            requester: request.runner,
            admitted_at: None,
            closes_at: None,
            started_at: None,
            phase: Phase::Pending,
            prior: None,
            node: NodeRecord::default(),
            booted: false,
            outcome: None,
            last_power: None,
            attachment: None,
            generation: 0,
            calls_until: None,
            detached_at: Some(now),
            keeps_place: request.keeps_place,
        };
        let detail = record.spec.summary();
        self.active.push(record);
        self.audit_uid(now, &request.uid, "enqueued", detail);
        Ok(Enqueued::New(request.uid))
    }

    /// Our own process counts too: a process that attaches twice to one record is two resources with one name.
    pub(super) fn refuse_if_in_use(&self, uid: &Uid, leases: &Leases, now: Timestamp) -> Result<(), Refusal> {
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
        token: Token,
        leases: &Leases,
        now: Timestamp,
    ) -> Result<Fence, Refusal> {
        self.refuse_if_in_use(uid, leases, now)?;
        self.refuse_before_inspection(uid)?;
        self.generation = self.generation.checked_add(1).ok_or(Refusal::NoNumberLeft("generation"))?;
        let generation = self.generation;
        let record = self.get_mut(uid)?;
        record.generation = generation;
        record.attachment = Some(Attachment { runner, generation, token, since: now });
        record.detached_at = None;
        Ok(Fence { generation, token })
    }

    /// Gives the right to act back; the record, the slot and the place in the queue stay.
    pub fn detach(&mut self, uid: &Uid, fence: Fence, now: Timestamp) -> Result<(), Refusal> {
        let record = self.ours(uid, fence)?;
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
    pub fn admit(&mut self, uid: &Uid, fence: Fence, next: Phase, now: Timestamp) -> Result<(), Refusal> {
        // First what may be refused: the slot has to be free or ours already, or that of the hold this acts under.
        let parent = self.ours(uid, fence)?.spec.parent.clone();
        let held_by = self.slot.as_ref().map(|slot| &slot.uid);
        match (&parent, held_by) {
            (Some(parent), holder) if holder != Some(parent) => return Err(Refusal::ParentNotHolding),
            (None, Some(holder)) if holder != uid => {
                return Err(Refusal::WrongPhase("another maintenance is admitted"));
            }
            _ => {}
        }
        let slot = self.slot.get_or_insert_with(|| Slot { uid: uid.clone(), since: now, acting: None });
        if parent.is_some() {
            slot.acting = Some(uid.clone());
        }
        let record = self.ours(uid, fence)?;
        let first = matches!(record.phase, Phase::Pending).then(|| record.clone());
        record.phase = next;
        record.admitted_at.get_or_insert(now);
        if let Some(native) = record.native.as_mut().filter(|native| native.system.order == Order::Theirs) {
            native.entered |= native.system.enters && native.granted;
        }
        if first.is_some() {
            record.closes_at = record.spec.window.as_ref().and_then(|window| window.gives_back_at(now));
        }
        if let Some(waited) = first {
            let detail = self.allowed(&waited, now);
            self.audit_uid(now, uid, "admitted", detail);
        }
        Ok(())
    }

    /// Why a waiter may start; an approval of this one maintenance is used up by it.
    fn allowed(&mut self, waited: &Maintenance, now: Timestamp) -> String {
        match consent(self, waited, now) {
            Consent::Given { approval, by, all: true } => format!("approval {approval} of everything, by {by}"),
            Consent::Given { approval: uid, by, all: false } => {
                if let Some(approval) = self.ownership.approvals.iter_mut().find(|approval| approval.uid == uid) {
                    approval.used_by = Some(waited.uid.clone());
                }
                format!("approved by {by}")
            }
            Consent::Escalated { since } => format!("without an answer of the owner, as announced, since {since}"),
            Consent::NotNeeded | Consent::Missing(_) => String::new(),
        }
    }

    /// Replaces what is known about a record. Identity, place and attachment stay as they are.
    pub fn update(&mut self, uid: &Uid, fence: Fence, change: impl FnOnce(&mut Maintenance)) -> Result<(), Refusal> {
        change(self.ours(uid, fence)?);
        Ok(())
    }

    /// Records the intent of a call, if the process that shows `fence` may make it now. `false` when it may not; then nothing
    /// is changed.
    ///
    /// What acted under a hold and fell silent loses its turn when the hold acts itself. It may come back while the hold
    /// is in the middle of the call, and its right to act is still the one in force.
    pub fn intend(
        &mut self,
        uid: &Uid,
        fence: Fence,
        leases: &Leases,
        now: Timestamp,
        record: impl FnOnce(&mut Maintenance),
    ) -> Result<bool, Refusal> {
        if !self.may_act(uid, fence, leases, now) {
            return Ok(false);
        }
        self.update(uid, fence, record)?;
        if let Some(slot) = self.slot.as_mut().filter(|slot| slot.uid == *uid) {
            slot.acting = None;
        }
        Ok(true)
    }

    /// The server is prepared, or an operation is done. A boot configuration or an operation with a turn of its own frees the slot here: it needed the server
    /// only for the change.
    pub fn prepared(&mut self, uid: &Uid, fence: Fence, now: Timestamp) -> Result<(), Refusal> {
        let record = self.ours(uid, fence)?;
        if let Phase::Preparing(progress) = &record.phase {
            record.outcome = progress.outcome.or(record.outcome);
        }
        let undone = record.undoing().is_some();
        record.phase = Phase::InMaintenance { since: record.end_update(now) };
        record.started_at.get_or_insert(now);
        let frees = record.spec.kind != Kind::Maintenance && record.spec.parent.is_none();
        self.stop_acting(uid);
        if frees {
            self.slot = None;
        }
        self.audit_uid(now, uid, if undone { "undone" } else { "prepared" }, String::new());
        Ok(())
    }

    /// Starts to give the server back. The slot stays held until [`Self::finish`].
    pub fn begin_release(
        &mut self,
        uid: &Uid,
        fence: Fence,
        ending: Ending,
        progress: Progress,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let detail = ending.to_string();
        // What was booted under the hold runs as much as what the hold booted itself.
        let booted = self.active.iter().any(|child| child.booted && child.spec.parent.as_ref() == Some(uid));
        let record = self.ours(uid, fence)?;
        record.booted |= booted;
        record.update = None;
        record.phase = Phase::Releasing { ending, progress, stuck: None };
        self.audit_uid(now, uid, "releasing", detail);
        Ok(())
    }

    /// Takes another specification over for a record; of a server that is held only what is wanted.
    pub fn revise(&mut self, uid: &Uid, fence: Fence, wanted: &Spec, now: Timestamp) -> Result<(), Refusal> {
        self.ours(uid, fence)?.revise(wanted, now);
        Ok(())
    }

    /// Everything that can be checked was: the server is prepared for the wanted specification.
    pub fn begin_update(&mut self, uid: &Uid, fence: Fence, now: Timestamp) -> Result<(), Refusal> {
        self.ours(uid, fence)?.begin_update(now);
        let detail = self.get(uid).map(|record| record.spec.summary()).unwrap_or_default();
        self.audit_uid(now, uid, "updating", detail);
        Ok(())
    }

    /// A check failed before anything was changed: the previous specification stays in force.
    pub fn refuse_update(&mut self, uid: &Uid, fence: Fence, cause: &str, now: Timestamp) -> Result<(), Refusal> {
        self.ours(uid, fence)?.update = None;
        self.audit_uid(now, uid, "update refused", cause.to_owned());
        Ok(())
    }

    /// A step of an update failed: the server goes back to the previous specification, and stays held.
    pub fn undo(&mut self, uid: &Uid, fence: Fence, cause: &str, now: Timestamp) -> Result<(), Refusal> {
        self.ours(uid, fence)?.undo(cause, now);
        self.audit_uid(now, uid, "undoing", cause.to_owned());
        Ok(())
    }

    /// Undoing cannot go on. The server stays held between both specifications.
    pub fn stop_undoing(&mut self, uid: &Uid, fence: Fence, why: &str, now: Timestamp) -> Result<(), Refusal> {
        self.ours(uid, fence)?.stop_undoing(why, now);
        self.audit_uid(now, uid, "stuck", why.to_owned());
        Ok(())
    }

    /// A person releases a record: its name stays refused, and nothing else takes the server before `block` is over.
    pub fn forbid(
        &mut self,
        uid: &Uid,
        by: &Runner,
        reason: &str,
        block: Option<std::time::Duration>,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let record = self.get(uid).cloned().ok_or(Refusal::Gone)?;
        self.refuse_name(&record, &by.to_string(), reason, now);
        if let Some(block) = block {
            self.block_until(&record, after(now, block), by, reason, now);
        }
        Ok(())
    }

    /// The server's own maintenance system says that it is not ours any more: whatever was planned for it is dropped, and
    /// only our request there is taken back.
    pub fn native_lost(&mut self, uid: &Uid, fence: Fence, why: &str, now: Timestamp) -> Result<(), Refusal> {
        let record = self.ours(uid, fence)?;
        if let Some(native) = &mut record.native {
            native.lost = Some(why.to_owned());
        }
        let progress = Progress::new(restore::steps(record), now);
        if let Phase::Releasing { progress: current, stuck, .. } = &mut record.phase {
            *current = progress;
            *stuck = None;
            self.audit_uid(now, uid, "lost", why.to_owned());
            return Ok(());
        }
        let cause = format!("the server's own maintenance system took it away: {why}");
        self.audit_uid(now, uid, "lost", why.to_owned());
        self.begin_release(uid, fence, Ending::Failed(cause), progress, now)
    }

    /// The server is as it was: ends the maintenance and frees the slot. Boot configurations under the hold end with it.
    pub fn finish(&mut self, uid: &Uid, fence: Fence, over: &Phase, now: Timestamp) -> Result<(), Refusal> {
        self.ours(uid, fence)?;
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
        self.forget_inspections();
        Ok(())
    }

    /// Leaves the queue. Only for a record that has touched nothing.
    pub fn withdraw(&mut self, uid: &Uid, fence: Fence, now: Timestamp) -> Result<(), Refusal> {
        let record = self.ours(uid, fence)?;
        if !matches!(record.phase, Phase::Pending) {
            return Err(Refusal::WrongPhase(record.phase.name()));
        }
        self.audit_uid(now, uid, "withdrawn", String::new());
        self.active.retain(|record| record.uid != *uid);
        self.forget_inspections();
        Ok(())
    }

    /// Removes waiters whose process went away longer ago than their place was kept for; of very many, the next change
    /// removes more. They are skipped until then, and no change is larger than a store takes.
    pub fn drop_absent(&mut self, leases: &Leases, now: Timestamp) {
        let gone: Vec<Uid> = self
            .active
            .iter()
            .filter(|record| matches!(record.phase, Phase::Pending))
            .filter(|record| place_kept_until(record, leases, now).is_some_and(|until| until <= now))
            .map(|record| record.uid.clone())
            .take(MOST_DROPPED)
            .collect();
        for uid in gone {
            self.audit_uid(now, &uid, "dropped", "its process did not come back".to_owned());
            self.active.retain(|record| record.uid != uid);
        }
        self.forget_inspections();
    }
}
