//! `drive`: resumes an enqueued maintenance until its server is in maintenance.

use serde_json::json;

use crate::{
    engine::{Control, Engine},
    maintenance::{
        decide::Finish,
        ids::MaintenanceId,
        spec::WaitFor,
        state::{Ending, Phase},
    },
};

use super::commands::{CommandError, pretty};

/// Attaches to a maintenance and runs it.
pub(super) async fn run(
    engine: &Engine,
    id: &MaintenanceId,
    control: &Control,
    json: bool,
) -> Result<String, CommandError> {
    let record = engine.active(id).await?;
    let (server, until) = (record.server().to_owned(), WaitFor::InMaintenance);
    if let Phase::Releasing { .. } = record.phase {
        return Err(CommandError::Other(format!("{id} is releasing its server: use release {id}, or destroy it")));
    }
    let driven = engine.go_on(&record, until, control).await?;
    let state = driven.record.phase.name();
    if driven.finish == Finish::Over
        && let Some(why) = ended_early(&driven.record.phase, driven.record.spec.complete_when.is_some())
    {
        return Err(CommandError::Other(format!("{id} has ended and does not hold {server}: {why}")));
    }
    match driven.finish {
        Finish::Reached | Finish::Over => {
            if json {
                return Ok(pretty(&json!({
                    "id": id, "server": server, "state": state, "generation": driven.record.generation,
                })));
            }
            Ok(format!("{id} on {server}: {state}, generation {}\n", driven.record.generation))
        }
        Finish::Interrupted => {
            Err(CommandError::Other(format!("interrupted: {id} stays {state}; run the command again to resume")))
        }
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

/// Explains why a maintenance ended before its goal; `None` if its own `complete_when` was met.
fn ended_early(phase: &Phase, ends_by_itself: bool) -> Option<String> {
    match phase {
        Phase::Completed { ending: Ending::CompletedBy(_), .. } if ends_by_itself => None,
        Phase::Completed { ending, .. } => Some(ending.to_string()),
        Phase::Failed { cause, .. } => Some(cause.to_string()),
        phase => Some(phase.name().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_complete_when_is_a_good_end() {
        let at = jiff::Timestamp::UNIX_EPOCH;
        let completed = |ending| Phase::Completed { at, ending };
        let by = Ending::CompletedBy("power is Off".into());
        assert_eq!(ended_early(&completed(by.clone()), true), None);
        assert_eq!(ended_early(&completed(by), false).as_deref(), Some("completed by power is Off"));
        assert_eq!(ended_early(&completed(Ending::Expired), true).as_deref(), Some("expired"));
        let failed = Phase::Failed { at, cause: "no image".into() };
        assert_eq!(ended_early(&failed, true).as_deref(), Some("no image"));
    }
}
