//! Records that another state manages: imported records until apply takes them over, and records
//! that this state lost.

use tf_provider::{AttributePath, Diagnostics, value::Value};

use crate::{
    engine::Engine,
    maintenance::{
        lock::Refusal,
        queue::shown_time,
        state::{KnownTo, Maintenance},
    },
    plugin::diagnostic,
};

use crate::provider::{
    shared::diagnostics::managed_elsewhere, shared::private::Private, shared::standing::TAKEN_OVER,
    shared::values::Text,
};

/// Returns why a state drops its record: another state took it over. An imported record
/// (`managed_by` is null) was never this state's, and stays until apply.
pub(in crate::provider) fn lost(record: &Maintenance, state: &str, managed_by: &Text) -> Option<Refusal> {
    record.refuses_state(state).filter(|_| !managed_by.is_null())
}

/// Ends a destroy whose record another state manages. `None`: the record was imported and not taken
/// over, which an error explains.
pub(in crate::provider) fn not_ours(
    diags: &mut Diagnostics,
    server: &str,
    managed_by: &Text,
    refusal: &Refusal,
) -> Option<()> {
    match refusal {
        Refusal::KnownToAnother { id, known } if managed_by.is_null() => {
            not_taken_over(diags, server, &id.to_string(), known);
            None
        }
        _ => {
            diags.add_warning(managed_elsewhere(server, refusal));
            Some(())
        }
    }
}

/// Warns that apply takes an imported record from another state. Only reads.
pub(in crate::provider) async fn planned(diags: &mut Diagnostics, engine: Option<&Engine>, private: &Value<Private>) {
    let Some((record, known)) = other_state(engine, private).await else { return };
    diags.add_warning(diagnostic(
        TAKEN_OVER,
        format!(
            "{}: apply takes {} over from the state that {} saved at {}. Until then that state stays in charge, and a destroy here \
             fails; afterwards that state drops the resource.",
            record.server(),
            record.id,
            known.by,
            shown_time(known.since)
        ),
        AttributePath::root(),
    ));
}

/// Refuses to release an imported record that another state manages. Only reads.
pub(in crate::provider) async fn refuse_release(
    diags: &mut Diagnostics,
    engine: Option<&Engine>,
    private: &Value<Private>,
) {
    if let Some((record, known)) = other_state(engine, private).await {
        not_taken_over(diags, record.server(), &record.id.to_string(), &known);
    }
}

/// Returns the record with the other state that manages it.
async fn other_state(engine: Option<&Engine>, private: &Value<Private>) -> Option<(Maintenance, KnownTo)> {
    let held = engine?.held(&Private::uid(private)?).await.ok()??;
    let refusal = held.record.refuses_state(Private::state(private)).filter(|_| held.active)?;
    let Refusal::KnownToAnother { known, .. } = refusal else { return None };
    Some((held.record, *known))
}

fn not_taken_over(diags: &mut Diagnostics, server: &str, id: &str, known: &KnownTo) {
    diags.add_error(diagnostic(
        format!("{server}: {id} was imported and not taken over"),
        format!(
            "Cause: another state manages {id}; {} saved it at {}. It stays in charge until an apply here takes {id} over.\n\
             Server: unchanged.\n\
             Next: apply the configuration that has {id}, then destroy it. Or remove it from this state (state rm).",
            known.by,
            shown_time(known.since)
        ),
        AttributePath::root(),
    ));
}
