//! Restrictions after a forced release, and how to remove them.

use serde_json::json;

use crate::{
    engine::{Engine, EngineError, Forbidden},
    maintenance::{ids::MaintenanceId, queue::shown_time, restrictions::Restrictions, state::Maintenance},
};

use super::{
    commands::{CommandError, pretty},
    shape,
};

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
