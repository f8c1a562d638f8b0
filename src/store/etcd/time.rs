//! What time it is for everybody who shares the store.
//!
//! etcd's own protocol tells no time, but each of its servers answers HTTP on the same port, with the `Date` of RFC 9110,
//! section 6.6.1. It is to the second; so all that hangs on it is what may be wrong by a second: when a window opens, how
//! long a place is kept, when a hold is overdue. Whether a process is alive never does: etcd's leases say that.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp, fmt::rfc2822};

use super::fault::Faults;
use crate::{
    clock::{Clock, within},
    store::StoreError,
};

/// For how long an answer is carried on with our own monotonic clock.
const TRUSTED: Duration = Duration::from_mins(2);

/// How long one server has for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A clock that the store's servers set.
#[derive(Debug)]
pub(super) struct ServerTime {
    given: Option<Arc<dyn Clock>>,
    clock: Arc<dyn Clock>,
    http: reqwest::Client,
    endpoints: Vec<String>,
    faults: Faults,
    /// An answer, and when on our monotonic clock it came.
    answer: Mutex<Option<(Timestamp, Duration)>>,
}

impl ServerTime {
    pub(super) fn new(
        given: Option<Arc<dyn Clock>>,
        clock: Arc<dyn Clock>,
        http: reqwest::Client,
        endpoints: Vec<String>,
        faults: Faults,
    ) -> Self {
        Self { given, clock, http, endpoints, faults, answer: Mutex::default() }
    }

    fn known(&self) -> Option<(Timestamp, Duration)> {
        let answer = *self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, when) = answer?;
        let since = self.clock.monotonic().saturating_sub(when);
        let since_then = SignedDuration::try_from(since).ok()?;
        Some((at.checked_add(since_then).ok()?, since))
    }

    /// The store's time.
    pub(super) async fn now(&self) -> Result<Timestamp, StoreError> {
        if let Some(given) = &self.given {
            return Ok(given.now());
        }
        let known = self.known();
        if let Some((now, since)) = known
            && since < TRUSTED
        {
            return Ok(now);
        }
        let mut problem = String::new();
        for endpoint in &self.endpoints {
            match self.ask(endpoint).await {
                Ok(at) => {
                    // Never backwards: another server of the cluster may be a little behind.
                    let at = known.map_or(at, |(now, _)| now.max(at));
                    let answer = Some((at, self.clock.monotonic()));
                    *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
                    return Ok(at);
                }
                Err(error) => problem = error,
            }
        }
        // What was told before is still right as far as our own clock runs evenly.
        known
            .map(|(now, _)| now)
            .ok_or_else(|| self.faults.unavailable(format!("it does not tell the time: GET {problem}")))
    }

    async fn ask(&self, endpoint: &str) -> Result<Timestamp, String> {
        let url = format!("{endpoint}/version");
        let asked = async { self.http.get(&url).send().await };
        let reply = within(PATIENCE, asked).await.ok_or_else(|| format!("{url}: no answer"))?;
        let reply = reply.map_err(|error| format!("{url}: {}", error.without_url()))?;
        let date = reply.headers().get("date").and_then(|date| date.to_str().ok());
        let date = date.ok_or_else(|| format!("{url}: no Date in the answer"))?;
        let at = rfc2822::parse(date).map_err(|error| format!("{url}: {date:?}: {error}"))?;
        // The middle of the second that it names.
        Ok(at.timestamp() + SignedDuration::from_millis(500))
    }
}
