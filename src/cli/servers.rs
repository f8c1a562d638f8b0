//! `server rebind`, `server history`, and the check of a server's name.

use serde_json::json;

use crate::{
    engine::{Engine, EngineError, Rebound},
    maintenance::{ids::LockKey, lock::Refusal, rebind::audit_id},
};

use super::{
    ServerCommand,
    commands::{CommandError, pretty},
    shape,
    show::history,
};

/// Printed lines of a lock's history.
const LINES: usize = 100;

pub(super) async fn run(engine: &Engine, command: ServerCommand, json: bool) -> Result<String, CommandError> {
    match command {
        ServerCommand::Rebind { identifiers, key, shared: _, reason } => {
            if reason.trim().is_empty() {
                return Err(CommandError::Other("--reason must not be empty: the audit log records it".to_owned()));
            }
            match engine.rebind(&identifiers, key.as_deref(), &reason).await {
                Ok(rebound) => Ok(shown(&rebound, json)),
                Err(EngineError::Refused(refusal @ Refusal::LockInUse { .. })) => Err(CommandError::Other(format!(
                    "{refusal}. Nothing was moved. End it first (destroy, complete or release), then run the command again"
                ))),
                Err(error) => Err(error.into()),
            }
        }
        ServerCommand::History { key } => {
            let lines = match audit_id(&LockKey::new(key.clone())) {
                Some(id) => engine.store().audit(&id, LINES).await?,
                None => Vec::new(),
            };
            if json {
                return Ok(pretty(&json!({ "lock_key": key, "audit": shape::events(&lines) })));
            }
            if lines.is_empty() {
                return Ok(format!("No identifier of {key} was ever moved.\n"));
            }
            Ok(lines.iter().map(history).collect())
        }
    }
}

/// Rejects a server that never had a record in the store.
pub(super) async fn refuse_unknown(engine: &Engine, server: &str) -> Result<(), CommandError> {
    if engine.is_known(server).await? {
        return Ok(());
    }
    let (store, owner) = (engine.store().address(), engine.owner().to_owned());
    Err(CommandError::UnknownServer { store, server: server.to_owned(), owner })
}

fn shown(rebound: &Rebound, json: bool) -> String {
    if json {
        let moved: Vec<_> =
            rebound.moved.iter().map(|(alias, from)| json!({ "identifier": alias, "from": from })).collect();
        return pretty(&json!({ "moved": moved, "to": rebound.to }));
    }
    if rebound.moved.is_empty() {
        return "Nothing to move.\n".to_owned();
    }
    let to = rebound.to.as_ref().map_or_else(|| "no lock: several servers share it".to_owned(), ToString::to_string);
    rebound.moved.iter().map(|(alias, from)| format!("{alias}: {from} -> {to}\n")).collect()
}
