//! How a server is brought to a power state: graceful, then forced after a deadline; judged by what
//! is seen.

use std::time::Duration;

use jiff::Timestamp;

pub use super::model::verdict::{Limits, Need, Verdict, after};
use super::{
    machine::{Capabilities, MachineView, PowerState, PowerTarget, ResetType},
    model::shown_time::shown_time,
    step::{Action, Attempt, Reply},
};

/// The attempts at one action, oldest first.
fn attempts_at<'a>(attempts: &'a [Attempt], action: &'a Action) -> impl Iterator<Item = &'a Attempt> {
    attempts.iter().filter(move |attempt| attempt.action == *action)
}

/// What to do about a call whose effect is not seen (yet): make it, wait for its effect, or give
/// up.
///
/// A call of unknown outcome is not repeated blindly: its effect is given as long to show as that
/// of an accepted one, which is `effect_within`. Only what leads to one state however often it is
/// sent gets here a second time. A machine that is busy is waited out by time, because how often it
/// was asked says nothing about when it is done.
#[must_use]
pub fn pursue(
    action: Action,
    attempts: &[Attempt],
    effect_within: Duration,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let observed = is_observed(&action).then_some(effect_within);
    pursue_as(action, observed, attempts, effect_within, limits, now)
}

/// What to do about a wish that shows nowhere: the machine is where it shall be already, and an
/// external system is told to keep it there. Without a known outcome it is said again, as saying it
/// twice is saying it once, after pauses that grow.
#[must_use]
pub fn declare(action: Action, attempts: &[Attempt], limits: &Limits, now: Timestamp) -> Verdict {
    pursue_as(action, None, attempts, limits.settle, limits, now)
}

fn pursue_as(
    action: Action,
    observed: Option<Duration>,
    attempts: &[Attempt],
    effect_within: Duration,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let made = attempts_at(attempts, &action).count();
    let sent = attempts_at(attempts, &action).filter(|it| !matches!(it.reply, Reply::Refused { .. })).count();
    let Some(last) = attempts_at(attempts, &action).last() else { return Verdict::Act(action) };
    let (wait, why, tries) = match &last.reply {
        Reply::Accepted => {
            let tries = if is_repeated(&action) { made - sent + 2 } else { 1 };
            let times = if sent > 1 { format!(" (sent {sent} times)") } else { String::new() };
            (effect_within, format!("accepted at {}{times}", shown_time(last.answered_at())), tries)
        }
        Reply::Unknown => {
            let why = format!("sent at {} without a known outcome", shown_time(last.at));
            let (share, of) = (u32::try_from(made).unwrap_or(u32::MAX), u32::try_from(limits.attempts).unwrap_or(1));
            match observed {
                Some(within) => (within, why, 2),
                None => (limits.retry_pause.saturating_mul(share) / of.max(1), why, limits.attempts),
            }
        }
        Reply::Refused { message, transient: true } => {
            // By when the next try was due, and not by now: nothing is tried while the machine does
            // not answer at all, and that time is not held against it.
            let due = after(last.answered_at(), pause_after(message, limits));
            let tries = if due < patient_until(attempts, last, message, limits) { usize::MAX } else { 0 };
            (pause_after(message, limits), format!("refused: {message}"), tries)
        }
        // A power state that was read may be old, and the machine is where it shall be: it is
        // looked at once more.
        Reply::Refused { message, transient: false }
            if matches!(action, Action::Reset(_)) && now < after(last.answered_at(), limits.retry_pause) =>
        {
            (limits.retry_pause, format!("refused: {message}"), 1)
        }
        Reply::Refused { message, transient: false } => {
            return Verdict::Fail(format!("{action} was refused: {message}"));
        }
    };
    let until = after(last.answered_at(), wait);
    if now < until {
        let observed = match last.reply {
            Reply::Refused { .. } => String::new(),
            Reply::Accepted | Reply::Unknown => format!("; its effect is looked for until {}", shown_time(until)),
        };
        return Verdict::Wait { why: format!("{action} was {why}{observed}"), until: Some(until) };
    }
    if made < tries {
        return Verdict::Act(action);
    }
    let effect = if matches!(last.reply, Reply::Refused { .. }) {
        format!(" (tried {made} times)")
    } else {
        format!(" and had no effect by {}", shown_time(until))
    };
    Verdict::Fail(format!("{action} was {why}{effect}"))
}

/// Whether the effect of a call shows on the machine, so that one of unknown outcome is observed
/// for its time.
fn is_observed(action: &Action) -> bool {
    matches!(action, Action::Reset(_) | Action::SetBoot { .. } | Action::Insert { .. } | Action::Eject { .. })
}

