//! Entry points of a drive: request, release and forced release.

use std::time::Duration;

use uuid::Uuid;

use crate::{
    maintenance::{
        change::{Applied, LockChange, Moment, RecordChange},
        decide::{Finish, Goal},
        gate::{self, ExternalSystem},
        identity::Identified,
        ids::{Fence, Generation, LockKey, MaintenanceId, Uid},
        location::Location,
        lock::{AskingState, EnqueueRequest, Refusal},
        spec::{Spec, WaitFor},
        state::{Ending, Maintenance, Phase},
    },
    store::{RecordLookup, StoreError},
};

use super::{Control, DeletionResult, Engine, EngineError, ReconcileResult, drive::Reconciler, driven::Driving};

/// Maximum retries after another process claims or moves the same identifiers.
const RACES: usize = 8;

/// A request for a server.
#[derive(Clone, Debug)]
pub struct MaintenanceRequest {
    /// The maintenance's name.
    pub id: MaintenanceId,
    /// The specification.
    pub spec: Spec,
    /// How far to drive.
    pub wait_for: WaitFor,
    /// The requesting state.
    pub asking: AskingState,
}

impl Engine {
    /// Runs [`Engine::hold`] until the store does not answer.
    pub(super) async fn hold_once(
        &self,
        wish: &MaintenanceRequest,
        control: &Control,
    ) -> Result<ReconcileResult, EngineError> {
        let wish = &MaintenanceRequest { spec: self.as_asked_here(&wish.spec), ..wish.clone() };
        let mut server = tokio::select! {
            server = self.identified(wish.spec.server.shown(), control) => server?,
            () = control.stop.cancelled() => return Err(EngineError::Stopped),
        };
        let identified_at = self.parts.clock.monotonic();
        let mut key = server.key.clone();
        let mut races = 0;
        let systems = tokio::select! {
            systems = self.systems_of(&wish.spec, control) => systems?,
            () = control.stop.cancelled() => return Err(EngineError::Stopped),
        };
        let location = tokio::select! {
            location = self.located_at(wish.spec.server.shown(), control) => location?,
            () = control.stop.cancelled() => return Err(EngineError::Stopped),
        };
        self.lease.keep().await?;
        self.end_dead_leases(&key, &wish.id, control).await?;
        loop {
            let (uid, attached) = match self.enqueue(&server, wish, &location, &systems).await {
                // Another process moved an identifier after the read.
                Err(EngineError::Refused(Refusal::AliasMoved { .. })) if races < RACES => {
                    races += 1;
                    server = self.identified(wish.spec.server.shown(), control).await?;
                    key.clone_from(&server.key);
                    continue;
                }
                // The server's lock changed while an earlier run waited, as with a new `lock_key`.
                Err(EngineError::Store(StoreError::NameTaken { .. })) if races < RACES => {
                    races += 1;
                    self.leave_former_queue(wish, control).await?;
                    continue;
                }
                enqueued => enqueued?,
            };
            if !server.fresh.is_empty() {
                server.leave_unclaimed(&self.store().view(&key).await?.lock, &uid);
            }
            if !self.claim_fresh(&server).await? {
                // The record was never driven, so it changed nothing.
                self.leave_queue(&key, &uid, attached).await?;
                races += 1;
                if races > RACES {
                    let alias = server.fresh.swap_remove(0);
                    return Err(Refusal::AliasMoved { alias }.into());
                }
                server = self.identified(wish.spec.server.shown(), control).await?;
                key.clone_from(&server.key);
                continue;
            }
            let Some((fence, driving)) = attached else {
                return self.unattended(&key, &uid).await;
            };
            let mut drive = Reconciler::new(self, &key, wish.spec.server.shown(), &uid, fence, driving);
            drive.concludes = Some(wish.asking.state.clone()).filter(|_| !wish.asking.ephemeral);
            drive.identified_at = self.seen_as(wish.spec.server.shown(), &server, identified_at);
            let leftover = self.is_ending(&uid).await?;
            let driven = drive.run(Goal::Hold(wish.wait_for), control).await?;
            // An earlier run died during the restore. The restore is complete now; start the
            // request again.
            if leftover && driven.finish == Finish::Over {
                continue;
            }
            return Ok(driven);
        }
    }

    /// Returns true if a record is being released.
    async fn is_ending(&self, uid: &Uid) -> Result<bool, EngineError> {
        let found = self.store().find_uid(uid).await?;
        Ok(found.is_some_and(|found| matches!(found.record().phase, Phase::Releasing { .. })))
    }

