//! What follows a call until its effect is visible: wait, send it again, or fail.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    machine::ResetType,
    model::{
        shown_time::shown_time,
        verdict::{Limits, Verdict, after},
    },
    refusal::{asks_to_wait, busy_for, pause_after},
    step::{Action, Attempt, Reply},
};

/// The attempts at one action, oldest first.
pub(super) fn attempts_at<'a>(attempts: &'a [Attempt], action: &'a Action) -> impl Iterator<Item = &'a Attempt> {
    attempts.iter().filter(move |attempt| attempt.action == *action)
}

/// Whether a call is sent again whose effect is not visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeats {
    /// Once, after half of the time limit, including after it was accepted: BMCs accept `On`,
    /// `ForceOff` and boot overrides and do nothing, and each leads to one state however often it
    /// is sent.
    OnceAccepted,
    /// Once, after an unknown outcome.
    OnceUnknown,
    /// Never: each call hits the server again.
    Never,
    /// Some times after an unknown outcome, with growing pauses: the machine does not show its
    /// effect.
    Unseen,
}

fn repeats(action: &Action) -> Repeats {
    match action {
        Action::Reset(ResetType::On | ResetType::ForceOff) | Action::SetBoot { .. } => Repeats::OnceAccepted,
        Action::Reset(ResetType::GracefulShutdown) | Action::Insert { .. } | Action::Eject { .. } => {
            Repeats::OnceUnknown
        }
        Action::Reset(
            ResetType::GracefulRestart | ResetType::ForceRestart | ResetType::PowerCycle | ResetType::Nmi,
        ) => Repeats::Never,
        Action::Record
        | Action::CheckImage
        | Action::AskPreparer
        | Action::EnterGate
        | Action::LeaveGate
        | Action::BeginService { .. }
        | Action::TakeNode
        | Action::ReturnNode
        | Action::CordonNode { .. }
        | Action::EvictPods
        | Action::UncordonNode => Repeats::Unseen,
    }
}

/// Decides about a call whose effect is not visible yet: send it, wait for its effect, or fail.
///
/// A call of unknown outcome gets as much time to show its effect as an accepted one, which is
/// `effect_within`. A machine that is busy is waited for by time and not by number of tries.
#[must_use]
pub fn pursue(
    action: Action,
    attempts: &[Attempt],
    effect_within: Duration,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let repeats = repeats(&action);
    pursue_as(action, repeats, attempts, effect_within, limits, now)
}

/// Decides about a request without a visible effect: the machine is in the wanted state already,
/// and an external system keeps it there. It is sent again after an unknown outcome.
#[must_use]
pub fn declare(action: Action, attempts: &[Attempt], limits: &Limits, now: Timestamp) -> Verdict {
    pursue_as(action, Repeats::Unseen, attempts, limits.settle, limits, now)
}

fn pursue_as(
    action: Action,
    repeats: Repeats,
    attempts: &[Attempt],
    effect_within: Duration,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let Some(last) = attempts_at(attempts, &action).last() else { return Verdict::Act(action) };
    let not_ready = |attempt: &Attempt| attempt.reply.message().is_some_and(asks_to_wait);
    // Calls that could have reached the machine.
    let may_act = |attempt: &&Attempt| !matches!(attempt.reply, Reply::Refused { .. }) && !not_ready(attempt);
    let sent: Vec<&Attempt> = attempts_at(attempts, &action).filter(may_act).collect();
    let awaited = match (repeats, sent.as_slice()) {
        (Repeats::OnceAccepted, [first, .., last]) => {
            Some(after(first.answered_at(), effect_within).max(after(last.answered_at(), effect_within / 2)))
        }
        (Repeats::OnceAccepted, [only]) => Some(after(only.answered_at(), effect_within)),
        _ => None,
    };
    if let Reply::Refused { message, transient } = &last.reply {
        return refused(&action, message, *transient, attempts, last, awaited, limits, now);
    }
    let made = attempts_at(attempts, &action).count();
    let (wait, again) = match (repeats, &last.reply) {
        (Repeats::OnceAccepted | Repeats::OnceUnknown, _) if not_ready(last) => {
            (effect_within.min(limits.settle), true)
        }
        (Repeats::OnceAccepted, _) if sent.len() == 1 => (effect_within / 2, true),
        (Repeats::Never | Repeats::OnceAccepted, _) | (_, Reply::Accepted) => (effect_within, false),
        (Repeats::OnceUnknown, _) => (effect_within, made < 2),
        (Repeats::Unseen, _) => {
            let share = u32::try_from(made).unwrap_or(u32::MAX);
            let of = u32::try_from(limits.attempts).unwrap_or(1).max(1);
            (limits.retry_pause.saturating_mul(share) / of, made < limits.attempts)
        }
    };
    let until = match awaited.filter(|_| !again) {
        Some(awaited) => awaited,
        None => after(last.answered_at(), wait),
    };
    let what = describe(last, sent.len());
    if now < until {
        let then = if again && repeats == Repeats::OnceAccepted { "sent again at" } else { "observed until" };
        return Verdict::Wait { why: format!("{action} was {what}; {then} {}", shown_time(until)), until: Some(until) };
    }
    if again {
        return Verdict::Act(action);
    }
    Verdict::Fail(format!("{action} was {what} and had no effect by {}", shown_time(until)))
}

