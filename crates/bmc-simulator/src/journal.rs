//! The record of every request, so that tests can count and order them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::Stamp;
use crate::glob;

/// How many requests are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalMode {
    /// The last entries, up to this number.
    Keep(usize),
    /// The last entries of requests that can change something, up to this number. Covers the
    /// longest time.
    KeepChanges(usize),
    /// Counts only; the fastest mode, for benchmarks.
    CountOnly,
}

impl Default for JournalMode {
    fn default() -> Self {
        Self::Keep(100_000)
    }
}

/// A request and its outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// Its position in the order of all requests and events, assigned at arrival.
    pub sequence: u64,
    /// When it arrived.
    #[serde(flatten)]
    pub at: Stamp,
    /// When it was answered or cut, in microseconds since the simulator started; `None` while in
    /// progress.
    pub finished_micros: Option<u64>,
    /// The BMC's name.
    pub bmc: String,
    /// The machine's name, if the path is inside a system or the BMC serves only one machine.
    pub system: Option<String>,
    /// The method.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// The query, without the question mark.
    pub query: Option<String>,
    /// The body, with secrets replaced; a text if it was not JSON.
    pub body: Option<Value>,
    /// The `If-Match` header.
    pub if_match: Option<String>,
    /// The `User-Agent` header.
    pub user_agent: Option<String>,
    /// How the client authenticated; `status` shows if that succeeded.
    pub authentication: Authentication,
    /// The authenticated account; `None` without successful authentication.
    #[serde(default)]
    pub account: Option<String>,
    /// The connection's number, unique within the simulator.
    pub connection: u64,
    /// The request's outcome.
    pub outcome: Outcome,
    /// The response status; `None` if no answer was sent.
    pub status: Option<u16>,
    /// True if the request was executed with a 2xx answer, even if the client received something
    /// else.
    pub applied: bool,
    /// Numbers of faults that affected it.
    pub faults: Vec<u64>,
}

/// How a client authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Authentication {
    /// Without authentication.
    None,
    /// With `Authorization: Basic`.
    Basic,
    /// With `X-Auth-Token`.
    Session,
}

/// A request's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The request is in progress.
    UnderWay,
    /// An answer was sent.
    Answered,
    /// A fault cut the connection instead of answering.
    Cut,
    /// The client or the BMC closed the connection before an answer.
    Abandoned,
}

/// Selects journal entries; every given field must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JournalQuery {
    /// Only entries after this sequence number.
    pub since: Option<u64>,
    /// The BMC's name.
    pub bmc: Option<String>,
    /// The machine's name.
    pub system: Option<String>,
    /// The method.
    pub method: Option<String>,
    /// A pattern for the path; `*` matches any text.
    pub path: Option<String>,
    /// The status.
    pub status: Option<u16>,
    /// The outcome.
    pub outcome: Option<Outcome>,
    /// The maximum number of entries, oldest first.
    pub limit: Option<usize>,
}

impl JournalQuery {
    /// Selects requests to one machine.
    #[must_use]
    pub fn system(name: &str) -> Self {
        Self { system: Some(name.to_owned()), ..Self::default() }
    }

    /// Narrows to a method and a path pattern.
    #[must_use]
    pub fn request(mut self, method: &str, path: &str) -> Self {
        self.method = Some(method.to_owned());
        self.path = Some(path.to_owned());
        self
    }

    /// Narrows to entries after `sequence`.
    #[must_use]
    pub fn since(mut self, sequence: u64) -> Self {
        self.since = Some(sequence);
        self
    }

    fn matches(&self, entry: &JournalEntry) -> bool {
        fn same<T: PartialEq + ?Sized>(wanted: Option<&T>, is: &T) -> bool {
            wanted.is_none_or(|wanted| wanted == is)
        }
        same(self.bmc.as_deref(), entry.bmc.as_str())
            && self.system.as_ref().is_none_or(|wanted| entry.system.as_ref() == Some(wanted))
            && same(self.method.as_deref(), entry.method.as_str())
            && self.path.as_ref().is_none_or(|pattern| glob::matches(pattern, &entry.path))
            && self.status.is_none_or(|wanted| entry.status == Some(wanted))
            && same(self.outcome.as_ref(), &entry.outcome)
    }
}

/// Counts of all requests since the start or the last reset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// All requests.
    pub requests: u64,
    /// By method and status, such as `GET 200`; a request without an answer counts as `GET -`.
    pub by_method_and_status: BTreeMap<String, u64>,
}

