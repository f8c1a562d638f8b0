//! `decide`: the next action of the process attached to a record.
//!
//! The function is pure and total: every input has exactly one result, and every wait contains the
//! condition that ends it.

use super::{
    change::RecordChange,
    drain, gate_chain, held,
    midway::{ends_with_hold, outlast_calls},
    model::{
        facts::Facts,
        shown_time::shown_time,
        update::{Stage, Undone, Update},
        verdict::Verdict,
    },
    node, prepare,
    queue::{Turn, turn_in},
    restore, service,
    situation::{MOST_RESTARTS, fails, not_allowed, not_reclaimed, perform, take_turn, waiting},
    spec::WaitFor,
    state::{Ending, Maintenance, Phase, Progress},
    step::{Action, Reply, Step},
    update,
};
pub use super::{
    model::finish::Finish,
    situation::{Decision, DecisionInput, Goal, Objective},
};

/// Returns the next action.
#[must_use]
pub fn decide(at: &DecisionInput<'_>) -> Decision {
    let Some(record) = at.lock.get(at.uid) else {
        return Decision::Finished(Finish::Lost);
    };
    let attached = record.attachment.as_ref().is_some_and(|a| a.is(at.fence));
    if !attached {
        return Decision::Finished(Finish::Lost);
    }
    match &record.phase {
        Phase::Pending => pending(at, record),
        Phase::Preparing(progress) => preparing(at, record, progress),
        Phase::InMaintenance { .. } => held::in_maintenance(at, record),
        Phase::Releasing { progress, ending, .. } => releasing(at, record, progress, ending),
        Phase::Completed { .. } | Phase::Failed { .. } => Decision::Finished(Finish::Over),
    }
}

fn pending(at: &DecisionInput<'_>, record: &Maintenance) -> Decision {
    let only_place = at.intent.goal == Goal::Hold(WaitFor::Enqueued);
    // A reserved queue position survives if the process that continues it is stopped.
    let holds = matches!(at.intent.goal, Goal::Hold(_));
    if at.intent.stop && (only_place || (record.keeps_place && holds && record.gates.is_empty())) {
        return Decision::Finished(Finish::Interrupted);
    }
    if at.intent.stop || matches!(at.intent.goal, Goal::Release(_)) {
        return Decision::Change(RecordChange::Withdraw);
    }
    // The provider's own queue can reserve a position. An external system receives its request only
    // from a driven record.
    let turn = turn_in(at.queue, at.lock, at.leases, at.uid, at.aging, at.now);
    if let Some(decision) = node::ask(at, record, &turn).filter(|_| !only_place) {
        return decision;
    }
    if !only_place && let Some(decision) = gate_chain::ask(at, record, &turn) {
        return decision;
    }
    match turn {
        // The goal was a queue position, and the request has one.
        Turn::ReclaimOverdue(_) | Turn::Wait { .. } if only_place => Decision::Finished(Finish::Reached),
        Turn::Yours => {
            let progress = Progress::new(prepare::steps(&record.spec, &record.gates), at.now);
            Decision::Change(RecordChange::Admit(Phase::Preparing(progress)))
        }
        Turn::ReclaimOverdue(uid) if at.intent.timed_out => {
            Decision::Finished(Finish::TimedOut(not_reclaimed(at, &uid).into()))
        }
        Turn::ReclaimOverdue(uid) => Decision::Change(RecordChange::Reclaim(uid)),
        Turn::Wait { reason, .. } if at.intent.timed_out => {
            Decision::Finished(Finish::TimedOut(reason.to_string().into()))
        }
        Turn::Wait { reason, wake } => {
            waiting(&reason, [wake, node::look_again(record, at.now)].into_iter().flatten().min())
        }
    }
}

