//! What time it is for everybody who shares a store whose protocol tells none, but whose servers
//! answer HTTP.
//!
//! Each such answer has the `Date` of RFC 9110, section 6.6.1. It is to the second; so all that
//! hangs on it is what may be wrong by a second: when a window opens, how long a place is kept,
//! when a hold is overdue.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};

use super::StoreError;
use crate::clock::Clock;

/// For how long an answer is carried on with our own monotonic clock.
const TRUSTED: Duration = Duration::from_mins(2);

/// A clock that the store's servers set.
#[derive(Debug)]
pub(super) struct ToldTime {
    given: Option<Arc<dyn Clock>>,
    clock: Arc<dyn Clock>,
    /// An answer, and when on our monotonic clock it came.
    answer: Mutex<Option<(Timestamp, Duration)>>,
}

impl ToldTime {
    /// `given` is asked instead of the servers, if there is one.
    pub(super) fn new(given: Option<Arc<dyn Clock>>, clock: Arc<dyn Clock>) -> Self {
        Self { given, clock, answer: Mutex::default() }
    }

    /// Whether somebody else than the servers tells the time.
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

    /// The store's time as it was told last and carried on. `None` when that was too long ago.
    pub(super) fn carried(&self) -> Option<Timestamp> {
        if let Some(given) = &self.given {
            return Some(given.now());
        }
        self.known().filter(|(_, since)| *since < TRUSTED).map(|(now, _)| now)
    }

    /// Notes what time a server told just now. Never backwards: another server of the cluster may
    /// be a little behind.
    pub(super) fn note(&self, at: Timestamp) -> Timestamp {
        let at = self.known().map_or(at, |(now, _)| now.max(at));
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some((at, self.clock.monotonic()));
        at
    }

    /// The store's time. `ask` asks the servers, when that is needed.
    pub(super) async fn now(
        &self,
        ask: impl Future<Output = Result<Timestamp, StoreError>> + Send,
    ) -> Result<Timestamp, StoreError> {
        if let Some(now) = self.carried() {
            return Ok(now);
        }
        match ask.await {
            Ok(at) => Ok(self.note(at)),
            // What was told before is still right as far as our own clock runs evenly.
            Err(error) => self.known().map(|(now, _)| now).ok_or(error),
        }
    }
}
