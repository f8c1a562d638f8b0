//! Failed in-place changes: the undone parts, and the server's current state.

use tf_provider::{AttributePath, Diagnostics};

use crate::{
    engine::{Engine, ReconcileResult},
    maintenance::{decide::Finish, spec::MaintenanceKind, state::Maintenance, update::Undone},
    plugin::diagnostic,
};

/// Reports a failed update. Returns false if the update succeeded or the run ended in another way.
pub(in crate::provider) async fn not_updated(
    diags: &mut Diagnostics,
    engine: &Engine,
    driven: &ReconcileResult,
) -> bool {
    let Finish::NotUpdated { cause, undone } = &driven.finish else { return false };
    let record = &driven.record;
    let what = match record.spec.kind {
        MaintenanceKind::BootConfiguration => "boot configuration",
        MaintenanceKind::Maintenance | MaintenanceKind::Operation => "maintenance",
    };
    let ends = if *undone == Undone::NothingChanged { "was refused" } else { "failed" };
    let summary = format!("Update of the {what} of {} {ends}", record.server());
    let now = now(engine, record).await;
    let detail = match undone {
        Undone::NothingChanged => format!(
            "{cause}\nThe server was not changed and {now}. The state keeps the previous values. Fix the cause and apply again."
        ),
        Undone::Done => format!(
            "{cause}\nThe change was undone, and the previous configuration is active again. The server {now}. The \
             state keeps the previous values. Fix the cause and apply again."
        ),
        Undone::Failed(why) => format!(
            "{cause}\nUndoing the change failed too: {why}\nThe server {now}, and could have parts of both \
             configurations. The state keeps the previous values. Apply again to resume, or destroy to restore the \
             prior state."
        ),
    };
    diags.add_error(diagnostic(summary, detail, AttributePath::root()));
    true
}

/// Describes the server's current state.
async fn now(engine: &Engine, record: &Maintenance) -> String {
    let power = match engine.machine(record.server()) {
        Ok(machine) => machine.observe().await.map_or_else(|_| "unknown".to_owned(), |view| view.power.to_string()),
        Err(_) => "unknown".to_owned(),
    };
    let (id, state) = (&record.id, record.phase.name());
    if record.spec.kind == MaintenanceKind::Maintenance {
        format!("stays held by {id} ({state}, power {power})")
    } else {
        format!("keeps {id} ({state}, power {power})")
    }
}
