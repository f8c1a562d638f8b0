//! The rules about gates: when they are asked, entered and left, and what follows when one takes a
//! server away.

use jiff::Timestamp;

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
    step::{Action, Reply},
};

/// What a waiter has to do about its gates before its turn counts; `None`: nothing.
///
/// They are asked in order, each once all before it allow the start; what keeps the waiter from
/// starting for another reason makes it withdraw its requests, in reverse.
#[must_use]
pub(super) fn ask(at: &DecisionInput<'_>, record: &Maintenance, turn: &Turn) -> Option<Decision> {
    // What acts under a hold was granted with it.
    if record.spec.parent.is_some() {
        return None;
    }
    let own = start_blockers(at.lock, record, at.now).iter().any(|blocker| !matches!(blocker, StartBlocker::Gate(_)));
    if own && let Some(decision) = withdraw(at, record, 0) {
        return Some(decision);
    }
    let others = matches!(turn, Turn::ReclaimOverdue(_) | Turn::Wait { reason: WaitReason::Turn { .. }, .. });
    // Whatever is behind one that may not be asked yet is not asked either.
    let may_ask = |gate: &GateRecord| {
        let early = gate.system.order == QueueAuthority::OnTurn && !gate.asked && others;
        !(early || own && gate.is_external())
    };
    let mut gates = record.gates.iter().enumerate().take_while(|(_, gate)| may_ask(gate));
    let (place, decision) = gates.find_map(|(place, gate)| Some((place, ask_one(at, (place, gate), own)?)))?;
    // Behind one that does not allow the start nothing is asked.
    let looks = matches!(decision, Decision::Look(_));
    Some(if looks { decision } else { withdraw(at, record, place + 1).unwrap_or(decision) })
}

/// Withdraws the requests to external gates from this place on, the innermost first: granted
/// outside its window, or before what else is waited for, a gate would hold the server for nothing.
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
            // One before it waits until it is really back.
            ExternalState::Returning(why) if asked().any(|(other, _)| other < place) => {
                let reason = format!("waiting until {why}");
                Some(if at.intent.timed_out {
                    Decision::Finished(Finish::TimedOut(reason))
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
        Decision::Change(RecordChange::Gate { place, by, granted, said, memory, again })
    };
    let (granted, said) = match &view.standing {
        ExternalState::Refused(why) | ExternalState::Failed(why) => {
            return Some(Decision::Finished(Finish::Refused(why.clone())));
        }
        // How it is now is known before the first change.
        ExternalState::Absent if gate.memory != view.memory => {
            return Some(note(!theirs, gate.said.clone().filter(|_| theirs), true));
        }
        ExternalState::Absent if theirs => return Some(Decision::Ask { place, enter: true }),
        ExternalState::Leftovers(_) if theirs => return Some(Decision::Ask { place, enter: false }),
        ExternalState::Absent | ExternalState::Granted | ExternalState::Leftovers(_) => (true, None),
        ExternalState::Waiting(why) | ExternalState::Entering(why) | ExternalState::Taken(why) => {
            (false, Some(why.clone()))
        }
        ExternalState::Lost(why) | ExternalState::Returning(why) => (false, Some(format!("the server: {why}"))),
    };
    if gate.granted != granted || gate.said != said {
        return Some(note(granted, said, false));
    }
    let said = said?;
    // The external system grants nothing while the overdue hold has its request there: it has to be
    // released first.
    let overdue =
        queue::reclaimable(at.lock, at.leases, at.now).filter(|holder| view.behind.as_ref() == Some(&holder.uid));
    if let Some(holder) = overdue.filter(|_| !own && !at.intent.timed_out) {
        return Some(Decision::Change(RecordChange::Reclaim(holder.uid.clone())));
    }
    let reason = format!("waiting for {said}");
    Some(if at.intent.timed_out {
        Decision::Finished(Finish::TimedOut(reason))
    } else {
        let wake = at.lock.holder().and_then(Maintenance::expires_at).filter(|expires| *expires > at.now);
        Decision::Wait { reason, poll: true, wake }
    })
}

/// How many gates a holder has before those of a record that acts under it, which has the innermost
/// one only.
#[must_use]
pub fn outer_gates(holder: &Maintenance, record: &Maintenance) -> usize {
    holder.gates.len().saturating_sub(record.gates.len())
}

/// Whether the gates still say that the server is ours; `None`: they do, or there is none, or it
/// was not entered.
#[must_use]
pub(super) fn check(at: &DecisionInput<'_>, record: &Maintenance) -> Option<Decision> {
    let holder = record.spec.parent.as_ref().map_or(Some(record), |parent| at.lock.get(parent))?;
    // A release goes on whatever a gate says that leaves the server to us.
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
        taken_away(&view.standing).map(|why| Decision::Change(RecordChange::GateLost(place.saturating_sub(outer), why)))
    })
}

/// Notes the power that an external system wants its server to have afterwards, where it differs
/// from the one in the record: the owner may have changed it since. Gates that were not looked at
/// say nothing.
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
    /// Notes the power that a gate wants its server to have afterwards. What was restored already
    /// is restored again.
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

