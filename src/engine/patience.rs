//! The ways into a drive, with patience: a store that does not answer for a moment before a drive
//! begins, or after it ended, fails none of them. A drive itself waits within its time limit.
//!
//! Each can be begun again, whatever of it was done: a record that is there is adopted, so that
//! nothing is asked for or done twice.

use std::time::Duration;

use crate::maintenance::{
    ids::Uid,
    spec::WaitFor,
    state::{Ending, Maintenance},
};

use super::{Control, Engine, EngineError, MaintenanceRequest, ReconcileResult};

/// How long a store that does not answer is asked again: a leader is elected, an API server is
/// restarted, or many processes write one file.
const PATIENCE: Duration = Duration::from_mins(1);

/// The pause before it is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// What may be tried again, and for how long.
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

    /// Begins a try, with the rest of the time limit.
    fn control(&mut self) -> Control {
        self.tried_at = self.engine.parts.clock.monotonic();
        let passed = self.tried_at.saturating_sub(self.began);
        Control { timeout: self.control.timeout.saturating_sub(passed), ..self.control.clone() }
    }

    /// Whether a try failed because the store did not answer, and there is time for another one,
    /// which comes after a pause.
    pub(super) async fn again(&mut self, silence: Option<String>) -> bool {
        let Some(silence) = silence else { return false };
        let clock = &self.engine.parts.clock;
        let now = clock.monotonic();
        // What ran for long had answers until the end.
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
    /// Enqueues a wish, or finds the record of an earlier run of it, and drives it as far as asked.
    pub async fn hold(&self, wish: &MaintenanceRequest, control: &Control) -> Result<ReconcileResult, EngineError> {
        let mut patience = Patience::new(self, control);
        loop {
            let ended = Box::pin(self.hold_once(wish, &patience.control())).await;
            if !patience.again(silence(&ended)).await {
                return ended;
            }
        }
    }

    /// Goes on with a record that this configuration has in its state: after an interrupt, or
    /// because its wish changed in a way that needs no new record. `None` when the record is not
    /// active any more.
    pub async fn resume(
        &self,
        uid: &Uid,
        wish: &MaintenanceRequest,
        control: &Control,
    ) -> Result<Option<ReconcileResult>, EngineError> {
        self.resume_patiently(uid, wish, false, control).await
    }

    /// Prepares a server once more that drifted from what its maintenance asks. `None` when the
    /// record is not active any more.
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

    /// Goes on with an active record as it was asked for.
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

    /// Gives a server back. `None` when the record is not active any more: then nothing is touched.
    pub async fn release(
        &self,
        uid: &Uid,
        server: &str,
        ending: Ending,
        control: &Control,
    ) -> Result<Option<ReconcileResult>, EngineError> {
        self.release_for("", uid, server, ending, control).await
    }

    /// Gives a server back on behalf of a state. Refused when another state manages the record.
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
