//! Applies results of runs and refreshes to a `metal_server_maintenance` and reports them.

use std::time::Duration;

use tf_provider::{AttributePath, Diagnostics, value::Value};

use crate::provider::{
    maintenance::model::{MaintenanceModel, shown_texts},
    shared::boot_proof,
    shared::diagnostics::silent,
    shared::effect,
    shared::ended,
    shared::lost::{no_longer_ours, waited},
    shared::private::Private,
    shared::review_release::{DELETED, REVOKED, deleted},
    shared::values::{known, shown_duration},
    shared::window::WindowModel,
};
use crate::{
    engine::{Engine, MaintenanceStatus, Observation, ReconcileResult},
    maintenance::{
        decide::Finish,
        gate,
        machine::{PowerState, PowerTarget},
        queue::shown_time,
        restore,
        spec::{CompleteWhen, Spec},
        state::{Ending, Maintenance, Phase},
        window::OnClose,
    },
    plugin::diagnostic,
    shown::OneLine,
};

/// Converts a run's result to a state; `None` removes the resource from the state.
pub(in crate::provider) fn conclude(
    diags: &mut Diagnostics,
    engine: &Engine,
    mut model: MaintenanceModel,
    driven: &ReconcileResult,
    timeout: Duration,
    state_id: &str,
) -> Option<(MaintenanceModel, Private)> {
    let record = &driven.record;
    let server = record.server().to_owned();
    show(&mut model, record, None, None);
    model.managed_by = Value::Value(state_id.to_owned());
    let state = Some((model, Private::of(engine, record).of_state(state_id)));
    let mut error =
        |summary: String, detail: String| diags.add_error(diagnostic(summary, detail, AttributePath::root()));
    if let Some((summary, detail)) = only_waited(&server, driven, timeout) {
        error(summary, detail);
        return None;
    }
    match &driven.finish {
        Finish::Reached => {
            boot_proof::warn(diags, record);
            state
        }
        Finish::Withdrawn | Finish::Refused(_) => None,
        Finish::Over => match &record.phase {
            Phase::Failed { cause, .. } => {
                error(
                    format!("{server} could not be prepared"),
                    format!(
                        "{cause}\nThe server was released{}; the resource was not saved. Fix the cause and apply again.",
                        as_it_was(record)
                    ),
                );
                boot_proof::tolerated(diags, record);
                None
            }
            Phase::Completed { ending: Ending::CompletedBy(_) | Ending::Completed, .. } => state,
            Phase::Completed { ending: Ending::Expired, at } => {
                let closed = record.closes_at.is_some_and(|closes| closes <= *at);
                let why = if closed { "its window closed (on_window_close)" } else { "expires_after passed" };
                error(
                    format!("The maintenance of {server} did not complete in time"),
                    format!(
                        "{why} before complete_when was true. The server was released{}; the resource was not saved.",
                        as_it_was(record)
                    ),
                );
                None
            }
            _ => {
                diags.add_error(no_longer_ours(&server, record));
                None
            }
        },
        Finish::TimedOut(reason) => {
            error(
                format!("The maintenance of {server} did not end in time"),
                format!(
                    "{} was {reason} after {} (timeouts.create). The server is still held; destroy restores the prior \
                     state and releases it.",
                    record.id,
                    shown_duration(timeout)
                ),
            );
            state
        }
        Finish::Interrupted => {
            diags.add_warning(diagnostic(
                "Preparing a server was interrupted",
                format!(
                    "{server}: {} stopped at {}. The server is held. Apply again to resume, or destroy to restore the \
                     prior state.",
                    record.id,
                    at(record)
                ),
                AttributePath::root(),
            ));
            state
        }
        Finish::Stuck(cause) => {
            error(format!("Releasing {server} failed"), stuck(record, cause.shown()));
            state
        }
        Finish::Lost => {
            diags.add_error(no_longer_ours(&server, record));
            None
        }
        // An update has reported it already; a create found an earlier run's change.
        Finish::NotUpdated { cause, .. } => {
            error(
                format!("{server} could not be prepared"),
                format!(
                    "{cause}\n{} has locked the server with another configuration. Import it to change it.",
                    record.id
                ),
            );
            None
        }
    }
}

