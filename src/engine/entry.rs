//! The ways into a drive: ask for a server, give it back, take it from somebody.

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use crate::{
    maintenance::{
        decide::{Finish, Goal},
        ids::{Generation, LockKey, MaintenanceId, Uid},
        lock::{Enqueued, Refusal, Request, ServerLock},
        native::System,
        restore,
        spec::{Spec, WaitFor},
        state::{Ending, Maintenance, Phase, Progress},
    },
    store::{Found, StoreError},
};

use super::{Control, Driven, Engine, EngineError, TakenBack, drive::Drive};

/// A server that somebody wants.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The maintenance's name.
    pub id: MaintenanceId,
    /// What is asked.
    pub spec: Spec,
    /// How far to go.
    pub wait_for: WaitFor,
}

impl Engine {
    /// Enqueues a wish, or finds the record of an earlier run of it, and drives it as far as asked.
    pub async fn hold(&self, wish: &Wish, control: &Control) -> Result<Driven, EngineError> {
        let wish = &Wish { spec: self.as_asked_here(&wish.spec), ..wish.clone() };
        let key = tokio::select! {
            key = self.lock_key(&wish.spec.server) => key?,
            () = control.stop.cancelled() => return Err(EngineError::Stopped),
        };
        let system = tokio::select! {
            system = self.system(&wish.spec) => system?,
            () = control.stop.cancelled() => return Err(EngineError::Stopped),
        };
        self.lease.keep().await?;
        self.settle_dead(&key, &wish.id, control).await?;
        loop {
            let (uid, attached) = self.enqueue(&key, wish, system.as_ref()).await?;
            let Some(generation) = attached else {
                return self.unattended(&key, &uid).await;
            };
            let mut drive = Drive::new(self, &key, &wish.spec.server, &uid, generation);
            let leftover = self.is_ending(&uid).await?;
            let driven = drive.run(Goal::Hold(wish.wait_for), control).await?;
            // An earlier run died while it gave the server back. That is finished now, and the wish begins anew.
            if leftover && driven.finish == Finish::Over {
                continue;
            }
            return Ok(driven);
        }
    }

    /// Whether a record is being given back.
    async fn is_ending(&self, uid: &Uid) -> Result<bool, EngineError> {
        let found = self.store().find_uid(uid).await?;
        Ok(found.is_some_and(|found| matches!(found.record().phase, Phase::Releasing { .. })))
    }

    /// Asks for a place; unless the wish is only to have one, also takes the right to act, in the same transaction: a
    /// record that nobody drives is never seen by others.
    async fn enqueue(
        &self,
        key: &LockKey,
        wish: &Wish,
        system: Option<&System>,
    ) -> Result<(Uid, Option<Generation>), EngineError> {
        let fresh = Uid(Uuid::now_v7().to_string());
        let only_place = wish.wait_for == WaitFor::Enqueued;
        let mut result = None;
        self.store()
            .transact(key, &mut |lock, leases, now| {
                lock.drop_absent(leases, now);
                let request = Request {
                    uid: fresh.clone(),
                    id: wish.id.clone(),
                    owner: self.owner().to_owned(),
                    spec: wish.spec.clone(),
                    native: system.cloned(),
                    runner: self.runner().clone(),
                    keeps_place: only_place,
                };
                let enqueued = lock.enqueue(request, leases, now)?;
                let uid = enqueued.uid().clone();
                let generation = if only_place && matches!(enqueued, Enqueued::New(_)) {
                    None
                } else {
                    Some(lock.attach(&uid, self.runner().clone(), leases, now)?)
                };
                if let Enqueued::Adopted(_) = enqueued {
                    tracing::info!(id = %wish.id, "found the record of an earlier run and goes on with it");
                }
                result = Some((uid, generation));
                Ok(())
            })
            .await?;
        result.ok_or_else(|| EngineError::LeaseLost("the store applied no transition".to_owned()))
    }

