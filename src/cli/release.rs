//! `release`: ends a maintenance in agreement with its holder, or by force.

use clap::Args;
use tokio_util::sync::CancellationToken;

use crate::{
    engine::{Control, Engine, EngineError},
    maintenance::{
        ids::{Generation, MaintenanceId},
        lock::Refusal,
        state::Ending,
    },
};

use super::{
    commands::{CommandError, control, duration, ended, parse},
    prune, restrictions,
};

/// The audit log's default reason when a performed operation is released.
const FORGOTTEN: &str = "record removed, to run the operation again";

#[derive(Args, Debug)]
pub(super) struct ReleaseArgs {
    /// NAMESPACE/NAME
    pub(super) id: String,
    /// Release the server whatever its holder does
    #[arg(long, requires = "generation", requires = "reason")]
    pub(super) force: bool,
    /// The generation from `show`: a maintenance that has changed since is not released
    #[arg(long, requires = "force")]
    generation: Option<Generation>,
    /// The reason; kept in the audit log and shown to the holder
    #[arg(long)]
    pub(super) reason: Option<String>,
    /// Act for another owner than --owner: the maintenance's owner
    #[arg(long, value_name = "OWNER", requires = "reason", conflicts_with = "allow")]
    pub(super) as_owner: Option<String>,
    /// Block the server for every maintenance for this long, for example 4h
    #[arg(long, value_name = "DURATION", requires = "force")]
    block: Option<String>,
    /// Release nothing: allow a released name again, and end the block that came with its release
    #[arg(long, conflicts_with_all = ["force", "reason"])]
    pub(super) allow: bool,
    /// Restore nothing: accept the server in its current state. For a server that cannot be
    /// restored or was removed. External requests are withdrawn immediately: a Machine of Cluster
    /// API loses its label, and the maintenance controller can uncordon its Node
    #[arg(long, requires = "force")]
    pub(super) accept_as_is: bool,
    /// Time limit for the release
    #[arg(long, default_value = "30m")]
    timeout: String,
}

/// Runs the command.
pub(super) async fn run(
    engine: &Engine,
    arguments: ReleaseArgs,
    json: bool,
    stop: CancellationToken,
) -> Result<String, CommandError> {
    let ReleaseArgs { id, generation, reason, as_owner, block, allow, accept_as_is, timeout, .. } = arguments;
    let id = parse(&id)?;
    if allow {
        return restrictions::allow(engine, &id, json).await;
    }
    if reason.as_ref().is_some_and(|reason| reason.trim().is_empty()) {
        return Err(CommandError::Other("--reason must not be empty: the holder will read it".to_owned()));
    }
    let block = block.as_deref().map(duration).transpose()?;
    let control = control(&timeout, stop)?;
    let Some(generation) = generation else {
        return agreed(engine, &id, reason, as_owner, json, &control).await;
    };
    let reason = with_owner(reason.unwrap_or_default(), as_owner);
    if accept_as_is {
        let (record, request) = engine.release_without_restore(&id, generation, &reason, block, &control).await?;
        return Ok(prune::accepted(&record, request.as_ref(), json));
    }
    if engine.active(&id).await.is_ok() {
        restrictions::restorable(engine, &id).await?;
    }
    let driven = Box::pin(engine.force_release(&id, generation, &reason, block, &control)).await?;
    ended(engine, &driven, json).await
}

/// Releases a server that no process drives.
async fn agreed(
    engine: &Engine,
    id: &MaintenanceId,
    reason: Option<String>,
    as_owner: Option<String>,
    json: bool,
    control: &Control,
) -> Result<String, CommandError> {
    let record = restrictions::restorable(engine, id).await?;
    if record.is_made() {
        // Its record locks nothing; it can run again without it.
        let reason = with_owner(reason.unwrap_or_else(|| FORGOTTEN.to_owned()), as_owner);
        let driven = Box::pin(engine.force_release(id, record.generation, &reason, None, control)).await?;
        return ended(engine, &driven, json).await;
    }
    let by = match (as_owner, reason) {
        (Some(owner), Some(reason)) => format!("{} as owner {owner:?} ({reason:?})", engine.runner()),
        (_, Some(reason)) => format!("{} ({reason:?})", engine.runner()),
        _ => engine.runner().to_string(),
    };
    match engine.release(&record.uid, record.server(), Ending::CompletedBy(by.into()), control).await {
        Ok(Some(driven)) => ended(engine, &driven, json).await,
        Ok(None) => Err(CommandError::Other(format!("{id} has already ended"))),
        Err(EngineError::Refused(Refusal::InUse { by, .. })) => {
            Err(CommandError::Attended { id: id.clone(), by: by.to_string(), generation: record.generation })
        }
        Err(error) => Err(error.into()),
    }
}

/// Adds the owner for whom a person acts.
fn with_owner(reason: String, as_owner: Option<String>) -> String {
    match as_owner {
        Some(owner) => format!("{reason} (as owner {owner:?})"),
        None => reason,
    }
}
