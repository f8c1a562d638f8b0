//! `ServerLock::apply`, the only way to change a lock and its records.
//!
//! A refused or outdated change does not modify the lock.

use jiff::Timestamp;

use super::{
    address, boot,
    change::{Applied, LockChange, Moment, RecordChange, Unreadable},
    drain, gate, hand_over,
    ids::{Fence, Uid},
    machine::ResetType,
    media,
    model::{
        finish::Finish,
        lock::{Enqueued, Refusal, ServerLock},
        operation::OperationOutcome,
        update::Undone,
    },
    node, prior,
    queue::{Turn, turn},
    restore, service,
    state::{Ending, KnownTo, Maintenance, Phase, Progress},
    step::{Action, Attempt, Reply, Step},
};

impl ServerLock {
    /// Applies a change at a given time.
    pub fn apply(&mut self, change: &LockChange<'_>, at: &Moment<'_>) -> Result<Applied, Refusal> {
        let (leases, now) = (at.leases, at.now);
        match *change {
            LockChange::Enqueue { request, claims, token } => {
                self.keeps(claims)?;
                self.drop_absent(leases, now);
                let enqueued = self.enqueue(request.clone(), leases, now)?;
                let uid = enqueued.uid().clone();
                let adopted = matches!(enqueued, Enqueued::Adopted(_));
                let only_place = request.keeps_place && !adopted;
                let fence = if only_place {
                    if !request.asking.ephemeral {
                        self.mark_known(&uid, &request.asking.state, &request.runner.to_string(), now)?;
                    }
                    None
                } else {
                    Some(self.attach(&uid, request.runner.clone(), token, leases, now)?)
                };
                Ok(Applied::Enqueued { uid, adopted, fence })
            }
            LockChange::Attach { uid, runner, token, state, owner } => {
                self.guard_owner(uid, owner)?;
                self.mark_known(uid, state, &runner.to_string(), now)?;
                let fence = self.attach(uid, runner.clone(), token, leases, now)?;
                Ok(Applied::Attached { fence, calls_until: self.in_flight_until(uid, now) })
            }
            LockChange::TakeOver { uid, state, owner, by } => {
                self.guard_owner(uid, Some(owner))?;
                self.refuse_if_in_use(uid, leases, now)?;
                self.take_over(uid, KnownTo::new(state, now, by), now)?;
                Ok(Applied::Done)
            }
            LockChange::Amend { uid, state, owner, spec, by } => {
                self.guard_owner(uid, Some(owner))?;
                if let Some(refusal) = self.get(uid).and_then(|record| record.refuses_state(state)) {
                    return Err(refusal);
                }
                if !self.amend(uid, spec, by, leases, now)? {
                    return Ok(Applied::Outdated);
                }
                self.mark_known(uid, state, by, now)?;
                Ok(Applied::Done)
            }
            LockChange::Allow { id, by } => Ok(Applied::Allowed(self.allow(id, by, now))),
            LockChange::Seize { uid, seen, runner, owner, token, ending, reason, block } => {
                self.guard_owner(uid, owner)?;
                // Recorded under the generation that the person specified.
                self.forbid(uid, runner, reason, block, now)?;
                let (fence, _) = self.fence_holder(uid, seen, runner.clone(), token, leases, now)?;
                let calls_until = self.in_flight_until(uid, now);
                // A queued record did not change the server, so its driver withdraws it. A finished
                // operation does not restore anything, so its driver finishes it.
                let releases = |record: &Maintenance| record.phase != Phase::Pending && !record.is_made();
                let started = self.get(uid).is_some_and(releases);
                if let Some(ending) = ending.filter(|_| started) {
                    self.release(uid, fence, ending.clone(), now)?;
                }
                Ok(Applied::Attached { fence, calls_until })
            }
            LockChange::DropAbsent => {
                let before: Vec<_> = self.active.iter().map(|record| (record.uid.clone(), record.id.clone())).collect();
                self.drop_absent(leases, now);
                let dropped = before.into_iter().filter(|(uid, _)| self.get(uid).is_none());
                Ok(Applied::Dropped(dropped.map(|(_, id)| id).collect()))
            }
            LockChange::Driven { uid, fence, change } => self.driven(uid, fence, change, at),
        }
    }

