//! The rules that bring a server to a power state: graceful, then forced after a deadline. The
//! observed state decides.

use jiff::Timestamp;
use shown_text::AsRaw;

use super::{
    machine::{Capabilities, MachineView, PowerState, PowerTarget, ResetType},
    model::{
        gate::ExternalSystem,
        operation::{CompletionProof, OperationSpec, WhenOff},
        shown_time::shown_time,
    },
    pursuit::{attempts_at, busy_until},
    refusal::pause_after,
    spec::{MaintenanceKind, Spec},
    step::{Action, Attempt, Reply},
};
pub use super::{
    model::verdict::{Limits, Need, Verdict, after},
    pursuit::{declare, pursue},
    refusal::asked_pause_text,
};

const ON: Action = Action::Reset(ResetType::On);
const FORCE_OFF: Action = Action::Reset(ResetType::ForceOff);
const FORCE_RESTART: Action = Action::Reset(ResetType::ForceRestart);
const SHUTDOWN: Action = Action::Reset(ResetType::GracefulShutdown);

/// Returns why a request cannot reach or restore its power from the machine's current power, with
/// the attribute. `systems` are the external systems that manage the server.
///
/// [`missing_capabilities`](super::prepare::missing_capabilities) runs first, because it does not
/// depend on the power.
#[must_use]
pub fn unreachable<'a>(
    spec: &Spec,
    systems: impl IntoIterator<Item = &'a ExternalSystem>,
    power: PowerState,
    has: &Capabilities,
) -> Option<(&'static str, String)> {
    let mut systems = systems.into_iter().peekable();
    if let Some(operation) = &spec.operation {
        // An external system can hide the power at plan time and report it later.
        let external = systems.peek().is_some();
        return operation_unreachable(operation, power, has).filter(|_| !(external && power == PowerState::Unknown));
    }
    let target = spec.server_power?;
    let stops = target == PowerTarget::Off || spec.boot.is_some();
    let paused = power == PowerState::Paused;
    if paused && stops && !has.can(ResetType::ForceOff) {
        let why = "The server is Paused: no operating system runs that could shut down, and the machine does not accept ForceOff.";
        return Some(("server_power", why.to_owned()));
    }
    if paused && !stops && !has.can(ResetType::ForceRestart) {
        return Some(("server_power", NOT_STARTED.to_owned()));
    }
    let ours = spec.kind == MaintenanceKind::Maintenance && systems.all(|system| !system.restores_power);
    let why = match (target, power.restored().filter(|_| ours)?) {
        (PowerTarget::Off, PowerTarget::On) if !has.can(ResetType::On) => {
            "The machine does not accept the reset type On, so a release could not switch the server on again."
        }
        (PowerTarget::On, PowerTarget::Off)
            if !has.can(ResetType::ForceOff) && !has.can(ResetType::GracefulShutdown) =>
        {
            "The machine accepts neither GracefulShutdown nor ForceOff, so a release could not switch the server off again."
        }
        _ => return None,
    };
    Some(("server_power", why.to_owned()))
}

const NOT_STARTED: &str = "The server is Paused, where On does nothing, and the machine does not accept ForceRestart. Switch it off first, \
                           or restart it on its console.";

/// Returns how a request changes the power of a `Paused` server, and the power after the release.
/// `None`: the server is not `Paused`, or its power does not change.
#[must_use]
pub fn pause_note(spec: &Spec, power: PowerState) -> Option<&'static str> {
    if power != PowerState::Paused {
        return None;
    }
    if let Some(operation) = &spec.operation {
        return (operation.reset == ResetType::On)
            .then_some("ForceRestart starts it, because On does not start a server that is Paused.");
    }
    let stops = spec.server_power == Some(PowerTarget::Off) || spec.boot.is_some();
    spec.server_power.map(|_| {
        if stops {
            "ForceOff switches it off. The release leaves it On: no request returns a server to Paused."
        } else {
            "ForceRestart starts it. The release leaves it On: no request returns a server to Paused."
        }
    })
}

