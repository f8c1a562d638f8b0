//! Rules for release steps, which restore the prior state exactly.
//!
//! They compare the server with its recorded state, so they also revert changes by people and by
//! boot configurations under the maintenance.

mod drives;
mod effect;
mod outlook;
mod overrides;

use drives::{absent, concerns_drives, drive_difference, is_other, listed, media_to_compare, restore_media};
pub use effect::{effect, ends_on, power_restored};
pub use overrides::tolerated;
use overrides::{boot_differences, end_override, not_shown_yet, restore_boot};

use jiff::Timestamp;

use super::{
    boot, drain, gate, gate_chain,
    machine::{BootOverride, MachineView, MediaSlot, PowerState, PowerTarget},
    model::{
        facts::Facts,
        verdict::{Limits, Need, Verdict},
    },
    node,
    power::{bring_to, switch_off},
    spec::MaintenanceKind,
    state::{Maintenance, PriorState, Progress},
    step::{Action, Step},
};

/// Returns the release steps; empty if no prior state was recorded, because the server is then
/// unchanged.
#[must_use]
pub fn steps(record: &Maintenance) -> Vec<Step> {
    let mut steps = steps_on_the_machine(record);
    // Last, because a claimed server that is returned powered off would boot from the network.
    steps.extend((0..gate::to_leave(record)).map(|_| Step::LeaveGate));
    // A Node that another author cordoned stays cordoned, unless it must be drained again.
    if record.drained.is_some() {
        steps.push(Step::UncordonNode);
    }
    if record.node.taken.is_some() {
        steps.push(Step::ReturnNode);
    }
    steps
}

fn steps_on_the_machine(record: &Maintenance) -> Vec<Step> {
    match &record.prior {
        None => Vec::new(),
        // Operations are not reverted.
        Some(_) if record.spec.kind == MaintenanceKind::Operation => Vec::new(),
        Some(_) if !gate::may_restore(record) => Vec::new(),
        Some(prior) => steps_to(prior),
    }
}

/// Returns true if the record cannot end before the prior state is restored and verified.
/// [`Step::Verify`] is then the last step on the machine.
#[must_use]
pub fn verifies(record: &Maintenance) -> bool {
    steps_on_the_machine(record).contains(&Step::Verify)
}

/// Returns true if a release compares the virtual drives.
#[must_use]
pub fn compares_drives(record: &Maintenance) -> bool {
    concerns_drives(record) && record.prior.as_ref().is_some_and(|prior| !prior.media.is_empty())
}

/// Returns the steps that restore a recorded state.
#[must_use]
pub fn steps_to(prior: &PriorState) -> Vec<Step> {
    let mut steps = vec![Step::StopForRestore];
    if !prior.media.is_empty() {
        steps.push(Step::RestoreMedia);
    }
    match &prior.boot {
        // A one-time override would be used by the start that restores the power.
        Some(boot) if boot::is_once(boot) => {
            steps.extend([Step::DisarmBoot, Step::RestorePower, Step::RestoreBoot]);
        }
        Some(_) => steps.extend([Step::RestoreBoot, Step::RestorePower]),
        None => steps.push(Step::RestorePower),
    }
    steps.push(Step::Verify);
    steps
}

