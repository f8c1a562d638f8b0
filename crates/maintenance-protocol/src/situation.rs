//! Input and output of `decide`, and logic that all phases share.

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

/// A process's purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Lock the server and proceed to this point.
    Hold(WaitFor),
    /// Release the server.
    Release(Ending),
}

/// A process's purpose and constraints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objective {
    /// The goal.
    pub goal: Goal,
    /// True if the process must stop.
    pub stop: bool,
    /// True if its time limit passed.
    pub timed_out: bool,
    /// The last reported wait reason.
    pub waited: Option<String>,
}

/// The complete input of `decide`.
#[derive(Clone, Copy, Debug)]
pub struct DecisionInput<'a> {
    /// The stored lock.
    pub lock: &'a ServerLock,
    /// The current process leases.
    pub leases: &'a Leases,
    /// The store's time.
    pub now: Timestamp,
    /// Queue of this lock view, shared by its waiters.
    pub queue: &'a Queue,
    /// The driven record.
    pub uid: &'a Uid,
    /// Proof that the process is allowed to drive it.
    pub fence: Fence,
    /// The objective.
    pub intent: &'a Objective,
    /// The observations since the last change.
    pub facts: &'a Facts,
    /// Time limits.
    pub limits: &'a Limits,
    /// Waiting time after which a waiter gains one priority level.
    pub aging: Duration,
}

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Wait for a change.
    Wait {
        /// The reason, for people.
        reason: String,
        /// True if the machine or a URL must be polled, because it does not send notifications.
        poll: bool,
        /// When time alone can change the decision.
        wake: Option<Timestamp>,
    },
    /// Read facts.
    Look(Need),
    /// Send a call, recorded before and after.
    Act(Action),
    /// Create or withdraw a waiter's request to one of its gates.
    Ask {
        /// Index of the gate in the record.
        place: usize,
        /// True to create it.
        enter: bool,
    },
    /// Apply a single change to the record.
    Change(RecordChange),
    /// The process is finished.
    Finished(Finish),
}

/// Describes the wait for an overdue predecessor whose release failed.
pub(super) fn not_reclaimed(at: &DecisionInput<'_>, uid: &Uid) -> String {
    let id = at.lock.get(uid).map_or_else(|| uid.to_string(), |overdue| overdue.id.to_string());
    format!("waiting for the release of {id}, which is overdue and whose release failed: show {id}")
}

/// Returns why owner or window reject the record's actions, and when time alone can change that.
/// `None` if they are allowed.
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

/// Returns `None` if this record is allowed to change the machine, otherwise the next action.
pub(super) fn take_turn(at: &DecisionInput<'_>, record: &Maintenance) -> Option<Decision> {
    if at.lock.may_act(at.uid, at.fence, at.leases, at.now) {
        return None;
    }
    // A fenced process can still be inside a call, and a call can outlast its maintenance.
    if let Some(until) = at.lock.in_flight_until(at.uid, at.now) {
        let reason =
            format!("waiting until {}: an earlier process's call can still change the server", shown_time(until));
        return Some(match (at.intent.stop, at.intent.timed_out) {
            (true, _) => Decision::Finished(Finish::Interrupted),
            (_, true) => Decision::Finished(Finish::TimedOut(reason.into())),
            _ => Decision::Wait { reason, poll: false, wake: Some(until) },
        });
    }
    Some(match turn_in(at.queue, at.lock, at.leases, at.uid, at.aging, at.now) {
        // The record owns the lock but its lease has ended. The engine renews it before the next
        // decision. A store that rejects the renewal does not extend the time limit.
        Turn::Yours if at.lock.has_slot(record) && record.spec.parent.is_none() => {
            let reason = "the lease has expired and is being renewed".to_owned();
            match (at.intent.stop, at.intent.timed_out) {
                (true, _) => Decision::Finished(Finish::Interrupted),
                (_, true) => Decision::Finished(Finish::TimedOut(reason.into())),
                _ => Decision::Wait { reason, poll: true, wake: None },
            }
        }
        Turn::Yours => Decision::Change(RecordChange::Admit(record.phase.clone())),
        Turn::ReclaimOverdue(_) | Turn::Wait { .. } if at.intent.stop => Decision::Finished(Finish::Interrupted),
        Turn::ReclaimOverdue(uid) if at.intent.timed_out => {
            Decision::Finished(Finish::TimedOut(not_reclaimed(at, &uid).into()))
        }
        Turn::ReclaimOverdue(uid) => Decision::Change(RecordChange::Reclaim(uid)),
        Turn::Wait { reason, .. } if at.intent.timed_out => {
            Decision::Finished(Finish::TimedOut(reason.to_string().into()))
        }
        Turn::Wait { reason, wake } => waiting(&reason, wake),
    })
}

/// Maximum number of restarts after other authors changed the machine.
pub(super) const MOST_RESTARTS: u8 = 2;

/// Handles a failed preparation: rolls back a change in place, releases everything else.
pub(super) fn fails(record: &Maintenance, cause: String) -> Decision {
    Decision::Change(if record.update.is_some() {
        RecordChange::Undo(cause)
    } else {
        RecordChange::BeginRelease(Ending::Failed(cause.into()))
    })
}

/// Converts a step's verdict to a decision. The caller handles `Fail`.
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
        Verdict::Again => Decision::Change(RecordChange::BeginRelease(Ending::Failed(
            format!("{step}: another tool keeps switching the machine on while it is prepared").into(),
        ))),
        Verdict::Fail(cause) => Decision::Change(RecordChange::BeginRelease(Ending::Failed(cause))),
    }
}