/// Returns the current step and its last problem.
fn where_it_stands(at: &DecisionInput<'_>, progress: &Progress) -> String {
    let step = progress.text();
    let last = progress.attempts.last().and_then(|attempt| match &attempt.reply {
        Reply::Refused { message, .. } => Some(format!("{} was refused: {message}", attempt.action)),
        Reply::Unknown => Some(format!("the outcome of {} is unknown", attempt.action)),
        Reply::Unclear { message } => Some(format!("the outcome of {} is unknown: {message}", attempt.action)),
        Reply::Accepted => None,
    });
    let waited = || Some(at.intent.waited.as_ref()?.split_once(&format!("{step}: "))?.1.to_owned());
    progress.with_message(last.or_else(waited).map_or_else(|| step.clone(), |why| format!("{step}; {why}")))
}

fn preparing(at: &DecisionInput<'_>, record: &Maintenance, progress: &Progress) -> Decision {
    if at.intent.stop {
        return Decision::Finished(Finish::Interrupted);
    }
    if let Some(decision) = take_turn(at, record).or_else(|| service::under_way(at, record, progress)) {
        return decision;
    }
    if let Goal::Release(ending) = &at.intent.goal {
        return Decision::Change(RecordChange::BeginRelease(ending.clone()));
    }
    if let Some(update) = record.undoing() {
        return undoing(at, record, update, progress);
    }
    let Some(step) = progress.step() else {
        return Decision::Change(RecordChange::Prepared);
    };
    // The specification changed during the preparation.
    if record.awaiting_consent().is_some() {
        return match not_allowed(at, record) {
            None => Decision::Change(RecordChange::AllowActions),
            Some((reason, _)) if at.intent.timed_out => fails(record, format!("the time limit ended: it was {reason}")),
            Some((reason, wake)) => Decision::Wait { reason, poll: false, wake },
        };
    }
    if let Some(closed) = record.closes_at.filter(|closes| *closes <= at.now) {
        let cause = format!("its window closed {} at step {}", shown_time(closed), progress.text());
        return fails(record, cause);
    }
    if at.intent.timed_out {
        let limit = if record.update.is_some() { "timeouts.update" } else { "timeouts.create" };
        let cause = format!("{limit} ended at step {}", where_it_stands(at, progress));
        return fails(record, cause);
    }
    if step != Step::LeaveGate
        && let Some(decision) = gate_chain::check(at, record)
    {
        return decision;
    }
    let verdict = prepare::judge(step, record, progress, at.facts, at.limits, at.now);
    if let Some(decision) = outlast_calls(at, record, progress, &verdict) {
        return decision;
    }
    let verdict = match verdict {
        Verdict::Act(action) if action != Action::Record => may_send(at, record, action),
        verdict => verdict,
    };
    match verdict {
        Verdict::Fail(cause) => fails(record, progress.with_message(format!("{step}: {cause}"))),
        Verdict::Again if progress.restarts >= MOST_RESTARTS => {
            fails(record, format!("{step}: another tool keeps switching the machine on while it is prepared"))
        }
        verdict => with_tolerated(perform(at, "preparing", progress, step, verdict), record, at.facts),
    }
}

/// Adds the differences that the current step tolerates when it ends.
fn with_tolerated(mut decision: Decision, record: &Maintenance, facts: &Facts) -> Decision {
    let Some(now) = record.phase.progress() else { return decision };
    if let Decision::Change(RecordChange::Progress(next)) = &mut decision
        && next.current > now.current
    {
        let tolerated = match now.step() {
            Some(Step::ConfigureBoot) => prepare::tolerated(record, facts),
            Some(Step::Verify) => restore::tolerated(record, facts),
            _ => Vec::new(),
        };
        for one in tolerated {
            next.tolerated.retain(|before| before.quirk != one.quirk);
            next.tolerated.push(one);
        }
    }
    decision
}

/// Returns the action, or the reason why it must not be sent.
fn may_send(at: &DecisionInput<'_>, record: &Maintenance, action: Action) -> Verdict {
    let kept = match record.spec.parent {
        None => drain::may_send(record, &action, at.facts),
        Some(_) => gate_chain::may_send(at, record),
    };
    if kept == Verdict::Done { Verdict::Act(action) } else { kept }
}

