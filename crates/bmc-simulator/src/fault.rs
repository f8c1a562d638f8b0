//! Injected faults.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::millis;
use crate::glob;

/// A fault: the requests that it affects, how often, and its action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Only requests to this BMC.
    #[serde(default)]
    pub bmc: Option<String>,
    /// Only requests to this machine.
    #[serde(default)]
    pub system: Option<String>,
    /// Only requests with this method.
    #[serde(default)]
    pub method: Option<String>,
    /// Only paths that match this pattern; `*` matches any text.
    #[serde(default)]
    pub path: Option<String>,
    /// Only requests whose body contains this text, for example a reset type or a property.
    #[serde(default)]
    pub body: Option<String>,
    /// The number of matching requests to skip first.
    #[serde(default)]
    pub skip: u64,
    /// The number of requests to affect; `None` until the fault is removed.
    #[serde(default)]
    pub times: Option<u64>,
    /// The action.
    pub action: FaultAction,
}

/// A fault's action on a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum FaultAction {
    /// Answers in place of the BMC.
    Answer {
        /// The status.
        status: u16,
        /// The body.
        #[serde(default)]
        body: FaultBody,
        /// More headers.
        #[serde(default)]
        headers: Vec<(String, String)>,
        /// True if the request is executed nevertheless.
        #[serde(default)]
        apply: bool,
    },
    /// Waits before the request is executed.
    Delay {
        /// The delay.
        #[serde(rename = "ms", with = "millis")]
        time: Duration,
    },
    /// Executes the request, then cuts the connection without an answer.
    LoseReply,
    /// Cuts the connection without executing the request.
    Cut,
    /// Neither executes the request nor answers, until the client gives up.
    Silence,
    /// Executes the request after a delay, even if the client has disconnected; never answers.
    Late {
        /// The delay.
        #[serde(rename = "ms", with = "millis")]
        time: Duration,
    },
    /// Stalls the request until it is released.
    Hold {
        /// When the request is held.
        phase: Phase,
    },
    /// Truncates the normal answer's body.
    Truncate {
        /// The number of bytes sent.
        bytes: usize,
        /// True if `Content-Length` is adjusted. Otherwise the connection is cut within the body.
        #[serde(default)]
        honest_length: bool,
    },
    /// Shows a different value for a property.
    Show {
        /// The property, as a JSON pointer (RFC 6901).
        property: String,
        /// The value shown.
        value: Value,
    },
    /// Accepts the request without executing it: the answer reports success.
    Ignore,
    /// Accepts the request without executing it, unless it repeats the last ignored request.
    IgnoreFirst,
    /// Accepts the request, changes its body, and executes the result.
    Alter {
        /// The property, as a JSON pointer (RFC 6901). Its parent must be in the body.
        property: String,
        /// The new value; `None` removes the property.
        #[serde(default)]
        value: Option<Value>,
    },
    /// Adds bytes to the normal answer's body.
    Add {
        /// Where the bytes are added.
        place: Place,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Answers 503 with `Retry-After`.
    Busy {
        /// The value of `Retry-After`, in seconds.
        retry_after_seconds: u64,
    },
    /// Answers 307 with another location.
    Redirect {
        /// The `Location`.
        location: String,
    },
}

/// When a request is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Before it is executed: if the client disconnects, the machine stays unchanged.
    Before,
    /// After it was executed, before the answer.
    After,
}

/// A position in an answer's body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Before the document.
    Front,
    /// After the document.
    Back,
    /// Inside this property's string, at its start.
    Inside(String),
}

impl Place {
    /// Inserts bytes there. If the body lacks the property, it stays unchanged.
    pub(crate) fn add(&self, body: &[u8], bytes: &[u8]) -> Vec<u8> {
        let at = match self {
            Self::Front => 0,
            Self::Back => body.len(),
            Self::Inside(property) => {
                let name = format!("\"{property}\":\"");
                let found = body.windows(name.len()).position(|window| window == name.as_bytes());
                let Some(found) = found else { return body.to_vec() };
                found + name.len()
            }
        };
        [&body[..at], bytes, &body[at..]].concat()
    }
}

