//! A destroy's result for `metal_server_maintenance`.

use tf_provider::{AttributePath, Diagnostic, Diagnostics, value::Value};

use crate::provider::{
    maintenance::outcome::{at, ended, stuck},
    shared::boot_proof,
    shared::diagnostics::of_engine,
    shared::private::{Private, missing_here},
    shared::review_release::REVOKED,
};
use crate::{
    engine::{Engine, ReconcileResult},
    maintenance::{
        decide::Finish,
        gate,
        ids::{MaintenanceId, Uid},
        state::{Ending, Maintenance, Phase},
    },
    plugin::diagnostic,
};

/// Builds the warning for a destroy with a state from before a replacement: another state manages
/// the name's later maintenance.
fn held_later(server: &str, later: &Maintenance) -> Diagnostic {
    let id = &later.id;
    diagnostic(
        "A later maintenance has this name",
        format!(
            "{server}: this state's {id} has ended. A later one with the same name is {} under generation {}, and another state \
             manages it. Destroy it with that state, or import {id} and destroy it here.",
            later.phase.name(),
            later.generation
        ),
        AttributePath::root(),
    )
}

/// Builds the warning for a maintenance that ended without a restore because of a direct hand-over.
fn handed_over(record: &Maintenance, next: &MaintenanceId) -> Diagnostic {
    let power = record.prior.as_ref().map(|prior| format!(" (power {})", prior.power)).unwrap_or_default();
    diagnostic(
        "A server was handed over unchanged",
        format!(
            "{}: {} ended, and {next} has the server now (hand_over = \"direct\"). The state before {}{power} is restored when \
             {next} ends.",
            record.server(),
            record.id,
            record.took_over.as_ref().unwrap_or(&record.id),
        ),
        AttributePath::root(),
    )
}

/// Reports a release's result to a destroy.
pub(in crate::provider) async fn released(
    diags: &mut Diagnostics,
    engine: &Engine,
    server: &str,
    driven: &ReconcileResult,
) -> Option<()> {
    let record = &driven.record;
    let (summary, detail) = match &driven.finish {
        Finish::Over | Finish::Withdrawn | Finish::Reached => {
            boot_proof::tolerated(diags, record);
            if let Some(next) = &record.handed_to {
                diags.add_warning(handed_over(record, next));
                return Some(());
            }
            if let Some(why) = gate::lost(record) {
                let observed = engine.observed(record).await;
                diags.add_warning(diagnostic(
                    REVOKED,
                    format!(
                        "{server}: {why}. The external request was deleted too; power and boot were \
                         not changed, because an external system took the server over. {observed}"
                    ),
                    AttributePath::root(),
                ));
            }
            return Some(());
        }
        Finish::Lost => {
            diags.add_warning(diagnostic(
                "A maintenance was released outside this configuration",
                format!("{server}: {} is {} now. Nothing more was done to the server.", record.id, record.phase.name()),
                AttributePath::root(),
            ));
            return Some(());
        }
        Finish::Stuck(cause) | Finish::Refused(cause) | Finish::NotUpdated { cause, .. } => {
            (format!("Releasing {server} failed"), stuck(record, cause.shown()))
        }
        Finish::TimedOut(reason) => (
            format!("Releasing {server} did not end in time"),
            format!("{} is {reason}. The server stays held. Destroy again, or raise timeouts.delete.", record.id),
        ),
        Finish::Interrupted => (
            format!("Releasing {server} was interrupted"),
            format!(
                "{} stopped at {}. The server stays held; the next destroy resumes at that step.",
                record.id,
                at(record)
            ),
        ),
    };
    diags.add_error(diagnostic(summary, detail, AttributePath::root()));
    None
}

/// Handles destroying an ended maintenance, which does not touch the server.
pub(in crate::provider) async fn over_already(
    diags: &mut Diagnostics,
    engine: &Engine,
    server: &str,
    uid: &Uid,
    private: &Value<Private>,
) -> Option<()> {
    match engine.held(uid).await {
        Ok(Some(held)) => {
            if let Phase::Completed { ending: Ending::Released { .. }, .. } = held.record.phase {
                diags.add_warning(diagnostic(
                    "A maintenance was released outside this configuration",
                    format!("{server}: {} was {}. The server was not touched.", held.record.id, ended(&held.record)),
                    AttributePath::root(),
                ));
            }
            if let Ok(later) = engine.active(&held.record.id).await
                && later.refuses_owner(engine.owner()).is_none()
            {
                diags.add_warning(held_later(server, &later));
            }
            Some(())
        }
        Ok(None) => missing_here(diags, engine, server, private).then_some(()),
        Err(error) => {
            diags.add_error(of_engine(server, &error));
            None
        }
    }
}