    fn driven(&mut self, uid: &Uid, fence: Fence, change: &RecordChange, at: &Moment<'_>) -> Result<Applied, Refusal> {
        let (leases, now) = (at.leases, at.now);
        match change {
            RecordChange::Admit(next) => {
                self.drop_absent(leases, now);
                // Checked again inside the transaction, because two waiters can both have read a
                // free lock.
                if turn(self, leases, uid, at.aging, now) != Turn::Yours {
                    return Ok(Applied::Outdated);
                }
                self.admit(uid, fence, next.clone(), now)?;
            }
            RecordChange::Withdraw => {
                self.withdraw(uid, fence, now)?;
                return Ok(Applied::Finished(Finish::Withdrawn));
            }
            RecordChange::Gate { place, granted, said, memory, again, .. } => self.update(uid, fence, |record| {
                if let Some(gate) = record.gates.get_mut(*place) {
                    gate.granted = *granted;
                    gate.said.clone_from(said);
                    // Keep the values from before the server entered, not later ones.
                    if gate.memory.is_empty() || *again {
                        gate.memory.clone_from(memory);
                    }
                }
            })?,
            RecordChange::NodeSeen { held_by, cluster } => self.update(uid, fence, |record| {
                record.node.held_by.clone_from(held_by);
                record.node.cluster.clone_from(cluster);
            })?,
            RecordChange::GateLost(place, why) => self.gate_lost(uid, fence, *place, why, now)?,
            RecordChange::Progress(progress) => return self.advance(uid, fence, progress),
            RecordChange::NoteWait(why) => self.note_wait(uid, fence, why)?,
            RecordChange::Prepared => self.prepared(uid, fence, now)?,
            RecordChange::AllowActions => return self.begin_allowed(uid, fence, false, now),
            RecordChange::BeginUpdate => return self.begin_allowed(uid, fence, true, now),
            RecordChange::RefuseUpdate(cause) => {
                self.refuse_update(uid, fence, cause, now)?;
                let (cause, undone) = (cause.clone(), Undone::NothingChanged);
                return Ok(Applied::Finished(Finish::NotUpdated { cause: cause.into(), undone }));
            }
            RecordChange::Undo(cause) => self.undo_update(uid, fence, cause, now)?,
            RecordChange::Undone(cause) => {
                self.prepared(uid, fence, now)?;
                let (cause, undone) = (cause.clone(), Undone::Done);
                return Ok(Applied::Finished(Finish::NotUpdated { cause: cause.into(), undone }));
            }
            RecordChange::StopUndoing(why) => self.stop_undoing(uid, fence, why, now)?,
            RecordChange::BeginRelease(ending) => self.release(uid, fence, ending.clone(), now)?,
            RecordChange::HandOver(next, ending) => {
                // Checked again inside the transaction.
                let holder = self.get(uid).ok_or(Refusal::Gone)?;
                let served = hand_over::successor(self, leases, holder, at.aging, now);
                if served.map(|served| &served.uid) != Some(next) || !self.may_act(uid, fence, leases, now) {
                    return Ok(Applied::Outdated);
                }
                self.hand_over(uid, fence, next, ending, now)?;
                return Ok(Applied::Finished(Finish::Over));
            }
            RecordChange::Stuck(cause) => {
                self.stick(uid, fence, cause, now)?;
                return Ok(Applied::Finished(Finish::Stuck(cause.clone().into())));
            }
            RecordChange::Finish(over) => return self.end(uid, fence, over, at),
            RecordChange::Abandon(ending) => {
                let over = Phase::Completed { at: now, ending: ending.clone() };
                self.finish(uid, fence, &over, now)?;
                return Ok(Applied::Finished(Finish::Over));
            }
            RecordChange::Reclaim(_) => {}
            RecordChange::Intend { action, last_reset } => {
                let attempt = Attempt { last_reset: last_reset.clone(), ..Attempt::intended(action.clone(), at.now) };
                return self.intend_call(uid, fence, attempt, at);
            }
            RecordChange::Replied(reply) => self.replied(uid, fence, reply, at)?,
            RecordChange::Prior(prior) => self.update(uid, fence, |record| {
                record.last_power = Some(prior.power);
                let mut prior = address::without_own((**prior).clone(), record);
                prior.recorded_at = now;
                if record.records_before_update() {
                    record.record_before_update(prior.clone());
                }
                prior::complete(record.prior.get_or_insert_with(|| prior.clone()), &prior);
            })?,
            RecordChange::Settled(effects) => {
                self.update(uid, fence, |_| {})?;
                self.extension.effects.retain(|effect| !effects.contains(effect));
            }
            RecordChange::Unreadable { cause, transient } => {
                return self.unreadable(uid, fence, cause.raw(), *transient, at);
            }
            RecordChange::AskExternal(place) => return self.request_gate(uid, fence, *place, at),
            RecordChange::PowerAfter(place, power) => self.note_power(uid, fence, *place, *power, now)?,
            RecordChange::Respecify(spec) => self.revise(uid, fence, spec, now)?,
            RecordChange::PrepareAgain => self.prepare_again(uid, fence)?,
            RecordChange::Detach => self.detach(uid, fence, now)?,
            RecordChange::Conclude { state, failed } => self.conclude(uid, fence, state.raw(), *failed, now)?,
        }
        Ok(Applied::Done)
    }