/// Returns true if an accepted call without an effect is sent again: some BMCs carry out only the
/// second call.
fn is_repeated(action: &Action) -> bool {
    matches!(action, Action::SetBoot { .. })
}

/// Since when the machine refuses a call for now, without a break. A time in which it was not asked
/// because it did not answer at all is one: once it is there again, it may be busy for a while.
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

/// Until when a call is made again that the machine refuses for now, with `last` and `message`.
///
/// What the machine asked for is not held against it, within bounds.
fn patient_until(attempts: &[Attempt], last: &Attempt, message: &str, limits: &Limits) -> Timestamp {
    let since = refused_since(attempts, &last.action, last.at, limits);
    let (pause, busy) = (pause_after(message, limits), busy_for(message, limits));
    let asked = pause > limits.retry_pause;
    let answered = last.answered_at();
    let patience = if asked { after(answered, pause.saturating_add(limits.retry_pause)) } else { answered };
    after(since, busy).max(patience).min(after(since, limits.post.max(busy)))
}

/// Until when an operating system is asked again to shut down by a machine that refuses for now.
fn busy_until(attempts: &[Attempt], last: &Attempt, message: &str, limits: &Limits) -> Timestamp {
    let since = refused_since(attempts, &last.action, last.at, limits);
    after(since, limits.graceful_shutdown).max(patient_until(attempts, last, message, limits))
}

/// How the pause begins that a machine asks for, at the end of a refusal.
const ASKED_PAUSE: &str = "; Retry-After: ";

/// The pause that a machine asks for with a refusal (`Retry-After`), as refusals keep it.
#[must_use]
pub fn asked_pause_text(pause: Duration) -> String {
    format!("{ASKED_PAUSE}{} s", pause.as_secs())
}

/// How long to wait before a refused call is made again: as long as the machine asks, within
/// bounds.
fn pause_after(message: &str, limits: &Limits) -> Duration {
    let asked = message.rsplit_once(ASKED_PAUSE).and_then(|(_, rest)| rest.strip_suffix(" s")?.parse().ok());
    asked.map_or(Duration::ZERO, Duration::from_secs).min(limits.post).max(limits.retry_pause)
}

/// How long a machine is waited for that refuses for now. The message names the message id of the
/// machine.
fn busy_for(message: &str, limits: &Limits) -> Duration {
    if message.contains("DuringSystemPOST") || message.contains("in POST") { limits.post } else { limits.busy }
}

/// What brings the machine to `Off`.
#[must_use]
pub fn switch_off(
    machine: &MachineView,
    capabilities: &Capabilities,
    attempts: &[Attempt],
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    if machine.power == PowerState::Off {
        return Verdict::Done;
    }
    let graceful = Action::Reset(ResetType::GracefulShutdown);
    let forced = Action::Reset(ResetType::ForceOff);
    let forced_before = attempts_at(attempts, &forced).next().is_some();
    if !forced_before && capabilities.can(ResetType::GracefulShutdown) {
        let Some(last) = attempts_at(attempts, &graceful).last() else { return Verdict::Act(graceful) };
        match &last.reply {
            // It did not reach the operating system: a BMC that is busy, or away for a moment, is
            // no reason to cut power. How long a shutdown may take says nothing about how long a
            // BMC may be busy, and nothing was asked while it was away.
            Reply::Refused { message, transient: true }
                if after(last.answered_at(), pause_after(message, limits))
                    < busy_until(attempts, last, message, limits) =>
            {
                let until = after(last.answered_at(), pause_after(message, limits));
                if now >= until {
                    return Verdict::Act(graceful);
                }
                return Verdict::Wait { why: format!("{graceful} was refused: {message}"), until: Some(until) };
            }
            // An operating system that cannot be asked is not asked twice.
            Reply::Refused { .. } => {}
            Reply::Accepted | Reply::Unknown => {
                let until = after(last.answered_at(), limits.graceful_shutdown);
                if now < until {
                    let why = format!("graceful, forced at {}", shown_time(until));
                    return Verdict::Wait { why, until: Some(until) };
                }
                // Perhaps it was never sent.
                let arrived = attempts_at(attempts, &graceful).filter(|it| !matches!(it.reply, Reply::Refused { .. }));
                if last.reply == Reply::Unknown && arrived.count() == 1 {
                    return Verdict::Act(graceful);
                }
            }
        }
    }
    if !capabilities.can(ResetType::ForceOff) {
        return Verdict::Fail(format!(
            "the power state is still {}, and the machine does not accept ForceOff",
            machine.power
        ));
    }
    let verdict = pursue(forced, attempts, limits.power_change, limits, now);
    explain(verdict, machine, attempts)
}

