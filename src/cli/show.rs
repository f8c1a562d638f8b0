//! `show`: one maintenance. `history`: ended maintenances.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    backend::plug::{BackendPlugin, plugin_at},
    engine::{Engine, EngineError},
    maintenance::{
        ids::MaintenanceId,
        lock::AuditEvent,
        queue::shown_time,
        report,
        state::{Maintenance, Phase, Progress},
    },
    shown::shell_word,
};

use super::{
    GlobalArgs, NAME,
    commands::{CommandError, pretty},
    restrictions, shape, table,
};

/// History lines that `show` prints.
const HISTORY: usize = 50;

pub(super) async fn run(engine: &Engine, id: &MaintenanceId, common: &GlobalArgs) -> Result<String, CommandError> {
    let Some(held) = engine.held_by_name(id).await? else {
        return Err(EngineError::NotFound { id: id.clone(), store: engine.store().address() }.into());
    };
    let audit = engine.store().audit(id, HISTORY).await?;
    let line = engine.queue().await?.into_iter().find(|line| line.id == *id && line.state != report::BLOCKED);
    let forbidden = engine.forbidden(id).await?;
    if common.json {
        let (released, block) = shape::forbidden(&forbidden);
        return Ok(pretty(&json!({
            "maintenance": described(&held.record), "queue": line.as_ref().map(shape::line), "audit": shape::events(&audit),
            "released": released, "block": block,
        })));
    }
    let record = &held.record;
    let mut rows: Vec<(&str, String)> = vec![
        ("maintenance", record.id.to_string()),
        ("server", format!("{} ({})", record.server(), record.lock_key)),
        ("state", state(record)),
        ("where", record.location.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)),
        ("by", format!("{}, owner {}", record.requester, record.owner)),
        ("asked for", record.spec.summary()),
        ("requested", shown_time(record.requested_at)),
        ("generation", record.generation.to_string()),
    ];
    if let Some(line) = line.as_ref().filter(|_| held.active) {
        rows.push(("process", table::process(line)));
    }
    if let Some(waiting) = line.as_ref().and_then(|line| line.waiting_for.clone()) {
        rows.push(("because", waiting));
    }
    if let Some(at) = record.expires_at() {
        let overdue = if record.is_overdue(held.now) { " (overdue)" } else { "" };
        rows.push(("expires", format!("{}{overdue}", shown_time(at))));
    }
    if let Some(prior) = &record.prior {
        let boot = prior.boot.as_ref().map(|boot| format!(", boot override {boot}")).unwrap_or_default();
        rows.push(("before", format!("{}{boot}, recorded {}", prior.power, shown_time(prior.recorded_at))));
    }
    rows.extend(restrictions::rows(&forbidden));
    if line.as_ref().is_some_and(table::needs_action) {
        rows.push(("next", next(record, common)));
    }
    let mut text = table::pairs(&rows);
    if !audit.is_empty() {
        text.push_str("\nhistory\n");
        for event in &audit {
            text.push_str(&history(event));
        }
    }
    Ok(text)
}

/// Returns the command that restores and releases the server if nothing continues its maintenance.
pub(super) fn next(record: &Maintenance, common: &GlobalArgs) -> String {
    let plugin = plugin_at(record.location.as_ref()).filter(|_| common.backend.repeated().is_empty());
    let backend = plugin.map(BackendPlugin::name).filter(|name| *name != common.backend.plugin.name());
    let backend = backend.map(|name| format!(" --backend {name}")).unwrap_or_default();
    let owner = shell_word(record.owner.shown());
    format!("{NAME} release {} --owner {owner}{}{backend}", record.id, common.repeated())
}

fn state(record: &Maintenance) -> String {
    match &record.phase {
        Phase::Preparing(progress) => format!("Preparing {}", progress.text()),
        Phase::InMaintenance { .. } if record.is_made() => format!("ran {}, no lock", record.made()),
        Phase::InMaintenance { since } => format!("InMaintenance since {}", shown_time(*since)),
        Phase::Releasing { stuck: Some(cause), .. } => format!("Releasing, stuck: {cause}"),
        Phase::Releasing { progress, .. } => format!("Releasing {}", progress.text()),
        Phase::Completed { at, ending } => format!("Completed at {} ({ending})", shown_time(*at)),
        Phase::Failed { at, cause } => format!("Failed at {}: {cause}", shown_time(*at)),
        Phase::Pending => "Pending".to_owned(),
    }
}

pub(super) fn history(event: &AuditEvent) -> String {
    let detail = if event.detail.is_empty() { String::new() } else { format!(": {}", event.detail) };
    format!("  {}  {:<10} {} (generation {}){detail}\n", shown_time(event.at), event.what, event.by, event.generation)
}

/// Formats a record for scripts, in the documented format.
pub(super) fn described(record: &Maintenance) -> Value {
    let times: BTreeMap<&str, Option<String>> = [
        ("requested_at", Some(record.requested_at.to_string())),
        ("admitted_at", record.admitted_at.map(|at| at.to_string())),
        ("started_at", record.started_at.map(|at| at.to_string())),
        ("expires_at", record.expires_at().map(|at| at.to_string())),
    ]
    .into();
    let progress = record.phase.progress().map(Progress::text);
    json!({
        "id": record.id, "uid": record.uid, "server": record.server(), "lock_key": record.lock_key,
        "location": shape::pick(&record.location, shape::LOCATION), "owner": record.owner, "state": record.phase.name(), "detail": state(record), "step": progress,
        "generation": record.generation, "requester": shape::process(&record.requester), "reason": record.spec.reason,
        "ticket": record.spec.ticket, "priority": record.spec.priority, "times": times,
        "previous_power_state": record.prior.as_ref().map(|prior| prior.power.to_string()),
        "previous_boot_override": record.prior.as_ref().and_then(|prior| prior.boot.as_ref()).map(ToString::to_string),
    })
}

/// Returns ended maintenances, newest first.
pub(super) async fn history_of(
    engine: &Engine,
    id: Option<&MaintenanceId>,
    server: Option<&str>,
    limit: usize,
    json: bool,
) -> Result<String, CommandError> {
    let contents = engine.store().contents().await?;
    let wanted = |record: &&Maintenance| {
        id.is_none_or(|id| record.id == *id) && server.is_none_or(|server| record.server() == server)
    };
    let records: Vec<&Maintenance> = contents.history.iter().rev().filter(wanted).take(limit).collect();
    let store = engine.store().address();
    if json {
        let all: Vec<Value> = records.into_iter().map(described).collect();
        return Ok(pretty(&json!({ "store": store, "history": all, "problems": contents.oddities })));
    }
    let problems = match contents.oddities.as_slice() {
        [] => String::new(),
        [first, ..] => format!(
            "The store has {} problems, and entries can be missing. First: {first}\nNext: {} store check\n",
            contents.oddities.len(),
            super::NAME
        ),
    };
    if records.is_empty() {
        return Ok(format!("No maintenance has ended in {store}.\n{problems}"));
    }
    let mut rows = vec![["SERVER", "MAINTENANCE", "REQUESTED", "ENDED", "BY"].map(str::to_owned)];
    rows.extend(records.iter().map(|record| {
        let row = [record.server().to_owned(), record.id.to_string(), shown_time(record.requested_at), state(record)];
        let [server, id, requested, ended] = row;
        [server, id, requested, ended, record.requester.to_string()]
    }));
    Ok(table::columns(&rows) + &problems)
}