/// Judges the current step.
#[must_use]
pub fn judge(
    step: Step,
    record: &Maintenance,
    progress: &Progress,
    facts: &Facts,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    if step == Step::LeaveGate {
        return gate_chain::leave(record, progress, facts, limits, now);
    }
    if step == Step::UncordonNode {
        return drain::uncordon(record, progress, facts, limits, now);
    }
    if step == Step::ReturnNode {
        return node::give_back(record, progress, facts, limits, now);
    }
    let Some(prior) = &record.prior else {
        return Verdict::Done;
    };
    let Some(machine) = &facts.machine else {
        return Verdict::Look(Need::Machine);
    };
    let attempts = &progress.attempts;
    match step {
        Step::StopForRestore => {
            let media = match media_to_compare(record, prior, facts) {
                Ok(media) => media,
                Err(need) => return Verdict::Look(need),
            };
            if !must_stop(record, prior, machine, media) {
                return Verdict::Done;
            }
            let Some(capabilities) = &facts.capabilities else {
                return Verdict::Look(Need::Capabilities);
            };
            switch_off(machine, capabilities, attempts, progress.since, limits, now)
        }
        Step::RestoreMedia if !concerns_drives(record) => Verdict::Done,
        Step::RestoreMedia => {
            let Some(media) = &facts.media else {
                return Verdict::Look(Need::Media);
            };
            restore_media(record, prior, media, progress, limits, now)
        }
        // No later start would use the override.
        Step::DisarmBoot
            if record.is_power_restored(machine.power) || record.restored_power() != Some(PowerTarget::On) =>
        {
            Verdict::Done
        }
        Step::DisarmBoot => {
            let wanted = BootOverride { enabled: Some("Disabled".into()), ..BootOverride::default() };
            let change = Action::SetBoot { wanted, clear_http_boot_uri: false };
            match &machine.boot {
                Some(found) if !found.is_disabled() => end_override(change, found, attempts, limits, now),
                _ => Verdict::Done,
            }
        }
        Step::RestoreBoot => {
            let Some(before) = &prior.boot else {
                return Verdict::Done;
            };
            if boot::is_unlisted(before) && record.boot_writes.is_none() {
                return Verdict::Done;
            }
            match &machine.boot {
                Some(found) => restore_boot(record, before, found, attempts, limits, now),
                None => not_shown_yet(before, progress, limits, now)
                    .unwrap_or_else(|| restore_boot(record, before, &BootOverride::default(), attempts, limits, now)),
            }
        }
        Step::RestorePower => {
            let Some(target) = record.restored_power() else {
                return Verdict::Done;
            };
            if machine.power == PowerState::Paused && record.is_power_restored(machine.power) {
                return Verdict::Done;
            }
            let Some(capabilities) = &facts.capabilities else {
                return Verdict::Look(Need::Capabilities);
            };
            bring_to(target, machine, capabilities, attempts, progress.since, false, limits, now)
        }
        Step::Verify => verify(record, prior, machine, facts, progress, limits, now),
        _ => Verdict::Fail(format!("{step} is not a step of releasing").into()),
    }
}

/// Returns true if the server must be off before the restore.
///
/// That is required if it was off before, or if its owner now wants it off. It is also required if
/// it possibly runs a system booted by the maintenance, or if a drive's medium changes. A medium is
/// never ejected from a running installer.
fn must_stop(record: &Maintenance, prior: &PriorState, machine: &MachineView, media: &[MediaSlot]) -> bool {
    if machine.power == PowerState::Off {
        return false;
    }
    record.restored_power() == Some(PowerTarget::Off)
        || record.booted
        || prior.media.iter().any(|before| listed(before, media).is_some_and(|now| is_other(record, before, now)))
}

/// Compares every recorded field with the server.
fn verify(
    record: &Maintenance,
    prior: &PriorState,
    machine: &MachineView,
    facts: &Facts,
    progress: &Progress,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let media = match media_to_compare(record, prior, facts) {
        Ok(media) => media,
        Err(need) => return Verdict::Look(need),
    };
    // `recorded_at` describes the reading, not the server.
    let PriorState { power, boot, media: drives, recorded_at: _ } = prior;
    if let (Some(before), None) = (boot, &machine.boot)
        && !before.is_disabled()
        && let Some(verdict) = not_shown_yet(before, progress, limits, now)
    {
        return verdict;
    }
    let mut differs = Vec::new();
    if let Some(target) = record.restored_power().filter(|_| !record.is_power_restored(machine.power)) {
        differs.push(match record.power_after() {
            None => format!("power is {}, was {power}", machine.power),
            Some(_) => format!("power is {}, but the external system requests {target} now", machine.power),
        });
    }
    differs.extend(boot::refused(&boot_differences(record, machine)));
    for before in drives {
        match listed(before, media) {
            Some(now) => differs.extend(drive_difference(record, before, now)),
            None => {
                if let Some(verdict) = absent(record, before, progress.since, limits, now) {
                    return verdict;
                }
            }
        }
    }
    if differs.is_empty() {
        Verdict::Done
    } else {
        Verdict::Fail(format!("it differs from its prior state: {}", differs.join("; ")).into())
    }
}

#[cfg(test)]
mod tests;