    /// Starts a release. It inherits the preparation's unconfirmed power-off calls and does not
    /// repeat them.
    fn release(&mut self, uid: &Uid, fence: Fence, ending: Ending, now: Timestamp) -> Result<(), Refusal> {
        let record = self.get(uid).ok_or(Refusal::Gone)?;
        let mut progress = Progress::new(restore::steps(record), now);
        if progress.step() == Some(Step::StopForRestore) {
            progress.attempts = sent_to_switch_off(record);
        }
        self.begin_release(uid, fence, ending, progress, now)
    }

    /// Starts a rollback to the previous specification. It inherits unconfirmed power-off calls,
    /// like a release.
    fn undo_update(&mut self, uid: &Uid, fence: Fence, cause: &str, now: Timestamp) -> Result<(), Refusal> {
        let sent = self.get(uid).map(sent_to_switch_off).unwrap_or_default();
        self.undo(uid, fence, cause, now)?;
        self.update(uid, fence, |record| {
            if let Phase::Preparing(progress) = &mut record.phase
                && matches!(progress.step(), Some(Step::StopForRestore | Step::SwitchOff))
            {
                progress.attempts = sent;
            }
        })
    }

    fn advance(&mut self, uid: &Uid, fence: Fence, progress: &Progress) -> Result<Applied, Refusal> {
        let (mut settled, mut outdated) = (Vec::new(), false);
        self.update(uid, fence, |record| {
            if progress_of(&mut record.phase).is_some_and(|current| current.disturbed != progress.disturbed) {
                outdated = true;
                return;
            }
            let left = record.phase.progress().filter(|before| progress.current > before.current);
            let left = left.and_then(Progress::step);
            match left {
                Some(Step::EnterGate) => {
                    if let Some(place) = gate::entering(record) {
                        record.gates[place].entered = true;
                    }
                }
                Some(Step::LeaveGate) => {
                    if let Some(place) = gate::leaving(record) {
                        record.gates[place].left = true;
                    }
                }
                _ => {}
            }
            if let Some(current) = progress_of(&mut record.phase) {
                // A completed step settles its calls. An operation with unknown outcome can still
                // take effect.
                let unproven = left == Some(Step::Operate) && progress.outcome == Some(OperationOutcome::Unproven);
                let before = std::mem::replace(current, progress.clone());
                if unproven {
                    record.unproven_message = before.last_message().cloned();
                } else if progress.current > before.current {
                    settled = before.attempts;
                }
                record.tolerated.clone_from(&progress.tolerated);
            }
        })?;
        self.settle_effects(uid, &settled);
        Ok(if outdated { Applied::Outdated } else { Applied::Done })
    }

