//! What has to be known of a server before anything is changed: what is not recorded cannot be restored.

use jiff::Timestamp;

use super::{
    gate::System,
    machine::MachineView,
    model::{
        shown_time::shown_time,
        verdict::{Limits, Verdict, after},
    },
    spec::{BootMethod, Kind, Spec},
    state::{Maintenance, PriorState, Progress},
    step::Action,
};

/// Whether the power before has to be known: the maintenance switches the server, and no external system restores the power.
///
/// A server is switched off also to take a medium out of it. An operation is wanted for its effect, and not undone.
pub fn needs_power<'a>(spec: &Spec, systems: impl IntoIterator<Item = &'a System>) -> bool {
    let switches =
        spec.server_power.is_some() || spec.boot.as_ref().is_some_and(|boot| boot.method == BootMethod::VirtualMedia);
    switches && spec.kind != Kind::Operation && !systems.into_iter().any(|system| system.restores_power)
}

/// Whether a record may not have the state of its server as it is seen.
pub(super) fn is_unrecordable(record: &Maintenance, prior: &PriorState) -> bool {
    lacks_power(record, prior.power.settled().is_some())
}

fn lacks_power(record: &Maintenance, known: bool) -> bool {
    !known && needs_power(&record.spec, record.gates.iter().map(|gate| &gate.system))
}

/// Takes the power into what was recorded before the power was known.
pub(super) fn complete(recorded: &mut PriorState, seen: &PriorState) {
    if recorded.power.settled().is_none() {
        recorded.power = seen.power;
    }
}

/// What the step that records the state before needs next.
pub(super) fn record(
    record: &Maintenance,
    progress: &Progress,
    machine: Option<&MachineView>,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    if let Some(prior) = &record.prior
        && !record.records_before_update()
        && !is_unrecordable(record, prior)
    {
        return Verdict::Done;
    }
    if machine.is_none_or(|machine| !lacks_power(record, machine.power.settled().is_some())) {
        return Verdict::Act(Action::Record);
    }
    // A BMC that was just restarted shows none for a while.
    let until = after(progress.since, limits.busy);
    let why = "it shows no power state, without which the server could not be restored";
    if now < until {
        return Verdict::Wait { why: format!("{why}; it is read until {}", shown_time(until)), until: Some(until) };
    }
    Verdict::Fail(format!("{why}. Without server_power and boot configuration it can be locked as it is"))
}