fn operation_unreachable(
    operation: &OperationSpec,
    power: PowerState,
    has: &Capabilities,
) -> Option<(&'static str, String)> {
    let unseen = power == PowerState::Unknown && operation.reset != ResetType::Nmi;
    if unseen && operation.proof != CompletionProof::Accepted {
        let why = "The machine does not show its power state, so the operation could not be proven. Set proof = \"accepted\".";
        return Some(("proof", why.to_owned()));
    }
    let starts = operation.target().is_none() && operation.when_off == WhenOff::PowerOn;
    if starts && power.settled() == Some(PowerTarget::Off) && !has.can(ResetType::On) {
        let why = "The server is off, and the machine does not accept the reset type On (when_off = \"power_on\").";
        return Some(("when_off", why.to_owned()));
    }
    match (operation.reset, power) {
        (ResetType::On, PowerState::Paused) if !has.can(ResetType::ForceRestart) => {
            Some(("operation", NOT_STARTED.to_owned()))
        }
        (ResetType::GracefulRestart, PowerState::Paused) => {
            let why = "The server is Paused: no operating system runs that could restart it. Use ForceRestart.";
            Some(("operation", why.to_owned()))
        }
        _ => None,
    }
}

/// Judges a power-off. `since` is the step's start.
#[must_use]
pub fn switch_off(
    machine: &MachineView,
    capabilities: &Capabilities,
    attempts: &[Attempt],
    since: Timestamp,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    if machine.power == PowerState::Off {
        return Verdict::Done;
    }
    if attempts.is_empty()
        && let Some(settles) = settles(machine.power, since, limits).filter(|until| now < *until)
    {
        return Verdict::Wait { why: format!("it is {} first", machine.power).into(), until: Some(settles) };
    }
    let forced_before = attempts_at(attempts, &FORCE_OFF).next().is_some();
    // A Paused machine does not run an operating system that could shut down.
    let runs = machine.power != PowerState::Paused;
    if runs && !forced_before && capabilities.can(ResetType::GracefulShutdown) {
        let Some(last) = attempts_at(attempts, &SHUTDOWN).last() else { return Verdict::Act(SHUTDOWN) };
        match &last.reply {
            // The request did not reach the operating system. A busy or briefly unreachable BMC
            // does not justify a power cut. The shutdown's time limit does not include the BMC's
            // busy time, and no request was sent while the BMC was unreachable.
            Reply::Refused { message, transient: true }
                if after(last.answered_at(), pause_after(message.raw(), limits))
                    < busy_until(attempts, last, message.raw(), limits) =>
            {
                let until = after(last.answered_at(), pause_after(message.raw(), limits));
                if now >= until {
                    return Verdict::Act(SHUTDOWN);
                }
                return Verdict::Wait { why: format!("{SHUTDOWN} was refused: {message}").into(), until: Some(until) };
            }
            // A permanently rejected shutdown is not requested again.
            Reply::Refused { .. } => {}
            Reply::Accepted | Reply::Unknown | Reply::Unclear { .. } => {
                let until = after(last.answered_at(), limits.graceful_shutdown);
                if now < until {
                    let why = format!("graceful, forced at {}", shown_time(until));
                    return Verdict::Wait { why: why.into(), until: Some(until) };
                }
                // The first request was possibly never sent.
                let arrived = attempts_at(attempts, &SHUTDOWN).filter(|it| !matches!(it.reply, Reply::Refused { .. }));
                if last.reply.is_unknown() && arrived.count() == 1 {
                    return Verdict::Act(SHUTDOWN);
                }
            }
        }
    }
    if !capabilities.can(ResetType::ForceOff) {
        let cause = format!("the power state is still {}, and the machine does not accept ForceOff", machine.power);
        return Verdict::Fail(cause.into());
    }
    let verdict = pursue(FORCE_OFF, attempts, limits.power_change, limits, now);
    explain(verdict, machine, attempts)
}

/// Returns when the machine should have left a transitional state.
fn settles(power: PowerState, since: Timestamp, limits: &Limits) -> Option<Timestamp> {
    match power {
        PowerState::PoweringOn => Some(after(since, limits.power_change)),
        PowerState::PoweringOff => Some(after(since, limits.graceful_shutdown)),
        PowerState::On | PowerState::Off | PowerState::Paused | PowerState::Unknown => None,
    }
}

