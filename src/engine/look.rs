//! Reads maintenances without driving them.

use std::sync::PoisonError;

use jiff::Timestamp;

use crate::{
    backend::BackendError,
    maintenance::{
        hand_over,
        ids::{LockKey, MaintenanceId, Runner, Uid},
        machine::MachineView,
        prepare::Facts,
        queue::{self, Turn},
        report::{self, QueueRow},
        restore,
        spec::Spec,
        state::{Maintenance, Phase},
    },
    store::{LockView, RecordLookup, StoreError},
};

use super::{
    Engine, EngineError,
    liveness::liveness,
    location::{is_deleted, unreached},
};

/// A record with its queue position.
#[derive(Clone, Debug)]
pub struct MaintenanceStatus {
    /// The record, active or ended.
    pub record: Maintenance,
    /// True if it is active.
    pub active: bool,
    /// Why it waits, if it does.
    pub waiting_for: Option<String>,
    /// Number of waiters ahead of it, if it waits.
    pub ahead: Option<usize>,
    /// The store's time.
    pub now: Timestamp,
}

/// A record with its machine's state.
#[derive(Debug)]
pub struct Observation {
    /// The record.
    pub held: MaintenanceStatus,
    /// The machine's state, or the read error.
    pub machine: Result<MachineView, BackendError>,
    /// Why the server's own maintenance system no longer grants the server, if observed.
    pub taken_away: Option<String>,
    /// Why the external system ends the server's use after the release, in a sentence.
    pub deletion: Option<String>,
    /// Why the maintenance no longer has its Node's Lease.
    pub node_lost: Option<String>,
    /// Why its drained Node can receive Pods again, if observed.
    pub drain_lost: Option<String>,
    /// Why its Node or that Node's Lease was not read. Reported once per run, because all Nodes
    /// share a cluster.
    pub node_unseen: Option<String>,
}

impl Engine {
    /// Returns a record by its UID; `None` if the store does not contain it.
    pub async fn held(&self, uid: &Uid) -> Result<Option<MaintenanceStatus>, EngineError> {
        match self.store().find_uid(uid).await? {
            Some(found) => Ok(Some(self.describe(found).await?)),
            None => Ok(None),
        }
    }

    /// Returns a record by its name; `None` if the store does not contain it.
    pub async fn held_by_name(&self, id: &MaintenanceId) -> Result<Option<MaintenanceStatus>, EngineError> {
        match self.store().find(id).await? {
            Some(found) => Ok(Some(self.describe(found).await?)),
            None => Ok(None),
        }
    }

    async fn describe(&self, found: RecordLookup) -> Result<MaintenanceStatus, EngineError> {
        let active = matches!(found, RecordLookup::Active(_));
        let record = found.record().clone();
        if !active || !matches!(record.phase, Phase::Pending) {
            return Ok(MaintenanceStatus {
                record,
                active,
                waiting_for: None,
                ahead: None,
                now: self.parts.clock.now(),
            });
        }
        let view = self.store().view(&record.lock_key).await?;
        let turn = queue::turn_in(&view.queue, &view.lock, &view.leases, &record.uid, self.tuning().aging, view.now);
        let (waiting_for, ahead) = match turn {
            Turn::Yours => (Some("an attached process: apply again".to_owned()), Some(0)),
            Turn::ReclaimOverdue(_) => (Some("an overdue hold that the next process releases".to_owned()), Some(1)),
            Turn::Wait { reason, .. } => {
                let ahead = match &reason {
                    queue::WaitReason::Turn { ahead } => ahead.len(),
                    _ => 1,
                };
                (Some(reason.to_string()), Some(ahead))
            }
        };
        Ok(MaintenanceStatus { record, active, waiting_for, ahead, now: view.now })
    }

    /// Returns the waiter that receives the server unrestored if the maintenance ends now.
    pub async fn successor(&self, record: &Maintenance) -> Option<MaintenanceId> {
        if record.spec.hand_over.is_restore() {
            return None;
        }
        let view = self.store().view(&record.lock_key).await.ok()?;
        let holder = view.lock.get(&record.uid)?;
        let next = hand_over::successor(&view.lock, &view.leases, holder, self.tuning().aging, view.now);
        next.map(|next| next.id.clone())
    }

    /// Returns the active record with this name on any server. One plan reads the store once.
    pub async fn planned_record(&self, id: &MaintenanceId) -> Result<Option<Maintenance>, EngineError> {
        let views = self.snapshot.all(&self.parts.store, &self.parts.clock).await?;
        let mut active = views.values().flat_map(|view| &view.lock.active);
        Ok(active.find(|record| record.id == *id).map(|record| (**record).clone()))
    }

