//! What a release does to a server, in words for the plan of a destroy.

use super::verifies;
use crate::{
    machine::PowerTarget,
    model::gate::PowerAfter,
    state::{Maintenance, PriorState},
};

/// What a release does to power and boot of the server, in words after the server's name; `None`:
/// it changes neither.
#[must_use]
pub fn effect(record: &Maintenance) -> Option<String> {
    let prior = record.prior.as_ref().filter(|_| verifies(record))?;
    let target = record.restored_power();
    if let Some(before) = &record.took_over {
        return Some(format!("is restored to its state before {before} (power {}).", prior.power));
    }
    let later = by_its_system(record);
    let later = |sentence: &str| match &later {
        Some(later) => format!("{sentence} Afterwards it {later}"),
        None => sentence.to_owned(),
    };
    if record.booted {
        return Some(match target {
            Some(PowerTarget::On) => {
                "is switched off, restored to its prior boot configuration and switched on.".to_owned()
            }
            _ => later("is switched off and restored to its prior boot configuration."),
        });
    }
    let now = record.spec.server_power.or(prior.power.restored());
    let switched = target.filter(|target| now.is_some_and(|now| now != *target));
    match (record.spec.boot.is_some(), switched) {
        (true, Some(power)) => Some(format!(
            "is restored to its prior boot configuration and switched {}.",
            power.to_string().to_lowercase()
        )),
        (true, None) => Some(later("is restored to its prior boot configuration; its power stays.")),
        (false, Some(power)) => Some(format!("is switched {}.", power.to_string().to_lowercase())),
        (false, None) => by_its_system(record),
    }
}

/// What the external system does to the power once it has the server again, where that is not ours
/// to restore.
fn by_its_system(record: &Maintenance) -> Option<String> {
    let known = record.prior.as_ref().is_some_and(|prior| prior.power.restored().is_some());
    let gate = record.gates.iter().find(|gate| gate.entered && gate.system.restores_power && !known)?;
    let name = &gate.system.name;
    let power = match gate.power_after {
        Some(PowerAfter::Wanted(PowerTarget::On)) => format!("switched on by {name}"),
        // It is off, or becomes so: nothing of it starts.
        Some(PowerAfter::Wanted(PowerTarget::Off) | PowerAfter::EndsOff) => return None,
        None => format!("brought to the power that its owner wants by {name}"),
    };
    Some(format!("is {power}."))
}

/// The power that a release restored, for people.
#[must_use]
pub fn power_restored(record: &Maintenance, prior: &PriorState) -> String {
    match record.power_after() {
        _ if prior.power.restored().is_none() => "its power is not ours to restore".to_owned(),
        Some(PowerAfter::Wanted(power)) => format!("{power}, as its external system wants it by now"),
        Some(PowerAfter::EndsOff) => "power not restored, because it is being deleted".to_owned(),
        None if record.leaves_pause() => "On, because a server cannot be returned to Paused".to_owned(),
        None => prior.power.to_string(),
    }
}

/// Returns the end of a release for a server that was `Paused` before and whose power changed, in words
/// after the server's name.
#[must_use]
pub fn ends_on(record: &Maintenance) -> Option<&'static str> {
    let verified = verifies(record) && record.leaves_pause();
    verified.then_some(
        "was Paused before the maintenance and is On after the release: no request returns a server to Paused.",
    )
}
