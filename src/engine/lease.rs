//! Keeps this process's lease while it is attached to a record, and sweeps the store.

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

/// Delay before the first sweep: the process's own work comes first.
const SWEEP_AFTER: Duration = Duration::from_secs(2);

/// How long other processes skip the sweep.
const SWEEP_CLAIM: Duration = Duration::from_mins(10);

/// Records deleted per batch, and the pause between batches.
const SWEPT_AT_ONCE: u32 = 100;
const SWEEP_PAUSE: Duration = Duration::from_millis(250);

/// Time limit for resigning the lease at exit.
const RESIGNING: Duration = Duration::from_secs(3);

/// Part of a lease, in percent, after which it is renewed before a call, so that the rest covers
/// the longest request. A heartbeat comes after every third of a lease, so this is rare.
const RENEWS: u32 = 30;

/// Part of a lease, in percent since the last renewal, in which a call can begin.
const BEGINS: u32 = 50;

/// Part of a lease, in percent, at which a call is cut. The rest is a margin for requests in flight
/// and for clock drift.
const ENDS: u32 = 80;

/// Start of a renewal on our monotonic clock; `None`: never renewed.
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
    /// Start of the last successful renewal, on our monotonic clock. The store counts from a later
    /// time.
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

    /// Renews now, and periodically until [`Self::resign`].
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
                    // Do not delay the next renewal.
                    match within(ttl / 6, attachments.detach_undriven(&*store, &runner.id)).await {
                        Some(Ok(())) => {}
                        error => tracing::debug!(?error, "a later heartbeat detaches records that no task drives"),
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

    /// Returns true if less than `percent` of the lease has passed since a renewal, by our clock.
    fn is_younger(&self, renewal: Renewal, percent: u32) -> bool {
        renewal.0.is_some_and(|at| self.clock.monotonic().saturating_sub(at) < self.ttl * percent / 100)
    }

    /// Returns the process's attachments.
    pub(super) fn attachments(&self) -> &Attachments {
        &self.attachments
    }

    /// Returns the last renewal that the store confirmed.
    pub(super) fn renewal(&self) -> Renewal {
        Renewal(*self.renewed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns true if the lease has ended by our own clock.
    pub(super) fn is_over(&self) -> bool {
        let renewal = self.renewal();
        renewal.0.is_some() && !self.is_younger(renewal, 100)
    }

    /// Returns how long the lease still lasts by our own clock; `None` before the first renewal.
    pub(super) fn ends_in(&self) -> Option<Duration> {
        self.renewal().0.map(|at| (at + self.ttl).saturating_sub(self.clock.monotonic()))
    }

    /// Returns true if a call can begin now: by our clock, enough of the lease remains to finish it
    /// before another process can treat the lease as expired.
    pub(super) fn is_safe_with(&self, renewal: Renewal) -> bool {
        self.is_younger(renewal, BEGINS)
    }

    /// Returns how long a call can last, by our clock and without later renewals. It ends well
    /// before another process can treat the lease as expired.
    pub(super) fn left_of(&self, renewal: Renewal) -> Duration {
        renewal.0.map_or(Duration::ZERO, |at| (at + self.ttl * ENDS / 100).saturating_sub(self.clock.monotonic()))
    }

    /// Ends the heartbeat and the lease. A silent store delays the process by at most
    /// [`RESIGNING`]; the lease then expires.
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
            Some(Err(error)) => tracing::warn!(%error, "the lease could not be ended and will expire"),
            None => tracing::warn!("the store did not answer in time: the lease was not ended and will expire"),
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

/// Deletes expired history in small batches with pauses, unless another process does. The next
/// process continues.
async fn sweep(store: &dyn Store, clock: &dyn Clock, runner: &RunnerId, keep: Duration) {
    clock.sleep(SWEEP_AFTER).await;
    match store.claim_sweep(runner, SWEEP_CLAIM).await {
        Ok(true) => {}
        Ok(false) => return,
        Err(error) => {
            tracing::debug!(%error, "old history was not pruned");
            return;
        }
    }
    loop {
        match store.prune(keep, SWEPT_AT_ONCE).await {
            Ok(0) => return,
            Ok(_) => clock.sleep(SWEEP_PAUSE).await,
            Err(error) => {
                tracing::debug!(%error, "old history was not pruned");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::SimulatedClock, store::MemoryStore};

    /// A call begins in the first half of a lease and is cut at four fifths, counted from the
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
        assert!(keeper.is_safe_with(keeper.renewal()), "the heartbeat continued");
    }
}
