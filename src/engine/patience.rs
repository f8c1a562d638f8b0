//! Retries while the store does not answer at the start or end of a drive. The drive itself waits
//! within its time limit.
//!
//! Every entry point can be repeated: it adopts an existing record, so nothing is requested or done
//! twice.

use std::time::Duration;

use crate::maintenance::{
    ids::Uid,
    spec::WaitFor,
    state::{Ending, Maintenance},
};

use super::{Control, Engine, EngineError, MaintenanceRequest, ReconcileResult};

/// How long to retry a store that does not answer, as during a leader election, an API server
/// restart or contention for a file.
const PATIENCE: Duration = Duration::from_mins(1);

/// Pause between two tries.
const PAUSE: Duration = Duration::from_secs(1);

/// State of the retries.
#[derive(Debug)]
pub(super) struct Patience<'a> {
    engine: &'a Engine,
    control: &'a Control,
    began: Duration,
    tried_at: Duration,
    silent_since: Option<Duration>,
}

impl<'a> Patience<'a> {
    pub(super) fn new(engine: &'a Engine, control: &'a Control) -> Self {
        let began = engine.parts.clock.monotonic();
        Self { engine, control, began, tried_at: began, silent_since: None }
    }

    /// Starts a try with the remaining time limit.
    fn control(&mut self) -> Control {
        self.tried_at = self.engine.parts.clock.monotonic();
        let passed = self.tried_at.saturating_sub(self.began);
        Control { timeout: self.control.timeout.saturating_sub(passed), ..self.control.clone() }
    }

    /// Returns true, after a pause, if the store did not answer and time remains for another try.
    pub(super) async fn again(&mut self, silence: Option<String>) -> bool {
        let Some(silence) = silence else { return false };
        let clock = &self.engine.parts.clock;
        let now = clock.monotonic();
        // A long try had answers until its end.
        let since = self.silent_since.filter(|_| now.saturating_sub(self.tried_at) < PATIENCE).unwrap_or(now);
        self.silent_since = Some(since);
        let timed_out = now.saturating_sub(self.began) >= self.control.timeout;
        if timed_out || now.saturating_sub(since) >= PATIENCE || self.control.stop.is_cancelled() {
            return false;
        }
        tracing::info!("waiting for the coordination store: {silence}");
        tokio::select! {
            () = clock.sleep(PAUSE) => true,
            () = self.control.stop.cancelled() => false,
        }
    }
}

/// Returns the cause if the store did not answer, or accepts no changes for now.
pub(super) fn silence<T>(ended: &Result<T, EngineError>) -> Option<String> {
    let cause = match ended {
        Err(EngineError::Store(cause)) => cause,
        Err(EngineError::StoreLost { cause, .. }) => cause.as_ref(),
        _ => return None,
    };
    cause.is_transient().then(|| cause.to_string())
}

impl Engine {
    /// Enqueues a request or finds its earlier record, and drives it as far as requested.
    pub async fn hold(&self, wish: &MaintenanceRequest, control: &Control) -> Result<ReconcileResult, EngineError> {
        let mut patience = Patience::new(self, control);
        loop {
            let ended = Box::pin(self.hold_once(wish, &patience.control())).await;
            if !patience.again(silence(&ended)).await {
                return ended;
            }
        }
    }

    /// Continues a record from this configuration's state, after an interrupt or a change that does
    /// not need a new record. Returns `None` if the record has ended.
    pub async fn resume(
        &self,
        uid: &Uid,
        wish: &MaintenanceRequest,
        control: &Control,
    ) -> Result<Option<ReconcileResult>, EngineError> {
        self.resume_patiently(uid, wish, false, control).await
    }

    /// Prepares a server again that drifted from its specification. Returns `None` if the record
    /// has ended.
    pub async fn restore_drift(
        &self,
        uid: &Uid,
        wish: &MaintenanceRequest,
        control: &Control,
    ) -> Result<Option<ReconcileResult>, EngineError> {
        self.resume_patiently(uid, wish, true, control).await
    }

    async fn resume_patiently(
        &self,
        uid: &Uid,
        wish: &MaintenanceRequest,
        again: bool,
        control: &Control,
    ) -> Result<Option<ReconcileResult>, EngineError> {
        let mut patience = Patience::new(self, control);
        loop {
            let ended = Box::pin(self.resume_once(uid, wish, again, &patience.control())).await;
            if !patience.again(silence(&ended)).await {
                return ended;
            }
        }
    }

    /// Continues an active record with its own specification.
    pub async fn go_on(
        &self,
        record: &Maintenance,
        wait_for: WaitFor,
        control: &Control,
    ) -> Result<ReconcileResult, EngineError> {
        let mut patience = Patience::new(self, control);
        loop {
            let ended = Box::pin(self.go_on_once(record, wait_for, &patience.control())).await;
            if !patience.again(silence(&ended)).await {
                return ended;
            }
        }
    }

    /// Releases a server. Returns `None`, and changes nothing, if the record has ended.
    pub async fn release(
        &self,
        uid: &Uid,
        server: &str,
        ending: Ending,
        control: &Control,
    ) -> Result<Option<ReconcileResult>, EngineError> {
        self.release_for("", uid, server, ending, control).await
    }

    /// Releases a server for a state. Rejected if another state manages the record.
    pub async fn release_for(
        &self,
        state: &str,
        uid: &Uid,
        server: &str,
        ending: Ending,
        control: &Control,
    ) -> Result<Option<ReconcileResult>, EngineError> {
        let mut patience = Patience::new(self, control);
        loop {
            let ended = Box::pin(self.release_once(state, uid, server, ending.clone(), &patience.control())).await;
            if !patience.again(silence(&ended)).await {
                return ended;
            }
        }
    }
}