    /// What a record is that nobody drives.
    async fn unattended(&self, key: &LockKey, uid: &Uid) -> Result<Driven, EngineError> {
        let view = self.store().view(key).await?;
        let record = view.lock.get(uid).cloned().ok_or(EngineError::LeaseLost("the record is gone".to_owned()))?;
        Ok(Driven { record, finish: Finish::Reached })
    }

    /// Goes on with a record that this configuration has in its state: after an interrupt, or because its wish changed
    /// in a way that needs no new record. `None` when the record is not active any more.
    pub async fn resume(&self, uid: &Uid, wish: &Wish, control: &Control) -> Result<Option<Driven>, EngineError> {
        let wish = &Wish { spec: self.as_asked_here(&wish.spec), ..wish.clone() };
        let Some(Found::Active(record)) = self.store().find_uid(uid).await? else { return Ok(None) };
        self.lease.keep().await?;
        self.settle_dead(&record.lock_key, &record.id, control).await?;
        let generation = self.attach(&record).await?;
        let again = needs_preparing(&record.spec, &wish.spec);
        self.store()
            .transact(&record.lock_key, &mut |lock, _, now| {
                lock.update(uid, generation, |record| {
                    let parent = record.spec.parent.clone();
                    record.spec = Spec { parent, ..wish.spec.clone() };
                    record.digest = wish.spec.digest();
                    // Also while it is being prepared: the steps under way are those of the old wish.
                    if again && matches!(record.phase, Phase::InMaintenance { .. } | Phase::Preparing(_)) {
                        let steps = crate::maintenance::prepare::steps(&record.spec, record.native.as_ref());
                        record.phase = Phase::Preparing(Progress::new(steps, now));
                    }
                })
            })
            .await?;
        let mut drive = Drive::new(self, &record.lock_key, &wish.spec.server, uid, generation);
        Ok(Some(drive.run(Goal::Hold(wish.wait_for), control).await?))
    }

    /// Gives a server back. `None` when the record is not active any more: then nothing is touched.
    pub async fn release(
        &self,
        uid: &Uid,
        server: &str,
        ending: Ending,
        control: &Control,
    ) -> Result<Option<Driven>, EngineError> {
        let Some(Found::Active(record)) = self.store().find_uid(uid).await? else { return Ok(None) };
        self.lease.keep().await?;
        self.settle_dead(&record.lock_key, &record.id, control).await?;
        let generation = self.attach(&record).await?;
        let mut drive = Drive::new(self, &record.lock_key, server, uid, generation);
        Ok(Some(drive.run(Goal::Release(ending), control).await?))
    }

    /// Takes a hold from its holder, whoever works on it, and gives the server back. `seen` is the generation that the
    /// person saw; `reason` goes into the audit.
    pub async fn force_release(
        &self,
        id: &MaintenanceId,
        seen: Generation,
        reason: &str,
        control: &Control,
    ) -> Result<Driven, EngineError> {
        let (record, generation) = self
            .seize(id, seen, control, |lock, record, generation, now| {
                if record.phase == Phase::Pending {
                    // Has touched nothing: the drive takes it out of the queue.
                    return Ok(());
                }
                let ending = Ending::Released { by: self.runner().to_string(), reason: reason.to_owned(), seen };
                let progress = Progress::new(restore::steps(record), now);
                lock.begin_release(&record.uid, generation, ending, progress, now)
            })
            .await?;
        let ending = Ending::Released { by: self.runner().to_string(), reason: reason.to_owned(), seen };
        let mut drive = Drive::new(self, &record.lock_key, record.server(), &record.uid, generation);
        drive.run(Goal::Release(ending), control).await
    }

