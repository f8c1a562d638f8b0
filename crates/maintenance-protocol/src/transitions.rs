//! Transitions of the lock protocol. A rejected transition changes nothing.

use std::borrow::Cow;
use std::ops::DerefMut;

use jiff::Timestamp;

use super::{
    approval::{Consent, consent},
    ids::{Attachment, Fence, Runner, Token, Uid},
    lock::place_kept_until,
    machine::PowerTarget,
    model::{
        lock::{AuditEvent, Leases, LockHolder, Refusal, ServerLock},
        verdict::after,
    },
    restore,
    spec::Spec,
    state::{Ending, Maintenance, Phase, Progress},
};

/// Limits how many disconnected waiters one change removes, so that a commit stays small.
const MOST_DROPPED: usize = 20;

impl ServerLock {
    pub(super) fn get_mut(&mut self, uid: &Uid) -> Result<&mut Maintenance, Refusal> {
        let found = self.active.iter_mut().find(|record| record.uid == *uid);
        found.map(DerefMut::deref_mut).ok_or(Refusal::Gone)
    }

    /// Returns the record if `fence` is current.
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
            by: by.into(),
            what: what.into(),
            detail: detail.into(),
        });
    }

    pub(super) fn audit_uid(&mut self, now: Timestamp, uid: &Uid, what: &str, detail: String) {
        if let Some(record) = self.get(uid).cloned() {
            let by = record
                .attachment
                .as_ref()
                .map_or_else(|| record.requester.to_string(), |attachment| attachment.runner.to_string());
            self.audit(now, &record, &by, what, detail);
        }
    }

    /// Fails while a process is connected, even this process: attaching twice to a record means
    /// that two resources share a name.
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

    /// Attaches a process under a new generation. Fails while a connected process is attached.
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
        if let Phase::Preparing(progress) | Phase::Releasing { progress, .. } = &mut record.phase {
            progress.waits_for = None;
        }
        // A stopped release is retried with a full time limit. Calls sent since then stay recorded.
        if let Phase::Releasing { stuck: Some(_), progress, .. } = &mut record.phase
            && progress.attempts.is_empty()
        {
            progress.since = now;
        }
        Ok(Fence { generation, token })
    }

    /// Records the current step's wait reason, for people.
    pub(super) fn note_wait(&mut self, uid: &Uid, fence: Fence, why: &str) -> Result<(), Refusal> {
        self.update(uid, fence, |record| {
            if let Phase::Preparing(progress) | Phase::Releasing { progress, .. } = &mut record.phase {
                progress.waits_for = Some(why.into());
            }
        })
    }

    /// Detaches the process. Record, lock and queue position stay.
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

    /// Acquires the lock, or starts work under a parent's lock. The caller checked the admission
    /// with [`super::queue::turn`] in the same transaction.
    pub fn admit(&mut self, uid: &Uid, fence: Fence, next: Phase, now: Timestamp) -> Result<(), Refusal> {
        // Check first: the lock must be free, or belong to this record or its parent.
        let parent = self.ours(uid, fence)?.spec.parent.clone();
        let held_by = self.slot.as_ref().map(|slot| &slot.uid);
        match (&parent, held_by) {
            (Some(parent), holder) if holder != Some(parent) => return Err(Refusal::ParentNotHolding),
            (None, Some(holder)) if holder != uid => {
                return Err(Refusal::WrongPhase("another maintenance is admitted"));
            }
            _ => {}
        }
        self.admit_record(uid, next, now)
    }

    /// Admits a record, regardless of the process that drives it.
    pub(super) fn admit_record(&mut self, uid: &Uid, next: Phase, now: Timestamp) -> Result<(), Refusal> {
        let under = self.get(uid).ok_or(Refusal::Gone)?.spec.parent.is_some();
        let slot = self.slot.get_or_insert_with(|| LockHolder { uid: uid.clone(), since: now, acting: None });
        if under {
            slot.acting = Some(uid.clone());
        }
        let record = self.get_mut(uid)?;
        let waited = record.awaiting_turn().map(Cow::into_owned);
        let first = matches!(record.phase, Phase::Pending);
        record.phase = next;
        record.admitted_at.get_or_insert(now);
        for gate in record.gates.iter_mut().filter(|gate| gate.is_external()) {
            gate.entered |= gate.system.enters && gate.granted;
        }
        if first {
            record.closes_at = record.spec.window.as_ref().and_then(|window| window.gives_back_at(now));
        }
        if let Some(waited) = waited {
            let detail = self.note_allowed(uid, &waited, now);
            self.audit_uid(now, uid, "admitted", detail);
            if !first {
                // In the same transaction, so that the record never owns the lock without work.
                self.begin_wanted_update(uid, now)?;
            }
        }
        Ok(())
    }

    /// Records that owner and window allow the record's actions, and returns the reason. An
    /// approval for one maintenance is then used.
    fn note_allowed(&mut self, uid: &Uid, asks: &Maintenance, now: Timestamp) -> String {
        if let Ok(record) = self.get_mut(uid) {
            record.allowed = Some(asks.spec.actions().into());
        }
        match consent(self, asks, now) {
            Consent::Given { approval, by, all: true } => format!("approval {approval} of everything, by {by}"),
            Consent::Given { approval: uid, by, all: false } => {
                if let Some(approval) = self.ownership.approvals.iter_mut().find(|approval| approval.uid == uid) {
                    approval.used_by = Some(asks.uid.clone());
                }
                format!("approved by {by}")
            }
            Consent::Escalated { since } => format!("without the owner's answer, as announced, since {since}"),
            Consent::NotNeeded | Consent::Missing(_) => String::new(),
        }
    }

    /// Records that owner and window allow a changed specification. The caller checked
    /// [`super::blocker::unallowed`] in the same transaction.
    pub(super) fn allow_actions(&mut self, uid: &Uid, fence: Fence, now: Timestamp) -> Result<(), Refusal> {
        self.ours(uid, fence)?;
        self.allow_change(uid, now);
        Ok(())
    }

    fn allow_change(&mut self, uid: &Uid, now: Timestamp) {
        let asks = self.get(uid).and_then(|record| record.awaiting_consent().map(Cow::into_owned));
        if let Some(asks) = asks {
            let detail = self.note_allowed(uid, &asks, now);
            self.audit_uid(now, uid, "change allowed", detail);
        }
    }

    /// Changes a record's data. Identity, queue position and attachment must stay unchanged.
    pub fn update(&mut self, uid: &Uid, fence: Fence, change: impl FnOnce(&mut Maintenance)) -> Result<(), Refusal> {
        change(self.ours(uid, fence)?);
        Ok(())
    }

    /// Records a call's intent if the process with `fence` is allowed to send it now. Otherwise
    /// returns `false` and changes nothing.
    ///
    /// If the lock's holder acts itself, disconnected work under its lock loses the permission to
    /// act. Such work could otherwise resume during the holder's call, because its attachment is
    /// still current.
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

    /// Marks the preparation or operation as complete. A boot configuration or operation with its
    /// own queue position then frees the lock.
    pub fn prepared(&mut self, uid: &Uid, fence: Fence, now: Timestamp) -> Result<(), Refusal> {
        let record = self.ours(uid, fence)?;
        if let Phase::Preparing(progress) = &record.phase {
            // A server that was not started has not booted, so its boot cannot be proven.
            let started = record.spec.boot.is_none() || record.spec.server_power == Some(PowerTarget::On);
            record.outcome = progress.outcome.or(record.outcome).filter(|_| started);
        }
        let undone = record.undoing().is_some();
        record.phase = Phase::InMaintenance { since: record.end_update(now) };
        record.started_at.get_or_insert(now);
        let frees = !record.keeps_server() && record.spec.parent.is_none();
        self.stop_acting(uid);
        if frees {
            self.slot = None;
        }
        self.audit_uid(now, uid, if undone { "undone" } else { "prepared" }, String::new());
        Ok(())
    }

    /// Returns true if work under a maintenance booted the server, which counts as the
    /// maintenance's own boot.
    pub(super) fn booted_under(&self, uid: &Uid) -> bool {
        self.active.iter().any(|child| child.booted && child.spec.parent.as_ref() == Some(uid))
    }

    /// Starts a release. The lock stays held until [`Self::finish`].
    pub fn begin_release(
        &mut self,
        uid: &Uid,
        fence: Fence,
        ending: Ending,
        progress: Progress,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let detail = ending.to_string();
        let booted = self.booted_under(uid);
        let record = self.ours(uid, fence)?;
        record.booted |= booted;
        record.update = None;
        record.tolerated.clear();
        record.phase = Phase::Releasing { ending, progress, stuck: None };
        self.audit_uid(now, uid, "releasing", detail);
        Ok(())
    }

    /// Stores a new specification. For a locked server, only as the requested change.
    pub fn revise(&mut self, uid: &Uid, fence: Fence, wanted: &Spec, now: Timestamp) -> Result<(), Refusal> {
        self.ours(uid, fence)?.revise(wanted, now);
        Ok(())
    }

    /// Starts the requested change after all checks passed.
    pub fn begin_update(&mut self, uid: &Uid, fence: Fence, now: Timestamp) -> Result<(), Refusal> {
        self.ours(uid, fence)?;
        self.begin_wanted_update(uid, now)
    }

    fn begin_wanted_update(&mut self, uid: &Uid, now: Timestamp) -> Result<(), Refusal> {
        self.allow_change(uid, now);
        self.get_mut(uid)?.begin_update(now);
        let detail = self.get(uid).map(|record| record.spec.summary()).unwrap_or_default();
        self.audit_uid(now, uid, "updating", detail);
        Ok(())
    }

    /// Drops a change whose check failed; the previous specification stays current.
    pub fn refuse_update(&mut self, uid: &Uid, fence: Fence, cause: &str, now: Timestamp) -> Result<(), Refusal> {
        self.ours(uid, fence)?.update = None;
        self.audit_uid(now, uid, "update refused", cause.to_owned());
        Ok(())
    }

    /// Starts the rollback to the previous specification after a failed step. The lock stays held.
    pub fn undo(&mut self, uid: &Uid, fence: Fence, cause: &str, now: Timestamp) -> Result<(), Refusal> {
        self.ours(uid, fence)?.undo(cause, now);
        self.audit_uid(now, uid, "undoing", cause.to_owned());
        Ok(())
    }

    /// Stops a rollback. The server stays locked between both specifications.
    pub fn stop_undoing(&mut self, uid: &Uid, fence: Fence, why: &str, now: Timestamp) -> Result<(), Refusal> {
        self.ours(uid, fence)?.stop_undoing(why, now);
        self.audit_uid(now, uid, "stuck", why.to_owned());
        Ok(())
    }

    /// Stores restrictions after a person's release: the rejected name and an optional block. A
    /// completed operation is not rejected, because it does not own a lock.
    pub fn forbid(
        &mut self,
        uid: &Uid,
        by: &Runner,
        reason: &str,
        block: Option<std::time::Duration>,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let record = self.get(uid).cloned().ok_or(Refusal::Gone)?;
        if !record.is_made() {
            self.refuse_name(&record, &by.to_string(), reason, now);
        }
        if let Some(block) = block {
            self.block_until(&record, after(now, block), by, reason, now);
        }
        Ok(())
    }

    /// Handles a gate's revocation and drops all planned work. If the maintenance loses the server
    /// with that gate, it only withdraws its requests; otherwise it restores the server.
    pub fn gate_lost(
        &mut self,
        uid: &Uid,
        fence: Fence,
        place: usize,
        why: &str,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let record = self.ours(uid, fence)?;
        let Some(gate) = record.gates.get_mut(place) else { return Ok(()) };
        gate.lost = Some(why.into());
        let cause = format!("{} revoked the server: {why}", gate.system.shown());
        let progress = Progress::new(restore::steps(record), now);
        if let Phase::Releasing { progress: current, stuck, .. } = &mut record.phase {
            *current = progress;
            *stuck = None;
            self.audit_uid(now, uid, "lost", why.to_owned());
            return Ok(());
        }
        self.audit_uid(now, uid, "lost", why.to_owned());
        self.begin_release(uid, fence, Ending::Failed(cause.into()), progress, now)
    }

    /// Ends a restored maintenance and frees the lock. Boot configurations under it end as well.
    pub fn finish(&mut self, uid: &Uid, fence: Fence, over: &Phase, now: Timestamp) -> Result<(), Refusal> {
        self.ours(uid, fence)?;
        let to = self.get(uid).and_then(|record| record.handed_to.clone());
        let what = match over {
            Phase::Failed { .. } => "failed",
            _ if to.is_some() => "handed over",
            _ => "released",
        };
        let detail = match over {
            Phase::Completed { .. } if let Some(to) = to => format!("to {to}, unchanged"),
            Phase::Failed { cause, .. } => cause.to_string(),
            Phase::Completed { ending, .. } => ending.to_string(),
            _ => return Err(Refusal::WrongPhase("it has not ended")),
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
                Phase::Completed { at: now, ending: Ending::CompletedBy(by.into()) }
            };
            record.attachment = None;
            record.detached_at = Some(now);
            self.finished.push(record.into_inner());
        }
        self.stop_acting(uid);
        if self.slot.as_ref().is_some_and(|slot| slot.uid == *uid) {
            self.slot = None;
        }
        self.forget_inspections();
        Ok(())
    }

    /// Removes a request from the queue. Valid only before it changed the server.
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

    /// Removes disconnected waiters whose queue position expired. Each change removes a limited
    /// number, so that it fits a store transaction. The others are skipped in the queue until a
    /// later change removes them.
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
