//! What is right: judged by what the machine did, never by what was said about it.

use bmc_simulator::{BootSource, EventKind, PowerState, ResetType};
use terraform_provider_metal::{
    engine::{Driven, EngineError},
    maintenance::operate::Outcome,
};

use crate::{
    bench::{Bench, reached},
    flows::{Flow, IMAGE},
};

/// How the problem begins that a flow failed before its fault met a request.
pub const MISSED: &str = "failed without any fault";

/// What has to be true when the create ended.
pub fn held(bench: &Bench, held: &Result<Driven, EngineError>) -> Vec<String> {
    let mut problems = Vec::new();
    let done = reached(held);
    if let Some(reset) = bench.flow.operation() {
        let wanted = ResetType::ALL.iter().copied().find(|known| known.as_str() == reset.to_string()).unwrap();
        let outcome = held.as_ref().ok().and_then(|driven| driven.record.outcome);
        let made = executions(bench, wanted);
        if done && outcome == Some(Outcome::Proven) && made != 1 {
            problems.push(format!("{reset} is called proven and was carried out {made} times"));
        }
        if done && outcome == Some(Outcome::Skipped) {
            problems.push(format!("{reset} was skipped on a server that is on"));
        }
        if !done && made != 0 {
            problems.push(format!("{reset} was carried out and is called failed: {held:?}"));
        }
        return problems;
    }
    if !done {
        return problems;
    }
    let status = bench.simulator.system(&bench.name).unwrap();
    let wanted = match bench.flow {
        Flow::PowerOff => PowerState::Off,
        Flow::Hold => bench.before.power,
        _ => PowerState::On,
    };
    if status.power != wanted {
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
        problems.push(format!("called prepared, and booted from {booted:?}"));
    }
    problems
}

fn executions(bench: &Bench, wanted: ResetType) -> usize {
    let events = bench.simulator.events(&bench.name, 0).unwrap();
    events.iter().filter(|event| matches!(event.kind, EventKind::Reset { reset_type } if reset_type == wanted)).count()
}

/// What has to be true when nothing is held any more.
pub fn over(bench: &Bench) -> Vec<String> {
    let mut problems = doubled(bench);
    if bench.flow.operation().is_some() {
        return problems;
    }
    let now = bench.simulator.system(&bench.name).unwrap();
    let before = &bench.before;
    if now.power != before.power {
        problems.push(format!("released with power {:?}, which was {:?}", now.power, before.power));
    }
    // What waits in the Settings object is what the next start uses.
    let next = now.pending_boot.as_ref().unwrap_or(&now.boot);
    if *next != before.boot {
        problems.push(format!("released with the override {next:?}, which was {:?}", before.boot));
    }
    if now.media != before.media {
        problems.push(format!("released with the media {:?}, which were {:?}", now.media, before.media));
    }
    problems
}

/// What was done twice where once was meant.
fn doubled(bench: &Bench) -> Vec<String> {
    let mut problems = Vec::new();
    let mut last: Option<ResetType> = None;
    let mut filled = false;
    for event in bench.simulator.events(&bench.name, 0).unwrap() {
        match event.kind {
            EventKind::Power { .. } => last = last.filter(|reset| restarts(*reset)),
            EventKind::Reset { reset_type } => {
                if last == Some(reset_type) {
                    problems.push(format!("{} twice", reset_type.as_str()));
                }
                last = Some(reset_type);
            }
            EventKind::MediaInserted { device, .. } => {
                if filled {
                    problems.push(format!("inserted twice into {device}"));
                }
                filled = true;
            }
            EventKind::MediaEjected { ejected_while_running, .. } => {
                filled = false;
                if ejected_while_running {
                    problems.push("a running installer lost its medium".to_owned());
                }
            }
            _ => {}
        }
    }
    problems
}

/// Whether a second one hits a server that runs.
fn restarts(reset: ResetType) -> bool {
    matches!(reset, ResetType::ForceRestart | ResetType::GracefulRestart | ResetType::PowerCycle | ResetType::Nmi)
}
