//! Facts required before the first change: only recorded state can be restored.

use jiff::Timestamp;

use super::{
    gate::ExternalSystem,
    machine::MachineView,
    model::{
        shown_time::shown_time,
        verdict::{Limits, Verdict, after},
    },
    spec::{BootMethod, MaintenanceKind, Spec},
    state::{Maintenance, PriorState, Progress},
    step::Action,
};

/// Returns a missing fact that the maintenance would change and no external system restores; `None`
/// if everything required is known.
///
/// Removing a medium also powers the server off. Operations are not reverted, so they do not
/// require prior facts.
pub fn missing<'a>(
    spec: &Spec,
    systems: impl IntoIterator<Item = &'a ExternalSystem>,
    seen: &MachineView,
) -> Option<&'static str> {
    let (restores_power, boots) = systems
        .into_iter()
        .fold((false, false), |(power, boot), system| (power || system.restores_power, boot || system.boots));
    let boot = spec.boot.as_ref().filter(|_| !boots);
    let switches = spec.server_power.is_some() || boot.is_some_and(|boot| boot.method == BootMethod::VirtualMedia);
    if spec.kind == MaintenanceKind::Operation {
        return None;
    }
    if switches && !restores_power && seen.power.restored().is_none() {
        return Some("no power state");
    }
    boot.filter(|_| seen.boot_unclear).map(|_| "its boot override only in part")
}

/// Returns true if the observed state is not complete enough to record.
#[must_use]
pub fn is_unrecordable(record: &Maintenance, seen: &MachineView) -> bool {
    missing_of(record, seen).is_some()
}

fn missing_of(record: &Maintenance, seen: &MachineView) -> Option<&'static str> {
    missing(&record.spec, record.gates.iter().map(|gate| &gate.system), seen)
}

/// Returns true if the recorded state lacks the power, which is needed only now.
fn lacks_power(record: &Maintenance, prior: &PriorState) -> bool {
    let known = MachineView { power: prior.power, boot_unclear: false, ..MachineView::default() };
    missing_of(record, &known).is_some()
}

/// Adds the power to a state that was recorded without it.
pub(super) fn complete(recorded: &mut PriorState, seen: &PriorState) {
    if recorded.power.restored().is_none() {
        recorded.power = seen.power;
    }
}

/// Judges the step that records the prior state.
pub(super) fn record(
    record: &Maintenance,
    progress: &Progress,
    machine: Option<&MachineView>,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    if record.prior.as_ref().is_some_and(|prior| !record.records_before_update() && !lacks_power(record, prior)) {
        return Verdict::Done;
    }
    let Some(what) = machine.and_then(|machine| missing_of(record, machine)) else {
        return Verdict::Act(Action::Record);
    };
    // A BMC that has just restarted reports few values at first.
    let until = after(progress.since, limits.busy);
    let why = format!("it shows {what}, so the server could not be restored");
    if now < until {
        return Verdict::Wait {
            why: format!("{why}; the provider reads it until {}", shown_time(until)).into(),
            until: Some(until),
        };
    }
    Verdict::Fail(format!("{why}. The server can be locked without server_power and boot configuration").into())
}
