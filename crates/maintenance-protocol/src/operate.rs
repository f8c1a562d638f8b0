//! Rules of a one-shot power operation: sent once, proven by observation, never repeated blindly.

use shown_text::AsRaw;

pub use super::model::operation::{CompletionProof, OperationOutcome, OperationSpec, WhenOff};

use jiff::Timestamp;

use super::{
    machine::{Capabilities, MachineView, PowerState, PowerTarget, ResetType},
    model::{
        facts::Facts,
        shown_time::shown_time,
        verdict::{Limits, Need, Verdict, after},
    },
    power::{pursue, switch_on, unreachable},
    spec::MaintenanceKind,
    state::{Maintenance, Phase, Progress},
    step::{Action, Attempt, Reply},
};

impl Maintenance {
    /// Returns true for a completed operation. It does not own a lock; its record only prevents a
    /// repetition.
    #[must_use]
    pub fn is_made(&self) -> bool {
        self.spec.kind == MaintenanceKind::Operation && matches!(self.phase, Phase::InMaintenance { .. })
    }

    /// Returns the operation's name.
    #[must_use]
    pub fn operation_name(&self) -> String {
        self.spec.operation.as_ref().map_or_else(|| "the service".to_owned(), |operation| operation.reset.to_string())
    }

    /// Returns the machine's last message about an operation that is not proven, as a sentence.
    #[must_use]
    pub fn unproven_cause(&self) -> String {
        self.unproven_message.as_ref().map(|message| format!(" Last message: {message}.")).unwrap_or_default()
    }

    /// Returns the operation with its time and its outcome.
    #[must_use]
    pub fn made(&self) -> String {
        let at = self.started_at.map(|at| format!(" at {}", shown_time(at))).unwrap_or_default();
        let outcome = self.outcome.map(|outcome| format!(" ({outcome})")).unwrap_or_default();
        format!("{}{at}{outcome}", self.operation_name())
    }
}

impl OperationSpec {
    /// Describes the effect for people, to follow the server's name.
    #[must_use]
    pub fn effect(&self) -> String {
        match self.reset {
            ResetType::On => "is switched on.",
            ResetType::ForceOff => "is switched off without an operating system shutdown.",
            ResetType::GracefulShutdown => "is shut down.",
            ResetType::GracefulRestart => "is restarted by its operating system.",
            ResetType::ForceRestart => "is restarted without an operating system shutdown.",
            ResetType::PowerCycle => "is powered off and on again.",
            ResetType::Nmi => "receives a non-maskable interrupt.",
        }
        .to_owned()
    }
}

/// Judges the operation.
#[must_use]
pub fn judge(record: &Maintenance, progress: &Progress, facts: &Facts, limits: &Limits, now: Timestamp) -> Verdict {
    let Some(operation) = &record.spec.operation else { return Verdict::Done };
    let Some(machine) = &facts.machine else { return Verdict::Look(Need::Machine) };
    let Some(capabilities) = &facts.capabilities else { return Verdict::Look(Need::Capabilities) };
    let action = Action::Reset(operation.reset);
    match progress.attempts.iter().rev().find(|attempt| attempt.action == action) {
        Some(last) => follow(operation, action, last, progress, machine, limits, now),
        None => begin(record, operation, action, progress, machine, capabilities, limits, now),
    }
}

#[allow(clippy::too_many_arguments, reason = "all arguments describe one decision")]
fn begin(
    record: &Maintenance,
    operation: &OperationSpec,
    action: Action,
    progress: &Progress,
    machine: &MachineView,
    capabilities: &Capabilities,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    // This process or its predecessor started the server with a different reset.
    let instead = |attempt: &Attempt| {
        matches!(attempt.action, Action::Reset(ResetType::On | ResetType::ForceRestart)) && attempt.action != action
    };
    let paused = machine.power == PowerState::Paused;
    if progress.attempts.iter().any(instead) || (paused && operation.reset == ResetType::On) {
        return start(operation, progress, machine, capabilities, limits, now);
    }
    if matches!(machine.power, PowerState::PoweringOn | PowerState::PoweringOff) {
        let until = after(progress.since, limits.power_change);
        if now < until {
            let why = format!(
                "it is {} first",
                if machine.power == PowerState::PoweringOn { "powering on" } else { "powering off" }
            );
            return Verdict::Wait { why: why.into(), until: Some(until) };
        }
    }
    if let Some((_, problem)) = unreachable(&record.spec, [], machine.power, capabilities) {
        return Verdict::Fail(problem.into());
    }
    // A Paused server's operating system has already halted.
    if paused && operation.reset == ResetType::GracefulShutdown {
        return Verdict::Concluded(OperationOutcome::Skipped);
    }
    let found = machine.power.settled();
    if operation.target().is_some() && operation.target() == found {
        return Verdict::Concluded(OperationOutcome::Skipped);
    }
    if operation.target().is_none() && found == Some(PowerTarget::Off) {
        match operation.when_off {
            WhenOff::Skip => return Verdict::Concluded(OperationOutcome::Skipped),
            WhenOff::PowerOn => return Verdict::Act(Action::Reset(ResetType::On)),
            WhenOff::Error => {
                return Verdict::Fail("the server is off, and when_off = \"error\" requires it to be on".into());
            }
        }
    }
    if !capabilities.can(operation.reset) {
        return Verdict::Fail(format!("the machine does not accept {}", operation.reset).into());
    }
    Verdict::Act(action)
}

