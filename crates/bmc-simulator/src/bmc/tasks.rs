//! A BMC's tasks: resets that were answered with 202.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;

use crate::machine::Machine;
use crate::words::PowerState;

/// A task. It is done when its machine has reached the reset's power state.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) started: Timestamp,
    machine: Arc<Machine>,
    goal: PowerState,
}

impl Task {
    pub(crate) fn done(&self) -> bool {
        self.machine.lock().power == self.goal
    }
}

#[derive(Debug, Default)]
pub(crate) struct Tasks {
    tasks: Mutex<Vec<Task>>,
}

impl Tasks {
    pub(crate) fn start(&self, name: String, machine: &Arc<Machine>) -> u64 {
        let goal = machine.lock().goal;
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let id = tasks.last().map_or(1, |last| last.id + 1);
        tasks.push(Task { id, name, started: Timestamp::now(), machine: Arc::clone(machine), goal });
        id
    }

    pub(crate) fn list(&self) -> Vec<Task> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn find(&self, id: &str) -> Option<Task> {
        let id = id.parse::<u64>().ok()?;
        self.list().into_iter().find(|task| task.id == id)
    }
}