    /// Returns the reason if a request with this name would be rejected: another server or request
    /// uses the name.
    ///
    /// Records that this run's states manage are excluded, because they are released first.
    pub async fn name_conflict(&self, id: &MaintenanceId, spec: &Spec, key: Option<&LockKey>) -> Option<EngineError> {
        let refused = |record: &Maintenance| -> Option<EngineError> {
            if self.manages(&record.uid) {
                return None;
            }
            let elsewhere = key.map_or(record.spec.server != spec.server, |key| record.lock_key != *key);
            if let Some(refusal) = record.refuses_owner(self.owner()) {
                return Some(refusal.into());
            }
            if elsewhere && self.waited_elsewhere(record, spec) {
                return None;
            }
            if elsewhere {
                return Some(StoreError::NameTaken { id: id.clone(), key: record.lock_key.clone() }.into());
            }
            record.refuses_request(self.owner(), &self.as_asked_here(spec)).map(Into::into)
        };
        refused(&self.planned_record(id).await.ok()??)?;
        // Read again: during an apply, the replaced record can have ended.
        refused(&self.active(id).await.ok()?)
    }

    /// Returns all holders and waiters, by server, with one store read.
    pub async fn queue(&self) -> Result<Vec<QueueRow>, EngineError> {
        let views = self.store().view_all().await?;
        let mut servers: Vec<Vec<QueueRow>> = views.iter().map(|view| self.lines(view)).collect();
        servers.sort_by_cached_key(|rows| rows.first().map(QueueRow::natural_order));
        Ok(servers.into_iter().flatten().collect())
    }

    /// Returns one lock's rows. Looks for each process on this machine, so that a killed process
    /// shows before its lease ends.
    pub(super) fn lines(&self, view: &LockView) -> Vec<QueueRow> {
        let of_process = |runner: &Runner| liveness(&runner.process);
        report::lines(&view.lock, &view.leases, self.tuning().aging, view.now, &of_process)
    }

    /// Returns one server's rows. One plan reads the store once.
    pub async fn queue_of(&self, server: &str) -> Result<Vec<QueueRow>, EngineError> {
        let views = self.snapshot.all(&self.parts.store, &self.parts.clock).await?;
        let is_blocked = |view: &LockView| view.lock.block(view.now).is_some_and(|block| block.server == server);
        let asks = |view: &LockView| view.lock.active.iter().any(|record| record.server() == server);
        let mut about: Vec<_> = views.values().filter(|view| asks(view) || is_blocked(view)).collect();
        about.sort_by_key(|view| &view.lock.key);
        let lines = about.iter().flat_map(|view| self.lines(view));
        Ok(lines.filter(|line| line.server == server).collect())
    }

    /// Reads the facts that a release needs. Unread facts are missing, and the error is their
    /// cause.
    pub async fn release_facts(&self, record: &Maintenance) -> (Facts, Option<BackendError>) {
        let mut facts = Facts::default();
        let read = async {
            self.reaches(record).await.map_err(unreached)?;
            let machine = self.machine_of(record).or_else(|_| self.machine(record.server())).map_err(unreached)?;
            facts.machine = Some(machine.observe().await?);
            facts.capabilities = Some(machine.capabilities().await?);
            if let Some(prior) = record.prior.as_ref().filter(|_| restore::compares_drives(record)) {
                facts.media = Some(machine.media(&prior.media).await?);
            }
            Ok::<(), BackendError>(())
        };
        let error = read.await.err();
        (facts, error)
    }

    /// Reads a record and, while it is the holder, its machine.
    pub async fn seen(&self, server: &str, held: MaintenanceStatus) -> Observation {
        if let Err(error) = self.reaches(&held.record).await {
            return Observation {
                taken_away: missing(&held.record, &error),
                held,
                machine: Err(unreached(error)),
                deletion: None,
                node_lost: None,
                drain_lost: None,
                node_unseen: None,
            };
        }
        let machine = match self.parts.backend.machine(server) {
            Ok(plain) => match self.machine_of(&held.record) {
                Ok(machine) => machine.observe().await,
                Err(_) => plain.observe().await,
            },
            Err(error) => Err(error),
        };
        let gates = self.gates_seen(&held.record).await;
        let (mut node_lost, mut drain_lost, mut node_unseen) = (None, None, None);
        if held.active {
            let of_lease = self.node_lost(&held.record).await;
            let of_drain = self.drain_lost(&held.record).await;
            for (looked, lost, block) in
                [(of_lease, &mut node_lost, "node_leases"), (of_drain, &mut drain_lost, "kubernetes_node")]
            {
                match looked {
                    Ok(why) => *lost = why,
                    Err(error) if self.unseen.lock().unwrap_or_else(PoisonError::into_inner).insert(block) => {
                        node_unseen = Some(error.to_string());
                    }
                    Err(error) => tracing::debug!(%error, "{server}: its Node was not checked"),
                }
            }
        }
        let (taken_away, deletion) = (gates.revoked, gates.deletion);
        Observation { held, machine, taken_away, deletion, node_lost, drain_lost, node_unseen }
    }
}

/// Returns the reason if the external system answers and no longer has the granted server. Without
/// an answer, nothing is lost.
fn missing(record: &Maintenance, error: &EngineError) -> Option<String> {
    let entered = record.gates.iter().find(|gate| gate.entered && !gate.left)?;
    if is_deleted(record, error) {
        return Some(format!("{} was deleted from {}: {error}", record.server(), entered.system.name));
    }
    matches!(error, EngineError::Machine(BackendError::Missing { .. })).then(|| error.to_string())
}
