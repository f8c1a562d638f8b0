//! Maintenances that ended while their resource is still in the state.

use tf_provider::{AttributePath, Diagnostic, Diagnostics, value::Value};

use crate::{
    maintenance::{
        queue::shown_time,
        spec::WaitFor,
        state::{Ending, Maintenance, Phase},
    },
    plugin::diagnostic,
};

use crate::provider::{
    maintenance::model::MaintenanceModel,
    shared::values::{Text, given},
};

/// Returns true if `state` shows an ended maintenance.
pub(in crate::provider) fn is_over(state: &Text) -> bool {
    matches!(given(state), Some("Completed" | "Failed"))
}

/// State of a maintenance whose record is active, although another author ended its precondition.
pub(in crate::provider) const REVOKED: &str = "Revoked";

/// Returns true if a refresh found that another author ended the maintenance's precondition.
pub(in crate::provider) fn is_revoked(state: &Text) -> bool {
    given(state) == Some(REVOKED)
}

/// Returns true if an update ends the maintenance: it was revoked, and nothing requests it again.
pub(in crate::provider) fn ends_revoked(prior: &MaintenanceModel, model: &MaintenanceModel) -> bool {
    is_revoked(&prior.state) && model.keeps_ended() && model.wait_for() != WaitFor::Completed
}

/// Describes the next plan for a revoked maintenance.
pub(in crate::provider) fn after_revocation(model: &MaintenanceModel) -> &'static str {
    if model.wait_for() == WaitFor::Completed {
        "The next apply fails, because the maintenance cannot complete."
    } else if model.keeps_ended() {
        "The next apply ends the maintenance and does not lock a server (on_end = \"keep\")."
    } else {
        "The plan replaces the resource, which requests the maintenance again; on_end = \"keep\" prevents that."
    }
}

/// Returns true if an ended maintenance must be requested again.
///
/// With `wait_for = "Completed"`, ending is the goal.
fn stays_wanted(model: &MaintenanceModel) -> bool {
    model.wait_for() != WaitFor::Completed && !model.keeps_ended()
}

/// Returns the attribute that forces an ended maintenance's replacement, or `None`.
///
/// A maintenance in release counts as ended, because resuming it frees the server. A revoked
/// maintenance no longer protects the server.
pub(in crate::provider) fn replaced(prior: &MaintenanceModel, model: &MaintenanceModel) -> Option<AttributePath> {
    let ends = is_over(&prior.state) || is_revoked(&prior.state) || given(&prior.state) == Some("Releasing");
    (ends && stays_wanted(model)).then(|| AttributePath::new("state"))
}

/// Returns the state if the maintenance's record is missing. If the maintenance ended, its record
/// was pruned and the state stays, so that nothing runs again.
pub(in crate::provider) fn without_record(gone: bool, model: MaintenanceModel) -> Value<MaintenanceModel> {
    if gone && !is_over(&model.state) { Value::Null } else { Value::Value(model) }
}

/// Returns changed attributes that would take effect if the maintenance had not ended.
fn effective(prior: &MaintenanceModel, model: &MaintenanceModel) -> Vec<&'static str> {
    let changes = [
        ("server_power", model.server_power != prior.server_power),
        ("boot_configuration", model.boot_configuration != prior.boot_configuration),
        ("complete_when", model.complete_when != prior.complete_when),
        ("expires_after", model.expires_after != prior.expires_after),
        ("window", model.window != prior.window),
        ("on_window_close", model.on_window_close != prior.on_window_close),
    ];
    changes.into_iter().filter_map(|(name, changed)| changed.then_some(name)).collect()
}

/// Reports a change that an ended maintenance cannot carry out, and how it ended if its record
/// exists. Returns true without such a change.
pub(in crate::provider) fn may_change(
    diags: &mut Diagnostics,
    prior: &MaintenanceModel,
    model: &MaintenanceModel,
    record: Option<&Maintenance>,
) -> bool {
    let changed = effective(prior, model);
    let Some(first) = changed.first() else { return true };
    let (id, server) = (given(&prior.id).unwrap_or_default(), given(&prior.server).unwrap_or_default());
    let how = record.map(|record| format!("{}. ", how(record))).unwrap_or_default();
    diags.add_error(diagnostic(
        format!("The maintenance of {server} has ended and cannot change"),
        format!(
            "{how}{id} does not hold {server} any more, so changing {} would have no effect. The server and the \
             state are unchanged. Change triggers to run the maintenance again.",
            changed.join(", ")
        ),
        AttributePath::new(*first),
    ));
    false
}