    /// Enqueues a request. Unless it only reserves a queue position, the same transaction attaches
    /// this process, so other processes never read an undriven record.
    async fn enqueue(
        &self,
        server: &Identified,
        wish: &MaintenanceRequest,
        location: &Location,
        systems: &[ExternalSystem],
    ) -> Result<(Uid, Option<(Fence, Driving)>), EngineError> {
        let request = EnqueueRequest {
            uid: Uid::new(Uuid::now_v7().to_string()),
            id: wish.id.clone(),
            owner: self.owner().to_owned(),
            spec: wish.spec.clone(),
            location: Some(location.clone()),
            gates: systems.to_vec(),
            runner: self.runner().clone(),
            keeps_place: wish.wait_for == WaitFor::Enqueued,
            asking: wish.asking.clone(),
        };
        let mut driving = self.lease.attachments().begin(&server.key);
        let change = LockChange::Enqueue { request: &request, claims: &server.claims, token: driving.token() };
        match driving.over_if_refused(self.apply(&server.key, &change).await)? {
            Applied::Enqueued { uid, adopted, fence } => {
                if adopted {
                    tracing::info!(id = %wish.id, "adopted an earlier run's record");
                }
                if fence.is_none() {
                    driving.over();
                }
                Ok((uid, fence.map(|fence| (fence, driving))))
            }
            _ => Err(no_answer()),
        }
    }

    /// Withdraws a pending record whose server belongs to another lock. Records in other phases
    /// stay, because they existed before.
    async fn leave_queue(
        &self,
        key: &LockKey,
        uid: &Uid,
        attached: Option<(Fence, Driving)>,
    ) -> Result<(), EngineError> {
        let (fence, mut driving) = match attached {
            Some(attached) => attached,
            None => self.attach_to(key, uid, "", Some(self.owner())).await?,
        };
        self.apply(key, &LockChange::Driven { uid, fence, change: &RecordChange::Withdraw }).await?;
        driving.over();
        Ok(())
    }

    /// Withdraws a pending record that an earlier run left in another lock's queue.
    ///
    /// # Errors
    /// The record is not pending, or has another owner or server.
    async fn leave_former_queue(&self, wish: &MaintenanceRequest, control: &Control) -> Result<(), EngineError> {
        let taken = self.active(&wish.id).await?;
        if !self.waited_elsewhere(&taken, &wish.spec) {
            return Err(StoreError::NameTaken { id: wish.id.clone(), key: taken.lock_key }.into());
        }
        self.end_dead_leases(&taken.lock_key, &taken.id, control).await?;
        self.leave_queue(&taken.lock_key, &taken.uid, None).await
    }

    /// Returns true if a record belongs to our owner and server and has only waited.
    pub(super) fn waited_elsewhere(&self, taken: &Maintenance, spec: &Spec) -> bool {
        let ours = taken.owner == self.owner() && taken.spec.server == spec.server;
        ours && taken.phase == Phase::Pending && !gate::is_asked(taken)
    }

    /// Returns a record that no process drives.
    async fn unattended(&self, key: &LockKey, uid: &Uid) -> Result<ReconcileResult, EngineError> {
        let view = self.store().view(key).await?;
        let record = view.lock.get(uid).cloned().ok_or(EngineError::LeaseLost("the record is missing".to_owned()))?;
        Ok(ReconcileResult { record, finish: Finish::Reached, waited: Duration::ZERO })
    }

    /// Changes settings that do not affect the server, without a new generation. `Some(false)`: the
    /// record's phase does not allow it, and nothing changed. `None`: the record has ended.
    pub async fn amend(
        &self,
        uid: &Uid,
        wish: &MaintenanceRequest,
        control: &Control,
    ) -> Result<Option<bool>, EngineError> {
        let Some(RecordLookup::Active(record)) = self.store().find_uid(uid).await? else { return Ok(None) };
        self.reach(&record, control).await?;
        let (spec, by) = (self.as_asked_here(&wish.spec), self.runner().to_string());
        let (state, owner) = (wish.asking.state.as_str(), self.owner());
        let change = LockChange::Amend { uid, state, owner, spec: &spec, by: &by };
        Ok(Some(self.apply(&record.lock_key, &change).await? == Applied::Done))
    }

