//! Recovery after the coordination store was restored from a backup.

use crate::maintenance::{
    ids::{Generation, LockKey, MaintenanceId},
    machine::PowerState,
    shared::Shared,
    state::{Maintenance, Phase},
};

use super::{Engine, EngineError};

/// Added to the highest stored generation. More than any store can lose.
pub const RAISED_BY: Generation = 1_000_000;

/// A maintenance that now waits for an inspection.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ToInspect {
    /// Its name.
    pub id: MaintenanceId,
    /// The server's name.
    pub server: String,
    /// The server's lock.
    pub lock_key: LockKey,
    /// Its state in the store.
    pub state: &'static str,
    /// The recorded prior power state; it can be wrong.
    pub previous_power_state: Option<PowerState>,
}

/// Result of marking a store as restored.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Restored {
    /// Minimum generation of all locks.
    pub generation: Generation,
    /// Number of raised locks.
    pub locks: usize,
    /// Maintenances that wait for an inspection, by lock key.
    pub to_inspect: Vec<ToInspect>,
}

impl Engine {
    /// Marks the store as restored from a backup. Raises all generations past the stored
    /// generations and `seen`, which a state or log can show. Marks every maintenance for
    /// inspection. Can be repeated.
    pub async fn store_restored(&self, seen: Generation, reason: &str) -> Result<Restored, EngineError> {
        let locks = self.store().contents().await?.locks;
        let known = locks.iter().map(|lock| lock.generation).max().unwrap_or(0);
        let floor = known.max(seen).saturating_add(RAISED_BY);
        let by = self.runner().to_string();
        let mut to_inspect = Vec::new();
        for lock in &locks {
            let mut marked = Vec::new();
            self.store()
                .transact(&lock.key, &mut |lock, leases, now| {
                    lock.restored(floor, &by, reason, leases, now);
                    marked.clone_from(&lock.active);
                    Ok(())
                })
                .await?;
            to_inspect.extend(marked.into_iter().map(Shared::into_inner).map(|record| ToInspect {
                server: record.server().to_owned(),
                state: record.phase.name(),
                previous_power_state: record.prior.as_ref().map(|prior| prior.power),
                id: record.id,
                lock_key: record.lock_key,
            }));
        }
        Ok(Restored { generation: floor, locks: locks.len(), to_inspect })
    }

    /// Records that a person inspected a maintenance's server. Processes can act on it again.
    pub async fn inspected(&self, id: &MaintenanceId, reason: &str) -> Result<bool, EngineError> {
        let record = self.active(id).await?;
        let by = self.runner().to_string();
        let mut waited = false;
        self.store()
            .transact(&record.lock_key, &mut |lock, _, now| {
                waited = lock.inspected(&record.uid, &by, reason, now)?;
                Ok(())
            })
            .await?;
        Ok(waited)
    }

    /// Returns the reason if the store has lost data that a state contains. `generation` and `held`
    /// come from the state: its record's highest generation, and true if that record had the lock.
    pub async fn lost_since(
        &self,
        found: Option<&Maintenance>,
        key: Option<&LockKey>,
        generation: Generation,
        held: bool,
    ) -> Result<Option<String>, EngineError> {
        if let Some(record) = found {
            if record.generation < generation {
                let (id, theirs) = (&record.id, record.generation);
                return Ok(Some(format!(
                    "the state recorded generation {generation} of {id}, but the store has {theirs}"
                )));
            }
            let waits = matches!(record.phase, Phase::Pending);
            let lost = held && waits;
            return Ok(lost.then(|| {
                format!("the state recorded {} as the holder, but in the store it still waits in the queue", record.id)
            }));
        }
        if held {
            return Ok(Some("the state recorded a lock on the server, but the store does not contain it".to_owned()));
        }
        let Some(key) = key.filter(|_| generation > 0) else { return Ok(None) };
        let known = self.store().view(key).await?.lock.generation;
        let lost = known < generation;
        Ok(lost.then(|| format!("the state recorded generation {generation} of {key}, but the store has {known}")))
    }
}
