//! Locks for one run: the process stays attached until it closes the lock.
//!
//! A resource's maintenance is without a process between apply and destroy. Here the process stays
//! attached, so its lease shows whether the run lives. A dead run's record becomes overdue like any
//! other: the next waiter releases it, or the next run of the same configuration adopts it first.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use crate::maintenance::{
    change::{LockChange, RecordChange},
    decide::Finish,
    ids::{Fence, Uid},
    state::{Ending, Maintenance, Phase},
};

use super::{
    Control, Engine, EngineError, MaintenanceRequest, ReconcileResult,
    driven::Driving,
    patience::{Patience, silence},
};

/// An open lock.
#[derive(Debug)]
struct OpenLock {
    /// Time limit for closing.
    limit: Duration,
    record: Maintenance,
    fence: Fence,
    driving: Driving,
}

/// The process's open locks.
#[derive(Debug, Default)]
pub(super) struct OpenLocks(Mutex<Vec<OpenLock>>);

impl OpenLocks {
    fn take(&self, uid: &Uid) -> Option<OpenLock> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = open.iter().position(|lock| lock.record.uid == *uid)?;
        Some(open.swap_remove(place))
    }

    fn all(&self) -> Vec<(Uid, Duration)> {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().map(|lock| (lock.record.uid.clone(), lock.limit)).collect()
    }

    fn fence(&self, uid: &Uid) -> Option<(Maintenance, Fence)> {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().find(|lock| lock.record.uid == *uid).map(|lock| (lock.record.clone(), lock.fence))
    }
}

impl Engine {
    /// Locks a server and stays attached. If that fails, the server is released, because no process
    /// would close the lock. `control.stop` ends the wait, but not that release.
    pub async fn open(&self, wish: &MaintenanceRequest, control: &Control) -> Result<ReconcileResult, EngineError> {
        let mut driven = self.hold(wish, control).await?;
        let uid = driven.record.uid.clone();
        if driven.finish == Finish::Reached {
            let mut patience = Patience::new(self, control);
            let (fence, driving) = loop {
                let attached = self.attach_for("", &driven.record).await;
                if !patience.again(silence(&attached)).await {
                    break attached.map_err(|error| error.under_way(&driven.record))?;
                }
            };
            // If this read fails, the record stays as the drive returned it.
            if let Ok(Some(held)) = self.held(&uid).await {
                driven.record = held.record;
            }
            let mut open = self.open_locks.0.lock().unwrap_or_else(PoisonError::into_inner);
            open.push(OpenLock { limit: control.release_timeout, record: driven.record.clone(), fence, driving });
            return Ok(driven);
        }
        let left = matches!(driven.record.phase, Phase::Preparing(_) | Phase::InMaintenance { .. });
        if left && driven.finish != Finish::Lost {
            let control = Control { stop: CancellationToken::new(), ..control.clone() };
            let control = Control { timeout: control.release_timeout, ..control };
            let ending = Ending::Failed("its run was interrupted".into());
            if let Some(released) = self.release(&uid, driven.record.server(), ending, &control).await? {
                let finish = if released.finish == Finish::Over { driven.finish } else { released.finish };
                return Ok(ReconcileResult { record: released.record, finish, waited: driven.waited });
            }
        }
        Ok(driven)
    }

    /// Checks that an opened lock still belongs to this process. Otherwise returns the current
    /// record.
    pub async fn is_open(&self, uid: &Uid) -> Result<Result<(), Option<Maintenance>>, EngineError> {
        self.lease.keep().await?;
        let fence = self.open_locks.fence(uid).map(|(_, fence)| fence);
        let record = self.store().find_uid(uid).await?.map(|found| found.record().clone());
        let attachment = record.as_ref().and_then(|record| record.attachment.as_ref());
        let ours = fence.is_some_and(|fence| attachment.is_some_and(|attachment| attachment.is(fence)));
        Ok(if ours { Ok(()) } else { Err(record) })
    }

    /// Restores the server and releases its lock. `None`: this process no longer had the lock, and
    /// nothing changed. After an error the lock is still open.
    pub async fn close_lock(&self, uid: &Uid, control: &Control) -> Result<Option<ReconcileResult>, EngineError> {
        let mut patience = Patience::new(self, control);
        let record = loop {
            let detached = self.detach_open(uid).await;
            if !patience.again(silence(&detached)).await {
                break detached?;
            }
        };
        match record {
            Some(record) => self.release(uid, record.server(), Ending::Completed, control).await,
            None => Ok(None),
        }
    }

    /// Detaches from an open lock before its release; `None` if this process no longer had it.
    async fn detach_open(&self, uid: &Uid) -> Result<Option<Maintenance>, EngineError> {
        let Some((record, fence)) = self.open_locks.fence(uid) else { return Ok(None) };
        let under_way = |error: EngineError| error.under_way(&record);
        let open = self.is_open(uid).await.map_err(under_way)?;
        // The reply to an earlier try was lost, and no other process has attached since.
        let let_go = |now: &Maintenance| {
            let unattached = now.attachment.is_none() && now.generation == fence.generation;
            unattached && !now.phase.is_over()
        };
        let ours = open.as_ref().map_or_else(|now| now.as_ref().is_some_and(let_go), |()| true);
        if open.is_ok() {
            let change = LockChange::Driven { uid, fence, change: &RecordChange::Detach };
            self.apply(&record.lock_key, &change).await.map_err(|error| under_way(error.into()))?;
        }
        if let Some(mut open) = self.open_locks.take(uid) {
            open.driving.over();
        }
        Ok(ours.then_some(record))
    }

    /// Closes the remaining locks concurrently. Locks that cannot be released become overdue.
    pub async fn close_open_locks(&self) {
        let closing = self.open_locks.all().into_iter().map(async |(uid, limit)| {
            let control = Control { stop: CancellationToken::new(), timeout: limit, release_timeout: limit };
            match Box::pin(self.close_lock(&uid, &control)).await {
                Ok(Some(driven)) if driven.finish == Finish::Over => {
                    tracing::info!("{}: released, because its run ended without closing it", driven.record.id);
                }
                Ok(Some(driven)) => tracing::error!("{} is not released: {}", driven.record.id, driven.finish.told()),
                Ok(None) => {}
                Err(error) => tracing::error!(%error, "this run's lock was not released"),
            }
        });
        futures_util::future::join_all(closing).await;
    }
}
