//! Tasks that perform changes which a BMC answered with 202.
//!
//! The call watches its task within the change's time limit, so that a failure includes the task's
//! message. A task that continues is checked again, until it ends, whenever the engine waits for
//! its effect.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use serde_json::Value;

use crate::backend::BackendError;

use super::{answer::RedfishResponse, bmc::Bmc, message};

/// How long a task is watched, within its change's time limit.
const WATCHED: Duration = Duration::from_secs(4);
/// The pause before the first check; each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// A task that outlived its call.
#[derive(Clone, Debug)]
struct TaskMonitor {
    changed: String,
    request: String,
    monitor: String,
}

/// The tasks that were still running at the last check.
#[derive(Debug, Default)]
pub(super) struct Tasks(Mutex<Vec<TaskMonitor>>);

impl Tasks {
    /// Discards a resource's earlier task: its outcome is visible or no longer matters.
    pub(super) fn forget(&self, changed: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|task| task.changed != changed);
    }

    fn keep(&self, task: TaskMonitor) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    fn of(&self, is_asked_for: impl Fn(&str) -> bool) -> Vec<TaskMonitor> {
        let tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.iter().filter(|task| is_asked_for(&task.changed)).cloned().collect()
    }
}

/// A task's progress, from DSP2046's `TaskState`.
enum Task {
    Running,
    Completed,
    /// The task failed, with state and messages. The flag is true if nothing was changed.
    Ended(String, bool),
}

fn standing(task: &Value) -> Task {
    let (Some(state), messages) = (task["TaskState"].as_str(), &task["Messages"]) else { return Task::Completed };
    let critical = task["TaskStatus"] == "Critical";
    match state {
        "Completed" if !critical => Task::Completed,
        "Completed" | "Exception" | "Killed" | "Cancelled" | "Interrupted" => {
            let error = serde_json::json!({ "error": { "@Message.ExtendedInfo": messages } });
            let (words, _) = message::read(&error);
            Task::Ended(format!("task {state}: {words}"), message::says_not_applied(&error))
        }
        _ => Task::Running,
    }
}

/// Interprets an answer from a task or its monitor. A failed task's monitor returns the change's
/// own error (DSP0266, "Asynchronous operations").
fn read_standing(read: Result<RedfishResponse, BackendError>) -> Result<Task, BackendError> {
    match read {
        Ok(answer) => Ok(standing(&answer.body)),
        Err(BackendError::Rejected { status: 400 | 409 | 412 | 422, message, .. }) => {
            Ok(Task::Ended(message.into_raw(), false))
        }
        Err(error) => Err(error),
    }
}

impl Bmc {
    /// Watches a change's task. `Ok` if it completed, is still running, or no longer exists: BMCs
    /// delete finished tasks.
    pub(super) async fn watch(&self, request: &str, begun: &RedfishResponse) -> Result<(), BackendError> {
        let Some(path) = begun.monitor.as_deref().and_then(|monitor| self.own_path(monitor)) else { return Ok(()) };
        let limit = WATCHED.min(self.limits.change / 2);
        let (mut waited, mut pause) = (Duration::ZERO, FIRST_PAUSE.min(limit / 2));
        while waited < limit {
            self.clock.sleep(pause).await;
            waited += pause;
            pause *= 2;
            let Ok(task) = read_standing(self.get_once(&path).await) else { return Ok(()) };
            match task {
                Task::Running => {}
                Task::Completed => return Ok(()),
                Task::Ended(message, not_applied) => {
                    return Err(self.ended(request.to_owned(), message, not_applied));
                }
            }
        }
        let changed = request.split_once(' ').map_or(request, |(_, path)| path).to_owned();
        self.tasks.keep(TaskMonitor { changed, request: request.to_owned(), monitor: path });
        Ok(())
    }

    /// Returns the error for a change whose task did not complete.
    fn ended(&self, request: String, message: String, nothing_changed: bool) -> BackendError {
        BackendError::TaskFailed {
            address: self.address().into(),
            request: request.into(),
            message: message.into(),
            nothing_changed,
        }
    }

    /// Checks once the continuing tasks of the selected resources, and returns, once, the error of
    /// a task that has ended. Then the outcome is final. A deleted monitor is not an error.
    pub(super) async fn late_answer(&self, is_asked_for: impl Fn(&str) -> bool + Send) -> Option<BackendError> {
        for task in self.tasks.of(is_asked_for) {
            let standing = match read_standing(self.get_once(&task.monitor).await) {
                Ok(standing) => standing,
                Err(error) if error.is_transient() => Task::Running,
                Err(_) => Task::Completed,
            };
            if matches!(standing, Task::Running) {
                continue;
            }
            self.tasks.forget(&task.changed);
            if let Task::Ended(message, not_applied) = standing {
                return Some(self.ended(task.request, message, not_applied));
            }
        }
        None
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
        // A finished monitor returns the change's answer.
        assert!(matches!(standing(&Value::Null), Task::Completed));
        let refused = json!({"TaskState": "Exception", "Messages": [
            {"MessageId": "Base.1.12.ResourceInUse", "Message": "In use"}
        ]});
        let Task::Ended(words, not_applied) = standing(&refused) else { panic!("it ended") };
        assert!(words.contains("In use") && not_applied, "{words}");
        let Task::Ended(_, not_applied) = standing(&json!({"TaskState": "Killed"})) else { panic!("it ended") };
        assert!(!not_applied);
        let critical = json!({"TaskState": "Completed", "TaskStatus": "Critical", "Messages": [{"Message": "No fan"}]});
        assert!(matches!(standing(&critical), Task::Ended(words, _) if words.contains("No fan")));
        let rejected = |status| BackendError::Rejected {
            address: "bmc".into(),
            request: "GET monitor".into(),
            status,
            message: "No fan".into(),
            retry_after: None,
            transient: true,
        };
        assert!(matches!(read_standing(Err(rejected(409))), Ok(Task::Ended(words, false)) if words == "No fan"));
        assert!(read_standing(Err(rejected(503))).is_err(), "the BMC is busy");
    }

    #[test]
    fn a_failed_task_is_not_an_answer_to_the_request() {
        for nothing_changed in [false, true] {
            let error = BackendError::TaskFailed {
                address: "bmc".into(),
                request: "POST reset".into(),
                message: "task Exception: \"No fan\"".into(),
                nothing_changed,
            };
            let shown = error.to_string();
            assert_eq!(shown, "bmc: POST reset was accepted, but its task failed: task Exception: \"No fan\"");
            assert_eq!((error.outcome_unknown(), error.is_transient()), (!nothing_changed, true));
        }
    }
}
