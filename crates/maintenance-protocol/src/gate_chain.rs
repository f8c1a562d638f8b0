//! Rules for gates: when to request, enter and leave them, and how to react to a revoked grant.

use jiff::Timestamp;
use shown_text::OneLine;

use super::{
    blocker::{StartBlocker, start_blockers},
    change::{Applied, Moment, RecordChange},
    drain,
    gate::{entering, leaving, may_restore, taken_away},
    ids::{Fence, Uid},
    machine::{PowerTarget, ResetType},
    model::{
        facts::Facts,
        finish::Finish,
        gate::{BootReadiness, ExternalState, GateRecord, GateView, Loss, PowerAfter, QueueAuthority},
        lock::{Refusal, ServerLock},
        shown_time::shown_time,
        verdict::{Limits, Need, Verdict, after},
    },
    node,
    power::pursue,
    queue::{self, Turn, WaitReason},
    situation::{Decision, DecisionInput},
    spec::Spec,
    state::{Maintenance, Phase, Progress},
    step::{Action, Reply, Step},
};

/// Returns a waiter's next call to its gates before it can be admitted; `None` if nothing is due.
///
/// Each gate receives its request after all earlier gates grant the start. If anything else blocks
/// the waiter, it withdraws its requests in reverse order.
#[must_use]
pub(super) fn ask(at: &DecisionInput<'_>, record: &Maintenance, turn: &Turn) -> Option<Decision> {
    // The parent's grants cover work under its lock.
    if record.spec.parent.is_some() {
        return None;
    }
    let own = start_blockers(at.lock, record, at.now).iter().any(|blocker| !matches!(blocker, StartBlocker::Gate(_)));
    if own && let Some(decision) = withdraw(at, record, 0) {
        return Some(decision);
    }
    let others = matches!(turn, Turn::ReclaimOverdue(_) | Turn::Wait { reason: WaitReason::Turn { .. }, .. });
    // No gate receives a request before the earlier ones can.
    let may_ask = |gate: &GateRecord| {
        let early = gate.system.order == QueueAuthority::OnTurn && !gate.asked && others;
        !(early || own && gate.is_external())
    };
    let mut gates = record.gates.iter().enumerate().take_while(|(_, gate)| may_ask(gate));
    let (place, decision) = gates.find_map(|(place, gate)| Some((place, ask_one(at, (place, gate), own)?)))?;
    // Gates behind one that does not grant the start must not keep a request.
    let looks = matches!(decision, Decision::Look(_));
    Some(if looks { decision } else { withdraw(at, record, place + 1).unwrap_or(decision) })
}

/// Withdraws the requests to external gates from index `from` on, innermost first. A gate that
/// grants early, or outside the window, would take the server out of service for nothing.
fn withdraw(at: &DecisionInput<'_>, record: &Maintenance, from: usize) -> Option<Decision> {
    let asked = || record.gates.iter().enumerate().skip(from).filter(|(_, gate)| gate.is_external() && gate.asked);
    asked().rev().find_map(|(place, _)| {
        let Some(view) = at.facts.gates.get(&place) else { return Some(Decision::Look(Need::Gate(place))) };
        match &view.standing {
            ExternalState::Waiting(_)
            | ExternalState::Entering(_)
            | ExternalState::Granted
            | ExternalState::Lost(_)
            | ExternalState::Failed(_)
            | ExternalState::Leftovers(_) => Some(Decision::Ask { place, enter: false }),
            // An outer gate waits until the inner one has completely released the server.
            ExternalState::Returning(why) if asked().any(|(other, _)| other < place) => {
                let reason = format!("waiting until {why}");
                Some(if at.intent.timed_out {
                    Decision::Finished(Finish::TimedOut(reason.into()))
                } else {
                    Decision::Wait { reason, poll: true, wake: None }
                })
            }
            ExternalState::Returning(_)
            | ExternalState::Absent
            | ExternalState::Refused(_)
            | ExternalState::Taken(_) => None,
        }
    })
}

