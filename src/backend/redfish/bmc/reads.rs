//! Reads with retries, and the meaning of senseless answers.

use super::{BackendError, Bmc, Duration, Method, PoisonError, RedfishResponse, Value};
use crate::backend::redfish::{message, system};

/// Attempts for a read if the connection broke or the BMC requested a pause.
const READ_TRIES: usize = 3;
/// The longest requested pause that a read waits for.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// The longest requested pause during which the BMC receives no requests.
const LONGEST_BUSY: Duration = Duration::from_mins(1);

impl Bmc {
    /// Reads a resource. Retries a few times if the connection broke or the BMC requested a pause.
    pub(in crate::backend::redfish) async fn get(&self, path: &str) -> Result<RedfishResponse, BackendError> {
        self.get_if(path, |_| true).await
    }

    /// Reads a system and rejects answers without any resource property. BMCs that are starting
    /// return an empty object, which would look like a system without power and override.
    pub(in crate::backend::redfish) async fn get_system(&self, path: &str) -> Result<RedfishResponse, BackendError> {
        self.get_if(path, system::is_resource).await
    }

    async fn get_if(&self, path: &str, makes_sense: fn(&Value) -> bool) -> Result<RedfishResponse, BackendError> {
        let mut result = self.get_again(path).await;
        if let Ok(answer) = &result {
            if message::is_note(&answer.body) && message::is_error(&answer.body) {
                result = Err(self.refusal(path, &answer.body));
            } else if !makes_sense(&answer.body) {
                let what = format!("GET {path} was answered with an object that has neither an id nor a name");
                result = Err(self.protocol(&what));
            }
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
                format!("{request} was answered with {status}: {message}").into()
            }
            _ => odd.to_string().into(),
        };
        Err(BackendError::Unreachable {
            address: self.address().into(),
            cause: format!("{cause}; earlier answers were valid, so it could be restarting").into(),
        })
    }

    /// Converts an error body in a successful answer.
    fn refusal(&self, path: &str, body: &Value) -> BackendError {
        let (message, transient) = message::read(body);
        BackendError::Rejected {
            address: self.address().into(),
            request: format!("GET {path}").into(),
            status: 200,
            message: message.into(),
            retry_after: None,
            transient,
        }
    }

    /// Reads a neighbor's resource once. A failure does not mark the BMC as down, and a 401 does
    /// not count as rejected credentials.
    pub(in crate::backend::redfish) async fn probe(&self, path: &str) -> Result<Value, BackendError> {
        self.fail_if_down()?;
        let _place = self.places.acquire().await;
        let proof = self.proof().await?;
        self.send(&Method::GET, path, None, None, &proof).await.map(|answer| answer.body)
    }

    /// Marks the BMC as reachable even though one of its resources fails.
    pub(in crate::backend::redfish) fn is_up(&self) {
        *self.down.lock().unwrap_or_else(PoisonError::into_inner) = None;
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
                // No request is sent before that time.
                self.is_down_until(self.clock.monotonic() + pause.min(LONGEST_BUSY), &error.to_string());
            }
            if tried >= READ_TRIES || pause > LONGEST_PAUSE {
                return Err(match error {
                    // A failed read never leaves an unknown outcome.
                    BackendError::ReplyLost { address, cause, .. } => BackendError::Unreachable { address, cause },
                    other => other,
                });
            }
            self.clock.sleep(pause).await;
        }
    }
}
