//! What is decided about, what may be decided, and what every phase does alike.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    blocker,
    change::RecordChange,
    ids::{Fence, Uid},
    model::{
        facts::Facts,
        finish::Finish,
        lock::{Leases, ServerLock},
        shown_time::shown_time,
        verdict::{Limits, Need, Verdict},
    },
    queue::{Queue, QueueAhead, Turn, WaitReason, turn_in},
    spec::WaitFor,
    state::{Ending, Maintenance, Progress},
    step::{Action, Step},
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
pub struct Objective {
    /// The goal of the process.
    pub goal: Goal,
    /// Somebody asked the process to stop.
    pub stop: bool,
    /// Its time limit passed.
    pub timed_out: bool,
    /// What it waited for last, as it was told.
    pub waited: Option<String>,
}

/// Everything `decide` looks at.
#[derive(Clone, Copy, Debug)]
pub struct DecisionInput<'a> {
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
    /// The objective.
    pub intent: &'a Objective,
    /// The observations since the last change.
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
        /// Whether the machine (or a URL) must be looked at again and again, because it does not
        /// call us.
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
    Change(RecordChange),
    /// The process is done.
    Finished(Finish),
}

/// What a waiter waited for whose predecessor is overdue and could not be given back.
pub(super) fn not_reclaimed(at: &DecisionInput<'_>, uid: &Uid) -> String {
    let id = at.lock.get(uid).map_or_else(|| uid.to_string(), |overdue| overdue.id.to_string());
    format!("waiting for the release of {id}, which is overdue and whose release failed: show {id}")
}

/// Why owner or window reject the record's actions, and when that can change. `None`: they allow
/// them.
pub(super) fn not_allowed(at: &DecisionInput<'_>, record: &Maintenance) -> Option<(String, Option<Timestamp>)> {
    let blockers = blocker::unallowed(at.lock, record, at.now);
    if blockers.is_empty() {
        return None;
    }
    let ahead = QueueAhead::default();
    Some((WaitReason::NotYet { blockers, ahead }.to_string(), blocker::changes_at(at.lock, record, at.now)))
}

pub(super) fn waiting(reason: &WaitReason, wake: Option<Timestamp>) -> Decision {
    Decision::Wait { reason: reason.to_string(), poll: false, wake }
}

/// Whether this record may touch the machine; otherwise what to do about it.
pub(super) fn take_turn(at: &DecisionInput<'_>, record: &Maintenance) -> Option<Decision> {
    if at.lock.may_act(at.uid, at.fence, at.leases, at.now) {
        return None;
    }
    // A fenced process may be in the middle of a call, and a call may outlive its maintenance.
    if let Some(until) = at.lock.in_flight_until(at.uid, at.now) {
        let reason =
            format!("waiting until {}: a call of an earlier process may still change the server", shown_time(until));
        return Some(match (at.intent.stop, at.intent.timed_out) {
            (true, _) => Decision::Finished(Finish::Interrupted),
            (_, true) => Decision::Finished(Finish::TimedOut(reason)),
            _ => Decision::Wait { reason, poll: false, wake: Some(until) },
        });
    }
    Some(match turn_in(at.queue, at.lock, at.leases, at.uid, at.aging, at.now) {
        // The slot is ours but our lease is over: the engine renews it before the next decision. A
        // store that rejects the renewal does not extend the time limit.
        Turn::Yours if at.lock.has_slot(record) && record.spec.parent.is_none() => {
            let reason = "the lease has expired and is being renewed".to_owned();
            match (at.intent.stop, at.intent.timed_out) {
                (true, _) => Decision::Finished(Finish::Interrupted),
                (_, true) => Decision::Finished(Finish::TimedOut(reason)),
                _ => Decision::Wait { reason, poll: true, wake: None },
            }
        }
        Turn::Yours => Decision::Change(RecordChange::Admit(record.phase.clone())),
        Turn::ReclaimOverdue(_) | Turn::Wait { .. } if at.intent.stop => Decision::Finished(Finish::Interrupted),
        Turn::ReclaimOverdue(uid) if at.intent.timed_out => {
            Decision::Finished(Finish::TimedOut(not_reclaimed(at, &uid)))
        }
        Turn::ReclaimOverdue(uid) => Decision::Change(RecordChange::Reclaim(uid)),
        Turn::Wait { reason, .. } if at.intent.timed_out => Decision::Finished(Finish::TimedOut(reason.to_string())),
        Turn::Wait { reason, wake } => waiting(&reason, wake),
    })
}

/// How often preparing goes back because the machine was changed by others.
pub(super) const MOST_RESTARTS: u8 = 2;

/// Preparing failed: a change in place is undone, everything else is given back.
pub(super) fn fails(record: &Maintenance, cause: String) -> Decision {
    Decision::Change(if record.update.is_some() {
        RecordChange::Undo(cause)
    } else {
        RecordChange::BeginRelease(Ending::Failed(cause))
    })
}

/// Turns a step's verdict into a decision. `Fail` was handled by the caller.
pub(super) fn perform(
    at: &DecisionInput<'_>,
    phase: &str,
    progress: &Progress,
    step: Step,
    verdict: Verdict,
) -> Decision {
    let next = |outcome| {
        let (current, attempts) = (progress.current + 1, Vec::new());
        Decision::Change(RecordChange::Progress(Progress {
            current,
            attempts,
            since: at.now,
            outcome,
            waits_for: None,
            ..progress.clone()
        }))
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
            Decision::Change(RecordChange::Progress(Progress {
                current: back,
                attempts: Vec::new(),
                since: at.now,
                restarts: progress.restarts + 1,
                waits_for: None,
                ..progress.clone()
            }))
        }
        Verdict::Again => Decision::Change(RecordChange::BeginRelease(Ending::Failed(format!(
            "{step}: another tool keeps switching the machine on while it is prepared"
        )))),
        Verdict::Fail(cause) => Decision::Change(RecordChange::BeginRelease(Ending::Failed(cause))),
    }
}