fn ask_one(at: &DecisionInput<'_>, (place, gate): (usize, &GateRecord), own: bool) -> Option<Decision> {
    let theirs = gate.is_external();
    let Some(view) = at.facts.gates.get(&place) else { return Some(Decision::Look(Need::Gate(place))) };
    let note = |granted, said, again| {
        let (by, memory) = (gate.system.shown().to_owned(), view.memory.clone());
        Decision::Change(RecordChange::Gate { place, by: by.into(), granted, said, memory, again })
    };
    let (granted, said) = match &view.standing {
        ExternalState::Refused(why) | ExternalState::Failed(why) => {
            return Some(Decision::Finished(Finish::Refused(why.to_string().into())));
        }
        // The prior state must be recorded before the first change.
        ExternalState::Absent if gate.memory != view.memory => {
            return Some(note(!theirs, gate.said.clone().filter(|_| theirs), true));
        }
        ExternalState::Absent if theirs => return Some(Decision::Ask { place, enter: true }),
        ExternalState::Leftovers(_) if theirs => return Some(Decision::Ask { place, enter: false }),
        ExternalState::Absent | ExternalState::Granted | ExternalState::Leftovers(_) => (true, None),
        ExternalState::Waiting(why) | ExternalState::Entering(why) | ExternalState::Taken(why) => {
            (false, Some(why.clone()))
        }
        ExternalState::Lost(why) | ExternalState::Returning(why) => {
            (false, Some(OneLine::from(format!("the server: {why}"))))
        }
    };
    if gate.granted != granted || gate.said != said {
        return Some(note(granted, said, false));
    }
    let said = said?;
    // The external system grants nothing while the overdue holder's request exists, so release it
    // first.
    let overdue =
        queue::reclaimable(at.lock, at.leases, at.now).filter(|holder| view.behind.as_ref() == Some(&holder.uid));
    if let Some(holder) = overdue.filter(|_| !own && !at.intent.timed_out) {
        return Some(Decision::Change(RecordChange::Reclaim(holder.uid.clone())));
    }
    let reason = format!("waiting for {said}");
    Some(if at.intent.timed_out {
        Decision::Finished(Finish::TimedOut(reason.into()))
    } else {
        let wake = at.lock.holder().and_then(Maintenance::expires_at).filter(|expires| *expires > at.now);
        Decision::Wait { reason, poll: true, wake }
    })
}

/// Returns how many of the holder's gates precede those of a record that acts under it. Such a
/// record has only the innermost gate.
#[must_use]
pub fn outer_gates(holder: &Maintenance, record: &Maintenance) -> usize {
    holder.gates.len().saturating_sub(record.gates.len())
}

/// Returns the decision that follows from a revoked or unread gate; `None` if all entered gates
/// still grant.
#[must_use]
pub(super) fn check(at: &DecisionInput<'_>, record: &Maintenance) -> Option<Decision> {
    let holder = record.spec.parent.as_ref().map_or(Some(record), |parent| at.lock.get(parent))?;
    // A release ignores gates whose revocation leaves the server to the maintenance.
    let gives_back = matches!(record.phase, Phase::Releasing { .. });
    let outer = outer_gates(holder, record);
    let is_known = |place: usize| {
        let own = place.checked_sub(outer).and_then(|place| record.gates.get(place));
        own.is_some_and(|gate| gate.lost.is_some())
    };
    let mut gates = holder.gates.iter().enumerate();
    gates.find_map(|(place, gate)| {
        let told = gate.system.loss == Loss::Restore && (gives_back || record.spec.parent.is_some());
        if !gate.entered || gate.left || gate.lost.is_some() || told || is_known(place) {
            return None;
        }
        let Some(view) = at.facts.gates.get(&place) else { return Some(Decision::Look(Need::Gate(place))) };
        taken_away(&view.standing)
            .map(|why| Decision::Change(RecordChange::GateLost(place.saturating_sub(outer), why.to_string())))
    })
}