/// Returns the error for an update that found the maintenance ended. Dependent resources must not
/// run.
pub(in crate::provider) fn ended_meanwhile(record: &Maintenance, model: &MaintenanceModel) -> Option<Diagnostic> {
    stays_wanted(model).then(|| {
        let server = record.server();
        diagnostic(
            format!("The maintenance of {server} has ended"),
            format!("{}. {server} is not locked. The next plan replaces the resource.", how(record)),
            AttributePath::root(),
        )
    })
}

/// Returns a refresh's warning; `None` if ending is the goal.
pub(in crate::provider) fn warning(record: &Maintenance, model: &MaintenanceModel) -> Option<Diagnostic> {
    if model.wait_for() == WaitFor::Completed {
        return None;
    }
    let server = record.server();
    let expired = matches!(record.phase, Phase::Completed { ending: Ending::Expired, .. });
    let summary = if expired { "Maintenance has expired" } else { "Maintenance has ended" };
    let next = if model.keeps_ended() {
        "The resource stays in the state without a lock (on_end = \"keep\")."
    } else {
        "The plan replaces the resource, which requests the maintenance again; on_end = \"keep\" prevents that."
    };
    Some(diagnostic(
        summary,
        format!("{server}: {}. {server} is not locked any more. {next}", how(record)),
        AttributePath::root(),
    ))
}

/// Describes when and why a record ended, and who ended it.
pub(in crate::provider) fn how(record: &Maintenance) -> String {
    let id = &record.id;
    match &record.phase {
        Phase::Completed { at, ending: Ending::Expired } => {
            let closed = record.closes_at.is_some_and(|closes| closes <= *at);
            let why = if closed { "its window closed" } else { "expires_after passed" };
            format!("{id} was released at {} because {why}", shown_time(*at))
        }
        Phase::Completed { at, ending } => format!("{id} ended at {} ({ending})", shown_time(*at)),
        Phase::Failed { at, cause } => format!("{id} failed at {}: {cause}", shown_time(*at)),
        phase => format!("{id} is {}", phase.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(state: &str, wait_for: &str, on_end: Option<&str>) -> MaintenanceModel {
        MaintenanceModel {
            state: Value::Value(state.to_owned()),
            wait_for: Value::Value(wait_for.to_owned()),
            on_end: on_end.map_or(Value::Null, |text| Value::Value(text.to_owned())),
            ..MaintenanceModel::default()
        }
    }

    #[test]
    fn what_is_wanted_and_has_ended_is_replaced() {
        for (state, wait_for, on_end, replaces) in [
            ("Completed", "InMaintenance", None, true),
            ("Completed", "InMaintenance", Some("replace"), true),
            ("Failed", "Enqueued", None, true),
            ("Completed", "InMaintenance", Some("keep"), false),
            ("Completed", "Completed", None, false),
            ("InMaintenance", "InMaintenance", None, false),
            ("Revoked", "InMaintenance", None, true),
            ("Revoked", "Enqueued", Some("replace"), true),
            ("Revoked", "InMaintenance", Some("keep"), false),
            ("Revoked", "Completed", None, false),
            ("Releasing", "InMaintenance", None, true),
            ("Releasing", "InMaintenance", Some("keep"), false),
            ("Releasing", "Completed", None, false),
        ] {
            let prior = model(state, wait_for, on_end);
            assert_eq!(replaced(&prior, &prior).is_some(), replaces, "{state} {wait_for} {on_end:?}");
        }
    }

    #[test]
    fn one_that_has_ended_stays_when_its_record_is_pruned() {
        for (gone, state, stays) in [
            (true, "Completed", true),
            (true, "Failed", true),
            (true, "InMaintenance", false),
            (true, "Pending", false),
            (false, "InMaintenance", true),
        ] {
            let left = without_record(gone, model(state, "Completed", None));
            assert_eq!(!left.is_null(), stays, "{gone} {state}");
        }
    }

    #[test]
    fn a_change_that_would_do_something_is_refused_and_a_word_is_not() {
        let prior = model("Completed", "Completed", None);
        let worded = MaintenanceModel { reason: Value::Value("other".to_owned()), ..prior.clone() };
        assert!(may_change(&mut Diagnostics::default(), &prior, &worded, None));
        let mut diags = Diagnostics::default();
        let switched = MaintenanceModel { server_power: Value::Value("Off".to_owned()), ..prior.clone() };
        assert!(!may_change(&mut diags, &prior, &switched, None));
        assert_eq!(diags.errors[0].attribute, AttributePath::new("server_power"));
    }
}
