//! Describes a release's effect for the destroy plan.

use jiff::Timestamp;

use super::{outlook::outlook, verifies};
use crate::{
    boot,
    machine::{PowerTarget, ResetType},
    model::{facts::Facts, gate::PowerAfter, verdict::Limits},
    state::{Maintenance, PriorState},
    step::Action,
};

/// Describes the changes that a release would send now, to follow the server's name. `None` if it
/// does not change the server. Missing facts are derived from the record.
#[must_use]
pub fn effect(record: &Maintenance, facts: &Facts, limits: &Limits, now: Timestamp) -> Option<String> {
    let prior = record.prior.as_ref().filter(|_| verifies(record))?;
    if let Some(before) = &record.took_over {
        return Some(format!("is restored to its state before {before} (power {}).", prior.power));
    }
    let outlook = outlook(record, facts, limits, now);
    let (mut parts, mut sentences) = (Vec::new(), Vec::new());
    for call in &outlook.calls {
        let part = match call {
            Action::Reset(ResetType::On) => ON,
            Action::Reset(_) => OFF,
            _ => RESTORED,
        };
        if !parts.contains(&part) {
            parts.push(part);
        }
        if part == OFF && record.booted && !parts.contains(&RESTORED) {
            parts.push(RESTORED);
        }
    }
    let later = by_its_system(record).filter(|_| !parts.contains(&ON));
    if parts == [RESTORED] {
        sentences.push(format!("{RESTORED}; its power stays"));
    } else if let Some((last, first)) = parts.split_last() {
        let first = first.join(", ");
        sentences.push(if first.is_empty() { (*last).to_owned() } else { format!("{first} and {last}") });
    }
    let kept = record.spec.server_power.is_none() && record.spec.boot.is_none() && !record.booted;
    let was_on = prior.power.settled() == Some(PowerTarget::On);
    if kept && was_on && parts.contains(&ON) && !parts.contains(&OFF) {
        sentences.push("It is off now and was on before the maintenance".to_owned());
    }
    if let Some(boot) = outlook.boots {
        sentences.push(format!("It boots by the override {boot}, which was armed before the maintenance"));
    }
    sentences.extend(one_time(record, facts, &outlook.calls));
    if parts.is_empty() && sentences.is_empty() {
        return later;
    }
    sentences.extend(outlook.stops.map(|why| format!("The release would stop: {why}")));
    let text = format!("{}.", sentences.join(". "));
    let text = if parts.is_empty() { format!("is released. {text}") } else { format!("is {text}") };
    Some(match later {
        Some(later) => format!("{text} Afterwards it {later}"),
        None => text,
    })
}

const OFF: &str = "switched off";
const ON: &str = "switched on";
const RESTORED: &str = "restored to its prior boot configuration";

/// Describes how the release handles a recorded one-time override.
fn one_time(record: &Maintenance, facts: &Facts, calls: &[Action]) -> Option<String> {
    let before = record.prior.as_ref()?.boot.as_ref().filter(|boot| boot::is_once(boot))?;
    let found = facts.machine.as_ref().and_then(|machine| machine.boot.as_ref());
    if found.is_some_and(|found| boot::used_once(record, found).is_some()) {
        return Some(format!("Its one-time boot override ({before}) has been used since and is not armed again"));
    }
    let rearms = |call: &Action| matches!(call, Action::SetBoot { wanted, .. } if wanted.enabled == before.enabled);
    calls.iter().any(rearms).then(|| format!("Its one-time boot override ({before}) is armed again"))
}

/// Describes the power change by the external system after the return, if the release does not
/// restore the power.
fn by_its_system(record: &Maintenance) -> Option<String> {
    let known = record.prior.as_ref().is_some_and(|prior| prior.power.restored().is_some());
    let gate = record.gates.iter().find(|gate| gate.entered && gate.system.restores_power && !known)?;
    let name = &gate.system.name;
    let power = match gate.power_after {
        Some(PowerAfter::Wanted(PowerTarget::On)) => format!("switched on by {name}"),
        // The server is off or will be powered off, so nothing starts.
        Some(PowerAfter::Wanted(PowerTarget::Off) | PowerAfter::EndsOff) => return None,
        None => format!("switched to its owner's requested power by {name}"),
    };
    Some(format!("is {power}."))
}

/// Describes the restored power, for people.
#[must_use]
pub fn power_restored(record: &Maintenance, prior: &PriorState) -> String {
    match record.power_after() {
        _ if prior.power.restored().is_none() => "the provider does not restore its power".to_owned(),
        Some(PowerAfter::Wanted(power)) => format!("{power}, as its external system requests now"),
        Some(PowerAfter::EndsOff) => "power not restored, because it is being deleted".to_owned(),
        None if record.leaves_pause() => "On, because a server cannot be returned to Paused".to_owned(),
        None => prior.power.to_string(),
    }
}

/// Describes the release's end for a server that was `Paused` and whose power changed, to follow
/// the server's name.
#[must_use]
pub fn ends_on(record: &Maintenance) -> Option<&'static str> {
    let verified = verifies(record) && record.leaves_pause();
    verified.then_some(
        "was Paused before the maintenance and is On after the release: no request returns a server to Paused.",
    )
}
