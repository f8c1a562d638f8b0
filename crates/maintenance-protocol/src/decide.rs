//! `decide`: what a process that is attached to a record does next. Pure and total: every state, every fact and every
//! wish has exactly one answer, and every wait names what would end it.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    change::Change,
    gate_chain, held,
    ids::{Fence, Uid},
    lock::{Leases, ServerLock},
    midway::{ends_with_hold, outlast_calls},
    node,
    power::{Limits, Need, Verdict},
    prepare::{self, Facts},
    queue::{Queue, Turn, WaitReason, shown_time, turn_in},
    restore, service,
    spec::WaitFor,
    state::{Ending, Maintenance, Phase, Progress},
    step::{Action, Reply, Step},
    update::{self, Stage, Undone, Update},
};

/// What the process is there for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Get the server and go as far as asked.
    Hold(WaitFor),
    /// Give it back.
    Release(Ending),
}

/// What the process wants and how long it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// What for.
    pub goal: Goal,
    /// Somebody asked the process to stop.
    pub stop: bool,
    /// Its time limit passed.
    pub timed_out: bool,
}

/// Everything `decide` looks at.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// What the store knows about the machine's lock key.
    pub lock: &'a ServerLock,
    /// Who is alive.
    pub leases: &'a Leases,
    /// The store's time.
    pub now: Timestamp,
    /// The queue of these, for everybody who looks at them.
    pub queue: &'a Queue,
    /// The record that is driven.
    pub uid: &'a Uid,
    /// The right to drive it.
    pub fence: Fence,
    /// What is wanted.
    pub intent: &'a Intent,
    /// What was seen since the last change.
    pub facts: &'a Facts,
    /// How long things may take.
    pub limits: &'a Limits,
    /// After how long a waiter gains one step of priority.
    pub aging: Duration,
}

/// What is done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing, until something changes.
    Wait {
        /// Why, for people.
        reason: String,
        /// Whether the machine (or a URL) must be looked at again and again, because it does not call us.
        poll: bool,
        /// When the answer may change by itself.
        wake: Option<Timestamp>,
    },
    /// Read facts.
    Look(Need),
    /// One call to the outside, recorded before and after.
    Act(Action),
    /// Make the request of a waiter to one of its gates, or withdraw it.
    Ask {
        /// The gate, by its place in the record.
        place: usize,
        /// Whether it is made.
        enter: bool,
    },
    /// One change of the record, and nothing else.
    Change(Change),
    /// The process is done.
    Finished(Finish),
}

/// Why the process is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The server's own maintenance system will never grant it, and why.
    Refused(String),
    /// The state that was asked for is reached.
    Reached,
    /// The record is over; it tells how.
    Over,
    /// Left the queue.
    Withdrawn,
    /// The time limit passed while waiting for the server.
    TimedOut(String),
    /// Stopped; the record tells how far it got.
    Interrupted,
    /// Giving back could not be finished; the slot is held.
    Stuck(String),
    /// A change in place failed. The server stays held.
    NotUpdated {
        /// Why.
        cause: String,
        /// What became of the server.
        undone: Undone,
    },
    /// Somebody else has the record now, or it is gone.
    Lost,
}

