//! Judges cases by the machine's events, never by messages.

use bmc_simulator::{BootOverride, BootSource, EventKind, JournalQuery, OverrideEnabled, PowerState, ResetType};
use terraform_provider_metal::{
    engine::{EngineError, ReconcileResult},
    maintenance::operate::OperationOutcome,
};

use crate::{
    bench::{Bench, reached},
    flows::{Flow, IMAGE},
    simulated::doubled,
};

/// Prefix of the problem that a flow failed before its fault occurred.
pub const MISSED: &str = "failed without any fault";

/// Checks after the create.
pub fn held(bench: &Bench, held: &Result<ReconcileResult, EngineError>) -> Vec<String> {
    let mut problems = Vec::new();
    let done = reached(held);
    if let Some(reset) = bench.flow.operation() {
        let wanted = ResetType::ALL.iter().copied().find(|known| known.as_str() == reset.to_string()).unwrap();
        let outcome = held.as_ref().ok().and_then(|driven| driven.record.outcome);
        let made = executions(bench, wanted);
        let leads_to: &[PowerState] = match bench.flow {
            Flow::SwitchOn => &[PowerState::On],
            Flow::ForceOff => &[PowerState::Off],
            Flow::Shutdown => &[PowerState::Off, PowerState::Paused],
            _ => &[],
        };
        // For these flows, only the final state matters.
        if !leads_to.is_empty() {
            let power = bench.simulator.system(&bench.name).unwrap().power;
            if done && !leads_to.contains(&power) {
                problems.push(format!("{reset} is reported as {outcome:?}, but the power is {power}"));
            }
            return problems;
        }
        if done && outcome == Some(OperationOutcome::Proven) && made != 1 {
            problems.push(format!("{reset} is reported as proven, but was executed {made} times"));
        }
        if done && outcome == Some(OperationOutcome::Skipped) {
            problems.push(format!("{reset} was skipped on a server that is on"));
        }
        if !done && made != 0 {
            problems.push(format!("{reset} was executed, but is reported as failed: {held:?}"));
        }
        return problems;
    }
    if !done {
        return problems;
    }
    let status = bench.simulator.system(&bench.name).unwrap();
    let wanted = match bench.flow {
        Flow::PowerOff => PowerState::Off,
        Flow::Hold => settled(bench.before.power),
        _ => PowerState::On,
    };
    if settled(status.power) != wanted {
        problems.push(format!("in maintenance with power {:?}", status.power));
    }
    let booted = bench.simulator.boots(&bench.name).unwrap().pop().map(|boot| boot.booted_from);
    let right = match (bench.flow, &booted) {
        (Flow::Http, Some(BootSource::Http { uri })) => uri.as_deref() == Some(IMAGE),
        (Flow::VirtualMedia, Some(BootSource::Media { image, .. })) => image == IMAGE,
        (Flow::Pxe, Some(BootSource::Pxe)) => true,
        (Flow::Http | Flow::VirtualMedia | Flow::Pxe, _) => false,
        _ => true,
    };
    if !right {
        problems.push(format!("reported as prepared, but booted from {booted:?}"));
    }
    problems
}

/// Returns the state after a transition.
fn settled(power: PowerState) -> PowerState {
    match power {
        PowerState::PoweringOn => PowerState::On,
        PowerState::PoweringOff => PowerState::Off,
        other => other,
    }
}

fn executions(bench: &Bench, wanted: ResetType) -> usize {
    let events = bench.simulator.events(&bench.name, 0).unwrap();
    events.iter().filter(|event| matches!(event.kind, EventKind::Reset { reset_type } if reset_type == wanted)).count()
}

/// Checks after everything was released.
pub fn over(bench: &Bench) -> Vec<String> {
    let mut problems = doubled(&bench.simulator.events(&bench.name, 0).unwrap());
    if bench.flow.operation().is_some() {
        return problems;
    }
    let now = bench.simulator.system(&bench.name).unwrap();
    let before = &bench.before;
    let leaves_pause = before.power == PowerState::Paused && now.power == PowerState::On;
    if settled(now.power) != settled(before.power) && !leaves_pause {
        problems.push(format!("released with power {:?}, which was {:?}", now.power, before.power));
    }
    // A pending Settings object overrides the current boot settings at the next start.
    let next = now.pending_boot.as_ref().unwrap_or(&now.boot);
    if *next != before.boot && !is_left_by_refusal(bench, next) {
        problems.push(format!("released with the override {next:?}, which was {:?}", before.boot));
    }
    if now.media != before.media {
        problems.push(format!("released with the media {:?}, which were {:?}", now.media, before.media));
    }
    problems
}

/// Returns true if a disabled override contains a property that its BMC rejected permanently, or
/// failed for a reason other than being busy. URLs must be removed in any case.
fn is_left_by_refusal(bench: &Bench, next: &BootOverride) -> bool {
    let disabled = |boot: &BootOverride| boot.enabled == OverrideEnabled::Disabled;
    let journal = bench.simulator.journal(&JournalQuery::default());
    let last = journal.iter().rfind(|entry| entry.method == "PATCH" && !entry.path.contains("VirtualMedia"));
    let busy = |status: Option<u16>| matches!(status, Some(200..=299 | 401 | 404 | 409 | 429 | 503));
    let address = next.http_boot_uri == bench.before.boot.http_boot_uri;
    address
        && disabled(next)
        && disabled(&bench.before.boot)
        && last.is_some_and(|entry| !entry.applied && !busy(entry.status))
}