    /// Runs [`Engine::resume`] or, with `again`, [`Engine::restore_drift`] once.
    pub(super) async fn resume_once(
        &self,
        uid: &Uid,
        wish: &MaintenanceRequest,
        again: bool,
        control: &Control,
    ) -> Result<Option<ReconcileResult>, EngineError> {
        let wish = &MaintenanceRequest { spec: self.as_asked_here(&wish.spec), ..wish.clone() };
        let Some(RecordLookup::Active(record)) = self.store().find_uid(uid).await? else { return Ok(None) };
        self.reach(&record, control).await?;
        self.refuses_new_gates(&record, &wish.spec).await?;
        self.lease.keep().await?;
        self.end_dead_leases(&record.lock_key, &record.id, control).await?;
        let (fence, driving) = self.attach_for(&wish.asking.state, &record).await?;
        let change = &RecordChange::Respecify(Box::new(wish.spec.clone()));
        self.apply(&record.lock_key, &LockChange::Driven { uid, fence, change }).await?;
        if again {
            let change = &RecordChange::PrepareAgain;
            self.apply(&record.lock_key, &LockChange::Driven { uid, fence, change }).await?;
        }
        let mut drive = Reconciler::new(self, &record.lock_key, wish.spec.server.shown(), uid, fence, driving);
        Ok(Some(drive.run(Goal::Hold(wish.wait_for), control).await?))
    }

    /// Runs [`Engine::go_on`] until the store does not answer.
    pub(super) async fn go_on_once(
        &self,
        record: &Maintenance,
        wait_for: WaitFor,
        control: &Control,
    ) -> Result<ReconcileResult, EngineError> {
        Box::pin(self.reach(record, control)).await?;
        self.lease.keep().await?;
        self.end_dead_leases(&record.lock_key, &record.id, control).await?;
        let (fence, driving) = self.attach_for("", record).await?;
        let mut drive = Reconciler::new(self, &record.lock_key, record.server(), &record.uid, fence, driving);
        drive.run(Goal::Hold(wait_for), control).await
    }

    /// Runs [`Engine::release_for`] until the store does not answer.
    pub(super) async fn release_once(
        &self,
        state: &str,
        uid: &Uid,
        server: &str,
        ending: Ending,
        control: &Control,
    ) -> Result<Option<ReconcileResult>, EngineError> {
        let Some(RecordLookup::Active(record)) = self.store().find_uid(uid).await? else { return Ok(None) };
        self.reach(&record, control).await?;
        self.lease.keep().await?;
        self.end_dead_leases(&record.lock_key, &record.id, control).await?;
        let (fence, driving) = self.attach_for(state, &record).await?;
        let mut drive = Reconciler::new(self, &record.lock_key, server, uid, fence, driving);
        Ok(Some(drive.run(Goal::Release(ending), control).await?))
    }

    /// Releases a maintenance by force, even if a process acts on it, and restores the server.
    /// `seen` is the generation that the person confirmed; `reason` goes into the audit log.
    pub async fn force_release(
        &self,
        id: &MaintenanceId,
        seen: Generation,
        reason: &str,
        block: Option<Duration>,
        control: &Control,
    ) -> Result<ReconcileResult, EngineError> {
        let active = Box::new(self.active(id).await?);
        // Forgetting a completed operation does not contact a server.
        if !active.is_made() {
            Box::pin(self.reach(&active, control)).await?;
        }
        drop(active);
        let ending = Ending::Released { by: self.runner().to_string().into(), reason: reason.into(), seen };
        let (record, fence, driving) =
            Box::pin(self.fence_holder(id, seen, Some(&ending), (reason, block), control)).await?;
        let mut drive = Reconciler::new(self, &record.lock_key, record.server(), &record.uid, fence, driving);
        Box::pin(drive.run(Goal::Release(ending), control)).await
    }

    /// Ends a maintenance without a restore; the server keeps its current state. For servers that
    /// cannot be restored or were removed.
    ///
    /// Does not contact the machine. Withdraws its gate requests within a short time limit, because
    /// no later process does it. The audit log records it like every release.
    pub async fn release_without_restore(
        &self,
        id: &MaintenanceId,
        seen: Generation,
        reason: &str,
        block: Option<Duration>,
        control: &Control,
    ) -> Result<(Maintenance, Option<DeletionResult>), EngineError> {
        let (record, fence, mut driving) =
            Box::pin(self.fence_holder(id, seen, None, (reason, block), control)).await?;
        if control.stop.is_cancelled() {
            // Another process can have a pending call. Keep the lock under the new
            // generation, which no process uses.
            return Err(EngineError::Stopped);
        }
        // Withdraw while the server is locked, so that the next holder does not wait for it. Read
        // the record again, because the fenced process can have changed it.
        let record = match self.store().find_uid(&record.uid).await? {
            Some(RecordLookup::Active(now)) => *now,
            _ => record,
        };
        let taken_back = self.withdraw_from_gates(&record, control).await;
        self.return_node(&record).await;
        self.leaves_node(&record);
        let reason = format!("{reason}; nothing was restored");
        let by = self.runner().to_string();
        let change = &RecordChange::Abandon(Ending::Released { by: by.into(), reason: reason.into(), seen });
        self.apply(&record.lock_key, &LockChange::Driven { uid: &record.uid, fence, change }).await?;
        driving.over();
        Ok((record, taken_back))
    }