/// Judges a power-on. It is proven if the server was off before (`edge`), or was already on and can
/// stay on.
#[must_use]
#[allow(clippy::too_many_arguments, reason = "all arguments describe one decision")]
pub fn switch_on(
    machine: &MachineView,
    capabilities: &Capabilities,
    attempts: &[Attempt],
    since: Timestamp,
    edge: bool,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let started_by_us = attempts.iter().rfind(|attempt| attempt.action == ON || attempt.action == FORCE_RESTART);
    match machine.power {
        PowerState::On => {}
        PowerState::PoweringOn | PowerState::PoweringOff => {
            let rising = machine.power == PowerState::PoweringOn;
            let from = started_by_us.filter(|_| rising).map_or(since, Attempt::answered_at);
            let until = settles(machine.power, from, limits).unwrap_or(now);
            if now < until {
                let why = if rising { "it is powering on" } else { "it is powering off first" };
                return Verdict::Wait { why: why.into(), until: Some(until) };
            }
            return Verdict::Fail(format!("it was still {} at {}", machine.power, shown_time(until)).into());
        }
        PowerState::Paused => return leave_pause(machine, capabilities, attempts, edge, limits, now),
        PowerState::Off | PowerState::Unknown => {
            // A restart can pass through `Off`.
            let restarted = attempts_at(attempts, &FORCE_RESTART).last();
            let restarted = restarted.filter(|it| !matches!(it.reply, Reply::Refused { .. }));
            let until = restarted.map(|it| after(it.answered_at(), limits.power_change));
            if let Some(until) = until.filter(|until| now < *until) {
                return Verdict::Wait { why: "it is restarting".into(), until: Some(until) };
            }
            return explain(pursue(ON, attempts, limits.power_change, limits, now), machine, attempts);
        }
    }
    if edge && started_by_us.is_none() {
        // It was off after the previous steps, and no call of this maintenance started it.
        return Verdict::Again;
    }
    let Some(started) = started_by_us else {
        return Verdict::Done;
    };
    // If the machine reports boot progress, power alone proves little.
    let progressed = machine.boot_progress.as_raw().is_none_or(|state| state != "None");
    let until = after(started.answered_at(), limits.power_change + limits.boot_progress);
    if progressed || now >= until {
        return Verdict::Done;
    }
    Verdict::Wait { why: "power is on, boot progress is still None".into(), until: Some(until) }
}

/// Starts a `Paused` machine with `ForceRestart`, because it accepts `On` without effect. Without
/// `ForceRestart`, the machine is powered off and on. A plan rejects that, but a release needs it.
fn leave_pause(
    machine: &MachineView,
    capabilities: &Capabilities,
    attempts: &[Attempt],
    edge: bool,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let started = attempts_at(attempts, &ON).filter(|it| !matches!(it.reply, Reply::Refused { .. })).last();
    if let Some(started) = started {
        let until = after(started.answered_at(), limits.power_change);
        if now < until {
            let why = format!("it is Paused after On at {}", shown_time(started.answered_at()));
            return Verdict::Wait { why: why.into(), until: Some(until) };
        }
    }
    if edge {
        // The firmware already used the override, so a restart would boot production.
        return match started {
            None => Verdict::Again,
            Some(_) => explain(Verdict::Fail("it was switched on and is Paused".into()), machine, attempts),
        };
    }
    let action = if capabilities.can(ResetType::ForceRestart) {
        FORCE_RESTART
    } else if capabilities.can(ResetType::ForceOff) {
        FORCE_OFF
    } else {
        return Verdict::Fail(NOT_STARTED.into());
    };
    explain(pursue(action, attempts, limits.power_change, limits, now), machine, attempts)
}

/// Adds earlier attempts and the observed power to a failure.
fn explain(verdict: Verdict, machine: &MachineView, attempts: &[Attempt]) -> Verdict {
    let Verdict::Fail(cause) = verdict else {
        return verdict;
    };
    let mut story: Vec<String> = attempts
        .iter()
        .take(attempts.len().saturating_sub(1))
        .map(|attempt| {
            let reply = match &attempt.reply {
                Reply::Unknown => "received no reply".to_owned(),
                Reply::Unclear { message } => format!("had an unknown outcome ({message})"),
                Reply::Accepted => "was accepted".to_owned(),
                Reply::Refused { message, .. } => format!("was refused ({message})"),
            };
            format!("{} at {} {reply}", attempt.action, shown_time(attempt.at))
        })
        .collect();
    story.dedup();
    story.push(cause.to_string());
    Verdict::Fail(format!("{}. The power state is {}.", story.join("; then "), machine.power).into())
}

/// Judges a change to `target` power with an unchanged boot configuration.
#[must_use]
#[allow(clippy::too_many_arguments, reason = "all arguments describe one decision")]
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
        PowerTarget::Off => switch_off(machine, capabilities, attempts, since, limits, now),
        PowerTarget::On => switch_on(machine, capabilities, attempts, since, edge, limits, now),
    }
}

#[cfg(test)]
mod tests;