    fn stick(&mut self, uid: &Uid, fence: Fence, cause: &str, now: Timestamp) -> Result<(), Refusal> {
        self.update(uid, fence, |record| {
            if let Phase::Releasing { stuck, progress, .. } = &mut record.phase {
                *stuck = Some(cause.into());
                progress.begin_afresh(now);
            }
        })
    }

    fn end(&mut self, uid: &Uid, fence: Fence, over: &Phase, at: &Moment<'_>) -> Result<Applied, Refusal> {
        let record = self.get(uid).ok_or(Refusal::Gone)?;
        let parent = record.spec.parent.clone();
        let released = matches!(record.phase, Phase::Releasing { .. });
        let hold = parent.as_ref().and_then(|parent| self.get(parent));
        let hold_driven = hold.and_then(|hold| hold.attachment.as_ref()).is_some_and(|it| at.leases.alive(it, at.now));
        let with_hold = hold.is_some_and(|hold| matches!(hold.phase, Phase::Releasing { .. })) && !hold_driven;
        // Checked again, because work under the lock can have resumed and be inside a call.
        let undone = matches!(&record.phase, Phase::Releasing { progress, .. } if progress.step().is_some());
        if released && !with_hold && (undone || !self.may_act(uid, fence, at.leases, at.now)) {
            return Ok(Applied::Outdated);
        }
        self.finish(uid, fence, over, at.now)?;
        if with_hold {
            self.disturb(parent.as_ref(), at.now);
        }
        Ok(Applied::Finished(Finish::Over))
    }

    /// Restarts the holder's steps, because work under its lock possibly changed the server.
    fn disturb(&mut self, hold: Option<&Uid>, now: Timestamp) {
        if let Some(hold) = self.active.iter_mut().find(|record| Some(&record.uid) == hold)
            && let Some(progress) = progress_of(&mut hold.phase)
        {
            progress.current = 0;
            progress.disturbed += 1;
            progress.begin_afresh(now);
        }
    }

    fn intend_call(&mut self, uid: &Uid, fence: Fence, attempt: Attempt, at: &Moment<'_>) -> Result<Applied, Refusal> {
        let (now, action) = (at.now, &attempt.action.clone());
        // Work under the lock can have resumed since the decision. The server must then be restored
        // again before it is returned.
        let step = self.get(uid).and_then(|record| record.phase.progress()?.step());
        if leaves(action).is_some_and(|needed| step != Some(needed)) {
            return Ok(Applied::Outdated);
        }
        let may = self.intend(uid, fence, at.leases, now, |record| {
            let preparing = matches!(record.phase, Phase::Preparing(_));
            record.booted |= preparing && starts(action) && record.spec.boot.is_some();
            node::note_taken(record, action);
            drain::note_cordoned(record, action);
            media::note_drive(record, action);
            boot::note_write(record, action, None, preparing);
            record.note_update_call(action);
            if let Some(place) = gate::entering(record).filter(|_| *action == Action::EnterGate) {
                record.gates[place].asked = true;
            }
            if let Some(place) = gate::leaving(record).filter(|_| *action == Action::LeaveGate) {
                record.gates[place].withdrawn = true;
            }
            if let Some(progress) = progress_of(&mut record.phase) {
                progress.attempts.push(attempt);
            }
        })?;
        if !may {
            return Ok(Applied::Outdated);
        }
        if let Some(record) = self.get(uid).cloned() {
            self.expect_effect(&record, action, at.limits, now);
            let parent = record.spec.parent.as_ref();
            if let Some(parent) = parent {
                // Any of them can start the server, which then boots the configuration that any of
                // them set.
                let is_under = |it: &Maintenance| it.uid == *parent || it.spec.parent.as_ref() == Some(parent);
                let boots = starts(action)
                    && !matches!(record.phase, Phase::Releasing { .. })
                    && self.active.iter().any(|it| it.spec.boot.is_some() && is_under(it));
                // The holder restores everything that work under its lock changed.
                if let Some(hold) = self.active.iter_mut().find(|hold| hold.uid == *parent) {
                    media::note_drive(hold, action);
                    boot::note_write(hold, action, Some(&record), matches!(record.phase, Phase::Preparing(_)));
                    hold.booted |= boots;
                }
            }
            self.disturb(parent, now);
        }
        Ok(Applied::Done)
    }

