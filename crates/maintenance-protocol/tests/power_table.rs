//! Every power state, every request and every list of supported resets, with BMCs that obey, accept
//! without effect, or accept with another effect.
//!
//! Production [`decide`] and [`ServerLock::apply`] run against a pure machine. Every cell ends in
//! success, including the release, or in a plan error; an operation that its own configuration
//! rejects (`when_off = "error"`) is refused before any call.
#![allow(clippy::duration_suboptimal_units, reason = "shares records with the store's tests")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "power_table/machine.rs"]
mod machine;
mod records;
#[path = "power_table/run.rs"]
mod run;

use std::collections::BTreeMap;

use machine::{MESSAGE, Machine, Obeys};
use maintenance_protocol::{
    machine::{Capabilities, PowerState, PowerTarget, ResetType},
    operate::{CompletionProof, OperationOutcome, OperationSpec, WhenOff},
    power::unreachable,
    prepare::missing_capabilities,
    prior,
    spec::{BootMethod, BootSpec, MaintenanceKind, Spec},
    state::Phase,
};
use run::{Run, hold, release};
use shown_text::OneLine;

const STATES: [PowerState; 6] = [
    PowerState::On,
    PowerState::Off,
    PowerState::PoweringOn,
    PowerState::PoweringOff,
    PowerState::Paused,
    PowerState::Unknown,
];

const RESETS: [ResetType; 7] = [
    ResetType::On,
    ResetType::GracefulShutdown,
    ResetType::ForceOff,
    ResetType::GracefulRestart,
    ResetType::ForceRestart,
    ResetType::PowerCycle,
    ResetType::Nmi,
];

/// Every request that changes power, and a lock that does not.
fn requests() -> Vec<Spec> {
    let maintenance = |server_power, boots: bool| Spec {
        server_power,
        boot: boots.then(|| BootSpec::new(BootMethod::Pxe)),
        ..records::spec()
    };
    let (on, off) = (Some(PowerTarget::On), Some(PowerTarget::Off));
    let held = [(None, false), (on, false), (off, false), (on, true), (off, true)];
    let operations = RESETS.into_iter().flat_map(|reset| {
        [WhenOff::PowerOn, WhenOff::Error].map(|when_off| Spec {
            operation: Some(OperationSpec { reset, when_off, proof: CompletionProof::Power }),
            ..Spec::new(MaintenanceKind::Operation, "node-1")
        })
    });
    held.into_iter().map(|(power, boots)| maintenance(power, boots)).chain(operations).collect()
}

fn lists() -> impl Iterator<Item = Vec<ResetType>> {
    (0..1_u32 << RESETS.len()).map(|bits| {
        RESETS.into_iter().enumerate().filter(|(n, _)| bits >> n & 1 == 1).map(|(_, reset)| reset).collect()
    })
}

fn capabilities(resets: &[ResetType]) -> Capabilities {
    let boot_targets = ["None", "Pxe", "Hdd"].map(OneLine::from).to_vec();
    Capabilities { resets: resets.to_vec(), boot_targets, ..Capabilities::default() }
}

/// Returns the plan's error.
fn plan_error(spec: &Spec, power: PowerState, has: &Capabilities) -> Option<String> {
    let missing = missing_capabilities(spec, has).into_iter().map(|(_, problem)| problem).next();
    let seen = Machine::new(power, Obeys::Always).view();
    missing
        .or_else(|| prior::missing(spec, [], &seen).map(str::to_owned))
        .or_else(|| unreachable(spec, [], power, has).map(|(_, problem)| problem))
}

fn name(spec: &Spec) -> String {
    match &spec.operation {
        Some(operation) => format!("{} (when off: {:?})", operation.reset, operation.when_off),
        None => format!("hold {:?}{}", spec.server_power, if spec.boot.is_some() { ", boots" } else { "" }),
    }
}

