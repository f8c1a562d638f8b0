//! Reading: what a hold is now, without driving it.

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

/// A record as it stands, with its place where it has one.
#[derive(Clone, Debug)]
pub struct MaintenanceStatus {
    /// The record, active or over.
    pub record: Maintenance,
    /// Whether it is active.
    pub active: bool,
    /// Why it waits, while it does.
    pub waiting_for: Option<String>,
    /// How many are before it, while it waits.
    pub ahead: Option<usize>,
    /// The store's time.
    pub now: Timestamp,
}

/// What a record and its machine look like.
#[derive(Debug)]
pub struct Observation {
    /// The record.
    pub held: MaintenanceStatus,
    /// The machine, or why it could not be read.
    pub machine: Result<MachineView, BackendError>,
    /// Why the server's own maintenance system does not hold it for us any more, where that was
    /// seen.
    pub taken_away: Option<String>,
    /// Why the external system ends the use of the server after the release, in a sentence.
    pub deletion: Option<String>,
    /// Why the Lease of its Kubernetes Node, which came with the hold, is not ours any more.
    pub node_lost: Option<String>,
    /// Why its drained Node may get Pods again, where that was seen.
    pub drain_lost: Option<String>,
    /// Why its Node, or the Lease of that, was not looked at. Told for one server of a run only:
    /// the Nodes of all are in one cluster.
    pub node_unseen: Option<String>,
}

impl Engine {
    /// A record by its incarnation; `None` when this store does not know it.
    pub async fn held(&self, uid: &Uid) -> Result<Option<MaintenanceStatus>, EngineError> {
        match self.store().find_uid(uid).await? {
            Some(found) => Ok(Some(self.describe(found).await?)),
            None => Ok(None),
        }
    }

    /// A record by its name; `None` when this store does not know it.
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

    /// The waiter that takes the server as it is if the maintenance ends now.
    pub async fn successor(&self, record: &Maintenance) -> Option<MaintenanceId> {
        if record.spec.hand_over.is_restore() {
            return None;
        }
        let view = self.store().view(&record.lock_key).await.ok()?;
        let holder = view.lock.get(&record.uid)?;
        let next = hand_over::successor(&view.lock, &view.leases, holder, self.tuning().aging, view.now);
        next.map(|next| next.id.clone())
    }

    /// The active record of a name, whichever server it is of. All that one plan asks is read in
    /// one look at the store.
    pub async fn planned_record(&self, id: &MaintenanceId) -> Result<Option<Maintenance>, EngineError> {
        let views = self.snapshot.all(&self.parts.store, &self.parts.clock).await?;
        let mut active = views.values().flat_map(|view| &view.lock.active);
        Ok(active.find(|record| record.id == *id).map(|record| (**record).clone()))
    }

    /// Why a request of this name would be refused: the name is in use for another server, or for
    /// another request.
    ///
    /// What a state of this run manages is released before, and does not count.
    pub async fn name_conflict(&self, id: &MaintenanceId, spec: &Spec, key: Option<&LockKey>) -> Option<EngineError> {
        let refused = |record: &Maintenance| -> Option<EngineError> {
            if self.manages(&record.uid) {
                return None;
            }
            let elsewhere = key.map_or(record.server() != spec.server, |key| record.lock_key != *key);
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
        // Read again: during an apply the one that is replaced has ended since.
        refused(&self.active(id).await.ok()?)
    }

    /// Every hold and every waiter, by machine, in one read of the store.
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

    /// The same for one server by its name. All that one plan asks is read in one look at the
    /// store.
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

    /// A record and its machine. The machine is asked only while the record holds it.
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
                    Err(error) => tracing::debug!(%error, "{server}: its Node was not looked at"),
                }
            }
        }
        let (taken_away, deletion) = (gates.revoked, gates.deletion);
        Observation { held, machine, taken_away, deletion, node_lost, drain_lost, node_unseen }
    }
}

/// Returns the reason if the external system, which answers, no longer has the server that it
/// granted. Without an answer nothing is known, and nothing is lost.
fn missing(record: &Maintenance, error: &EngineError) -> Option<String> {
    let entered = record.gates.iter().find(|gate| gate.entered && !gate.left)?;
    if is_deleted(record, error) {
        return Some(format!("{} was deleted from {}: {error}", record.server(), entered.system.name));
    }
    matches!(error, EngineError::Machine(BackendError::Missing { .. })).then(|| error.to_string())
}