/// What to do next.
#[must_use]
pub fn decide(at: &Situation<'_>) -> Decision {
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

fn pending(at: &Situation<'_>, record: &Maintenance) -> Decision {
    let only_place = at.intent.goal == Goal::Hold(WaitFor::Enqueued);
    // A place that was asked for on purpose stays when the process that goes on with it is stopped.
    let holds = matches!(at.intent.goal, Goal::Hold(_));
    if at.intent.stop && (only_place || (record.keeps_place && holds && record.gates.is_empty())) {
        return Decision::Finished(Finish::Interrupted);
    }
    if at.intent.stop || matches!(at.intent.goal, Goal::Release(_)) {
        return Decision::Change(Change::Withdraw);
    }
    // A place alone is ours to give: with the server's own system it is asked for when somebody drives it.
    let turn = turn_in(at.queue, at.lock, at.leases, at.uid, at.aging, at.now);
    if let Some(decision) = node::ask(at, record, &turn).filter(|_| !only_place) {
        return decision;
    }
    if !only_place && let Some(decision) = gate_chain::ask(at, record, &turn) {
        return decision;
    }
    match turn {
        // Only a place was asked for, and it has one.
        Turn::ReclaimOverdue(_) | Turn::Wait { .. } if only_place => Decision::Finished(Finish::Reached),
        Turn::Yours => {
            let progress = Progress::new(prepare::steps(&record.spec, &record.gates), at.now);
            Decision::Change(Change::Admit(Phase::Preparing(progress)))
        }
        Turn::ReclaimOverdue(uid) if at.intent.timed_out => {
            Decision::Finished(Finish::TimedOut(not_reclaimed(at, &uid)))
        }
        Turn::ReclaimOverdue(uid) => Decision::Change(Change::Reclaim(uid)),
        Turn::Wait { reason, .. } if at.intent.timed_out => Decision::Finished(Finish::TimedOut(reason.to_string())),
        Turn::Wait { reason, wake } => {
            waiting(&reason, [wake, node::look_again(record, at.now)].into_iter().flatten().min())
        }
    }
}

/// What a waiter waited for whose predecessor is overdue and could not be given back.
fn not_reclaimed(at: &Situation<'_>, uid: &Uid) -> String {
    let id = at.lock.get(uid).map_or_else(|| uid.to_string(), |overdue| overdue.id.to_string());
    format!("waiting for the release of {id}, which is overdue and whose release failed: show {id}")
}

fn waiting(reason: &WaitReason, wake: Option<Timestamp>) -> Decision {
    Decision::Wait { reason: reason.to_string(), poll: false, wake }
}

/// Whether this record may touch the machine; otherwise what to do about it.
pub(super) fn take_turn(at: &Situation<'_>, record: &Maintenance) -> Option<Decision> {
    if at.lock.may_act(at.uid, at.fence, at.leases, at.now) {
        return None;
    }
    // A fenced process may be in the middle of a call, and a call may outlive its maintenance.
    if let Some(until) = at.lock.calls_until(at.uid, at.now) {
        let reason =
            format!("waiting until {}: a call of an earlier process may still change the server", shown_time(until));
        return Some(match (at.intent.stop, at.intent.timed_out) {
            (true, _) => Decision::Finished(Finish::Interrupted),
            (_, true) => Decision::Finished(Finish::TimedOut(reason)),
            _ => Decision::Wait { reason, poll: false, wake: Some(until) },
        });
    }
    Some(match turn_in(at.queue, at.lock, at.leases, at.uid, at.aging, at.now) {
        // The slot is ours but our lease is over: the engine renews it and asks again.
        Turn::Yours if at.lock.has_slot(record) && record.spec.parent.is_none() => Decision::Wait {
            reason: "the lease is over and is being renewed".to_owned(),
            poll: true,
            wake: Some(at.now),
        },
        Turn::Yours => Decision::Change(Change::Admit(record.phase.clone())),
        Turn::ReclaimOverdue(_) | Turn::Wait { .. } if at.intent.stop => Decision::Finished(Finish::Interrupted),
        Turn::ReclaimOverdue(uid) if at.intent.timed_out => {
            Decision::Finished(Finish::TimedOut(not_reclaimed(at, &uid)))
        }
        Turn::ReclaimOverdue(uid) => Decision::Change(Change::Reclaim(uid)),
        Turn::Wait { reason, .. } if at.intent.timed_out => Decision::Finished(Finish::TimedOut(reason.to_string())),
        Turn::Wait { reason, wake } => waiting(&reason, wake),
    })
}

fn preparing(at: &Situation<'_>, record: &Maintenance, progress: &Progress) -> Decision {
    if at.intent.stop {
        return Decision::Finished(Finish::Interrupted);
    }
    if let Some(decision) = take_turn(at, record).or_else(|| service::under_way(at, record, progress)) {
        return decision;
    }
    if let Goal::Release(ending) = &at.intent.goal {
        return Decision::Change(Change::BeginRelease(ending.clone()));
    }
    if let Some(update) = record.undoing() {
        return undoing(at, record, update, progress);
    }
    let Some(step) = progress.step() else {
        return Decision::Change(Change::Prepared);
    };
    if let Some(closed) = record.closes_at.filter(|closes| *closes <= at.now) {
        let cause = format!("its window closed {} at step {}", shown_time(closed), progress.text());
        return fails(record, cause);
    }
    if at.intent.timed_out {
        let last = progress.attempts.last().and_then(|attempt| match &attempt.reply {
            Reply::Refused { message, .. } => Some(format!("; {} was refused: {message}", attempt.action)),
            Reply::Unknown => Some(format!("; the outcome of {} is unknown", attempt.action)),
            Reply::Accepted => None,
        });
        let limit = if record.update.is_some() { "timeouts.update" } else { "timeouts.create" };
        let cause = format!("{limit} ended at step {}{}", progress.text(), last.unwrap_or_default());
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
    match verdict {
        Verdict::Fail(cause) => fails(record, format!("{step}: {cause}")),
        Verdict::Again if progress.restarts >= MOST_RESTARTS => {
            fails(record, format!("{step}: another tool keeps switching the machine on while it is prepared"))
        }
        verdict => perform(at, "preparing", progress, step, verdict),
    }
}

/// How often preparing goes back because the machine was changed by others.
const MOST_RESTARTS: u8 = 2;

/// Preparing failed: a change in place is undone, everything else is given back.
pub(super) fn fails(record: &Maintenance, cause: String) -> Decision {
    Decision::Change(if record.update.is_some() {
        Change::Undo(cause)
    } else {
        Change::BeginRelease(Ending::Failed(cause))
    })
}

/// A change in place failed, or is not wanted any more: the server goes back to the previous specification.
fn undoing(at: &Situation<'_>, record: &Maintenance, update: &Update, progress: &Progress) -> Decision {
    let (cause, stuck) = match &update.stage {
        Stage::Undoing { cause, stuck } => (cause.clone(), stuck.clone()),
        _ => (None, None),
    };
    let stops = |why: String| Decision::Change(Change::StopUndoing(why));
    // This drive found that it cannot go on: each drive begins without.
    if let Some(why) = stuck {
        let cause = cause.unwrap_or_else(|| "the previous configuration is wanted again".to_owned());
        return Decision::Finished(Finish::NotUpdated { cause, undone: Undone::Failed(why) });
    }
    let Some(step) = progress.step() else {
        return Decision::Change(cause.map_or(Change::Prepared, Change::Undone));
    };
    if at.intent.timed_out {
        return stops(format!("the time limit ended at step {}", progress.text()));
    }
    if let Some(decision) = gate_chain::check(at, record) {
        return decision;
    }
    let verdict = update::judge(step, record, update, progress, at.facts, at.limits, at.now);
    if let Some(decision) = outlast_calls(at, record, progress, &verdict) {
        return decision;
    }
    match verdict {
        Verdict::Fail(why) => stops(format!("{step}: {why}")),
        Verdict::Again if progress.restarts >= MOST_RESTARTS => {
            stops(format!("{step}: another tool keeps switching the machine on"))
        }
        verdict => perform(at, "undoing a change", progress, step, verdict),
    }
}

fn releasing(at: &Situation<'_>, record: &Maintenance, progress: &Progress, ending: &Ending) -> Decision {
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
        return Decision::Change(Change::Finish(over));
    };
    if at.intent.timed_out {
        return Decision::Change(Change::Stuck(format!("the time limit ended at step {}", progress.text())));
    }
    if !matches!(step, Step::LeaveGate | Step::UncordonNode | Step::ReturnNode)
        && let Some(decision) = gate_chain::check(at, record)
    {
        return decision;
    }
    let verdict = restore::judge(step, record, progress, at.facts, at.limits, at.now);
    if let Some(decision) = outlast_calls(at, record, progress, &verdict) {
        return decision;
    }
    match verdict {
        Verdict::Fail(cause) => Decision::Change(Change::Stuck(format!("{step}: {cause}"))),
        verdict => perform(at, "releasing", progress, step, verdict),
    }
}

/// Turns a step's verdict into a decision. `Fail` was handled by the caller.
pub(super) fn perform(at: &Situation<'_>, phase: &str, progress: &Progress, step: Step, verdict: Verdict) -> Decision {
    let next = |outcome| {
        let (current, attempts) = (progress.current + 1, Vec::new());
        Decision::Change(Change::Progress(Progress { current, attempts, since: at.now, outcome, ..progress.clone() }))
    };
    match verdict {
        Verdict::Act(action) => Decision::Act(action),
        Verdict::Look(need) => Decision::Look(need),
        Verdict::Wait { why, until } => {
            Decision::Wait { reason: format!("{phase} {}: {why}", progress.text()), poll: true, wake: until }
        }
        Verdict::Concluded(outcome) => next(Some(outcome)),
        Verdict::Done => next(progress.outcome),
        Verdict::Again if progress.restarts < MOST_RESTARTS => {
            let back = progress.steps.iter().position(|s| *s == Step::SwitchOff).unwrap_or(progress.current);
            Decision::Change(Change::Progress(Progress {
                current: back,
                attempts: Vec::new(),
                since: at.now,
                restarts: progress.restarts + 1,
                ..progress.clone()
            }))
        }
        Verdict::Again => Decision::Change(Change::BeginRelease(Ending::Failed(format!(
            "{step}: another tool keeps switching the machine on while it is prepared"
        )))),
        Verdict::Fail(cause) => Decision::Change(Change::BeginRelease(Ending::Failed(cause))),
    }
}