/// Plays one cell. Returns its end, or its problem.
fn play(spec: &Spec, power: PowerState, resets: &[ResetType], obeys: Obeys) -> Result<&'static str, String> {
    let has = capabilities(resets);
    if plan_error(spec, power, &has).is_some() {
        return Ok("plan error");
    }
    let mut run = Run::new(spec.clone(), Machine::new(power, obeys), has);
    hold(&mut run)?;
    let unsupported: Vec<_> = run.machine.calls.iter().filter(|call| !resets.contains(call)).collect();
    if !unsupported.is_empty() {
        return Err(format!("sent {unsupported:?}, which the machine does not list"));
    }
    let record = run.record();
    if let Phase::Failed { cause, .. } = &record.phase {
        let refused =
            spec.operation.as_ref().is_some_and(|it| it.when_off == WhenOff::Error) && run.machine.calls.is_empty();
        return if refused { Ok("refused") } else { Err(format!("failed: {cause}; calls {:?}", run.machine.calls)) };
    }
    if let Some(operation) = &spec.operation {
        return judge_operation(operation, power, &run, obeys);
    }
    let wanted = spec.server_power.map(PowerState::from);
    if let Some(wanted) = wanted.filter(|wanted| *wanted != run.machine.power) {
        return Err(format!("held with power {}, not {wanted}", run.machine.power));
    }
    if spec.boot.is_some() && spec.server_power == Some(PowerTarget::On) && run.machine.booted_from != Some("Pxe") {
        return Err(format!("booted {:?}", run.machine.booted_from));
    }
    let touched = !run.machine.calls.is_empty();
    release(&mut run)?;
    if !matches!(run.record().phase, Phase::Completed { .. }) {
        return Err(format!("not released: {:?}; calls {:?}", run.record().phase, run.machine.calls));
    }
    let ends: &[PowerState] = match power {
        PowerState::Paused if touched => &[PowerState::On],
        PowerState::Paused => &[PowerState::Paused],
        PowerState::On | PowerState::PoweringOn => &[PowerState::On],
        PowerState::Off | PowerState::PoweringOff => &[PowerState::Off],
        PowerState::Unknown => &[PowerState::Unknown],
    };
    run.machine.rest();
    if ends.contains(&run.machine.power) {
        Ok("success")
    } else {
        Err(format!("ends {} and was {power}; calls {:?}", run.machine.power, run.machine.calls))
    }
}

fn judge_operation(
    operation: &OperationSpec,
    power: PowerState,
    run: &Run,
    obeys: Obeys,
) -> Result<&'static str, String> {
    let calls = &run.machine.calls;
    let outcome = run.record().outcome;
    let right = match (operation.reset, outcome) {
        (ResetType::Nmi, Some(OperationOutcome::Accepted)) => true,
        (ResetType::On, Some(OperationOutcome::Proven | OperationOutcome::Skipped)) => {
            run.machine.power == PowerState::On
        }
        (ResetType::ForceOff, Some(OperationOutcome::Proven | OperationOutcome::Skipped)) => {
            run.machine.power == PowerState::Off
        }
        (ResetType::GracefulShutdown, Some(OperationOutcome::Proven | OperationOutcome::Skipped)) => {
            matches!(run.machine.power, PowerState::Off | PowerState::Paused)
        }
        // A boot that someone else caused proves nothing.
        (_, Some(OperationOutcome::Proven)) => run.machine.power == PowerState::On && run.machine.caused > 0,
        (_, Some(OperationOutcome::Accepted)) => run.machine.power == PowerState::On,
        // A restart without effect is never repeated, and its outcome is reported.
        (_, Some(OperationOutcome::Unproven)) => obeys != Obeys::Always,
        _ => false,
    };
    let restarts = [ResetType::GracefulRestart, ResetType::ForceRestart, ResetType::PowerCycle, ResetType::Nmi];
    if let Some(twice) = restarts.into_iter().find(|reset| calls.iter().filter(|call| *call == reset).count() > 1) {
        return Err(format!("{twice} sent more than once"));
    }
    if right {
        Ok("success")
    } else {
        Err(format!("{outcome:?} from {power}, now {}; calls {calls:?}", run.machine.power))
    }
}

/// Plays the whole table, and counts how the cells end.
fn table(obeys: Obeys, accepts: impl Fn(&Spec, PowerState, &[ResetType]) -> bool) -> BTreeMap<&'static str, usize> {
    let (mut ends, mut wrong) = (BTreeMap::new(), Vec::new());
    for spec in requests() {
        for power in STATES {
            for resets in lists() {
                if !accepts(&spec, power, &resets) {
                    continue;
                }
                match play(&spec, power, &resets, obeys) {
                    Ok(end) => *ends.entry(end).or_default() += 1,
                    Err(problem) => wrong.push(format!("{} from {power} with {resets:?}: {problem}", name(&spec))),
                }
            }
        }
    }
    let shown = wrong.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} cells with {obeys:?} end in neither success nor a plan error:\n{shown}", wrong.len());
    ends
}

#[test]
fn every_power_request_succeeds_or_is_a_plan_error() {
    let ends = table(Obeys::Always, |_, _, _| true);
    let cells = ends.values().sum::<usize>();
    assert_eq!(cells, requests().len() * STATES.len() * (1 << RESETS.len()));
    assert!(ends["success"] > cells / 3, "{ends:?}");
}