/// An injected answer's body.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultBody {
    /// Without a body.
    #[default]
    Empty,
    /// JSON.
    Json(Value),
    /// A Redfish error with one message: its key in the base registry and its text.
    Error {
        /// For example `InternalError`.
        key: String,
        /// The text.
        message: String,
    },
    /// An HTML page.
    Html(String),
    /// A body with a JSON content type and arbitrary content.
    Raw(String),
    /// Valid JSON with this many bytes.
    Large(usize),
}

impl Fault {
    /// Returns a fault that affects every request until it is removed.
    #[must_use]
    pub fn new(action: FaultAction) -> Self {
        Self { bmc: None, system: None, method: None, path: None, body: None, skip: 0, times: None, action }
    }

    /// Answers with a status and a Redfish error.
    #[must_use]
    pub fn error(status: u16, message: &str) -> Self {
        Self::new(FaultAction::Answer {
            status,
            body: FaultBody::Error { key: "GeneralError".into(), message: message.into() },
            headers: Vec::new(),
            apply: false,
        })
    }

    /// Executes requests and loses the replies.
    #[must_use]
    pub fn lose_reply() -> Self {
        Self::new(FaultAction::LoseReply)
    }

    /// Holds requests.
    #[must_use]
    pub fn hold(phase: Phase) -> Self {
        Self::new(FaultAction::Hold { phase })
    }

    /// Delays requests.
    #[must_use]
    pub fn delay(time: Duration) -> Self {
        Self::new(FaultAction::Delay { time })
    }

    /// Shows a different value for one of the machine's own properties.
    #[must_use]
    pub fn show(property: &str, value: Value) -> Self {
        let property = property.to_owned();
        Self::new(FaultAction::Show { property, value }).on_request("GET", "/redfish/v1/Systems/*")
    }

    /// Accepts requests without executing them.
    #[must_use]
    pub fn ignore() -> Self {
        Self::new(FaultAction::Ignore)
    }

    /// Accepts requests and executes them only if they are repeated.
    #[must_use]
    pub fn ignore_first() -> Self {
        Self::new(FaultAction::IgnoreFirst)
    }

    /// Accepts requests, and executes them with this value for a property. `Value::Null` is a
    /// value; see [`Self::omit`].
    #[must_use]
    pub fn alter(property: &str, value: impl Into<Value>) -> Self {
        Self::new(FaultAction::Alter { property: property.to_owned(), value: Some(value.into()) })
    }

    /// Accepts requests, and executes them without this property.
    #[must_use]
    pub fn omit(property: &str) -> Self {
        Self::new(FaultAction::Alter { property: property.to_owned(), value: None })
    }

    /// Narrows to one machine.
    #[must_use]
    pub fn on_system(mut self, name: &str) -> Self {
        self.system = Some(name.into());
        self
    }

    /// Narrows to one BMC.
    #[must_use]
    pub fn on_bmc(mut self, name: &str) -> Self {
        self.bmc = Some(name.into());
        self
    }

    /// Narrows to a method and a path pattern.
    #[must_use]
    pub fn on_request(mut self, method: &str, path: &str) -> Self {
        self.method = Some(method.into());
        self.path = Some(path.into());
        self
    }

    /// Narrows to requests whose body contains a text.
    #[must_use]
    pub fn with_body(mut self, text: &str) -> Self {
        self.body = Some(text.into());
        self
    }

    /// Skips this many matching requests first.
    #[must_use]
    pub fn skip(mut self, requests: u64) -> Self {
        self.skip = requests;
        self
    }

    /// Affects only this many requests.
    #[must_use]
    pub fn times(mut self, requests: u64) -> Self {
        self.times = Some(requests);
        self
    }
}

/// An active fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActiveFault {
    /// Its number.
    pub id: u64,
    /// The number of affected requests.
    pub met: u64,
    /// The fault.
    pub fault: Fault,
}

/// The request to match.
pub(crate) struct Target<'a> {
    pub(crate) bmc: &'a str,
    pub(crate) system: Option<&'a str>,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) body: &'a [u8],
}

impl Target<'_> {
    fn contains(&self, text: &str) -> bool {
        String::from_utf8_lossy(self.body).contains(text)
    }
}

#[derive(Debug)]
struct Armed {
    id: u64,
    fault: Fault,
    seen: AtomicU64,
    /// The last request that [`FaultAction::IgnoreFirst`] ignored.
    ignored: Mutex<Option<(String, Vec<u8>)>>,
}