/// Describes a run that ended before the server was locked. Its resource does not enter the state.
fn only_waited(server: &str, driven: &ReconcileResult, timeout: Duration) -> Option<(String, String)> {
    let record = &driven.record;
    let pending = matches!(record.phase, Phase::Pending);
    let kept = shown_duration(record.spec.hold_place_for);
    Some(match &driven.finish {
        Finish::Withdrawn => (
            format!("Waiting for {server} was interrupted"),
            format!("{} left the queue; server and state are unchanged.", record.id),
        ),
        Finish::Refused(why) => {
            (format!("{server} cannot be locked"), format!("{why}\nServer and state are unchanged."))
        }
        Finish::TimedOut(reason) if pending => (
            format!("{server} was not available in time"),
            format!(
                "{} was {reason}.\n{} The queue position is reserved for {kept}; apply again to resume, or raise timeouts.create.",
                record.id,
                waited(driven.waited, timeout, "timeouts.create")
            ),
        ),
        Finish::Interrupted if pending && !record.keeps_place => (
            format!("Waiting for {server} was interrupted"),
            format!(
                "{} could not leave the queue, because its external request could not be deleted. The resource was not saved. The \
                 queue position is reserved for {kept}; apply again to resume.",
                record.id
            ),
        ),
        _ => return None,
    })
}

fn as_it_was(record: &Maintenance) -> String {
    match &record.prior {
        Some(_) if gate::never_ours(record) => " untouched".to_owned(),
        Some(_) if !restore::verifies(record) => ", and was not restored".to_owned(),
        Some(prior) => {
            let boot = prior.boot.as_ref().map(|boot| format!(", boot override {boot}")).unwrap_or_default();
            format!(" in its prior state ({}{boot})", restore::power_restored(record, prior))
        }
        None => " untouched".to_owned(),
    }
}

pub(in crate::provider) fn at(record: &Maintenance) -> String {
    let name = record.phase.name();
    record.phase.progress().map_or_else(|| name.to_owned(), |progress| format!("{name} {}", progress.text()))
}

pub(in crate::provider) fn stuck(record: &Maintenance, cause: &str) -> String {
    let why = match &record.phase {
        Phase::Releasing { ending: Ending::Failed(first), .. } => format!("It could not be prepared: {first}\nThen: "),
        _ => String::new(),
    };
    format!(
        "{why}{cause}\nThe server stays held ({}, generation {}), because its prior state is not restored. Fix the cause and \
         destroy again to resume.",
        at(record),
        record.generation
    )
}

/// Copies the record into the model.
pub(in crate::provider) fn show(
    model: &mut MaintenanceModel,
    record: &Maintenance,
    waiting_for: Option<String>,
    ahead: Option<usize>,
) {
    let number = |n: u64| Value::Value(i64::try_from(n).unwrap_or(i64::MAX));
    model.id = Value::Value(record.id.to_string());
    model.state = Value::Value(record.phase.name().to_owned());
    model.waiting_for = known(waiting_for);
    model.queue_position = ahead.map_or(Value::Null, |n| number(n as u64));
    model.requested_at = Value::Value(record.requested_at.to_string());
    model.started_at = known(record.started_at.map(|at| at.to_string()));
    model.generation = number(record.generation);
    model.lock_key = Value::Value(record.lock_key.to_string());
    model.previous_power_state = known(record.prior.as_ref().map(|prior| prior.power.to_string()));
    model.power_state = match (&record.phase, record.spec.server_power, &record.prior) {
        (Phase::InMaintenance { .. }, Some(power), _) => Value::Value(power.to_string()),
        (Phase::InMaintenance { .. } | Phase::Completed { .. }, _, Some(prior))
            if record.took_over.is_none() && record.handed_to.is_none() =>
        {
            let stays_paused = prior.power == PowerState::Paused && !record.leaves_pause();
            let restored = record.final_power().filter(|_| !stays_paused).map_or(prior.power, PowerState::from);
            Value::Value(restored.to_string())
        }
        _ => known(record.last_power.map(|power| power.to_string())),
    };
}

