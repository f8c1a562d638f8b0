//! `store migrate`.

use serde_json::json;

use crate::{
    engine::Engine,
    maintenance::queue::shown_time,
    store::{AliveProcess, Usage, VERSION},
};

use super::{
    commands::{CommandError, pretty},
    shape,
};

pub(super) async fn run(engine: &Engine, although_older: bool, json: bool) -> Result<String, CommandError> {
    let usage = engine.store_usage().await?;
    let mut text = shown(&usage, &engine.store().address());
    if usage.schema >= usage.newest {
        let migrations = engine.migrations().await?;
        if json {
            return Ok(pretty(&json!({ "usage": usage, "migrated": null, "migrations": shape::events(&migrations) })));
        }
        text.push_str("Nothing to migrate.\n");
        for line in &migrations {
            text.push_str(&format!("  {}  {} by {}: {}\n", shown_time(line.at), line.what, line.by, line.detail));
        }
        return Ok(text);
    }
    if usage.too_old().next().is_some() && !although_older {
        let lines: Vec<String> = usage.too_old().map(line).collect();
        return Err(CommandError::Other(format!(
            "{} is in use by provider versions that cannot read schema {}:\n{}\nAfter a migration they could no longer release \
             their servers. Nothing was changed. Wait until they end, or repeat with \
             --even-though-older-versions-are-alive",
            engine.store().address(),
            usage.newest,
            lines.join("\n")
        )));
    }
    let active = engine.active_maintenances().await?;
    let migrated = engine.migrate_store(&usage).await?;
    if json {
        return Ok(pretty(&json!({ "usage": usage, "migrated": migrated, "active": active })));
    }
    text.push_str(&format!(
        "Migrated from schema {} to {}. Versions that do not know schema {} refuse this store from now on.\n",
        migrated.from, migrated.to, migrated.to
    ));
    if active > 0 {
        text.push_str(&format!(
            "{active} maintenances are active: their next run, also a destroy, needs such a version.\n"
        ));
    }
    Ok(text)
}

fn shown(usage: &Usage, address: &str) -> String {
    let mut text = format!(
        "{address} has schema {}; this provider version ({VERSION}) reads and writes up to schema {}.\n",
        usage.schema, usage.newest
    );
    if usage.alive.is_empty() {
        text.push_str("No process is alive on it.\n");
    } else {
        text.push_str("Alive on it:\n");
    }
    for process in &usage.alive {
        text.push_str(&line(process));
        text.push('\n');
    }
    text
}

fn line(process: &AliveProcess) -> String {
    let known = process.version.as_ref().zip(process.schema);
    let version = known.map_or("a version that does not tell its schema, as 0.1.0".to_owned(), |(version, schema)| {
        format!("version {version}, up to schema {schema}")
    });
    format!("  {}: {version}", process.by)
}