/// What brings the machine to `On`, with proof: it was seen off before (`edge`), or was already on
/// and may stay so.
#[must_use]
pub fn switch_on(
    machine: &MachineView,
    attempts: &[Attempt],
    since: Timestamp,
    edge: bool,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let on = Action::Reset(ResetType::On);
    let started_by_us = attempts_at(attempts, &on).last();
    match machine.power {
        PowerState::On => {}
        PowerState::PoweringOn => {
            let until = after(started_by_us.map_or(since, Attempt::answered_at), limits.power_change);
            if now < until {
                return Verdict::Wait { why: "it is powering on".to_owned(), until: Some(until) };
            }
            return Verdict::Fail(format!("it was still PoweringOn at {}", shown_time(until)));
        }
        PowerState::PoweringOff => {
            let until = after(since, limits.graceful_shutdown);
            if now < until {
                return Verdict::Wait { why: "it is powering off first".to_owned(), until: Some(until) };
            }
            return Verdict::Fail(format!("it was still PoweringOff at {}", shown_time(until)));
        }
        PowerState::Off | PowerState::Paused | PowerState::Unknown => {
            return explain(pursue(on, attempts, limits.power_change, limits, now), machine, attempts);
        }
    }
    if edge && started_by_us.is_none() {
        // It was off when this step's predecessors ended, and nobody of us started it.
        return Verdict::Again;
    }
    let Some(started) = started_by_us else {
        return Verdict::Done;
    };
    // Where the machine tells how far it has booted, power alone proves little.
    let progressed = machine.boot_progress.as_deref().is_none_or(|state| state != "None");
    let until = after(started.answered_at(), limits.power_change + limits.boot_progress);
    if progressed || now >= until {
        return Verdict::Done;
    }
    Verdict::Wait { why: "power is on, boot progress is still None".to_owned(), until: Some(until) }
}

/// Adds what was tried and what is seen to a failure.
fn explain(verdict: Verdict, machine: &MachineView, attempts: &[Attempt]) -> Verdict {
    let Verdict::Fail(cause) = verdict else {
        return verdict;
    };
    let mut story: Vec<String> = attempts
        .iter()
        .take(attempts.len().saturating_sub(1))
        .map(|attempt| {
            let reply = match &attempt.reply {
                Reply::Unknown => "had no reply".to_owned(),
                Reply::Accepted => "was accepted".to_owned(),
                Reply::Refused { message, .. } => format!("was refused ({message})"),
            };
            format!("{} at {} {reply}", attempt.action, shown_time(attempt.at))
        })
        .collect();
    story.dedup();
    story.push(cause);
    Verdict::Fail(format!("{}. The power state is {}.", story.join("; then "), machine.power))
}