/// Describes a call that could have reached the machine.
fn describe(last: &Attempt, sent: usize) -> String {
    let times = if sent > 1 { format!(" (sent {sent} times)") } else { String::new() };
    match &last.reply {
        Reply::Accepted => format!("accepted at {}{times}", shown_time(last.answered_at())),
        reply => {
            let message = reply.message().map(|message| format!(" ({message})")).unwrap_or_default();
            format!("sent at {} without a known outcome{message}{times}", shown_time(last.at))
        }
    }
}

/// Decides about a call whose last try the machine refused. `awaited`: until when an earlier try
/// can still take effect.
#[allow(clippy::too_many_arguments, reason = "each is one fact of one decision")]
fn refused(
    action: &Action,
    message: &str,
    transient: bool,
    attempts: &[Attempt],
    last: &Attempt,
    awaited: Option<Timestamp>,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let mut until = awaited.unwrap_or(Timestamp::MIN);
    if transient {
        // Judged by when the next try was due, and not by now: nothing is sent while the machine
        // does not answer, and that time does not count.
        let due = after(last.answered_at(), pause_after(message, limits));
        if due < patient_until(attempts, last, message, limits).max(until) {
            if now >= due {
                return Verdict::Act(action.clone());
            }
            return Verdict::Wait { why: format!("{action} was refused: {message}"), until: Some(due) };
        }
        until = until.max(due);
    } else if matches!(action, Action::Reset(_)) {
        // The power state that was read can be old, and the machine is in the wanted state: it is
        // read once more.
        until = until.max(after(last.answered_at(), limits.retry_pause));
    }
    let why = format!("{action} was refused: {message}");
    if now < until {
        return Verdict::Wait { why, until: Some(until) };
    }
    let tries = attempts_at(attempts, action).count();
    Verdict::Fail(if transient { format!("{why} (tried {tries} times)") } else { why })
}

/// Returns since when the machine refuses a call for now, without a break. A time without a
/// request, because the machine did not answer, is a break: afterwards it can be busy for a while.
fn refused_since(attempts: &[Attempt], action: &Action, last: Timestamp, limits: &Limits) -> Timestamp {
    let mut since = last;
    for attempt in attempts.iter().rev().filter(|attempt| attempt.action == *action) {
        let Reply::Refused { message, transient: true } = &attempt.reply else { break };
        if since > after(attempt.answered_at(), pause_after(message, limits).saturating_add(limits.busy)) {
            break;
        }
        since = attempt.at;
    }
    since
}

/// Returns until when a call is sent again that the machine refuses for now, with `last` and
/// `message`. The pause that the machine requests does not count, within bounds.
fn patient_until(attempts: &[Attempt], last: &Attempt, message: &str, limits: &Limits) -> Timestamp {
    let since = refused_since(attempts, &last.action, last.at, limits);
    // An external system shows the progress of its requests in other ways.
    let most = if repeats(&last.action) == Repeats::Unseen { limits.post } else { Duration::MAX };
    let (pause, busy) = (pause_after(message, limits), busy_for(message, limits).min(most));
    let asked = pause > limits.retry_pause;
    let answered = last.answered_at();
    let patience = if asked { after(answered, pause.saturating_add(limits.retry_pause)) } else { answered };
    after(since, busy).max(patience).min(after(since, limits.post.max(busy)))
}

/// Returns until when a shutdown is requested again from a machine that refuses for now.
pub(super) fn busy_until(attempts: &[Attempt], last: &Attempt, message: &str, limits: &Limits) -> Timestamp {
    let since = refused_since(attempts, &last.action, last.at, limits);
    after(since, limits.graceful_shutdown).max(patient_until(attempts, last, message, limits))
}
