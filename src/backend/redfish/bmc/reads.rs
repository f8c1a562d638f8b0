//! Reads: tried again where that changes nothing, and what it means when they make no sense.

use super::{BackendError, Bmc, Duration, Method, PoisonError, RedfishResponse, Value};
use crate::backend::redfish::system;

/// How often a read is tried again when the connection broke or the BMC asked to wait.
const READ_TRIES: usize = 3;
/// The longest wait that a BMC may ask for between two tries of a read.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// The longest time for which a BMC is left alone because it asks for that.
const LONGEST_BUSY: Duration = Duration::from_mins(1);

impl Bmc {
    /// Reads a resource. Tried again, a few times, when that changes nothing: the connection broke
    /// or the BMC asked to wait.
    pub(in crate::backend::redfish) async fn get(&self, path: &str) -> Result<RedfishResponse, BackendError> {
        self.get_if(path, |_| true).await
    }

    /// Reads a system. An answer without any property of a resource says nothing about it: BMCs
    /// that start up send an empty object for a moment, which would be a system without power and
    /// override.
    pub(in crate::backend::redfish) async fn get_system(&self, path: &str) -> Result<RedfishResponse, BackendError> {
        self.get_if(path, system::is_resource).await
    }

    async fn get_if(&self, path: &str, makes_sense: fn(&Value) -> bool) -> Result<RedfishResponse, BackendError> {
        let mut result = self.get_again(path).await;
        if result.as_ref().is_ok_and(|answer| !makes_sense(&answer.body)) {
            result = Err(
                self.protocol(&format!("GET {path} was answered with an object that has neither an id nor a name"))
            );
        }
        let mut resources = self.resources.lock().unwrap_or_else(PoisonError::into_inner);
        let odd = match &result {
            Ok(answer) => {
                resources.known.insert(path.to_owned());
                resources.odd_since = None;
                if path.trim_end_matches('/') == "/redfish/v1" {
                    resources.sessions = answer.body["Links"]["Sessions"]["@odata.id"].as_str().map(str::to_owned);
                }
                return result;
            }
            Err(error @ (BackendError::Protocol { .. } | BackendError::Rejected { status: 404, .. })) => error,
            Err(_) => return result,
        };
        if !resources.known.contains(path) {
            return result;
        }
        let now = self.clock.monotonic();
        let since = *resources.odd_since.get_or_insert(now);
        if now.saturating_sub(since) >= self.limits.patience.away {
            return result;
        }
        let cause = match odd {
            BackendError::Protocol { what, .. } => what.clone(),
            BackendError::Rejected { request, status, message, .. } => {
                format!("{request} was answered with {status}: {message}")
            }
            _ => odd.to_string(),
        };
        Err(BackendError::Unreachable {
            address: self.address(),
            cause: format!("{cause}, and in a valid form before: it may be restarting"),
        })
    }

    /// Reads a resource, once.
    pub(in crate::backend::redfish) async fn get_once(&self, path: &str) -> Result<RedfishResponse, BackendError> {
        self.request(&Method::GET, path, None, None).await
    }

    async fn get_again(&self, path: &str) -> Result<RedfishResponse, BackendError> {
        let mut tried = 0;
        loop {
            tried += 1;
            let error = match self.request(&Method::GET, path, None, None).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let pause = match &error {
                BackendError::ReplyLost { .. } => Duration::from_millis(50),
                BackendError::Rejected { status: 503 | 429, retry_after, .. } => {
                    retry_after.unwrap_or(Duration::from_millis(500))
                }
                _ => return Err(error),
            };
            if pause > LONGEST_PAUSE {
                // No request is sent to it before.
                self.is_down_until(self.clock.monotonic() + pause.min(LONGEST_BUSY), &error.to_string());
            }
            if tried >= READ_TRIES || pause > LONGEST_PAUSE {
                return Err(match error {
                    // A read changes nothing, so there is nothing that may have been applied.
                    BackendError::ReplyLost { address, cause, .. } => BackendError::Unreachable { address, cause },
                    other => other,
                });
            }
            self.clock.sleep(pause).await;
        }
    }
}
