//! Rules for preparation steps.

use jiff::Timestamp;
use shown_text::{AsRaw, OneLine};

pub use super::model::facts::Facts;
use super::{
    boot, drain, gate, gate_chain,
    machine::{BootOverride, Capabilities},
    media::{self, wanted_override},
    model::{
        gate::GateRecord,
        tolerated::Tolerated,
        verdict::{Limits, Need, Verdict},
    },
    node, operate,
    power::{bring_to, declare, pursue, switch_off, unreachable},
    prior, service,
    spec::{BootMethod, BootSpec, CompleteWhen, MaintenanceKind, Spec},
    state::{Maintenance, Progress},
    step::{Action, Attempt, Reply, Step},
};
use crate::machine::{PowerState, PowerTarget, ResetType};

/// Returns the steps for a specification, in order.
#[must_use]
pub fn steps(spec: &Spec, gates: &[GateRecord]) -> Vec<Step> {
    let mut steps = Vec::new();
    if spec.parent.is_none() && spec.node.as_ref().is_some_and(|node| node.take) {
        steps.push(Step::TakeNode);
    }
    steps.push(Step::RecordPriorState);
    let prepared_there = gate::prepares_boot(gates);
    let is_entered = |gate: &&GateRecord| gate.system.enters && !gate.is_external() && spec.parent.is_none();
    // The image is checked before any change. Images that only an external system can resolve are
    // not readable here.
    let has_address = |boot: &BootSpec| boot.image.is_some() && !boot.method.is_external();
    if spec.boot.as_ref().is_some_and(has_address) && !prepared_there {
        steps.push(Step::CheckImage);
    }
    if drain::wanted(spec).is_some() {
        steps.push(Step::DrainNode);
    }
    steps.extend(gates.iter().filter(is_entered).map(|_| Step::EnterGate));
    if spec.operation.is_some() {
        steps.push(Step::Operate);
    }
    if spec.service.is_some() {
        steps.push(Step::Service);
    }
    // An operation frees the server when it completes, so first its Node is Ready and its gates are
    // left.
    if spec.kind == MaintenanceKind::Operation {
        if steps.contains(&Step::DrainNode) {
            steps.push(Step::UncordonNode);
        }
        let entered = gates.iter().filter(|gate| gate.system.enters && spec.parent.is_none());
        steps.extend(entered.map(|_| Step::LeaveGate));
    }
    if let Some(boot) = &spec.boot {
        if spec.server_power.is_some() {
            steps.push(Step::SwitchOff);
        }
        if boot.method == BootMethod::VirtualMedia {
            steps.push(Step::InsertMedium);
        }
        steps.push(Step::ConfigureBoot);
        if boot.ready_when.is_some() || prepared_there {
            steps.push(Step::AwaitReady);
        }
    }
    if spec.server_power.is_some() {
        steps.push(Step::ApplyPower);
    }
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
    let attempts = &progress.attempts;
    match step {
        Step::TakeNode => node::take(progress, facts, limits, now),
        Step::RecordPriorState => match drain::is_unshared(record, progress, facts, now) {
            Verdict::Done => prior::record(record, progress, facts.machine.as_ref(), limits, now),
            waits => waits,
        },
        Step::CheckImage => match &facts.image {
            None => Verdict::Look(Need::Image),
            Some(Ok(())) => Verdict::Done,
            Some(Err(problem)) => Verdict::Fail(problem.clone()),
        },
        Step::DrainNode => drain::drain(record, progress, facts, limits, now),
        Step::UncordonNode => drain::uncordon(record, progress, facts, limits, now),
        Step::LeaveGate => gate_chain::leave(record, progress, facts, limits, now),
        Step::EnterGate => gate_chain::enter(record, progress, facts, limits, now),
        Step::SwitchOff => {
            let Some(machine) = &facts.machine else {
                return Verdict::Look(Need::Machine);
            };
            let Some(capabilities) = &facts.capabilities else {
                return Verdict::Look(Need::Capabilities);
            };
            // The server stays on if the preparation cannot succeed.
            if attempts.is_empty()
                && let Some(problem) =
                    cannot(record, capabilities).or_else(|| no_way(record, machine.power, capabilities))
            {
                return Verdict::Fail(problem.into());
            }
            switch_off(machine, capabilities, attempts, progress.since, limits, now)
        }
        Step::InsertMedium => media::insert(record, progress, facts, limits, now),
        Step::ConfigureBoot => configure_boot(record, progress, facts, limits, now),
        Step::Operate => operate::judge(record, progress, facts, limits, now),
        Step::Service => service::begin(progress, facts, limits, now),
        Step::AwaitReady => match (gate_chain::ready(record, facts), &facts.preparer) {
            (Some(verdict), _) => verdict,
            _ if record.spec.boot.as_ref().is_none_or(|boot| boot.ready_when.is_none()) => Verdict::Done,
            (None, None) => Verdict::Look(Need::Preparer),
            (None, Some(Ok(()))) => Verdict::Done,
            (None, Some(Err(said))) => Verdict::Wait { why: said.clone(), until: None },
        },
        Step::ApplyPower => {
            let Some(machine) = &facts.machine else {
                return Verdict::Look(Need::Machine);
            };
            let Some(capabilities) = &facts.capabilities else {
                return Verdict::Look(Need::Capabilities);
            };
            let Some(target) = record.spec.server_power else {
                return Verdict::Done;
            };
            // An external system maintains the power that it receives, so send even the current
            // power.
            let told = match target {
                PowerTarget::On => Action::Reset(ResetType::On),
                PowerTarget::Off => Action::Reset(ResetType::GracefulShutdown),
            };
            let kept = attempts.iter().any(|attempt| attempt.action == told && attempt.reply == Reply::Accepted);
            if gate::keeps_power(record) && machine.power.settled() == Some(target) && !kept {
                return declare(told, attempts, limits, now);
            }
            let edge = progress.steps.contains(&Step::SwitchOff);
            if !edge
                && attempts.is_empty()
                && let Some(problem) = no_way(record, machine.power, capabilities)
            {
                return Verdict::Fail(problem.into());
            }
            let verdict = bring_to(target, machine, capabilities, attempts, progress.since, edge, limits, now);
            let boots_drive = record.spec.boot.as_ref().is_some_and(|boot| boot.method == BootMethod::VirtualMedia);
            if verdict == Verdict::Done && boots_drive && edge && target == PowerTarget::On {
                return media::proof(progress, machine, limits, now);
            }
            verdict
        }
        _ => Verdict::Fail(format!("{step} is not a step of preparing").into()),
    }
}