impl Armed {
    fn meets(&self, target: &Target<'_>) -> bool {
        let Fault { bmc, system, method, path, body, skip, times, action: _ } = &self.fault;
        let fits = bmc.as_deref().is_none_or(|bmc| bmc == target.bmc)
            && (system.is_none() || system.as_deref() == target.system)
            && method.as_deref().is_none_or(|method| method == target.method)
            && path.as_deref().is_none_or(|path| glob::matches(path, target.path))
            && body.as_deref().is_none_or(|text| target.contains(text));
        if !fits || self.repeats(target) {
            return false;
        }
        let seen = self.seen.fetch_add(1, Ordering::Relaxed);
        seen >= *skip && times.is_none_or(|times| seen - skip < times)
    }

    /// Returns true if the request repeats the ignored request, so it is executed.
    fn repeats(&self, target: &Target<'_>) -> bool {
        if self.fault.action != FaultAction::IgnoreFirst {
            return false;
        }
        let mut ignored = self.ignored.lock().unwrap_or_else(PoisonError::into_inner);
        let is_second = ignored.as_ref().is_some_and(|(path, body)| path == target.path && body == target.body);
        *ignored = (!is_second).then(|| (target.path.to_owned(), target.body.to_vec()));
        is_second
    }

    fn met(&self) -> u64 {
        let met = self.seen.load(Ordering::Relaxed).saturating_sub(self.fault.skip);
        self.fault.times.map_or(met, |times| met.min(times))
    }
}

/// The active faults.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    armed: RwLock<Vec<Arc<Armed>>>,
    /// Avoids the lock while the list is empty.
    count: AtomicUsize,
    last: AtomicU64,
}

impl Faults {
    pub(crate) fn add(&self, fault: Fault) -> u64 {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut armed = self.armed.write().unwrap_or_else(PoisonError::into_inner);
        armed.push(Arc::new(Armed { id, fault, seen: AtomicU64::new(0), ignored: Mutex::default() }));
        self.count.store(armed.len(), Ordering::Release);
        id
    }

    pub(crate) fn remove(&self, id: u64) -> bool {
        self.retain(|armed| armed.id != id)
    }

    pub(crate) fn clear(&self) {
        self.retain(|_| false);
    }

    fn retain(&self, keep: impl Fn(&Armed) -> bool) -> bool {
        let mut armed = self.armed.write().unwrap_or_else(PoisonError::into_inner);
        let before = armed.len();
        armed.retain(|armed| keep(armed));
        self.count.store(armed.len(), Ordering::Release);
        armed.len() < before
    }

    pub(crate) fn list(&self) -> Vec<ActiveFault> {
        let armed = self.armed.read().unwrap_or_else(PoisonError::into_inner);
        armed.iter().map(|armed| ActiveFault { id: armed.id, met: armed.met(), fault: armed.fault.clone() }).collect()
    }

    /// Returns the faults that affect this request, in the order in which they were added.
    pub(crate) fn meeting(&self, target: &Target<'_>) -> Vec<(u64, FaultAction)> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let armed = self.armed.read().unwrap_or_else(PoisonError::into_inner);
        armed.iter().filter(|armed| armed.meets(target)).map(|armed| (armed.id, armed.fault.action.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_skips_then_meets_then_rests() {
        let faults = Faults::default();
        faults.add(Fault::error(500, "no").on_request("GET", "/redfish/*").skip(1).times(2));
        let target = |path| Target { bmc: "b", system: None, method: "GET", path, body: b"" };
        let met: Vec<_> = (0..5).map(|_| faults.meeting(&target("/redfish/v1")).len()).collect();
        assert_eq!(met, [0, 1, 1, 0, 0]);
        assert_eq!(faults.meeting(&target("/other")).len(), 0);
        assert_eq!(faults.list()[0].met, 2);
    }

    #[test]
    fn only_the_first_of_two_equal_requests_is_ignored() {
        let faults = Faults::default();
        faults.add(Fault::ignore_first().with_body("Reset"));
        let met = |body: &'static str| {
            let target = Target { bmc: "b", system: None, method: "POST", path: "/x", body: body.as_bytes() };
            faults.meeting(&target).len()
        };
        let bodies = ["Reset On", "Reset On", "Reset On", "Reset Off", "Reset On", "Boot", "Reset On"];
        assert_eq!(bodies.map(met), [1, 0, 1, 1, 1, 0, 0]);
    }
}
