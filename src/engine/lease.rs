//! Keeps the lease of this process while it is attached to anything, and sweeps the store by the
//! way.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Tuning, driven::Attachments};
use crate::{
    clock::{Clock, within},
    maintenance::ids::{Runner, RunnerId},
    store::Store,
};

/// When a process that has something to do begins to sweep: what it was started for comes first.
const SWEEP_AFTER: Duration = Duration::from_secs(2);

/// How long one process has the sweeping to itself: the next thousand runs leave it alone.
const SWEEP_CLAIM: Duration = Duration::from_mins(10);

/// How much is forgotten at once, and the pause after it.
const SWEPT_AT_ONCE: u32 = 100;
const SWEEP_PAUSE: Duration = Duration::from_millis(250);

/// How long a process waits at its end until its lease has ended.
const RESIGNING: Duration = Duration::from_secs(3);

/// From which part of a lease on it is renewed before a call, in percent: what is then left is
/// enough for the longest request. The heartbeat comes every third, so this is seldom needed.
const RENEWS: u32 = 30;

/// Which part of a lease a call may begin in, counted from the last renewal, in percent.
const BEGINS: u32 = 50;

/// Which part of a lease a call may last into, in percent. The rest is the margin: for a request
/// that is on its way when the call is cut, and for clocks that do not run equally fast.
const ENDS: u32 = 80;

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
    /// When the last renewal that succeeded was begun, on our own monotonic clock. Begun, not
    /// ended: the store counted from some moment after it.
    renewed: Arc<Mutex<Option<Duration>>>,
    started: Mutex<bool>,
    attachments: Attachments,
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
            attachments: Attachments::default(),
            end: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }

    /// Renews now and goes on renewing until [`Self::resign`].
    pub(super) async fn keep(&self) -> Result<(), crate::store::StoreError> {
        if !self.is_younger(self.renewal(), RENEWS) {
            renew(&self.store, &self.clock, &self.runner, self.ttl, &self.renewed).await?;
        }
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut started, true) {
            let (store, clock, runner) = (Arc::clone(&self.store), Arc::clone(&self.clock), self.runner.clone());
            let (ttl, renewed, end) = (self.ttl, Arc::clone(&self.renewed), self.end.clone());
            let attachments = self.attachments.clone();
            self.tasks.spawn(async move {
                loop {
                    tokio::select! {
                        () = clock.sleep(ttl / 3) => {}
                        () = end.cancelled() => break,
                    }
                    if let Err(error) = renew(&store, &clock, &runner, ttl, &renewed).await {
                        tracing::warn!(%error, "the heartbeat did not reach the coordination store");
                        continue;
                    }
                    // The next renewal must not wait for it.
                    match within(ttl / 6, attachments.detach_undriven(&*store, &runner.id)).await {
                        Some(Ok(())) => {}
                        error => tracing::debug!(?error, "what nothing drives is let go with a later heartbeat"),
                    }
                }
            });
            if let Some(keep) = self.history {
                let (store, clock, end) = (Arc::clone(&self.store), Arc::clone(&self.clock), self.end.clone());
                let runner = self.runner.id.clone();
                self.tasks.spawn(async move {
                    end.run_until_cancelled(sweep(&*store, &*clock, &runner, keep)).await;
                });
            }
        }
        Ok(())
    }

    /// Whether less than this part of the lease has passed since a renewal, by our own clock.
    fn is_younger(&self, renewal: Renewal, percent: u32) -> bool {
        renewal.0.is_some_and(|at| self.clock.monotonic().saturating_sub(at) < self.ttl * percent / 100)
    }

    /// The attachments of the process.
    pub(super) fn attachments(&self) -> &Attachments {
        &self.attachments
    }

    /// The last renewal that is known to have reached the store.
    pub(super) fn renewal(&self) -> Renewal {
        Renewal(*self.renewed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns true if the lease has ended by our own clock.
    pub(super) fn is_over(&self) -> bool {
        let renewal = self.renewal();
        renewal.0.is_some() && !self.is_younger(renewal, 100)
    }

    /// Whether something may be done to a machine now, judged by our own clock: so little of the
    /// lease has passed since this renewal that nobody else can believe it is over, and that what
    /// is left is enough for a call.
    pub(super) fn is_safe_with(&self, renewal: Renewal) -> bool {
        self.is_younger(renewal, BEGINS)
    }

    /// How long a call may last from now on, by our own clock and without counting on a later
    /// renewal than this one: it ends well before another process may judge the lease as expired.
    pub(super) fn left_of(&self, renewal: Renewal) -> Duration {
        renewal.0.map_or(Duration::ZERO, |at| (at + self.ttl * ENDS / 100).saturating_sub(self.clock.monotonic()))
    }

    /// Ends the heartbeat and the lease. A silent store delays the process for [`RESIGNING`] only;
    /// the lease then runs out.
    pub(super) async fn resign(&self) {
        self.end.cancel();
        self.tasks.close();
        let resigned = within(RESIGNING, async {
            self.tasks.wait().await;
            let held = self.renewed.lock().unwrap_or_else(PoisonError::into_inner).take().is_some();
            if held { self.store.resign(&self.runner.id).await } else { Ok(()) }
        });
        match resigned.await {
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::warn!(%error, "the lease could not be ended; it runs out"),
            None => tracing::warn!("the store did not answer in time: the lease is not ended and runs out"),
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

/// Forgets what is history for longer than it is kept, unless another process does. In small
/// batches with pauses between them: no one waits for it, and the next process continues.
async fn sweep(store: &dyn Store, clock: &dyn Clock, runner: &RunnerId, keep: Duration) {
    clock.sleep(SWEEP_AFTER).await;
    match store.claim_sweep(runner, SWEEP_CLAIM).await {
        Ok(true) => {}
        Ok(false) => return,
        Err(error) => {
            tracing::debug!(%error, "old history is kept for now");
            return;
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::SimulatedClock, store::MemoryStore};

    /// A call begins in the first half of a lease and is cut at four fifths of it, counted from the
    /// renewal.
    #[tokio::test(start_paused = true)]
    async fn a_call_ends_with_a_margin_before_its_lease() {
        let clock = Arc::new(SimulatedClock::starting_at("2026-11-22T10:00:00Z".parse().unwrap()));
        let store = Arc::new(MemoryStore::new(clock.clone()));
        let runner = Runner::new("r", "ada", "desk", 1);
        let tuning = Tuning { lease: Duration::from_secs(30), ..Tuning::default() };
        let keeper = LeaseKeeper::new(store, clock.clone(), runner, tuning);
        assert!(
            !keeper.is_safe_with(keeper.renewal()) && keeper.left_of(keeper.renewal()).is_zero(),
            "nothing was renewed yet"
        );
        keeper.keep().await.unwrap();
        let renewal = keeper.renewal();
        for (after, safe, left) in [(0, true, 24), (14, true, 10), (15, false, 9), (24, false, 0), (31, false, 0)] {
            let passed = Duration::from_secs(after);
            clock.sleep(passed.saturating_sub(clock.monotonic())).await;
            assert_eq!(keeper.is_safe_with(renewal), safe, "{after}");
            assert_eq!(keeper.left_of(renewal), Duration::from_secs(left), "{after}");
        }
        assert!(keeper.is_safe_with(keeper.renewal()), "the heartbeat went on meanwhile");
    }
}
