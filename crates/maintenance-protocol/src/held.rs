//! Decisions for a prepared maintenance: wait for its end, change it, or end it.

use super::{
    change::RecordChange,
    gate_chain, hand_over,
    midway::ends_with_hold,
    model::{
        finish::Finish,
        verdict::{Need, Verdict},
    },
    queue::{Turn, turn_in},
    situation::{Decision, DecisionInput, Goal, not_allowed, take_turn},
    spec::{CompleteWhen, MaintenanceKind, WaitFor},
    state::{Ending, Maintenance, Phase},
    update,
};

/// Returns the next action for a prepared maintenance.
pub(super) fn in_maintenance(at: &DecisionInput<'_>, record: &Maintenance) -> Decision {
    if let Goal::Release(ending) = &at.intent.goal {
        if let Some(decision) = ends_with_hold(at, record) {
            return decision;
        }
        if record.spec.kind == MaintenanceKind::Operation {
            // A completed operation does not restore anything, so it does not wait for the lock.
            return Decision::Change(RecordChange::Finish(Phase::Completed { at: at.now, ending: ending.clone() }));
        }
        if let Some(actor) = at.lock.other_actor(at.uid, at.leases, at.now) {
            if at.intent.stop {
                return Decision::Finished(Finish::Interrupted);
            }
            let reason = format!("waiting until {} is done with this server", actor.id);
            if at.intent.timed_out {
                return Decision::Finished(Finish::TimedOut(reason.into()));
            }
            let wake = actor.attachment.as_ref().and_then(|a| at.leases.until(a));
            return Decision::Wait { reason, poll: false, wake };
        }
        return gives_back(at, record, ending.clone());
    }
    if record.update.is_some() {
        return checking(at, record);
    }
    let (Goal::Hold(WaitFor::Completed), Some(condition)) = (&at.intent.goal, &record.spec.complete_when) else {
        return Decision::Finished(Finish::Reached);
    };
    if at.intent.stop {
        return Decision::Finished(Finish::Interrupted);
    }
    if let Some(decision) = gate_chain::check(at, record) {
        return decision;
    }
    if record.is_overdue(at.now) {
        return Decision::Change(RecordChange::BeginRelease(Ending::Expired));
    }
    let (said, by) = match condition {
        CompleteWhen::PowerState(wanted) => match &at.facts.machine {
            None => return Decision::Look(Need::Machine),
            Some(machine) if machine.power.settled() == Some(*wanted) => (Ok(()), format!("power {wanted}")),
            Some(machine) => (Err(format!("power is {}, {wanted} ends it", machine.power).into()), String::new()),
        },
        CompleteWhen::Url(_) => match &at.facts.completion {
            None => return Decision::Look(Need::Completion),
            Some(said) => (said.clone(), "its URL".to_owned()),
        },
    };
    match said {
        Ok(()) => gives_back(at, record, Ending::CompletedBy(by.into())),
        Err(reason) if at.intent.timed_out => {
            Decision::Finished(Finish::TimedOut(format!("in maintenance: {reason}").into()))
        }
        Err(reason) => Decision::Wait {
            reason: format!("in maintenance: {reason}"),
            poll: true,
            wake: record.expires_at().filter(|at_end| *at_end > at.now),
        },
    }
}

/// Ends a prepared maintenance: hands the server over, or restores it.
fn gives_back(at: &DecisionInput<'_>, record: &Maintenance, ending: Ending) -> Decision {
    let next = hand_over::successor(at.lock, at.leases, record, at.aging, at.now);
    match next.filter(|_| hand_over::is_passed_on(&ending)) {
        // Its calls must not take effect after the next maintenance starts.
        Some(next) => {
            take_turn(at, record).unwrap_or(Decision::Change(RecordChange::HandOver(next.uid.clone(), ending)))
        }
        None => Decision::Change(RecordChange::BeginRelease(ending)),
    }
}

/// Handles a requested change in place: all checks pass before the server changes.
fn checking(at: &DecisionInput<'_>, record: &Maintenance) -> Decision {
    if at.intent.stop {
        return Decision::Change(RecordChange::RefuseUpdate("it was interrupted before it began".to_owned()));
    }
    let awaits_turn = record.awaiting_turn().is_some();
    // Owner and window are checked while the server is locked. A record without the lock checks
    // them in the queue.
    let refused = if awaits_turn { None } else { not_allowed(at, record) };
    if at.intent.timed_out {
        let waited = match turn_in(at.queue, at.lock, at.leases, at.uid, at.aging, at.now) {
            Turn::Wait { reason, .. } if awaits_turn => format!(": it was {reason}"),
            _ => refused.map_or_else(String::new, |(reason, _)| format!(": it was {reason}")),
        };
        return Decision::Change(RecordChange::RefuseUpdate(format!("timeouts.update ended before it began{waited}")));
    }
    if let Some((reason, wake)) = refused {
        return Decision::Wait { reason, poll: false, wake };
    }
    let checked = match update::check(record, at.facts) {
        verdict @ (Verdict::Look(_) | Verdict::Fail(_)) => verdict,
        // A change that stops its server drains the Node again first.
        _ => gate_chain::may_send(at, record),
    };
    match checked {
        Verdict::Look(need) => Decision::Look(need),
        Verdict::Fail(cause) => Decision::Change(RecordChange::RefuseUpdate(cause.to_string())),
        // Admission starts the change.
        _ if awaits_turn => take_turn(at, record).unwrap_or(Decision::Change(RecordChange::BeginUpdate)),
        _ => Decision::Change(RecordChange::BeginUpdate),
    }
}