/// Continues a withdrawal that a stopped release began: the server already returns to its owner, so
/// only the steps from [`Step::LeaveGate`] remain.
#[must_use]
pub(super) fn goes_on_leaving(at: &DecisionInput<'_>, record: &Maintenance, progress: &Progress) -> Option<Decision> {
    let place = leaving(record).filter(|place| record.gates[*place].withdrawn && record.spec.parent.is_none())?;
    let Some(view) = at.facts.gates.get(&place) else { return Some(Decision::Look(Need::Gate(place))) };
    let current = progress.steps.iter().position(|step| *step == Step::LeaveGate)?;
    match &view.standing {
        ExternalState::Absent | ExternalState::Returning(_) | ExternalState::Leftovers(_) | ExternalState::Taken(_) => {
            let mut next = Progress { current, ..progress.clone() };
            next.begin_afresh(at.now);
            Some(Decision::Change(RecordChange::Progress(next)))
        }
        // The system did not act on the withdrawal, or revoked the server first.
        _ => None,
    }
}

/// Records the power that an external system wants after the release, if it differs from the
/// record. The owner can change it at any time. Unread gates are skipped.
#[must_use]
pub(super) fn power_after(at: &DecisionInput<'_>, record: &Maintenance) -> Option<Decision> {
    if record.spec.parent.is_some() || !may_restore(record) {
        return None;
    }
    let recorded = PowerAfter::Wanted(record.prior.as_ref()?.power.restored()?);
    let mut gates = record.gates.iter().enumerate().filter(|(_, gate)| gate.entered && !gate.left);
    gates.find_map(|(place, gate)| {
        let power = at.facts.gates.get(&place)?.power_after.filter(|power| *power != recorded);
        (power != gate.power_after).then_some(Decision::Change(RecordChange::PowerAfter(place, power)))
    })
}

impl ServerLock {
    /// Records the power that a gate wants after the release. The release restores it again if it
    /// already restored the power.
    pub(super) fn note_power(
        &mut self,
        uid: &Uid,
        fence: Fence,
        place: usize,
        power: Option<PowerAfter>,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        self.update(uid, fence, |record| note_power(record, place, power, now))
    }
}

fn note_power(record: &mut Maintenance, place: usize, power: Option<PowerAfter>, now: Timestamp) {
    if let Some(gate) = record.gates.get_mut(place) {
        gate.power_after = power;
    }
    if let Phase::Releasing { progress, .. } = &mut record.phase
        && progress.current > 0
    {
        progress.current = 0;
        progress.begin_afresh(now);
    }
}

/// Blocks actions of work under a lock after the holder lost an outer gate or the Node's Lease, or
/// the drained Node was uncordoned. Workloads possibly run there again, or another component acts
/// on the Node. Only the holder's restore then justifies an interruption.
#[must_use]
pub(super) fn may_send(at: &DecisionInput<'_>, record: &Maintenance) -> Verdict {
    let Some(holder) = record.spec.parent.as_ref().and_then(|parent| at.lock.get(parent)) else {
        return Verdict::Done;
    };
    let fail = |why: String| {
        Verdict::Fail(
            format!("{why}. The provider sends it no more requests under {0}. Release {0} first", holder.id).into(),
        )
    };
    let again = "Workloads can run on the server again";
    let outer = holder.gates.iter().enumerate().take(outer_gates(holder, record));
    for (place, gate) in outer.filter(|(_, gate)| gate.entered && !gate.left && gate.system.loss == Loss::Restore) {
        let lost = match (&gate.lost, at.facts.gates.get(&place)) {
            (Some(why), _) => Some(why.clone()),
            (None, Some(view)) => taken_away(&view.standing),
            (None, None) => return Verdict::Look(Need::Gate(place)),
        };
        if let Some(why) = lost {
            return fail(format!("{}: {why}. {again}", gate.system.name));
        }
    }
    if let Some(lease) = &holder.node.taken {
        let Some(seen) = &at.facts.node else { return Verdict::Look(Need::Node) };
        if let Some(why) = node::lost(holder, seen) {
            return fail(format!("the Lease of Node {} {why}. {again}", lease.node));
        }
    }
    let Some(drained) = &holder.drained else { return Verdict::Done };
    let Some(view) = &at.facts.drain else { return Verdict::Look(Need::Drain) };
    drained.in_use(view).map_or(Verdict::Done, fail)
}

