//! Applies a run's result to the state of a `metal_server_boot_configuration`.

use std::time::Duration;

use tf_provider::{AttributePath, Diagnostic, Diagnostics, value::Value};

use crate::{
    engine::{Engine, EngineError, ReconcileResult},
    maintenance::{decide::Finish, lock::Refusal, queue::shown_time, state::Phase},
    plugin::diagnostic,
};

use crate::provider::{
    boot_configuration::model::BootConfigurationModel,
    shared::boot_proof,
    shared::diagnostics::of_engine,
    shared::lost::{no_longer_ours, waited},
    shared::private::Private,
    shared::review_release::REVOKED,
    shared::values::shown_duration,
};

/// Explains why a boot configuration is refused. Its name follows from its server, so the error
/// does not suggest another name.
pub(in crate::provider) fn refused(server: &str, error: &EngineError) -> Diagnostic {
    let EngineError::Refused(refusal) = error else { return of_engine(server, error) };
    let (summary, detail) = match refusal {
        Refusal::OtherSpec { id, existing, asked } => (
            format!("{server} has another boot configuration"),
            format!(
                "{id} is active: {existing}.\nThis configuration requests: {asked}.\nNothing was changed. Destroy it \
                 where it is managed. If no state manages it, manage it here with an import block (id = \"{id}\")."
            ),
        ),
        Refusal::OtherOwner { id, existing, asked } => (
            format!("The boot configuration of {server} belongs to another owner"),
            format!(
                "The owner of {id} is {existing:?}; this provider's owner is {asked:?}. Nothing was changed. It ends \
                 with its maintenance, or when its own configuration destroys it."
            ),
        ),
        Refusal::KnownToAnother { id, known } => (
            format!("Another state manages the boot configuration of {server}"),
            format!(
                "{} saved {id} at {}. Nothing was changed. Destroy it where it is managed. If that state is lost or was not \
                 saved, take it over with an import block (id = \"{id}\"), and apply; the other state then drops it.",
                known.by,
                shown_time(known.since)
            ),
        ),
        Refusal::InUse { id, by, until } => (
            format!("The boot configuration of {server} is being changed"),
            format!(
                "{by} works on {id}; its lease runs until {} and is renewed while it works. Nothing was changed. \
                 Wait until that process ends. If it has already ended, apply again after that time.",
                shown_time(*until)
            ),
        ),
        Refusal::ReleasedBefore { released } => (
            format!("The boot configuration of {server} was released by a person"),
            format!(
                "{released}. Nothing was changed. To allow this configuration to change the server again, agree with \
                 that person and run: terraform-provider-metal release --allow {}",
                released.id
            ),
        ),
        _ => return of_engine(server, error),
    };
    diagnostic(summary, detail, AttributePath::new("server"))
}

/// Builds the warning for a server that the external system revoked.
pub(in crate::provider) fn taken_away(server: &str, why: &str) -> Diagnostic {
    diagnostic(
        REVOKED,
        format!(
            "{server}: {why}. Its boot configuration has ended. The next plan replaces the resource; destroy deletes \
             its external request and does not change the server."
        ),
        AttributePath::root(),
    )
}

/// Converts a run's result to a state; `None` removes the resource from the state.
pub(in crate::provider) fn conclude(
    diags: &mut Diagnostics,
    engine: &Engine,
    mut model: BootConfigurationModel,
    driven: &ReconcileResult,
    timeout: Duration,
    state: &str,
) -> Option<(Value<BootConfigurationModel>, Value<Private>)> {
    let record = &driven.record;
    let server = record.server().to_owned();
    model.show(record);
    model.managed_by = Value::Value(state.to_owned());
    let state = Some((Value::Value(model), Value::Value(Private::of(engine, record).of_state(state))));
    let mut error =
        |summary: String, detail: String| diags.add_error(diagnostic(summary, detail, AttributePath::root()));
    match &driven.finish {
        Finish::Reached => {
            boot_proof::warn(diags, record);
            state
        }
        Finish::Over => {
            match &record.phase {
                Phase::Failed { cause, .. } => error(
                    format!("The boot configuration of {server} failed"),
                    format!(
                        "{cause}\nThe server was restored; the resource was not saved. Fix the cause and apply again."
                    ),
                ),
                _ => diags.add_error(no_longer_ours(&server, record)),
            }
            None
        }
        Finish::Withdrawn => {
            error(
                format!("Waiting for {server} was interrupted"),
                "The boot configuration left the queue; server and state are unchanged.".to_owned(),
            );
            None
        }
        Finish::Refused(why) => {
            error(format!("{server} cannot be locked"), format!("{why}\nNothing was done to the server."));
            None
        }
        Finish::TimedOut(reason) if !matches!(record.phase, Phase::Pending) => {
            error(
                format!("The boot configuration of {server} did not complete in time"),
                format!(
                    "It was {reason} after {}. Apply again to resume, or destroy to restore the prior state.",
                    shown_duration(timeout)
                ),
            );
            state
        }
        Finish::TimedOut(reason) => {
            error(
                format!("{server} was not available in time"),
                format!(
                    "The boot configuration was {reason}.\n{} The queue position is reserved for {}; apply again to resume.",
                    waited(driven.waited, timeout, "timeouts.create"),
                    shown_duration(record.spec.hold_place_for)
                ),
            );
            None
        }
        Finish::Interrupted => {
            diags.add_warning(diagnostic(
                "Preparing a server was interrupted",
                format!(
                    "{server}: the boot configuration is not Ready yet. Apply again to resume, or destroy to restore \
                     the prior state."
                ),
                AttributePath::root(),
            ));
            state
        }
        Finish::Stuck(cause) | Finish::NotUpdated { cause, .. } => {
            error(
                format!("The prior state of {server} could not be restored"),
                format!(
                    "{cause}\nThe server stays locked, because its prior state is not restored. Fix the cause and destroy again to resume."
                ),
            );
            state
        }
        Finish::Lost => {
            diags.add_error(no_longer_ours(&server, record));
            None
        }
    }
}
