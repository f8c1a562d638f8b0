//! The store's time from HTTP `Date` headers, for stores whose protocol lacks a clock.
//!
//! `Date` (RFC 9110, section 6.6.1) is accurate to one second. It is used only for values that
//! can be wrong by a second: window openings, queue positions, overdue locks.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};

use super::StoreError;
use crate::clock::Clock;

/// How long a received time is extrapolated with the monotonic clock.
const TRUSTED: Duration = Duration::from_mins(2);

/// A clock set by the store's servers.
#[derive(Debug)]
pub(super) struct ToldTime {
    given: Option<Arc<dyn Clock>>,
    clock: Arc<dyn Clock>,
    /// The last received time, and the monotonic time of its arrival.
    answer: Mutex<Option<(Timestamp, Duration)>>,
}

impl ToldTime {
    /// A `given` clock replaces the servers' time.
    pub(super) fn new(given: Option<Arc<dyn Clock>>, clock: Arc<dyn Clock>) -> Self {
        Self { given, clock, answer: Mutex::default() }
    }

    /// Returns true if a given clock replaces the servers' time.
    pub(super) fn is_given(&self) -> bool {
        self.given.is_some()
    }

    fn known(&self) -> Option<(Timestamp, Duration)> {
        let answer = *self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, when) = answer?;
        let since = self.clock.monotonic().saturating_sub(when);
        let since_then = SignedDuration::try_from(since).ok()?;
        Some((at.checked_add(since_then).ok()?, since))
    }

    /// Returns the extrapolated store time, or `None` if the last received time is too old.
    pub(super) fn carried(&self) -> Option<Timestamp> {
        if let Some(given) = &self.given {
            return Some(given.now());
        }
        self.known().filter(|(_, since)| *since < TRUSTED).map(|(now, _)| now)
    }

    /// Records a received time. Time never moves backwards, because another server of the cluster
    /// can lag slightly.
    pub(super) fn note(&self, at: Timestamp) -> Timestamp {
        let at = self.known().map_or(at, |(now, _)| now.max(at));
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some((at, self.clock.monotonic()));
        at
    }

    /// Returns the store's time; queries the servers if necessary.
    pub(super) async fn now(
        &self,
        ask: impl Future<Output = Result<Timestamp, StoreError>> + Send,
    ) -> Result<Timestamp, StoreError> {
        if let Some(now) = self.carried() {
            return Ok(now);
        }
        match ask.await {
            Ok(at) => Ok(self.note(at)),
            // An old time is still correct if the monotonic clock is.
            Err(error) => self.known().map(|(now, _)| now).ok_or(error),
        }
    }
}