/// Follows a server that was started by a different reset than requested: `On` if it was off,
/// `ForceRestart` if it was `Paused`.
fn start(
    operation: &OperationSpec,
    progress: &Progress,
    machine: &MachineView,
    capabilities: &Capabilities,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let attempts = &progress.attempts;
    if operation.proof == CompletionProof::Accepted && attempts.iter().any(|it| it.reply == Reply::Accepted) {
        return Verdict::Concluded(OperationOutcome::Accepted);
    }
    let verdict = switch_on(machine, capabilities, attempts, progress.since, false, limits, now);
    if verdict != Verdict::Done {
        return verdict;
    }
    let from = attempts.last().map_or(progress.since, Attempt::answered_at);
    let until = after(from, limits.power_change + limits.boot_progress);
    if booted(operation, machine) {
        Verdict::Concluded(OperationOutcome::Proven)
    } else if now < until {
        Verdict::Wait { why: "it is on and has not booted yet".into(), until: Some(until) }
    } else {
        Verdict::Concluded(OperationOutcome::Unproven)
    }
}

#[allow(clippy::too_many_arguments, reason = "all arguments describe one decision")]
fn follow(
    operation: &OperationSpec,
    action: Action,
    last: &Attempt,
    progress: &Progress,
    machine: &MachineView,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    if let Reply::Refused { .. } = last.reply {
        return pursue(action, &progress.attempts, limits.power_change, limits, now);
    }
    if last.reply == Reply::Accepted && operation.proof == CompletionProof::Accepted {
        return Verdict::Concluded(OperationOutcome::Accepted);
    }
    if let Some(target) = operation.target() {
        let reached = match target {
            PowerTarget::On => machine.power == PowerState::On && booted(operation, machine),
            // On Arm the operating system halts, and the BMC then reports Paused.
            PowerTarget::Off if operation.reset == ResetType::GracefulShutdown => {
                matches!(machine.power, PowerState::Off | PowerState::Paused)
            }
            PowerTarget::Off => machine.power == PowerState::Off,
        };
        if reached {
            return Verdict::Concluded(OperationOutcome::Proven);
        }
        // Repeating these calls leads to the same state.
        let within = if operation.reset == ResetType::GracefulShutdown {
            limits.graceful_shutdown
        } else {
            limits.power_change
                + if operation.proof == CompletionProof::Boot {
                    limits.boot_progress
                } else {
                    std::time::Duration::ZERO
                }
        };
        return pursue(action, &progress.attempts, within, limits, now);
    }
    // BMCs do not report interrupts.
    if operation.reset == ResetType::Nmi {
        let known = last.reply == Reply::Accepted;
        return Verdict::Concluded(if known { OperationOutcome::Accepted } else { OperationOutcome::Unproven });
    }
    let tells = machine.last_reset.is_some() && last.last_reset.is_some();
    let was_reset = tells && machine.last_reset != last.last_reset;
    let on = machine.power == PowerState::On;
    if on && was_reset && booted(operation, machine) {
        return Verdict::Concluded(OperationOutcome::Proven);
    }
    // Without a reset time, acceptance and power are the only evidence.
    if on
        && !tells
        && last.reply == Reply::Accepted
        && booted(operation, machine)
        && now >= after(last.answered_at(), limits.retry_pause)
    {
        return Verdict::Concluded(if operation.proof == CompletionProof::Boot {
            OperationOutcome::Proven
        } else {
            OperationOutcome::Accepted
        });
    }
    let patience = match operation.proof {
        CompletionProof::Boot => limits.power_change + limits.boot_progress,
        CompletionProof::Power | CompletionProof::Accepted => limits.power_change,
    };
    let graceful = if operation.reset == ResetType::GracefulRestart {
        limits.graceful_shutdown
    } else {
        std::time::Duration::ZERO
    };
    // At least until an accepted call without proof would be judged.
    let until = after(last.answered_at(), (patience + graceful).max(limits.retry_pause));
    if now < until {
        let said = if last.reply == Reply::Accepted { "accepted" } else { "sent without a reply" };
        let (at, until_text) = (shown_time(last.answered_at()), shown_time(until));
        let why = format!("{action} was {said} at {at}; the server is observed until {until_text}");
        return Verdict::Wait { why: why.into(), until: Some(until) };
    }
    // The call was possibly carried out. A second call could hit a server that has just started.
    Verdict::Concluded(OperationOutcome::Unproven)
}

/// Returns true if the operating system runs, or if that was not required.
fn booted(operation: &OperationSpec, machine: &MachineView) -> bool {
    operation.proof != CompletionProof::Boot || machine.boot_progress.as_raw() == Some("OSRunning")
}
