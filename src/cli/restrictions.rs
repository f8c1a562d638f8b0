//! What a release forbids, and how a person allows it again.

use serde_json::json;

use crate::{
    engine::{Engine, Forbidden},
    maintenance::{ids::MaintenanceId, queue::shown_time, restrictions::Restrictions},
};

use super::{
    commands::{CommandError, pretty},
    shape,
};

/// Lets a released name ask again.
pub(super) async fn allow(engine: &Engine, id: &MaintenanceId, json: bool) -> Result<String, CommandError> {
    let allowed = engine.allow(id).await?;
    if allowed.is_empty() {
        return Err(CommandError::Other(format!("{id} is not refused, and no block came with a release of it")));
    }
    if json {
        let released: Vec<_> = allowed.released.iter().map(|one| shape::pick(one, shape::RELEASED)).collect();
        let block = shape::block(allowed.block.as_ref());
        return Ok(pretty(&json!({ "id": id, "allowed": released, "unblocked": block })));
    }
    let Restrictions { block, released } = allowed;
    let mut text = String::new();
    for released in released {
        text.push_str(&format!("{id} may ask again: {released}\n"));
    }
    if let Some(block) = block {
        text.push_str(&format!("The block of {} has ended; it was {block}\n", block.server));
    }
    Ok(text)
}

/// What `show` tells of a name that a person released.
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
