//! What a drive of a `metal_server_boot_configuration` means for its state.

use std::time::Duration;

use tf_provider::{AttributePath, Diagnostics, value::Value};

use crate::{
    engine::{Driven, Engine},
    maintenance::{decide::Finish, state::Phase},
    plugin::diagnostic,
};

use super::{
    boot_configuration_model::BootConfigurationModel, diagnostics::no_longer_ours, private::Private,
    values::shown_duration,
};

/// What a drive means for the state: `None` leaves nothing in it.
pub(super) fn conclude(
    diags: &mut Diagnostics,
    engine: &Engine,
    mut model: BootConfigurationModel,
    driven: &Driven,
    timeout: Duration,
) -> Option<(Value<BootConfigurationModel>, Value<Private>)> {
    let record = &driven.record;
    let server = record.server().to_owned();
    model.show(record);
    let state = Some((Value::Value(model), Value::Value(Private::of(engine, record))));
    let mut error =
        |summary: String, detail: String| diags.add_error(diagnostic(summary, detail, AttributePath::root()));
    match &driven.finish {
        Finish::Reached => state,
        Finish::Over => {
            match &record.phase {
                Phase::Failed { cause, .. } => error(
                    format!("The boot configuration of {server} failed"),
                    format!("{cause}\nThe server was put back as it was; nothing is left in the state."),
                ),
                _ => diags.add_error(no_longer_ours(&server, record)),
            }
            None
        }
        Finish::Withdrawn => {
            error(
                format!("Waiting for {server} was interrupted"),
                "The boot configuration left the queue; nothing was done to the server.".to_owned(),
            );
            None
        }
        Finish::Refused(why) => {
            error(format!("{server} cannot be taken"), format!("{why}\nNothing was done to the server."));
            None
        }
        Finish::TimedOut(reason) if !matches!(record.phase, Phase::Pending) => {
            error(
                format!("The boot configuration of {server} was not done in time"),
                format!(
                    "It was {reason} after {}. Apply goes on, destroy puts the server back.",
                    shown_duration(timeout)
                ),
            );
            state
        }
        Finish::TimedOut(reason) => {
            error(
                format!("{server} was not available in time"),
                format!(
                    "The boot configuration was {reason}.\nWaited {}. Its place in the queue is kept for {}: apply again to go \
                     on in it.",
                    shown_duration(timeout),
                    shown_duration(record.spec.hold_place_for)
                ),
            );
            None
        }
        Finish::Interrupted => {
            diags.add_warning(diagnostic(
                "Preparing a server was interrupted",
                format!(
                    "{server}: the boot configuration is not Ready yet. Apply goes on, destroy puts the server back."
                ),
                AttributePath::root(),
            ));
            state
        }
        Finish::Stuck(cause) | Finish::NotUpdated { cause, .. } => {
            error(
                format!("{server} could not be put back"),
                format!(
                    "{cause}\nThe server stays locked, because it is not as it was. Destroy again when the cause is gone."
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