    /// Revokes the lock and, with `ending`, begins the release in the same transaction. Returns
    /// when calls by earlier processes can no longer reach the machine, because they could disturb
    /// a restore or the next holder.
    async fn fence_holder(
        &self,
        id: &MaintenanceId,
        seen: Generation,
        ending: Option<&Ending>,
        (reason, block): (&str, Option<Duration>),
        control: &Control,
    ) -> Result<(Maintenance, Fence, Driving), EngineError> {
        let record = self.active(id).await?;
        self.lease.keep().await?;
        let (uid, runner) = (&record.uid, self.runner());
        let mut driving = self.lease.attachments().begin(&record.lock_key);
        let change = LockChange::Seize {
            uid,
            seen,
            runner,
            owner: Some(self.owner()),
            token: driving.token(),
            ending,
            reason,
            block,
        };
        let applied = driving.over_if_refused(self.apply(&record.lock_key, &change).await)?;
        let Applied::Attached { fence, calls_until } = applied else {
            return Err(no_answer());
        };
        if let Some(until) = calls_until {
            self.wait_for_calls(&record, until, control).await?;
        }
        Ok((record, fence, driving))
    }

    /// Waits until calls by earlier processes can no longer reach the machine.
    async fn wait_for_calls(
        &self,
        record: &Maintenance,
        until: jiff::Timestamp,
        control: &Control,
    ) -> Result<(), EngineError> {
        let now = self.store().view(&record.lock_key).await?.now;
        let wait = Duration::try_from(until.duration_since(now)).unwrap_or_default();
        tracing::info!(
            id = %record.id, seconds = wait.as_secs(),
            "an earlier process's call could still reach the server: waiting for its timeout"
        );
        tokio::select! {
            () = self.parts.clock.sleep(wait) => {}
            () = control.stop.cancelled() => {}
        }
        Ok(())
    }

    /// Returns the active record with this name.
    pub async fn active(&self, id: &MaintenanceId) -> Result<Maintenance, EngineError> {
        match self.store().find(id).await? {
            Some(RecordLookup::Active(record)) => Ok(*record),
            Some(RecordLookup::Past(record)) => Err(EngineError::Over(record)),
            None => Err(EngineError::NotFound { id: id.clone(), store: self.store().address() }),
        }
    }

    /// Attaches the next waiter to an overdue maintenance of any owner.
    pub(super) async fn attach_overdue(&self, record: &Maintenance) -> Result<(Fence, Driving), EngineError> {
        self.attach_to(&record.lock_key, &record.uid, "", None).await
    }

    /// Attaches to a record for a state, which manages the record afterwards.
    pub(super) async fn attach_for(&self, state: &str, record: &Maintenance) -> Result<(Fence, Driving), EngineError> {
        self.attach_to(&record.lock_key, &record.uid, state, Some(self.owner())).await
    }

    async fn attach_to(
        &self,
        key: &LockKey,
        uid: &Uid,
        state: &str,
        owner: Option<&str>,
    ) -> Result<(Fence, Driving), EngineError> {
        let runner = self.runner();
        let mut driving = self.lease.attachments().begin(key);
        let change = LockChange::Attach { uid, runner, token: driving.token(), state, owner };
        match driving.over_if_refused(self.apply(key, &change).await)? {
            Applied::Attached { fence, .. } => Ok((fence, driving)),
            _ => Err(no_answer()),
        }
    }

    /// Applies a change to a lock in one transaction.
    pub(super) async fn apply(&self, key: &LockKey, change: &LockChange<'_>) -> Result<Applied, StoreError> {
        let tuning = self.tuning();
        let attaches =
            matches!(change, LockChange::Enqueue { .. } | LockChange::Attach { .. } | LockChange::Amend { .. });
        let mut applied = Applied::Outdated;
        self.store()
            .transact(key, &mut |lock, leases, now| {
                let at = Moment { leases, now, aging: tuning.aging, limits: &tuning.limits };
                if attaches {
                    // Detach our own undriven records first, so that they can be attached again.
                    lock.detach_undriven(&self.runner().id, &self.lease.attachments().driven(), now);
                }
                applied = lock.apply(change, &at)?;
                Ok(())
            })
            .await?;
        Ok(applied)
    }
}

/// Returns the error for a store that confirms a change without applying it.
fn no_answer() -> EngineError {
    EngineError::LeaseLost("the store applied no transition".to_owned())
}
