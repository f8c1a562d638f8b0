//! A drive's requests to its store: their limit, and what follows a failed one.

use std::{sync::Arc, time::Duration};

use crate::{
    clock::within,
    maintenance::{
        change::{Applied, LockChange, RecordChange},
        state::Maintenance,
        store_failure::StoreFailure,
    },
    store::StoreError,
};

use super::{Control, EngineError, drive::Reconciler};

/// How long requests to the store can last in all after the time limit of a drive.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a request can last even after that, because the store can recover.
const LAST_TRY: Duration = Duration::from_millis(200);

impl Reconciler<'_> {
    /// Waits for a store that does not answer or rejects changes, within the time limit. Returns
    /// the error once the run has to end.
    pub(super) async fn wait_for_store(
        &mut self,
        error: StoreError,
        deadline: Duration,
        control: &Control,
    ) -> Result<(), EngineError> {
        if !error.is_transient() {
            return Err(error.into());
        }
        let clock = Arc::clone(&self.engine.parts.clock);
        let failure = StoreFailure {
            in_a_row: self.store_failures,
            left: deadline.saturating_sub(clock.monotonic()),
            stop: control.stop.is_cancelled(),
            longest: self.engine.tuning().poll,
        };
        self.store_failures = self.store_failures.saturating_add(1);
        let Some(pause) = failure.pause() else { return Err(error.into()) };
        self.log_status(&format!("waiting for the coordination store: {error}"));
        tokio::select! {
            () = clock.sleep(pause) => {}
            () = control.stop.cancelled() => {}
        }
        Ok(())
    }

    /// Limits a request to the store: none lasts longer than [`STORE_TIMEOUT`] after the time limit
    /// of the drive, so all requests after that limit share this timeout.
    pub(super) async fn in_time<T>(
        &self,
        request: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let end = self.deadline.saturating_add(STORE_TIMEOUT);
        let left = end.saturating_sub(self.engine.parts.clock.monotonic()).max(LAST_TRY);
        within(left, request).await.unwrap_or_else(|| {
            let address = self.engine.store().address();
            Err(StoreError::Unavailable {
                address: address.into(),
                cause: "it did not answer before the time limit".into(),
            })
        })
    }

    /// Changes the driven record. After a transient failure the next round waits first, unless no
    /// decision depends on the change.
    pub(super) async fn apply(&mut self, change: &RecordChange) -> Result<Applied, StoreError> {
        let (uid, fence) = (&self.uid, self.fence);
        let applied = self.in_time(self.engine.apply(&self.key, &LockChange::Driven { uid, fence, change })).await;
        match &applied {
            _ if matches!(change, RecordChange::Detach | RecordChange::Conclude { .. } | RecordChange::NoteWait(_)) => {
            }
            Ok(_) => self.store_failures = 0,
            Err(error) => self.unrecorded = Some(error.clone()).filter(StoreError::is_transient),
        }
        applied
    }

    /// Detaches with the last commit of the drive. Returns true if the store recorded it.
    ///
    /// A dead host saves no state, so the record stays without one: the next run continues it.
    pub(super) async fn detach(&mut self, failed: bool) -> bool {
        let conclude = |state: &String| RecordChange::Conclude { state: state.clone().into(), failed };
        let concludes = self.concludes.as_ref().filter(|_| self.engine.has_its_host());
        let last = concludes.map_or(RecordChange::Detach, conclude);
        match self.apply(&last).await {
            Ok(_) | Err(StoreError::Refused(_)) => true,
            Err(error) => {
                tracing::warn!(%error, "could not detach; a later heartbeat will, or the lease will expire");
                false
            }
        }
    }

    pub(super) async fn record_now(&self) -> Result<Maintenance, EngineError> {
        if let Some(found) = self.in_time(self.engine.store().find_uid(&self.uid)).await? {
            return Ok(found.record().clone());
        }
        self.last.clone().ok_or_else(|| EngineError::LeaseLost("the record does not exist any more".to_owned()))
    }
}