/// Returns why the requested power cannot be reached from the machine's current power.
fn no_way(record: &Maintenance, power: PowerState, has: &Capabilities) -> Option<String> {
    let systems = record.gates.iter().map(|gate| &gate.system);
    unreachable(&record.spec, systems, power, has).map(|(_, problem)| problem)
}

/// Returns the capability that the machine lacks, based on recorded facts.
fn cannot(record: &Maintenance, has: &Capabilities) -> Option<String> {
    if gate::boots(record) {
        return None;
    }
    let drives = || {
        let (boot, prior) = (record.spec.boot.as_ref()?, record.prior.as_ref()?);
        let missing = media::missing_drive(boot, has, &prior.media).map(|(_, problem)| problem);
        missing.or_else(|| media::held_unknown(boot, has, &prior.media))
    };
    let missing = missing_capabilities(&record.spec, has).into_iter().next().map(|(_, problem)| problem);
    missing.or_else(drives)
}

fn configure_boot(
    record: &Maintenance,
    progress: &Progress,
    facts: &Facts,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let Some(spec) = &record.spec.boot else {
        return Verdict::Done;
    };
    let Some(machine) = &facts.machine else {
        return Verdict::Look(Need::Machine);
    };
    let there = gate::boots(record);
    let by_drive = spec.method == BootMethod::VirtualMedia && !there;
    let wanted = if by_drive {
        match media::wanted(spec, record, progress, facts) {
            Ok(wanted) => wanted,
            Err(need) => return Verdict::Look(need),
        }
    } else {
        wanted_override(spec, there)
    };
    let before = record.prior.as_ref().and_then(|prior| prior.boot.as_ref());
    let found = machine.boot.as_ref();
    let wanted = if there { wanted } else { boot::with_mode(wanted, before, found) };
    let action = Action::SetBoot { wanted: wanted.clone(), clear_http_boot_uri: false };
    let accepted = is_accepted(&action, progress);
    let is_set = |found: &BootOverride| boot::refused(&boot::requested(&wanted, found, accepted)).is_none();
    // Another team's one-time override can equal the requested override. Because of this write, the
    // release arms it again.
    let is_theirs = before.is_some_and(boot::is_once) && record.boot_writes.is_none();
    match found {
        Some(found) if !is_theirs && is_set(found) && by_drive => Verdict::Concluded(media::chosen(&wanted)),
        Some(found) if !is_theirs && is_set(found) => Verdict::Done,
        _ => boot::explain(pursue(action, &progress.attempts, limits.settle, limits, now), found),
    }
}

fn is_accepted(action: &Action, progress: &Progress) -> bool {
    progress.attempts.iter().any(|attempt| attempt.action == *action && attempt.reply == Reply::Accepted)
}

/// Returns the tolerated differences from the requested boot override.
#[must_use]
pub fn tolerated(record: &Maintenance, facts: &Facts) -> Vec<Tolerated> {
    let found = facts.machine.as_ref().and_then(|machine| machine.boot.as_ref());
    let progress = record.phase.progress();
    let sent = progress.and_then(|progress| progress.attempts.iter().rfind(|it| is_boot_change(it)));
    match (found, sent.map(|attempt| &attempt.action)) {
        (Some(found), Some(Action::SetBoot { wanted, .. })) => boot::tolerated(&boot::requested(wanted, found, true)),
        _ => Vec::new(),
    }
}

fn is_boot_change(attempt: &Attempt) -> bool {
    matches!(attempt.action, Action::SetBoot { .. })
}