/// With every reset supported, a plan rejects only impossible requests.
#[test]
fn a_plan_rejects_only_what_no_supported_reset_reaches() {
    let all = capabilities(&RESETS);
    for spec in requests() {
        for power in STATES {
            let rejected = plan_error(&spec, power, &all).is_some();
            let reset = spec.operation.as_ref().map(|operation| operation.reset);
            let unseen = power == PowerState::Unknown && (spec.server_power.is_some() || spec.operation.is_some());
            let halted = power == PowerState::Paused && reset == Some(ResetType::GracefulRestart);
            assert_eq!(rejected, (unseen && reset != Some(ResetType::Nmi)) || halted, "{} from {power}", name(&spec));
        }
    }
    let paused = |spec: &Spec, without: ResetType| {
        let resets: Vec<_> = RESETS.into_iter().filter(|reset| *reset != without).collect();
        plan_error(spec, PowerState::Paused, &capabilities(&resets))
    };
    let on = Spec { server_power: Some(PowerTarget::On), ..records::spec() };
    assert!(paused(&on, ResetType::ForceRestart).unwrap().contains("does not accept ForceRestart"));
    let off = Spec { server_power: Some(PowerTarget::Off), ..records::spec() };
    assert!(paused(&off, ResetType::ForceOff).unwrap().contains("does not accept ForceOff"));
    assert_eq!(paused(&off, ResetType::GracefulShutdown), None);
}

/// Both lead to one state, so a BMC that only obeys the second time still obeys.
#[test]
fn an_ignored_on_or_force_off_is_sent_once_more() {
    let seeks_one_state = |spec: &Spec| {
        let reset = spec.operation.as_ref().map(|operation| operation.reset);
        matches!(reset, None | Some(ResetType::On | ResetType::ForceOff))
    };
    // Without ForceRestart, which is never repeated.
    table(Obeys::SecondTime, |spec, power, resets| {
        seeks_one_state(spec) && power != PowerState::Paused && resets.contains(&ResetType::ForceOff)
    });
}

#[test]
fn a_restart_without_effect_is_never_repeated() {
    table(Obeys::SecondTime, |spec, _, resets| {
        let reset = spec.operation.as_ref().map(|operation| operation.reset);
        let restarts = [ResetType::GracefulRestart, ResetType::ForceRestart, ResetType::PowerCycle, ResetType::Nmi];
        reset.is_some_and(|reset| restarts.contains(&reset)) && resets.contains(&ResetType::On)
    });
}

/// A machine that obeys nothing: every run ends, and its failure names the calls and the message.
#[test]
fn a_machine_that_does_nothing_fails_with_its_story() {
    for power in [PowerState::On, PowerState::Off, PowerState::Paused] {
        for target in [PowerTarget::On, PowerTarget::Off] {
            let spec = Spec { server_power: Some(target), ..records::spec() };
            if power == PowerState::from(target) {
                continue;
            }
            let mut run = Run::new(spec, Machine::new(power, Obeys::Never), capabilities(&RESETS));
            hold(&mut run).unwrap();
            let Phase::Failed { cause, .. } = &run.record().phase else {
                panic!("{power} {target}: {:?}", run.record())
            };
            assert!(
                cause.shown().contains("did not take effect by")
                    && cause.shown().contains(&format!("The power state is {power}")),
                "{cause}"
            );
            let most = if power == PowerState::Paused && target == PowerTarget::On { 1 } else { 2 };
            for reset in [ResetType::On, ResetType::ForceOff, ResetType::ForceRestart] {
                let sent = run.machine.calls.iter().filter(|call| **call == reset).count();
                assert!(sent <= most, "{power} {target}: {reset} {sent} times");
            }
        }
    }
}

/// Every final error contains the BMC's last message, and so does an operation that is not proven.
#[test]
fn a_failure_contains_the_last_message_of_the_machine() {
    for spec in requests() {
        for power in [PowerState::On, PowerState::Off, PowerState::Paused] {
            let has = capabilities(&RESETS);
            if plan_error(&spec, power, &has).is_some() {
                continue;
            }
            let mut run = Run::new(spec.clone(), Machine::new(power, Obeys::Fails), has);
            hold(&mut run).unwrap();
            let called = !run.machine.calls.is_empty();
            let record = run.record();
            let said = match (&record.phase, record.outcome) {
                (Phase::Failed { cause, .. } | Phase::Releasing { stuck: Some(cause), .. }, _) => Some(cause),
                (_, Some(OperationOutcome::Unproven)) => record.unproven_message.as_ref(),
                _ => None,
            };
            let what = format!("{} from {power}: {:?}", name(&spec), record.phase);
            match said {
                Some(said) if called => assert!(said.shown().contains(MESSAGE), "{what}"),
                Some(_) => {}
                None => assert!(!called, "{what}"),
            }
        }
    }
}
