//! `drive`: goes on with a maintenance that was enqueued, until it is in maintenance.

use serde_json::json;

use crate::{
    engine::{Control, Engine},
    maintenance::{decide::Finish, ids::MaintenanceId, spec::WaitFor, state::Phase},
};

use super::commands::{CommandError, pretty};

/// Attaches to a maintenance and goes on with it.
pub(super) async fn run(
    engine: &Engine,
    id: &MaintenanceId,
    control: &Control,
    json: bool,
) -> Result<String, CommandError> {
    let record = engine.active(id).await?;
    let (server, until) = (record.server().to_owned(), WaitFor::InMaintenance);
    if let Phase::Releasing { .. } = record.phase {
        return Err(CommandError::Other(format!("{id} is being released: use complete {id}, or destroy it")));
    }
    let driven = engine.go_on(&record, until, control).await?;
    let state = driven.record.phase.name();
    match driven.finish {
        Finish::Reached | Finish::Over => {
            if json {
                return Ok(pretty(&json!({
                    "id": id, "server": server, "state": state, "generation": driven.record.generation,
                })));
            }
            Ok(format!("{id} on {server}: {state}, generation {}\n", driven.record.generation))
        }
        Finish::Interrupted => Err(CommandError::Other(format!(
            "interrupted: {id} is {state} and stays so; run the command again to resume"
        ))),
        Finish::TimedOut(cause) => Err(CommandError::Other(format!(
            "{id} is still {state}: {cause}. Its queue position stays reserved; run the command again to resume"
        ))),
        Finish::Refused(cause) | Finish::Stuck(cause) | Finish::NotUpdated { cause, .. } => {
            Err(CommandError::Other(format!("{id} is {state} on {server}: {cause}")))
        }
        Finish::Withdrawn => Err(CommandError::Other(format!("{id} left the queue; {server} was not changed"))),
        Finish::Lost => Err(CommandError::Other(format!("another process took over {id}"))),
    }
}