    fn replied(&mut self, uid: &Uid, fence: Fence, reply: &Reply, at: &Moment<'_>) -> Result<(), Refusal> {
        let mut action = None;
        self.update(uid, fence, |record| {
            if let Some(attempt) = progress_of(&mut record.phase).and_then(|progress| progress.attempts.last_mut()) {
                attempt.reply = reply.clone();
                attempt.answered.get_or_insert(at.now);
                action = Some(attempt.action.clone());
            }
        })?;
        if let Some(action) = action {
            self.reply_to_effect(uid, &action, reply, at.limits, at.now);
        }
        Ok(())
    }

    /// Handles an unreadable machine. A preparation fails and is rolled back, a release stops until
    /// the next destroy, and a waiter with a permanent failure leaves the queue. A locked server
    /// stays locked.
    fn unreadable(
        &mut self,
        uid: &Uid,
        fence: Fence,
        cause: &str,
        transient: bool,
        at: &Moment<'_>,
    ) -> Result<Applied, Refusal> {
        let record = self.get(uid).ok_or(Refusal::Gone)?;
        let mine = record.attachment.as_ref().is_some_and(|it| it.is(fence) && at.leases.alive(it, at.now));
        let follows = match &record.phase {
            // The external service is possibly running. The lock stays until its end is observed.
            Phase::Preparing(progress) if service::begun(progress).is_some() => Unreadable::Kept,
            Phase::Preparing(progress) => {
                let step = progress.step().map(|step| format!("{step}: ")).unwrap_or_default();
                let cause = progress.with_message(format!("{step}{cause}"));
                if record.undoing().is_some() {
                    self.stop_undoing(uid, fence, &cause, at.now)?;
                } else if record.update.is_some() {
                    self.undo_update(uid, fence, &cause, at.now)?;
                } else {
                    self.release(uid, fence, Ending::Failed(cause.into()), at.now)?;
                }
                Unreadable::Undone
            }
            Phase::Releasing { progress, .. } => {
                let cause = progress.with_message(cause.to_owned());
                self.stick(uid, fence, &cause, at.now)?;
                Unreadable::Stuck
            }
            Phase::Pending if mine && !transient => Unreadable::LeavesQueue,
            _ => Unreadable::Kept,
        };
        Ok(Applied::Unreadable(follows))
    }
}

fn progress_of(phase: &mut Phase) -> Option<&mut Progress> {
    match phase {
        Phase::Preparing(progress) | Phase::Releasing { progress, .. } => Some(progress),
        _ => None,
    }
}

/// Returns true if the action starts the server's configured boot.
fn starts(action: &Action) -> bool {
    matches!(
        action,
        Action::Reset(ResetType::On | ResetType::ForceRestart | ResetType::GracefulRestart | ResetType::PowerCycle)
    )
}

/// Returns the power-off calls of a preparation.
fn sent_to_switch_off(record: &Maintenance) -> Vec<Attempt> {
    let Phase::Preparing(progress) = &record.phase else { return Vec::new() };
    let off = |attempt: &&Attempt| {
        matches!(attempt.action, Action::Reset(ResetType::GracefulShutdown | ResetType::ForceOff))
            && !matches!(attempt.reply, Reply::Refused { .. })
    };
    progress.attempts.iter().filter(off).cloned().collect()
}

/// Returns the step in which an action gives up the server; `None` for other actions.
fn leaves(action: &Action) -> Option<Step> {
    match action {
        Action::LeaveGate => Some(Step::LeaveGate),
        Action::UncordonNode => Some(Step::UncordonNode),
        Action::ReturnNode => Some(Step::ReturnNode),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
