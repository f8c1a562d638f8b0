//! The rules of a one-shot power operation: made once, proven by what is seen, never repeated
//! blindly.

pub use super::model::operation::{CompletionProof, OperationOutcome, OperationSpec, WhenOff};

use jiff::Timestamp;

use super::{
    machine::{Capabilities, MachineView, PowerState, PowerTarget, ResetType},
    model::{
        facts::Facts,
        shown_time::shown_time,
        verdict::{Limits, Need, Verdict, after},
    },
    power::{pursue, switch_on},
    spec::MaintenanceKind,
    state::{Maintenance, Phase, Progress},
    step::{Action, Attempt, Reply},
};

impl Maintenance {
    /// Whether this is an operation that was made: it holds nothing, and its record only keeps it
    /// from being made again.
    #[must_use]
    pub fn is_made(&self) -> bool {
        self.spec.kind == MaintenanceKind::Operation && matches!(self.phase, Phase::InMaintenance { .. })
    }

    /// The operation in words.
    #[must_use]
    pub fn operation_name(&self) -> String {
        self.spec.operation.as_ref().map_or_else(|| "the service".to_owned(), |operation| operation.reset.to_string())
    }

    /// Which operation was made, when, and what was observed of it.
    #[must_use]
    pub fn made(&self) -> String {
        let at = self.started_at.map(|at| format!(" at {}", shown_time(at))).unwrap_or_default();
        let outcome = self.outcome.map(|outcome| format!(" ({outcome})")).unwrap_or_default();
        format!("{}{at}{outcome}", self.operation_name())
    }
}

impl OperationSpec {
    /// In words, after the server's name.
    #[must_use]
    pub fn effect(&self) -> String {
        match self.reset {
            ResetType::On => "is switched on.",
            ResetType::ForceOff => "is switched off without asking its operating system.",
            ResetType::GracefulShutdown => "is shut down.",
            ResetType::GracefulRestart => "is restarted by its operating system.",
            ResetType::ForceRestart => "is restarted without asking its operating system.",
            ResetType::PowerCycle => "loses its power and is started again.",
            ResetType::Nmi => "gets a non-maskable interrupt.",
        }
        .to_owned()
    }
}

/// What the operation needs next.
#[must_use]
pub fn judge(record: &Maintenance, progress: &Progress, facts: &Facts, limits: &Limits, now: Timestamp) -> Verdict {
    let Some(operation) = &record.spec.operation else { return Verdict::Done };
    let Some(machine) = &facts.machine else { return Verdict::Look(Need::Machine) };
    let Some(capabilities) = &facts.capabilities else { return Verdict::Look(Need::Capabilities) };
    let action = Action::Reset(operation.reset);
    match progress.attempts.iter().rev().find(|attempt| attempt.action == action) {
        Some(last) => {
            let before = record.prior.as_ref().and_then(|prior| prior.last_reset.as_deref());
            follow(operation, action, last, progress, machine, before, limits, now)
        }
        None => begin(operation, action, progress, machine, capabilities, limits, now),
    }
}

fn begin(
    operation: &OperationSpec,
    action: Action,
    progress: &Progress,
    machine: &MachineView,
    capabilities: &Capabilities,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    // Switched on instead, by this process or the one before it.
    if progress.attempts.iter().any(|attempt| attempt.action == Action::Reset(ResetType::On)) {
        return match switch_on(machine, &progress.attempts, progress.since, false, limits, now) {
            Verdict::Done => Verdict::Concluded(OperationOutcome::Proven),
            verdict => verdict,
        };
    }
    if matches!(machine.power, PowerState::PoweringOn | PowerState::PoweringOff) {
        let until = after(progress.since, limits.power_change);
        if now < until {
            let why = format!(
                "it is {} first",
                if machine.power == PowerState::PoweringOn { "powering on" } else { "powering off" }
            );
            return Verdict::Wait { why, until: Some(until) };
        }
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
                return Verdict::Fail("the server is off, and when_off = \"error\" says that it must be on".to_owned());
            }
        }
    }
    if !capabilities.can(operation.reset) {
        return Verdict::Fail(format!("the machine does not accept {}", operation.reset));
    }
    Verdict::Act(action)
}

#[allow(clippy::too_many_arguments, reason = "each is one fact of one decision")]
fn follow(
    operation: &OperationSpec,
    action: Action,
    last: &Attempt,
    progress: &Progress,
    machine: &MachineView,
    reset_before: Option<&str>,
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
            PowerTarget::Off => machine.power == PowerState::Off,
        };
        if reached {
            return Verdict::Concluded(OperationOutcome::Proven);
        }
        // These lead to one state, however often they are sent.
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
    // An interrupt leaves no trace that a BMC would show.
    if operation.reset == ResetType::Nmi {
        let known = last.reply == Reply::Accepted;
        return Verdict::Concluded(if known { OperationOutcome::Accepted } else { OperationOutcome::Unproven });
    }
    let tells = machine.last_reset.is_some() && reset_before.is_some();
    let was_reset = tells && machine.last_reset.as_deref() != reset_before;
    let on = machine.power == PowerState::On;
    if on && was_reset && booted(operation, machine) {
        return Verdict::Concluded(OperationOutcome::Proven);
    }
    // A machine that does not tell when it was reset last: what it accepted, and that it is on, is
    // all there is.
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
    // Not before what was accepted without a proof would be judged.
    let until = after(last.answered_at(), (patience + graceful).max(limits.retry_pause));
    if now < until {
        let said = if last.reply == Reply::Accepted { "accepted" } else { "sent without a reply" };
        let (at, until_text) = (shown_time(last.answered_at()), shown_time(until));
        let why = format!("{action} was {said} at {at}; the server is observed until {until_text}");
        return Verdict::Wait { why, until: Some(until) };
    }
    // It may have been carried out: a second one could hit a server that has just come back.
    Verdict::Concluded(OperationOutcome::Unproven)
}

/// Whether the operating system runs, where that was asked.
fn booted(operation: &OperationSpec, machine: &MachineView) -> bool {
    operation.proof != CompletionProof::Boot || machine.boot_progress.as_deref() == Some("OSRunning")
}