/// Returns the alternatives to HTTP boot. Most machines do not accept a URL: 1 of 24 recorded
/// Redfish trees lists `HttpBootUri`.
fn instead_of_http(boot: &BootSpec, has: &Capabilities) -> String {
    let ways = [
        (BootMethod::VirtualMedia, "method = \"virtual_media\" with an ISO image"),
        (BootMethod::Pxe, "method = \"pxe\" where the network's boot server selects the image"),
    ];
    let works = |method: &BootMethod| match method {
        BootMethod::VirtualMedia => {
            media::missing_target(&BootSpec { method: method.clone(), ..boot.clone() }, has).is_none()
        }
        _ => has.boot_targets.iter().any(|target| *target == method.target()),
    };
    let works: Vec<&str> = ways.into_iter().filter(|(method, _)| works(method)).map(|(_, words)| words).collect();
    if works.is_empty() {
        return "It lists no other way to boot an image.".to_owned();
    }
    format!("Instead: {}.", works.join(", or "))
}

/// Returns why an external system cannot boot the image as a live ISO, with the attribute.
fn not_a_live_iso(boot: &BootSpec) -> Option<(&'static str, &'static str)> {
    if boot.ignition.is_some() {
        return Some((
            "ignition",
            "The server's external system does not pass on ignition files here: build the file into the image.",
        ));
    }
    let url = url::Url::parse(boot.image.as_raw().unwrap_or_default()).ok();
    let plain = url.is_some_and(|url| {
        matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.query().is_none()
    });
    // Records and the external system show the full image URL of an external boot method.
    let why = "Here it is the address of an ISO image: http:// or https://, without user and query, which the server's external \
               system would show.";
    (!plain && boot.method.is_external()).then_some(("image", why))
}

/// Returns missing capabilities, each with the requesting attribute.
#[must_use]
pub fn missing_capabilities(spec: &Spec, has: &Capabilities) -> Vec<(&'static str, String)> {
    use super::machine::ResetType::{ForceOff, GracefulShutdown, On};
    let mut missing = Vec::new();
    let listed = |values: &[OneLine]| values.iter().map(OneLine::shown).collect::<Vec<_>>().join(", ");
    if let Some(operation) = spec.operation.as_ref().filter(|operation| !has.can(operation.reset)) {
        let resets: Vec<String> = has.resets.iter().map(ToString::to_string).collect();
        let accepted = if resets.is_empty() { "none".to_owned() } else { resets.join(", ") };
        let who = has.resets_by.as_ref().map_or("The machine", OneLine::shown);
        missing.push(("operation", format!("{who} does not accept {}; it lists {accepted}.", operation.reset)));
    }
    if has.power_not_followed && matches!(spec.complete_when, Some(CompleteWhen::PowerState(_))) {
        let why = "The external system does not update the server's power during a maintenance, so the provider \
                   could not detect a shutdown. Use complete_when = { url = ... }, or end the maintenance by \
                   destroy.";
        missing.push(("complete_when", why.to_owned()));
    }
    let off = spec.server_power == Some(PowerTarget::Off) || (spec.boot.is_some() && spec.server_power.is_some());
    if off && !has.can(ForceOff) && !has.can(GracefulShutdown) {
        missing.push(("server_power", "The machine accepts neither GracefulShutdown nor ForceOff.".to_owned()));
    }
    if spec.server_power == Some(PowerTarget::On) && !has.can(On) {
        missing.push(("server_power", "The machine does not accept the reset type On.".to_owned()));
    }
    let Some(boot) = &spec.boot else {
        return missing;
    };
    if has.live_iso {
        missing.extend(not_a_live_iso(boot).map(|(name, why)| (name, why.to_owned())));
    }
    let target = boot.method.target();
    if has.boot_targets.is_empty() {
        let instead = has.instead_of_boot.as_ref().map(|text| format!(" {text}")).unwrap_or_default();
        missing.push(("boot", format!("The machine does not support a boot override.{instead}")));
    } else if boot.method == BootMethod::VirtualMedia {
        missing.extend(media::missing_target(boot, has));
    } else if !has.boot_targets.iter().any(|has| *has == target) {
        let targets = listed(&has.boot_targets);
        missing.push(("method", format!("The machine cannot boot from {target}; it lists {targets}.")));
    }
    if boot.method == BootMethod::Http && !has.http_boot_uri {
        let why = format!(
            "The machine does not list HttpBootUri, so the provider cannot set the boot image. {}",
            instead_of_http(boot, has)
        );
        missing.push(("method", why));
    }
    if let Some(mode) = boot.boot_mode
        && !has.boot_modes.is_empty()
        && !has.boot_modes.iter().any(|has| has == mode.as_redfish())
    {
        let modes = listed(&has.boot_modes);
        missing.push(("boot_mode", format!("The machine does not boot as {}; it lists {modes}.", mode.as_redfish())));
    }
    let enabled = if boot.once { "Once" } else { "Continuous" };
    if !has.boot_enabled.is_empty() && !has.boot_enabled.iter().any(|has| has == enabled) {
        let kinds = listed(&has.boot_enabled);
        missing.push(("once", format!("The machine does not accept a {enabled} override; it lists {kinds}.")));
    }
    missing
}