/// Warns of everything that another author did to a held server since the last run. Returns true if
/// the maintenance no longer protects the server: its state is then [`ended::REVOKED`], so that
/// every plan contains a change.
fn warn_of_others(
    seen: &Observation,
    server: &str,
    model: &MaintenanceModel,
    warn: &mut impl FnMut(&'static str, String),
) -> bool {
    let next = ended::after_revocation(model);
    if let Some(why) = &seen.taken_away {
        warn(
            REVOKED,
            format!(
                "{server}: {why}. {next} A release deletes our external request. It restores the server only if no external \
                 system has taken it over."
            ),
        );
    }
    if let Some(why) = &seen.node_lost {
        warn(
            "A maintenance has lost the Lease of its Node",
            format!("{server}: {why}. The server is still locked, but other operators can act on the Node. {next}"),
        );
    }
    if let Some(why) = &seen.drain_lost {
        warn(
            "A drained Node accepts Pods again",
            format!("{server}: {why}. The server is still locked, but Pods can start on it. {next}"),
        );
    }
    if let Some(why) = &seen.node_unseen {
        warn(
            "A Node was not checked",
            format!(
                "{server}: {why}. The server is still locked. The Node's state is unknown, and so is that of every other Node \
                 in this cluster; this warning appears once."
            ),
        );
    }
    if let Some(why) = &seen.deletion {
        warn(DELETED, deleted(server, why));
    }
    seen.taken_away.is_some() || seen.node_lost.is_some() || seen.drain_lost.is_some()
}

/// Returns the state after reading the record and, while it is held, the server. Returns `None` if
/// the maintenance no longer exists.
pub(in crate::provider) async fn refresh(
    diags: &mut Diagnostics,
    engine: &Engine,
    mut model: MaintenanceModel,
    held: MaintenanceStatus,
) -> Option<MaintenanceModel> {
    let record = &held.record;
    let server = record.server().to_owned();
    let mut warn = |summary: &'static str, detail: String| {
        diags.add_warning(diagnostic(summary, detail, AttributePath::root()));
    };
    if !held.active {
        return match &record.phase {
            Phase::Completed { ending: Ending::Released { .. }, .. } | Phase::Failed { .. } => {
                warn(
                    "A maintenance was released outside this configuration",
                    format!(
                        "{server}: {} has ended ({}). The resource is dropped from the state.",
                        record.id,
                        ended(record)
                    ),
                );
                None
            }
            _ => {
                if let Some(warning) = ended::warning(record, &model) {
                    diags.add_warning(warning);
                }
                show(&mut model, record, None, None);
                Some(model)
            }
        };
    }
    if record.is_overdue(held.now) {
        let since = record.expires_at().map(shown_time).unwrap_or_default();
        warn(
            "Maintenance is overdue",
            format!(
                "{server}: {} should have ended at {since} (expires_after). It is held by {}; the next waiter can \
                 release it and take the lock.",
                record.id, record.requester
            ),
        );
    }
    let (before, was_revoked) = (model.power_state.clone(), ended::is_revoked(&model.state));
    show(&mut model, record, held.waiting_for.clone(), held.ahead);
    if !matches!(record.phase, Phase::InMaintenance { .. }) {
        return Some(model);
    }
    let wanted = record.spec.server_power;
    let ends_by_power = matches!(record.spec.complete_when, Some(CompleteWhen::PowerState(_)));
    let seen = Box::pin(engine.seen(&server, held)).await;
    let lost = warn_of_others(&seen, &server, &model, &mut warn);
    // A missing answer neither revokes a maintenance nor restores a revoked maintenance.
    let silent_now = seen.machine.is_err() || seen.node_unseen.is_some();
    if lost || (was_revoked && silent_now) {
        model.state = Value::Value(ended::REVOKED.to_owned());
    }
    match seen.machine {
        Ok(view) => {
            if let Some(wanted) = wanted
                && let Some(settled) = drifted(view.power, wanted)
                && !ends_by_power
                && seen.taken_away.is_none()
            {
                model.power_state = Value::Value(settled.to_string());
                warn(
                    "Power state differs from server_power",
                    format!(
                        "{server}: its power is {settled}, server_power is {wanted}. {} Destroy restores the prior state.",
                        if model.restores_drift() {
                            "The plan prepares the server again (on_drift = \"restore\")."
                        } else {
                            "The plan does not correct it; on_drift = \"restore\" would."
                        }
                    ),
                );
            }
        }
        Err(error) => {
            model.power_state = before;
            warn(silent(&error), format!("{server}: {error}. Its last known values are kept."));
        }
    }
    Some(model)
}

