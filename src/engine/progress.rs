//! Reports a drive's waits and actions to listeners, for hosts that show progress.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use uuid::Uuid;

use crate::maintenance::ids::MaintenanceId;

use super::Engine;

type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// One process's listeners.
#[derive(Default)]
pub(super) struct Listeners(Mutex<Vec<(Uuid, MaintenanceId, Tell)>>);

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listeners")
    }
}

impl Listeners {
    /// Sends a line to a maintenance's listeners.
    pub(super) fn tell(&self, id: &MaintenanceId, text: &str) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let those: Vec<Tell> = all.iter().filter(|(_, of, _)| of == id).map(|(_, _, tell)| Arc::clone(tell)).collect();
        drop(all);
        for tell in those {
            tell(text);
        }
    }
}

/// A listener, registered until this is dropped.
#[derive(Debug)]
pub struct Listening<'a> {
    engine: &'a Engine,
    number: Uuid,
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        let mut all = self.engine.listeners.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(number, ..)| *number != self.number);
    }
}

impl Engine {
    /// Passes on each logged line about a maintenance until the result is dropped.
    pub fn listen(&self, id: &MaintenanceId, tell: impl Fn(&str) + Send + Sync + 'static) -> Listening<'_> {
        let number = Uuid::new_v4();
        let mut all = self.listeners.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((number, id.clone(), Arc::new(tell)));
        Listening { engine: self, number }
    }
}