    /// Ends a maintenance without putting anything back: the server stays as it is now. For a server that cannot be put
    /// back, or that is gone. Asks no machine; only what the server's own maintenance system was asked is taken back, as far as
    /// that can be done in a short time: nobody will do it later. Audited like every release.
    pub async fn abandon(
        &self,
        id: &MaintenanceId,
        seen: Generation,
        reason: &str,
        control: &Control,
    ) -> Result<(Maintenance, Option<TakenBack>), EngineError> {
        let (record, generation) = self.seize(id, seen, control, |_, _, _, _| Ok(())).await?;
        if control.stop.is_cancelled() {
            // Somebody may be in the middle of a call. The hold stays, under a generation that nobody else has.
            return Err(EngineError::Stopped);
        }
        // While the slot is still held, so that the next holder does not wait behind it; and as it is after whoever was attached.
        let record = match self.store().find_uid(&record.uid).await? {
            Some(Found::Active(now)) => *now,
            _ => record,
        };
        let taken_back = self.take_back_natively(&record, control).await;
        self.return_node(&record).await;
        let reason = format!("{reason}; nothing was put back");
        self.store()
            .transact(&record.lock_key, &mut |lock, _, now| {
                let by = self.runner().to_string();
                let ending = Ending::Released { by, reason: reason.clone(), seen };
                lock.finish(&record.uid, generation, &Phase::Completed { at: now, ending }, now)
            })
            .await?;
        Ok((record, taken_back))
    }

    /// Takes a hold from its holder and begins what comes next in the same transaction. Returns when nobody who was
    /// attached can be in the middle of a call any more: neither a restore nor the next holder must meet one.
    async fn seize(
        &self,
        id: &MaintenanceId,
        seen: Generation,
        control: &Control,
        begin: impl Fn(&mut ServerLock, &Maintenance, Generation, Timestamp) -> Result<(), Refusal> + Send + Sync,
    ) -> Result<(Maintenance, Generation), EngineError> {
        let record = self.active(id).await?;
        self.lease.keep().await?;
        let mut seized = None;
        self.store()
            .transact(&record.lock_key, &mut |lock, leases, now| {
                let (generation, _) = lock.seize(&record.uid, seen, self.runner().clone(), leases, now)?;
                seized = Some((generation, lock.calls_until(&record.uid, now).map(|until| until.duration_since(now))));
                match lock.get(&record.uid).cloned() {
                    Some(current) => begin(lock, &current, generation, now),
                    None => Ok(()),
                }
            })
            .await?;
        let (generation, wait) = seized.ok_or_else(|| EngineError::LeaseLost("no transition".to_owned()))?;
        self.wait_for_predecessors(id, wait, control).await;
        Ok((record, generation))
    }

    /// Whoever was attached may be in the middle of a call that it was allowed to make.
    async fn wait_for_predecessors(&self, id: &MaintenanceId, wait: Option<SignedDuration>, control: &Control) {
        if let Some(wait) = wait.and_then(|wait| std::time::Duration::try_from(wait).ok()) {
            tracing::info!(
                %id, seconds = wait.as_secs(),
                "somebody was attached: waiting until its lease is over before the server is touched"
            );
            tokio::select! {
                () = self.parts.clock.sleep(wait) => {}
                () = control.stop.cancelled() => {}
            }
        }
    }

    /// The active record of a name.
    pub async fn active(&self, id: &MaintenanceId) -> Result<Maintenance, EngineError> {
        match self.store().find(id).await? {
            Some(Found::Active(record)) => Ok(*record),
            Some(Found::Past(record)) => Err(EngineError::Over(record)),
            None => Err(EngineError::NotFound { id: id.clone(), store: self.store().address() }),
        }
    }

    /// Takes the right to act on a record.
    pub(super) async fn attach(&self, record: &Maintenance) -> Result<Generation, EngineError> {
        let mut generation = 0;
        self.store()
            .transact(&record.lock_key, &mut |lock, leases, now| {
                generation = lock.attach(&record.uid, self.runner().clone(), leases, now)?;
                Ok(())
            })
            .await
            .map_err(|error: StoreError| EngineError::from(error))?;
        Ok(generation)
    }
}

/// Whether the change of a wish must be brought to a server that is already held.
fn needs_preparing(before: &Spec, wanted: &Spec) -> bool {
    before.server_power != wanted.server_power || before.boot != wanted.boot
}