/// Returns the power to which a server drifted from the power that its maintenance wants.
fn drifted(power: PowerState, wanted: PowerTarget) -> Option<PowerState> {
    let settled = power.settled().map(PowerState::from);
    let paused = (power == PowerState::Paused).then_some(power);
    settled.or(paused).filter(|settled| *settled != wanted.into())
}

pub(in crate::provider) fn ended(record: &Maintenance) -> String {
    match &record.phase {
        Phase::Completed { at, ending } => format!("{ending} at {}", shown_time(*at)),
        Phase::Failed { at, cause } => format!("failed at {}: {cause}", shown_time(*at)),
        phase => phase.name().to_owned(),
    }
}

/// Builds a model from a record.
pub(in crate::provider) fn imported(record: &Maintenance) -> MaintenanceModel {
    let Spec { reason, ticket, priority, server_power, expires_after, hold_place_for, triggers, policy, .. } =
        record.spec.clone();
    let mut model = MaintenanceModel {
        effect: Value::Value(effect::of(&record.spec)),
        server: Value::Value(record.spec.server.raw().to_owned()),
        namespace: Value::Value(record.id.namespace().to_owned()),
        name: Value::Value(record.id.name().to_owned()),
        policy: Value::Value(policy.to_string()),
        require_claim: if record.spec.require_claim { Value::Value(true) } else { Value::Null },
        escalate_after: known(record.spec.escalate_after.map(shown_duration)),
        reason: known(reason.map(OneLine::into_raw)),
        ticket: known(ticket.map(OneLine::into_raw)),
        priority: Value::Value(priority),
        server_power: known(server_power.map(|power| power.to_string())),
        expires_after: known(expires_after.map(shown_duration)),
        hold_place_for: Value::Value(shown_duration(hold_place_for)),
        wait_for: known((record.keeps_place && matches!(record.phase, Phase::Pending)).then(|| "Enqueued".to_owned())),
        allow_under: if record.spec.allow_under.is_empty() {
            Value::Null
        } else {
            Value::Value(record.spec.allow_under.iter().map(|owner| Value::Value(owner.raw().to_owned())).collect())
        },
        hand_over: known((!record.spec.hand_over.is_restore()).then(|| "direct".to_owned())),
        triggers: shown_texts(&triggers),
        window: record.spec.window.as_ref().map_or(Value::Null, |window| Value::Value(WindowModel::of(window))),
        on_window_close: known(
            record
                .spec
                .window
                .as_ref()
                .filter(|window| window.on_close == OnClose::Release)
                .map(|_| "release".to_owned()),
        ),
        boot_configuration: record.spec.boot.as_ref().map_or(Value::Null, |boot| Value::Value(boot.into())),
        complete_when: record.spec.complete_when.as_ref().map_or(Value::Null, |when| Value::Value(when.into())),
        ..MaintenanceModel::default()
    };
    model.set_defaults();
    model
}
