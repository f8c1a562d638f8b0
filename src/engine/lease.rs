//! Keeps the lease of this process while it is attached to anything, and sweeps the store by the way.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::Tuning;
use crate::{clock::Clock, maintenance::ids::Runner, store::Store};

/// When a process that has something to do begins to sweep: what it was started for comes first.
const SWEEP_AFTER: Duration = Duration::from_secs(2);

/// How much is forgotten at once, and the pause after it.
const SWEPT_AT_ONCE: u32 = 100;
const SWEEP_PAUSE: Duration = Duration::from_millis(250);

/// When a renewal was begun, on our own monotonic clock. `None`: there was none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renewal(Option<Duration>);

/// One heartbeat for all records of the process.
#[derive(Debug)]
pub(super) struct LeaseKeeper {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    runner: Runner,
    ttl: Duration,
    history: Option<Duration>,
    /// When the last renewal that succeeded was begun, on our own monotonic clock. Begun, not ended: the store counted
    /// from some moment after it.
    renewed: Arc<Mutex<Option<Duration>>>,
    started: Mutex<bool>,
    end: CancellationToken,
    tasks: TaskTracker,
}

impl LeaseKeeper {
    pub(super) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, runner: Runner, tuning: Tuning) -> Self {
        Self {
            store,
            clock,
            runner,
            ttl: tuning.lease,
            history: tuning.history,
            renewed: Arc::default(),
            started: Mutex::new(false),
            end: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }

    /// Renews now and goes on renewing until [`Self::resign`].
    pub(super) async fn keep(&self) -> Result<(), crate::store::StoreError> {
        if !self.is_safe() {
            renew(&self.store, &self.clock, &self.runner, self.ttl, &self.renewed).await?;
        }
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut started, true) {
            let (store, clock, runner) = (Arc::clone(&self.store), Arc::clone(&self.clock), self.runner.clone());
            let (ttl, renewed, end) = (self.ttl, Arc::clone(&self.renewed), self.end.clone());
            self.tasks.spawn(async move {
                loop {
                    tokio::select! {
                        () = clock.sleep(ttl / 3) => {}
                        () = end.cancelled() => break,
                    }
                    if let Err(error) = renew(&store, &clock, &runner, ttl, &renewed).await {
                        tracing::warn!(%error, "the heartbeat did not reach the coordination store");
                    }
                }
            });
            if let Some(keep) = self.history {
                let (store, clock, end) = (Arc::clone(&self.store), Arc::clone(&self.clock), self.end.clone());
                self.tasks.spawn(async move {
                    end.run_until_cancelled(sweep(&*store, &*clock, keep)).await;
                });
            }
        }
        Ok(())
    }

    fn is_safe(&self) -> bool {
        self.is_safe_with(self.renewal())
    }

    /// The last renewal that is known to have reached the store.
    pub(super) fn renewal(&self) -> Renewal {
        Renewal(*self.renewed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether something may be done to a machine now, judged by our own clock: two thirds of the lease at most have
    /// passed since this renewal, so that nobody else can believe it is over.
    pub(super) fn is_safe_with(&self, renewal: Renewal) -> bool {
        renewal.0.is_some_and(|at| self.clock.monotonic().saturating_sub(at) < self.ttl * 2 / 3)
    }

    /// How long until somebody else may believe that the lease is over, by our own clock and without counting on a later
    /// renewal than this one.
    pub(super) fn left_of(&self, renewal: Renewal) -> Duration {
        renewal.0.map_or(Duration::ZERO, |at| (at + self.ttl).saturating_sub(self.clock.monotonic()))
    }

    /// Ends the heartbeat and the lease.
    pub(super) async fn resign(&self) {
        self.end.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        let held = self.renewed.lock().unwrap_or_else(PoisonError::into_inner).take().is_some();
        if held && let Err(error) = self.store.resign(&self.runner.id).await {
            tracing::warn!(%error, "the lease could not be ended; it runs out by itself");
        }
    }
}

async fn renew(
    store: &Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
    runner: &Runner,
    ttl: Duration,
    renewed: &Mutex<Option<Duration>>,
) -> Result<(), crate::store::StoreError> {
    let begun = clock.monotonic();
    store.renew(runner, ttl).await?;
    *renewed.lock().unwrap_or_else(PoisonError::into_inner) = Some(begun);
    Ok(())
}

/// Forgets what is history for longer than it is kept. In small batches with pauses between them: nobody waits for it, and
/// whoever comes next goes on.
async fn sweep(store: &dyn Store, clock: &dyn Clock, keep: Duration) {
    clock.sleep(SWEEP_AFTER).await;
    loop {
        match store.prune(keep, SWEPT_AT_ONCE).await {
            Ok(0) => return,
            Ok(_) => clock.sleep(SWEEP_PAUSE).await,
            Err(error) => {
                tracing::debug!(%error, "old history is kept for now");
                return;
            }
        }
    }
}
