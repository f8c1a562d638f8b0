//! Waiting, repeating or failing after a call without a visible effect.

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

/// Returns the attempts for `action`, oldest first.
pub(super) fn attempts_at<'a>(attempts: &'a [Attempt], action: &'a Action) -> impl Iterator<Item = &'a Attempt> {
    attempts.iter().filter(move |attempt| attempt.action == *action)
}

/// When a call without a visible effect is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeats {
    /// Once after half of the time limit, even if it was accepted. BMCs accept `On`, `ForceOff` and
    /// boot overrides without effect, and repeating these calls leads to the same state.
    OnceAccepted,
    /// Once, after an unknown outcome.
    OnceUnknown,
    /// Never, because each call affects the server again.
    Never,
    /// Several times after an unknown outcome, with growing pauses, because the machine does not
    /// report its effect.
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

/// Decides about a call without a visible effect: send it, wait, or fail.
///
/// After an unknown outcome the effect has the same time limit as after acceptance,
/// `effect_within`. A busy machine is limited by time and not by attempts.
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

/// Decides about a request without a visible effect: the machine is already in the requested state,
/// and an external system maintains it. It is sent again after an unknown outcome.
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
    let not_ready = |attempt: &Attempt| attempt.reply.message().is_some_and(|message| asks_to_wait(message.raw()));
    // Calls that possibly reached the machine.
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
        return refused(&action, message.shown(), *transient, attempts, last, awaited, limits, now);
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
        return Verdict::Wait {
            why: format!("{action} was {what}; {then} {}", shown_time(until)).into(),
            until: Some(until),
        };
    }
    if again {
        return Verdict::Act(action);
    }
    Verdict::Fail(format!("{action} was {what}, but did not take effect by {}", shown_time(until)).into())
}

/// Describes a call that possibly reached the machine.
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

/// Decides about a call whose last attempt the machine rejected. `awaited` is the time limit for
/// the effect of earlier attempts.
#[allow(clippy::too_many_arguments, reason = "all arguments describe one decision")]
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
        // Compared with the next attempt's due time, because time without an answering machine does
        // not count.
        let due = after(last.answered_at(), pause_after(message, limits));
        if due < patient_until(attempts, last, message, limits).max(until) {
            if now >= due {
                return Verdict::Act(action.clone());
            }
            return Verdict::Wait { why: format!("{action} was refused: {message}").into(), until: Some(due) };
        }
        until = until.max(due);
    } else if matches!(action, Action::Reset(_)) {
        // The power state was possibly outdated, with the machine already in the requested state.
        // Read it again.
        until = until.max(after(last.answered_at(), limits.retry_pause));
    }
    let why = format!("{action} was refused: {message}");
    if now < until {
        return Verdict::Wait { why: why.into(), until: Some(until) };
    }
    let tries = attempts_at(attempts, action).count();
    Verdict::Fail(if transient { format!("{why} (tried {tries} times)").into() } else { why.into() })
}

/// Returns since when the machine has rejected the call temporarily without interruption. A period
/// in which it did not answer interrupts the series, because it can be busy again afterwards.
fn refused_since(attempts: &[Attempt], action: &Action, last: Timestamp, limits: &Limits) -> Timestamp {
    let mut since = last;
    for attempt in attempts.iter().rev().filter(|attempt| attempt.action == *action) {
        let Reply::Refused { message, transient: true } = &attempt.reply else { break };
        if since > after(attempt.answered_at(), pause_after(message.raw(), limits).saturating_add(limits.busy)) {
            break;
        }
        since = attempt.at;
    }
    since
}

/// Returns the time limit for repeating a temporarily rejected call. The machine's requested pause
/// extends it within bounds.
fn patient_until(attempts: &[Attempt], last: &Attempt, message: &str, limits: &Limits) -> Timestamp {
    let since = refused_since(attempts, &last.action, last.at, limits);
    // An external system reports the progress of requests in other ways.
    let most = if repeats(&last.action) == Repeats::Unseen { limits.post } else { Duration::MAX };
    let (pause, busy) = (pause_after(message, limits), busy_for(message, limits).min(most));
    let asked = pause > limits.retry_pause;
    let answered = last.answered_at();
    let patience = if asked { after(answered, pause.saturating_add(limits.retry_pause)) } else { answered };
    after(since, busy).max(patience).min(after(since, limits.post.max(busy)))
}

/// Returns the time limit for repeating a temporarily rejected shutdown.
pub(super) fn busy_until(attempts: &[Attempt], last: &Attempt, message: &str, limits: &Limits) -> Timestamp {
    let since = refused_since(attempts, &last.action, last.at, limits);
    after(since, limits.graceful_shutdown).max(patient_until(attempts, last, message, limits))
}
