//! Commands for the whole store.

use std::path::Path;

use secrecy::SecretString;
use serde_json::json;

use crate::{
    engine::Engine,
    files::{self, Pipes},
    settings::{self, Environment, variables},
    shown::{self, OneLine},
    store::{self, Contents, RoleKind},
};

use super::{
    GlobalArgs, RolesOf, StoreCommand,
    commands::{CommandError, parse, pretty},
};

pub(super) async fn run(engine: &Engine, command: StoreCommand, json: bool) -> Result<String, CommandError> {
    match command {
        StoreCommand::Check => check(engine, json).await,
        StoreCommand::Export => {
            let contents = engine.store().contents().await?;
            movable(&contents, &engine.store().address())?;
            // The store's own format, for import.
            Ok(shown::json(&format!("{:#}\n", json!(contents))).into_owned())
        }
        // Answered without a store.
        StoreCommand::Roles { .. } => Ok(String::new()),
        StoreCommand::Import { file } => import(engine, &file, json).await,
        StoreCommand::Restored { reason, seen } => restored(engine, &said(&reason)?, seen, json).await,
        StoreCommand::Inspected { ids, reason } => inspected(engine, &ids, &said(&reason)?, json).await,
    }
}

/// Prints a store's roles, without opening it.
pub(super) fn roles_of(
    kind: RolesOf,
    url: Option<&str>,
    environment: &Environment,
    json: bool,
) -> Result<String, CommandError> {
    let kind = match kind {
        RolesOf::Kubernetes => RoleKind::Kubernetes,
        RolesOf::Postgres => RoleKind::Postgres,
        RolesOf::S3 => RoleKind::S3,
    };
    let url = url.or_else(|| environment.variables.get(variables::COORDINATION_URL).map(String::as_str));
    let url = url.map(|url| SecretString::from(url.to_owned()));
    let roles = store::roles(kind, url.as_ref())?;
    Ok(if json { pretty(&json!({ "roles": roles })) } else { roles })
}

fn said(reason: &str) -> Result<String, CommandError> {
    let reason = reason.trim();
    if reason.is_empty() {
        return Err(CommandError::Other("--reason must not be empty: the audit log records it".to_owned()));
    }
    Ok(reason.to_owned())
}

async fn restored(engine: &Engine, reason: &str, seen: u64, json: bool) -> Result<String, CommandError> {
    let restored = engine.store_restored(seen, reason).await?;
    if json {
        return Ok(pretty(&json!(restored)));
    }
    let mut text = format!(
        "{}: {} locks have generation {} or higher now; processes that ran before are fenced.\n",
        engine.store().address(),
        restored.locks,
        restored.generation
    );
    if restored.to_inspect.is_empty() {
        text.push_str("No maintenance is active in it.\n");
    } else {
        text.push_str(
            "These wait for an inspection. The server could be changed, and the recorded prior state could be wrong:\n",
        );
    }
    for left in &restored.to_inspect {
        let prior = left.previous_power_state.map_or("not recorded".to_owned(), |power| power.to_string());
        text.push_str(&format!(
            "  {}  {} ({})  {}, prior power: {prior}\n",
            left.id, left.server, left.lock_key, left.state
        ));
    }
    if !restored.to_inspect.is_empty() {
        text.push_str(
            "Inspect each server, then: terraform-provider-metal store inspected NAMESPACE/NAME --reason TEXT\n",
        );
    }
    text.push_str(
        "These lists do not show a maintenance that the store has lost: plan every configuration that uses this \
         store.\n",
    );
    Ok(text)
}

async fn inspected(engine: &Engine, ids: &[String], reason: &str, json: bool) -> Result<String, CommandError> {
    let ids = ids.iter().map(|id| parse(id)).collect::<Result<Vec<_>, _>>()?;
    let mut text = String::new();
    let mut waited = Vec::new();
    for id in &ids {
        if engine.inspected(id, reason).await? {
            text.push_str(&format!("{id} can continue\n"));
            waited.push(id);
        } else {
            text.push_str(&format!("{id} does not wait for an inspection\n"));
        }
    }
    Ok(if json { pretty(&json!({ "inspected": waited })) } else { text })
}

async fn check(engine: &Engine, json: bool) -> Result<String, CommandError> {
    let (store, contents) = (engine.store(), engine.store().contents().await?);
    let wrong = contents.violations();
    if !wrong.is_empty() {
        let lines: Vec<String> = wrong.iter().map(|line| format!("  {line}")).collect();
        return Err(CommandError::Other(format!(
            "{} is not in order:\n{}\nNothing was changed. Stop what uses it before you repair it, and keep a copy",
            store.address(),
            lines.join("\n")
        )));
    }
    let (machines, held) = (contents.locks.len(), contents.locks.iter().filter(|lock| lock.slot.is_some()).count());
    let (active, past) = (contents.locks.iter().map(|lock| lock.active.len()).sum::<usize>(), contents.history.len());
    if json {
        return Ok(pretty(&json!({
            "store": store.address(), "id": contents.store_id, "machines": machines, "held": held,
            "active": active, "history": past, "audit": contents.audit.len(), "violations": wrong,
            "role_warning": store.role_warning(),
        })));
    }
    Ok(format!(
        "{} is in order: {machines} machines, {held} held, {active} maintenances active, {past} in the history, {} lines of \
         audit\n{}",
        store.address(),
        contents.audit.len(),
        store.role_warning().map(|warning| format!("{warning}\n")).unwrap_or_default()
    ))
}

/// Refuses while a server is held or a process is attached: it would continue in the old store.
fn movable(contents: &Contents, address: &str) -> Result<(), CommandError> {
    let busy = contents.in_use();
    if busy.is_empty() {
        return Ok(());
    }
    Err(CommandError::Other(format!(
        "{address} is in use, and these would continue there:\n  {}\nEnd them first (destroy, complete or release), \
         then export again",
        busy.join("\n  ")
    )))
}

async fn import(engine: &Engine, file: &Path, json: bool) -> Result<String, CommandError> {
    let unreadable = |problem: String| CommandError::Other(format!("{} cannot be imported: {problem}", file.display()));
    let text = files::read_text(file, files::EXPORT, Pipes::Allowed).map_err(|error| unreadable(error.to_string()))?;
    let contents: Contents = serde_json::from_str(&text).map_err(|error| {
        // The error quotes the file.
        unreadable(format!("it is not a store export: {}", OneLine::from(error.to_string())))
    })?;
    let wrong = contents.violations();
    if !wrong.is_empty() {
        let lines: String = wrong.iter().map(|line| format!("\n  {line}")).collect();
        return Err(unreadable(format!("it is not in order:{lines}")));
    }
    movable(&contents, &file.display().to_string())?;
    let store = engine.store();
    store.fill(&contents).await?;
    let (machines, past) = (contents.locks.len(), contents.history.len());
    Ok(if json {
        pretty(&json!({ "store": store.address(), "id": contents.store_id, "machines": machines, "history": past }))
    } else {
        format!(
            "{} now contains the export: {machines} machines, {past} maintenances in the history. Set \
             coordination_url to it everywhere, and do not use the old store any more\n",
            store.address()
        )
    })
}

/// Rejects a command that reads a store which does not exist yet.
pub(super) fn refuse_missing(common: &GlobalArgs, environment: &Environment) -> Result<(), CommandError> {
    let missing = settings::missing_store(common.coordination_url.as_deref(), environment)?;
    missing.map_or(Ok(()), |store| Err(CommandError::NoStore(store.address)))
}
