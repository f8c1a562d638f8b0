//! Restrictions after a forced release, and how to remove them.

use serde_json::json;

use crate::{
    engine::{Engine, EngineError, Forbidden},
    maintenance::{
        ids::{Generation, MaintenanceId},
        queue::shown_time,
        restrictions::Restrictions,
        state::Maintenance,
    },
};

use super::{
    commands::{CommandError, pretty},
    shape,
};

/// The audit log's default reason when a performed operation is released.
const FORGOTTEN: &str = "record removed, to run the operation again";
/// Requirements of every other release.
const NEEDED: &str = "a release requires --reason and --generation, which show prints. Only an operation that has \
                      run does not require them, because it does not lock a server";

/// Returns a release's generation and reason. Both are optional for a performed operation, because
/// its record locks nothing.
pub(super) async fn stated(
    engine: &Engine,
    id: &MaintenanceId,
    generation: Option<Generation>,
    reason: Option<String>,
    as_owner: bool,
) -> Result<(Generation, String), CommandError> {
    if reason.as_ref().is_some_and(|reason| reason.trim().is_empty()) {
        return Err(CommandError::Other("--reason must not be empty: the holder will read it".to_owned()));
    }
    if let (Some(generation), Some(reason)) = (generation, &reason) {
        return Ok((generation, reason.clone()));
    }
    let made = match engine.active(id).await {
        Ok(record) => Some(record).filter(Maintenance::is_made),
        Err(EngineError::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let Some(record) = made else { return Err(CommandError::Other(NEEDED.to_owned())) };
    if as_owner && reason.is_none() {
        return Err(CommandError::Other("--as-owner needs --reason: the owner will read it".to_owned()));
    }
    Ok((generation.unwrap_or(record.generation), reason.unwrap_or_else(|| FORGOTTEN.to_owned())))
}

/// Reads an active maintenance. Rejects one whose system or server is not configured here, before
/// anything is recorded: it could not be restored. A direct handover restores nothing.
pub(super) async fn restorable(engine: &Engine, id: &MaintenanceId) -> Result<Maintenance, CommandError> {
    let record = engine.active(id).await?;
    let restored = record.admitted_at.is_some() && !record.is_made() && engine.successor(&record).await.is_none();
    if restored {
        if let Err(error @ EngineError::Refused(_)) = engine.reaches(&record).await {
            return Err(error.into());
        }
        engine.machine(record.server())?;
    }
    Ok(record)
}

/// Allows a released name again.
pub(super) async fn allow(engine: &Engine, id: &MaintenanceId, json: bool) -> Result<String, CommandError> {
    let allowed = engine.allow(id).await?;
    if allowed.is_empty() {
        return Err(CommandError::Other(format!("{id} is not refused, and its release did not set a block")));
    }
    if json {
        let released: Vec<_> = allowed.released.iter().map(|one| shape::pick(one, shape::RELEASED)).collect();
        let block = shape::block(allowed.block.as_ref());
        return Ok(pretty(&json!({ "id": id, "allowed": released, "unblocked": block })));
    }
    let Restrictions { block, released } = allowed;
    let mut text = String::new();
    for released in released {
        text.push_str(&format!("{id} is allowed again: {released}\n"));
    }
    if let Some(block) = block {
        text.push_str(&format!("The block of {} has ended; it was {block}\n", block.server));
    }
    Ok(text)
}

/// Returns the rows in `show` for a released name.
pub(super) fn rows(forbidden: &Forbidden) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if let Some(released) = &forbidden.released {
        let until = "until triggers or the name change, or release --allow";
        rows.push(("refused", format!("stays refused {until}: {released}")));
    }
    if let Some(block) = &forbidden.block {
        rows.push(("block", format!("{block}, since {}", shown_time(block.since))));
    }
    rows
}
