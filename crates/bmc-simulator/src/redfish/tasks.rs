//! The task service, offered if resets are answered with 202.

use serde_json::{Value, json};

use super::reply::{collection, resource};
use super::systems::timestamp;
use super::{Message, Reply};
use crate::bmc::{Bmc, Task};

const TASKS: &str = "/redfish/v1/TaskService/Tasks";

/// Returns a task monitor's path: 202 while the task runs, then the action's answer.
pub(crate) fn monitor_path(id: u64) -> String {
    format!("/redfish/v1/TaskService/TaskMonitors/{id}")
}

pub(crate) fn service() -> Value {
    let mut service =
        resource("/redfish/v1/TaskService", "#TaskService.v1_2_1.TaskService", "TaskService", "Task Service");
    service["ServiceEnabled"] = true.into();
    service["Status"] = json!({ "State": "Enabled", "Health": "OK" });
    service["CompletedTaskOverWritePolicy"] = "Oldest".into();
    service["Tasks"] = json!({ "@odata.id": TASKS });
    service
}

pub(crate) fn list(bmc: &Bmc) -> Value {
    collection(
        TASKS,
        "#TaskCollection.TaskCollection",
        "Task Collection",
        bmc.tasks.list().iter().map(|task| format!("{TASKS}/{}", task.id)),
    )
}

fn show(task: &Task) -> Value {
    let id = task.id.to_string();
    let mut value = resource(&format!("{TASKS}/{id}"), "#Task.v1_7_3.Task", &id, &task.name);
    let done = task.done();
    value["TaskState"] = if done { "Completed" } else { "Running" }.into();
    value["TaskStatus"] = "OK".into();
    value["PercentComplete"] = if done { 100 } else { 50 }.into();
    value["StartTime"] = timestamp(task.started).into();
    if !done {
        value["TaskMonitor"] = monitor_path(task.id).into();
    }
    value
}

fn find(bmc: &Bmc, id: &str, path: &str) -> Result<Task, Box<Reply>> {
    bmc.tasks.find(id).ok_or_else(|| Box::new(Reply::error(404, &[Message::missing_resource(path)])))
}

pub(crate) fn read(bmc: &Bmc, id: &str, path: &str) -> Result<Value, Box<Reply>> {
    find(bmc, id, path).map(|task| show(&task))
}

pub(crate) fn monitor(bmc: &Bmc, id: &str, path: &str) -> Result<Reply, Box<Reply>> {
    let task = find(bmc, id, path)?;
    Ok(if task.done() { Reply::empty(204) } else { accepted(bmc, task.id) })
}

/// Returns a 202 answer with the task as its body.
pub(crate) fn accepted(bmc: &Bmc, id: u64) -> Reply {
    match bmc.tasks.find(&id.to_string()) {
        Some(task) => {
            let mut reply = Reply::resource(202, &show(&task), bmc.personality.http.etags);
            reply.set(hyper::header::RETRY_AFTER, "1");
            reply
        }
        None => Reply::empty(202),
    }
}