/// Enters the next gate under the lock.
#[must_use]
pub(super) fn enter(
    record: &Maintenance,
    progress: &Progress,
    facts: &Facts,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let Some(place) = entering(record) else { return Verdict::Done };
    let Some(view) = facts.gates.get(&place) else { return Verdict::Look(Need::Gate(place)) };
    let entered = progress.attempts.iter().rev().find(|attempt| attempt.action == Action::EnterGate);
    match &view.standing {
        ExternalState::Granted => Verdict::Done,
        ExternalState::Refused(why) | ExternalState::Failed(why) | ExternalState::Lost(why) => {
            Verdict::Fail(why.to_string().into())
        }
        ExternalState::Returning(why) | ExternalState::Taken(why) => {
            Verdict::Wait { why: why.to_string().into(), until: None }
        }
        ExternalState::Entering(why) => Verdict::Wait { why: format!("waiting for {why}").into(), until: None },
        ExternalState::Waiting(why) => {
            let Some(entered) = entered.filter(|attempt| !matches!(attempt.reply, Reply::Refused { .. })) else {
                return match entered {
                    None => Verdict::Wait { why: why.to_string().into(), until: None },
                    Some(_) => pursue(Action::EnterGate, &progress.attempts, limits.settle, limits, now),
                };
            };
            // The system requests a shutdown from the operating system and never times out, so the
            // provider does.
            let until = after(entered.at, limits.graceful_shutdown);
            if now < until {
                return Verdict::Wait { why: why.to_string().into(), until: Some(until) };
            }
            match &facts.capabilities {
                None => Verdict::Look(Need::Capabilities),
                Some(can) if can.can(ResetType::ForceOff) => {
                    let forced = Action::Reset(ResetType::ForceOff);
                    pursue(forced, &progress.attempts, limits.power_change, limits, now)
                }
                Some(_) => Verdict::Fail(
                    format!("it was not entered in time ({why}), and a forced power-off is not possible").into(),
                ),
            }
        }
        ExternalState::Absent | ExternalState::Leftovers(_) => {
            pursue(Action::EnterGate, &progress.attempts, limits.settle, limits, now)
        }
    }
}

/// Leaves the gates, innermost first. An outer gate waits until the inner one has completely
/// released the server.
#[must_use]
pub(super) fn leave(
    record: &Maintenance,
    progress: &Progress,
    facts: &Facts,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let Some(place) = leaving(record) else { return Verdict::Done };
    let Some(view) = facts.gates.get(&place) else { return Verdict::Look(Need::Gate(place)) };
    if let Some(verdict) = awaits_node(record, progress, view, now) {
        return verdict;
    }
    match &view.standing {
        // A rejected request does not exist, so it cannot be withdrawn.
        ExternalState::Absent | ExternalState::Refused(_) | ExternalState::Taken(_) => Verdict::Done,
        ExternalState::Returning(why) => Verdict::Wait { why: why.to_string().into(), until: None },
        // Leaving can take several calls, each for objects that the previous call left.
        ExternalState::Leftovers(_) if goes_on(progress, limits) => Verdict::Act(Action::LeaveGate),
        ExternalState::Waiting(_)
        | ExternalState::Entering(_)
        | ExternalState::Granted
        | ExternalState::Lost(_)
        | ExternalState::Failed(_)
        | ExternalState::Leftovers(_) => {
            match pursue(Action::LeaveGate, &progress.attempts, limits.graceful_shutdown, limits, now) {
                Verdict::Fail(what) => Verdict::Fail(format!("{what}: {}", view.standing).into()),
                verdict => verdict,
            }
        }
    }
}