#[derive(Debug)]
pub(crate) struct Journal {
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    mode: JournalMode,
    entries: VecDeque<JournalEntry>,
    requests: u64,
    finished: BTreeMap<(http_method::Name, u16), u64>,
}

impl Journal {
    pub(crate) fn new(mode: JournalMode) -> Self {
        Self { kept: Mutex::new(Kept { mode, entries: VecDeque::new(), requests: 0, finished: BTreeMap::new() }) }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if requests with this method are kept.
    pub(crate) fn keeps(&self, method: &hyper::Method) -> bool {
        match self.lock().mode {
            JournalMode::Keep(_) => true,
            JournalMode::KeepChanges(_) => method != hyper::Method::GET && method != hyper::Method::HEAD,
            JournalMode::CountOnly => false,
        }
    }

    pub(crate) fn set_mode(&self, mode: JournalMode) {
        let mut kept = self.lock();
        kept.mode = mode;
        kept.trim();
    }

    /// Counts an arriving request.
    pub(crate) fn count(&self) {
        self.lock().requests += 1;
    }

    /// Counts an arriving request and keeps its entry, in the order of arrival.
    pub(crate) fn begin(&self, entry: JournalEntry) {
        let mut kept = self.lock();
        kept.requests += 1;
        // Numbers can be assigned in a different order than the lock.
        let place =
            kept.entries.iter().rposition(|other| other.sequence < entry.sequence).map_or(0, |before| before + 1);
        kept.entries.insert(place, entry);
        kept.trim();
    }

    /// Records the outcome of the request with this number.
    pub(crate) fn finish(
        &self,
        sequence: u64,
        method: &hyper::Method,
        status: Option<u16>,
        note: impl FnOnce(&mut JournalEntry),
    ) {
        let mut kept = self.lock();
        *kept.finished.entry((http_method::name(method), status.unwrap_or(0))).or_default() += 1;
        if let Ok(place) = kept.entries.binary_search_by_key(&sequence, |entry| entry.sequence) {
            note(&mut kept.entries[place]);
        }
    }

    pub(crate) fn update(&self, sequence: u64, note: impl FnOnce(&mut JournalEntry)) {
        let mut kept = self.lock();
        if let Ok(place) = kept.entries.binary_search_by_key(&sequence, |entry| entry.sequence) {
            note(&mut kept.entries[place]);
        }
    }

    pub(crate) fn find(&self, query: &JournalQuery) -> Vec<JournalEntry> {
        let kept = self.lock();
        let since = query.since.unwrap_or(0);
        let from = kept.entries.partition_point(|entry| entry.sequence <= since);
        kept.entries
            .iter()
            .skip(from)
            .filter(|entry| query.matches(entry))
            .take(query.limit.unwrap_or(usize::MAX))
            .cloned()
            .collect()
    }

    pub(crate) fn counts(&self) -> Counts {
        let kept = self.lock();
        Counts {
            requests: kept.requests,
            by_method_and_status: kept
                .finished
                .iter()
                .map(|((method, status), count)| {
                    let status = match status {
                        0 => "-".to_owned(),
                        status => status.to_string(),
                    };
                    (format!("{method} {status}"), *count)
                })
                .collect(),
        }
    }

    pub(crate) fn clear(&self) {
        let mut kept = self.lock();
        kept.entries.clear();
        kept.requests = 0;
        kept.finished.clear();
    }
}

impl Kept {
    fn trim(&mut self) {
        let room = match self.mode {
            JournalMode::Keep(room) | JournalMode::KeepChanges(room) => room,
            JournalMode::CountOnly => 0,
        };
        while self.entries.len() > room {
            self.entries.pop_front();
        }
    }
}

mod http_method {
    use hyper::Method;

    pub(super) type Name = &'static str;

    /// Returns methods as static text, so that counting does not allocate.
    pub(super) fn name(method: &Method) -> Name {
        [
            (&Method::GET, "GET"),
            (&Method::HEAD, "HEAD"),
            (&Method::POST, "POST"),
            (&Method::PATCH, "PATCH"),
            (&Method::PUT, "PUT"),
            (&Method::DELETE, "DELETE"),
            (&Method::OPTIONS, "OPTIONS"),
        ]
        .into_iter()
        .find_map(|(known, name)| (known == method).then_some(name))
        .unwrap_or("OTHER")
    }
}