/// Whether what acts under a hold may still send something to its server: not once a gate whose
/// loss leaves the server to the hold took it away, nor once the Lease of its Node is not the
/// hold's any more or the drained Node was uncordoned. Workloads may run there again, or another
/// component acts on the Node, and only what the hold restores is worth stopping them.
#[must_use]
pub(super) fn may_send(at: &DecisionInput<'_>, record: &Maintenance) -> Verdict {
    let Some(holder) = record.spec.parent.as_ref().and_then(|parent| at.lock.get(parent)) else {
        return Verdict::Done;
    };
    let fail = |why: String| {
        Verdict::Fail(format!("{why}. Nothing more is sent to it under {0}. Release {0} first", holder.id))
    };
    let again = "Workloads may run on the server again";
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

/// Entering under our slot.
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
            Verdict::Fail(why.clone())
        }
        ExternalState::Returning(why) | ExternalState::Taken(why) => Verdict::Wait { why: why.clone(), until: None },
        ExternalState::Entering(why) => Verdict::Wait { why: format!("waiting for {why}"), until: None },
        ExternalState::Waiting(why) => {
            let Some(entered) = entered.filter(|attempt| !matches!(attempt.reply, Reply::Refused { .. })) else {
                return match entered {
                    None => Verdict::Wait { why: why.clone(), until: None },
                    Some(_) => pursue(Action::EnterGate, &progress.attempts, limits.settle, limits, now),
                };
            };
            // The system asks the operating system and has no patience that ends: ours does.
            let until = after(entered.at, limits.graceful_shutdown);
            if now < until {
                return Verdict::Wait { why: why.clone(), until: Some(until) };
            }
            match &facts.capabilities {
                None => Verdict::Look(Need::Capabilities),
                Some(can) if can.can(ResetType::ForceOff) => {
                    let forced = Action::Reset(ResetType::ForceOff);
                    pursue(forced, &progress.attempts, limits.power_change, limits, now)
                }
                Some(_) => Verdict::Fail(format!("it was not entered in time ({why}), and it cannot be forced off")),
            }
        }
        ExternalState::Absent | ExternalState::Leftovers(_) => {
            pursue(Action::EnterGate, &progress.attempts, limits.settle, limits, now)
        }
    }
}

/// Leaving, the innermost gate first: an outer one waits until the inner one is really back.
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
        // A request that was refused was never ours to take back.
        ExternalState::Absent | ExternalState::Refused(_) | ExternalState::Taken(_) => Verdict::Done,
        ExternalState::Returning(why) => Verdict::Wait { why: why.clone(), until: None },
        // Leaving can take several calls, each of which finds what the one before left.
        ExternalState::Leftovers(_) if goes_on(progress, limits) => Verdict::Act(Action::LeaveGate),
        ExternalState::Waiting(_)
        | ExternalState::Entering(_)
        | ExternalState::Granted
        | ExternalState::Lost(_)
        | ExternalState::Failed(_)
        | ExternalState::Leftovers(_) => {
            match pursue(Action::LeaveGate, &progress.attempts, limits.graceful_shutdown, limits, now) {
                Verdict::Fail(what) => Verdict::Fail(format!("{what}: {}", view.standing)),
                verdict => verdict,
            }
        }
    }
}

/// What keeps a request although the server is restored: its Node is not Ready again, and without
/// the request another system would let Pods run on it.
fn awaits_node(record: &Maintenance, progress: &Progress, view: &GateView, now: Timestamp) -> Option<Verdict> {
    let awaited = view.awaited.as_ref().filter(|_| progress.attempts.is_empty() && ends_switched_on(record))?;
    if drain::is_back(awaited.ready, awaited.heard, progress.since) {
        return None;
    }
    let (node, request, until) = (&awaited.node, &awaited.request, after(progress.since, awaited.timeout));
    if now >= until {
        let seconds = awaited.timeout.as_secs();
        return Some(Verdict::Fail(format!("{node} was not Ready again within {seconds} s, so that {request} stays")));
    }
    let (given_up, again) = (shown_time(until), after(now, drain::PAUSE).min(until));
    let what = if awaited.ready { format!("the kubelet of {node} to report") } else { format!("{node} to be Ready") };
    let why = format!("waiting for {what} again before {request} is removed (timeout at {given_up})");
    Some(Verdict::Wait { why, until: Some(again) })
}

/// Whether a server runs once its maintenance is over, as far as that is ours to say.
fn ends_switched_on(record: &Maintenance) -> bool {
    record.final_power() == Some(PowerTarget::On) && (record.spec.operation.is_some() || may_restore(record))
}

/// Whether the last call to leave was accepted, and another one may follow.
fn goes_on(progress: &Progress, limits: &Limits) -> bool {
    let mut calls = progress.attempts.iter().filter(|attempt| attempt.action == Action::LeaveGate).rev();
    let accepted = calls.next().is_some_and(|last| last.reply == Reply::Accepted);
    accepted && calls.count() + 1 < limits.attempts
}

/// Whether what shall be booted is ready; `None` where the system does not prepare it.
#[must_use]
pub(super) fn ready(record: &Maintenance, facts: &Facts) -> Option<Verdict> {
    ready_of(&record.gates, &record.spec, facts)
}

fn ready_of(gates: &[GateRecord], spec: &Spec, facts: &Facts) -> Option<Verdict> {
    let place = gates.iter().position(|gate| gate.system.boots).filter(|_| spec.boot.is_some())?;
    // Gates are read by their places in the record of the holder.
    let place = place + facts.outer_gates;
    let Some(view) = facts.gates.get(&place) else { return Some(Verdict::Look(Need::Gate(place))) };
    match &view.boot {
        Some(BootReadiness::Ready) => None,
        Some(BootReadiness::Error(message)) => Some(Verdict::Fail(message.clone())),
        Some(BootReadiness::Pending(progress)) => Some(Verdict::Wait { why: progress.clone(), until: None }),
        None => Some(Verdict::Wait { why: "the boot configuration is not there yet".to_owned(), until: None }),
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