/// Blocks the withdrawal until the server's Node is Ready. Without the request, another system
/// would schedule Pods on it.
fn awaits_node(record: &Maintenance, progress: &Progress, view: &GateView, now: Timestamp) -> Option<Verdict> {
    let awaited = view.awaited.as_ref().filter(|_| progress.attempts.is_empty() && ends_switched_on(record))?;
    if drain::is_back(awaited.ready, awaited.heard, progress.since) {
        return None;
    }
    let (node, request, until) = (&awaited.node, &awaited.request, after(progress.since, awaited.timeout));
    if now >= until {
        let seconds = awaited.timeout.as_secs();
        return Some(Verdict::Fail(
            format!("{node} was not Ready again within {seconds} s, so {request} stays").into(),
        ));
    }
    let (given_up, again) = (shown_time(until), after(now, drain::PAUSE).min(until));
    let what = if awaited.ready { format!("the kubelet of {node} to report") } else { format!("{node} to be Ready") };
    let why = format!("waiting for {what} again before {request} is removed (timeout at {given_up})");
    Some(Verdict::Wait { why: why.into(), until: Some(again) })
}

/// Returns true if the server is on after its maintenance, as far as the maintenance decides that.
fn ends_switched_on(record: &Maintenance) -> bool {
    record.final_power() == Some(PowerTarget::On) && (record.spec.operation.is_some() || may_restore(record))
}

/// Returns true if the last leave call was accepted and another is allowed.
fn goes_on(progress: &Progress, limits: &Limits) -> bool {
    let mut calls = progress.attempts.iter().filter(|attempt| attempt.action == Action::LeaveGate).rev();
    let accepted = calls.next().is_some_and(|last| last.reply == Reply::Accepted);
    accepted && calls.count() + 1 < limits.attempts
}

/// Returns a verdict while the boot image is not ready; `None` if it is ready, or if no gate
/// prepares it.
#[must_use]
pub(super) fn ready(record: &Maintenance, facts: &Facts) -> Option<Verdict> {
    ready_of(&record.gates, &record.spec, facts)
}

fn ready_of(gates: &[GateRecord], spec: &Spec, facts: &Facts) -> Option<Verdict> {
    let place = gates.iter().position(|gate| gate.system.boots).filter(|_| spec.boot.is_some())?;
    // Facts use the holder's gate indexes.
    let place = place + facts.outer_gates;
    let Some(view) = facts.gates.get(&place) else { return Some(Verdict::Look(Need::Gate(place))) };
    match &view.boot {
        Some(BootReadiness::Ready) => None,
        Some(BootReadiness::Error(message)) => Some(Verdict::Fail(message.to_string().into())),
        Some(BootReadiness::Pending(progress)) => Some(Verdict::Wait { why: progress.to_string().into(), until: None }),
        None => Some(Verdict::Wait { why: "the boot configuration does not exist yet".into(), until: None }),
    }
}

impl ServerLock {
    /// Records that a request to a gate can exist from now on, before it is sent.
    pub(super) fn request_gate(
        &mut self,
        uid: &Uid,
        fence: Fence,
        place: usize,
        at: &Moment<'_>,
    ) -> Result<Applied, Refusal> {
        let alive = |record: &Maintenance| {
            record.attachment.as_ref().is_some_and(|it| it.is(fence) && at.leases.alive(it, at.now))
        };
        if !self.get(uid).is_some_and(alive) {
            return Ok(Applied::Outdated);
        }
        self.update(uid, fence, |record| {
            if let Some(gate) = record.gates.get_mut(place) {
                gate.asked = true;
            }
        })?;
        Ok(Applied::Done)
    }
}

#[cfg(test)]
mod tests;