/// Rolls back to the previous specification after a failed or cancelled change.
fn undoing(at: &DecisionInput<'_>, record: &Maintenance, update: &Update, progress: &Progress) -> Decision {
    let (cause, stuck) = match &update.stage {
        Stage::Undoing { cause, stuck } => (cause.clone(), stuck.clone()),
        _ => (None, None),
    };
    let stops = |why: String| Decision::Change(RecordChange::StopUndoing(why));
    // Only this process's attempt stopped; every new attempt starts without `stuck`.
    if let Some(why) = stuck {
        let cause = cause.unwrap_or_else(|| "the previous configuration is requested again".into());
        return Decision::Finished(Finish::NotUpdated { cause: cause.to_string().into(), undone: Undone::Failed(why) });
    }
    let Some(step) = progress.step() else {
        return Decision::Change(cause.map_or(RecordChange::Prepared, |cause| RecordChange::Undone(cause.to_string())));
    };
    if at.intent.timed_out {
        return stops(format!("the time limit ended at step {}", where_it_stands(at, progress)));
    }
    if let Some(decision) = gate_chain::check(at, record) {
        return decision;
    }
    let verdict = update::judge(step, record, update, progress, at.facts, at.limits, at.now);
    if let Some(decision) = outlast_calls(at, record, progress, &verdict) {
        return decision;
    }
    let verdict = match verdict {
        // Work under a lock restores its own calls in any case.
        Verdict::Act(action) if record.spec.parent.is_none() => may_send(at, record, action),
        verdict => verdict,
    };
    match verdict {
        Verdict::Fail(why) => stops(progress.with_message(format!("{step}: {why}"))),
        Verdict::Again if progress.restarts >= MOST_RESTARTS => {
            stops(format!("{step}: another tool keeps switching the machine on"))
        }
        verdict => perform(at, "undoing a change", progress, step, verdict),
    }
}

fn releasing(at: &DecisionInput<'_>, record: &Maintenance, progress: &Progress, ending: &Ending) -> Decision {
    if at.intent.stop {
        return Decision::Finished(Finish::Interrupted);
    }
    if let Some(decision) = ends_with_hold(at, record).or_else(|| take_turn(at, record)) {
        return decision;
    }
    let Some(step) = progress.step() else {
        let over = match ending {
            Ending::Failed(cause) => Phase::Failed { at: at.now, cause: cause.clone() },
            ending => Phase::Completed { at: at.now, ending: ending.clone() },
        };
        return Decision::Change(RecordChange::Finish(over));
    };
    if at.intent.timed_out {
        return Decision::Change(RecordChange::Stuck(format!(
            "the time limit ended at step {}",
            where_it_stands(at, progress)
        )));
    }
    if !matches!(step, Step::LeaveGate | Step::UncordonNode | Step::ReturnNode)
        && let Some(decision) = gate_chain::goes_on_leaving(at, record, progress)
            .or_else(|| gate_chain::check(at, record))
            .or_else(|| gate_chain::power_after(at, record))
    {
        return decision;
    }
    let verdict = restore::judge(step, record, progress, at.facts, at.limits, at.now);
    if let Some(decision) = outlast_calls(at, record, progress, &verdict) {
        return decision;
    }
    let verdict = match verdict {
        // After a failed preparation, the restore must not stop workloads that are possibly running
        // again.
        Verdict::Act(action) if step == Step::StopForRestore && matches!(ending, Ending::Failed(_)) => {
            may_send(at, record, action)
        }
        // A requested release drains the Node again before it stops the server.
        Verdict::Act(action) if step == Step::StopForRestore && record.spec.parent.is_none() => {
            match drain::before_stop(record, progress, &action, at.facts, at.limits, at.now) {
                Verdict::Done => Verdict::Act(action),
                first => first,
            }
        }
        verdict => verdict,
    };
    match verdict {
        Verdict::Fail(cause) => {
            Decision::Change(RecordChange::Stuck(progress.with_message(format!("{step}: {cause}"))))
        }
        verdict => with_tolerated(perform(at, "releasing", progress, step, verdict), record, at.facts),
    }
}