/// What brings the machine to `target` when nothing about its boot was changed.
#[must_use]
#[allow(clippy::too_many_arguments, reason = "each is one fact of one decision")]
pub fn bring_to(
    target: PowerTarget,
    machine: &MachineView,
    capabilities: &Capabilities,
    attempts: &[Attempt],
    since: Timestamp,
    edge: bool,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    match target {
        PowerTarget::Off => switch_off(machine, capabilities, attempts, limits, now),
        PowerTarget::On => switch_on(machine, attempts, since, edge, limits, now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn attempt(action: &Action, seconds: i64, reply: Reply) -> Attempt {
        Attempt { reply, ..Attempt::intended(action.clone(), at(seconds)) }
    }

    fn busy(words: &str) -> Reply {
        Reply::Refused { message: words.into(), transient: true }
    }

    #[test]
    fn what_a_busy_machine_refuses_is_sent_again_by_time_and_not_by_number() {
        let limits = Limits::default();
        let on = Action::Reset(ResetType::On);
        for (words, patience) in [("409: conflict", 90), ("400: (iLO.2.14.UnableToModifyDuringSystemPOST)", 300)] {
            let attempts: Vec<Attempt> = (0..patience / 5).map(|n| attempt(&on, n * 5, busy(words))).collect();
            let next = |now| pursue(on.clone(), &attempts, limits.power_change, &limits, at(now));
            assert_eq!(
                next(patience - 1),
                Verdict::Wait { why: format!("On was refused: {words}"), until: Some(at(patience)) }
            );
            assert!(matches!(next(patience), Verdict::Fail(_)), "{words}");
            let fewer = &attempts[..attempts.len() - 1];
            assert_eq!(
                pursue(on.clone(), fewer, limits.power_change, &limits, at(patience - 5)),
                Verdict::Act(on.clone())
            );
        }
    }

    #[test]
    fn a_machine_is_asked_again_after_the_pause_that_it_asks_for() {
        let limits = Limits::default();
        let on = Action::Reset(ResetType::On);
        let words = format!("503: busy{}", asked_pause_text(Duration::from_mins(2)));
        let next = |attempts: &[Attempt], now| pursue(on.clone(), attempts, limits.power_change, &limits, at(now));
        let once = [attempt(&on, 0, busy(&words))];
        assert!(matches!(next(&once, 119), Verdict::Wait { .. }), "longer than a busy machine is waited for otherwise");
        assert_eq!(next(&once, 120), Verdict::Act(on.clone()));
        let thrice = [0, 120, 240].map(|seconds| attempt(&on, seconds, busy(&words)));
        assert!(matches!(next(&thrice, 360), Verdict::Fail(_)), "not for ever");
    }

    #[test]
    fn a_medium_of_unknown_outcome_is_observed_for_as_long_as_an_accepted_one() {
        let limits = Limits::default();
        let insert = Action::Insert { slot: "Cd".into(), image: "http://images/a.iso".into(), write_protected: true };
        let attempts = [attempt(&insert, 0, Reply::Unknown)];
        let next = |now| pursue(insert.clone(), &attempts, limits.media, &limits, at(now));
        assert!(matches!(next(119), Verdict::Wait { .. }));
        assert_eq!(next(120), Verdict::Act(insert.clone()));
        let twice = [attempt(&insert, 0, Reply::Unknown), attempt(&insert, 120, Reply::Unknown)];
        assert!(matches!(pursue(insert.clone(), &twice, limits.media, &limits, at(240)), Verdict::Fail(_)));
    }

    #[test]
    fn what_shows_nowhere_is_said_again_when_its_outcome_is_unknown() {
        let limits = Limits::default();
        let off = Action::Reset(ResetType::GracefulShutdown);
        let attempts: Vec<Attempt> = (0..5).map(|n| attempt(&off, n * 5, Reply::Unknown)).collect();
        let next = |made: usize, now| declare(off.clone(), &attempts[..made], &limits, at(now));
        assert!(matches!(next(1, 0), Verdict::Wait { .. }));
        assert_eq!(next(1, 1), Verdict::Act(off.clone()));
        assert!(matches!(next(4, 18), Verdict::Wait { .. }));
        assert_eq!(next(4, 19), Verdict::Act(off.clone()));
        assert!(matches!(next(5, 24), Verdict::Wait { .. }));
        assert!(matches!(next(5, 25), Verdict::Fail(_)), "not for ever");
    }

    #[test]
    fn a_machine_that_is_where_it_shall_be_may_refuse() {
        let limits = Limits::default();
        let on = Action::Reset(ResetType::On);
        let attempts = [attempt(&on, 0, Reply::Refused { message: "400: already on".into(), transient: false })];
        let next = |now| pursue(on.clone(), &attempts, limits.power_change, &limits, at(now));
        assert!(matches!(next(1), Verdict::Wait { .. }), "what was read may be old");
        assert!(matches!(next(5), Verdict::Fail(_)));
    }

    #[test]
    fn a_machine_that_was_away_is_asked_again_before_its_power_is_cut() {
        let limits = Limits::default();
        let capabilities =
            Capabilities { resets: vec![ResetType::GracefulShutdown, ResetType::ForceOff], ..Capabilities::default() };
        let (graceful, on) = (Action::Reset(ResetType::GracefulShutdown), Action::Reset(ResetType::On));
        let machine = MachineView { power: PowerState::On, ..MachineView::default() };
        let next = |attempts: &[Attempt], now| switch_off(&machine, &capabilities, attempts, &limits, at(now));
        let away = || busy("connection refused");
        assert_eq!(next(&[attempt(&graceful, 0, away())], 300), Verdict::Act(graceful.clone()));
        let back = [attempt(&graceful, 0, away()), attempt(&graceful, 300, busy("503: starting"))];
        assert_eq!(next(&back, 305), Verdict::Act(graceful.clone()), "it may be busy once it is there again");
        let busy_for: Vec<Attempt> = (0..30).map(|n| attempt(&graceful, n * 5, away())).collect();
        assert_eq!(next(&busy_for, 150), Verdict::Act(Action::Reset(ResetType::ForceOff)), "not for ever");
        let pursued = |attempts: &[Attempt], now| pursue(on.clone(), attempts, limits.power_change, &limits, at(now));
        assert_eq!(pursued(&[attempt(&on, 0, away())], 300), Verdict::Act(on.clone()));
        let back = [attempt(&on, 0, away()), attempt(&on, 300, away())];
        assert_eq!(pursued(&back, 305), Verdict::Act(on.clone()));
    }
}
