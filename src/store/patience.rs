//! Time limits and retries for an unreachable store.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::StoreError;
use crate::{
    clock::{Clock, within},
    maintenance::queue::shown_duration,
};

/// The first and the longest pause between two attempts.
const PAUSE: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(500));

/// After a timeout, later requests do not retry for this long: if a hundred resources refresh, only
/// the first request waits.
const IMPATIENT_FOR: Duration = Duration::from_secs(10);

/// One attempt gets this fraction of the limit, so a hanging server leaves time for a second
/// attempt.
const SHARE: u32 = 2;

/// The retry limit for one store.
#[derive(Clone, Debug)]
pub(super) struct Patience {
    address: Arc<str>,
    clock: Arc<dyn Clock>,
    limit: Duration,
    /// The last timeout, on the monotonic clock.
    ran_out: Arc<Mutex<Option<Duration>>>,
}

impl Patience {
    pub(super) fn new(address: &str, clock: Arc<dyn Clock>, limit: Duration) -> Self {
        Self { address: address.into(), clock, limit, ran_out: Arc::default() }
    }

    fn silent(&self, limit: Duration) -> StoreError {
        let cause = format!("it did not answer within {}", shown_duration(limit));
        StoreError::Unavailable { address: self.address.to_string().into(), cause: cause.into() }
    }

    fn ran_out(&self) -> std::sync::MutexGuard<'_, Option<Duration>> {
        self.ran_out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a request that must not be repeated.
    pub(super) async fn once<T>(
        &self,
        attempt: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        within(self.limit, Box::pin(attempt)).await.unwrap_or_else(|| Err(self.silent(self.limit)))
    }

    /// Runs one of several attempts.
    pub(super) async fn attempt<T>(
        &self,
        attempt: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let limit = self.limit / SHARE;
        within(limit, Box::pin(attempt)).await.unwrap_or_else(|| Err(self.silent(limit)))
    }

    /// Repeats a read or an idempotent change while the store is unreachable. A fail-over or leader
    /// election takes a few seconds.
    pub(super) async fn repeat<T, F>(&self, attempt: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>> + Send,
    {
        let began = self.clock.monotonic();
        let impatient = self.ran_out().is_some_and(|at| began.saturating_sub(at) < IMPATIENT_FOR);
        let mut pause = PAUSE.0;
        let mut said: Option<StoreError> = None;
        loop {
            let spent = self.clock.monotonic().saturating_sub(began);
            let limit = self.limit.saturating_sub(spent).min(self.limit / SHARE);
            let result = within(limit, Box::pin(attempt())).await;
            // The previous error is more useful than this timeout.
            let result = result.unwrap_or_else(|| Err(said.take().unwrap_or_else(|| self.silent(limit))));
            let now = self.clock.monotonic();
            match result {
                Err(error @ StoreError::Unavailable { .. }) if !impatient && now + pause < began + self.limit => {
                    said = Some(error);
                    self.clock.sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
                Err(error @ StoreError::Unavailable { .. }) => {
                    *self.ran_out() = Some(now);
                    return Err(error);
                }
                answered => {
                    *self.ran_out() = None;
                    return answered;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use jiff::Timestamp;

    use super::*;
    use crate::clock::SimulatedClock;

    #[tokio::test(start_paused = true)]
    async fn only_the_first_of_many_waits_for_a_store_that_is_away() {
        let clock = Arc::new(SimulatedClock::starting_at(Timestamp::UNIX_EPOCH));
        let patience = Patience::new("x://", clock.clone(), Duration::from_secs(10));
        let (asked, away) = (AtomicU32::new(0), AtomicU32::new(1));
        let ask = || async {
            asked.fetch_add(1, Ordering::SeqCst);
            match away.load(Ordering::SeqCst) {
                0 => Ok(()),
                _ => Err(StoreError::Unavailable { address: "x://".into(), cause: "away".into() }),
            }
        };
        let began = clock.monotonic();
        patience.repeat(ask).await.unwrap_err();
        let waited = clock.monotonic().saturating_sub(began);
        assert!(waited > Duration::from_secs(9) && waited <= Duration::from_secs(10), "{waited:?}");
        assert!(asked.swap(0, Ordering::SeqCst) > 10, "the read is repeated");
        let began = clock.monotonic();
        for _ in 0..100 {
            patience.repeat(ask).await.unwrap_err();
        }
        assert_eq!((clock.monotonic().saturating_sub(began), asked.load(Ordering::SeqCst)), (Duration::ZERO, 100));
        // The store has recovered, so requests retry again.
        away.store(0, Ordering::SeqCst);
        patience.repeat(ask).await.unwrap();
        away.store(1, Ordering::SeqCst);
        let began = clock.monotonic();
        patience.repeat(ask).await.unwrap_err();
        assert!(clock.monotonic().saturating_sub(began) > Duration::from_secs(9));
    }
}
