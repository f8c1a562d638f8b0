//! A change that a BMC answers with 202 is carried out by a task. It is watched for as long as the change may take anyway,
//! so that a refusal comes with the task's own words; what it does afterwards shows in what the machine is.

use std::time::Duration;

use serde_json::Value;

use crate::backend::BackendError;

use super::{answer::Answer, bmc::Bmc, message};

/// How long a task is watched, within the time limit of the change that began it.
const WATCHED: Duration = Duration::from_secs(4);
/// The pause before the first look; each next one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// How a task stands. `TaskState` of DSP2046.
enum Task {
    Running,
    Completed,
    /// It ended otherwise; its state and messages.
    Ended(String, bool),
}

fn standing(task: &Value) -> Task {
    let (Some(state), messages) = (task["TaskState"].as_str(), &task["Messages"]) else { return Task::Completed };
    match state {
        "Completed" => Task::Completed,
        "Exception" | "Killed" | "Cancelled" | "Interrupted" => {
            let error = serde_json::json!({ "error": { "@Message.ExtendedInfo": messages } });
            let (words, _) = message::read(&error);
            Task::Ended(format!("task {state}: {words}"), message::says_not_applied(&error))
        }
        _ => Task::Running,
    }
}

impl Bmc {
    /// Watches the task that carries a change out. `Ok` when it completed, still runs, or is not to be found any more: BMCs
    /// forget finished tasks.
    pub(super) async fn watch(&self, request: &str, begun: &Answer) -> Result<(), BackendError> {
        let Some(path) = begun.monitor.as_deref().and_then(|monitor| self.own_path(monitor)) else { return Ok(()) };
        let limit = WATCHED.min(self.limits.change / 2);
        let (mut waited, mut pause) = (Duration::ZERO, FIRST_PAUSE.min(limit / 2));
        while waited < limit {
            self.clock.sleep(pause).await;
            waited += pause;
            pause *= 2;
            let Ok(task) = self.get_once(&path).await else { return Ok(()) };
            match standing(&task.body) {
                Task::Running => {}
                Task::Completed => return Ok(()),
                Task::Ended(message, true) => {
                    return Err(BackendError::Rejected {
                        address: self.address(),
                        request: request.to_owned(),
                        status: 202,
                        message,
                        retry_after: None,
                        transient: true,
                    });
                }
                // It began: only the machine can tell how far it came.
                Task::Ended(answer, false) => {
                    return Err(BackendError::OutcomeUnknown {
                        address: self.address(),
                        request: request.to_owned(),
                        answer,
                    });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_task_that_failed_speaks_for_itself() {
        assert!(matches!(standing(&json!({"TaskState": "Running"})), Task::Running));
        assert!(matches!(standing(&json!({"TaskState": "Completed"})), Task::Completed));
        // A finished monitor answers with what the change answers.
        assert!(matches!(standing(&Value::Null), Task::Completed));
        let refused = json!({"TaskState": "Exception", "Messages": [
            {"MessageId": "Base.1.12.ResourceInUse", "Message": "In use"}
        ]});
        let Task::Ended(words, not_applied) = standing(&refused) else { panic!("it ended") };
        assert!(words.contains("In use") && not_applied, "{words}");
        let Task::Ended(_, not_applied) = standing(&json!({"TaskState": "Killed"})) else { panic!("it ended") };
        assert!(!not_applied);
    }
}
