//! One BMC: requests, sessions, limits. Shared by every system behind it.

mod facts;
mod login;
mod reads;
mod trouble;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use reqwest::{Method, RequestBuilder, Response, header};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use tokio::sync::{Mutex, OnceCell, RwLock, Semaphore};
use url::Url;

use crate::{
    backend::{BackendError, before_change},
    clock::{Clock, no_answer_within, within},
    maintenance::machine::shown_url,
};

use super::{
    answer::RedfishResponse,
    redirect,
    settings::{Authentication, Patience},
    task::Tasks,
    trust::{Trusting, show_fingerprint},
};

/// Requests under way at once on the BMC of one system; more choke small ones.
const AT_ONCE: usize = 4;
/// The same on one that stands for many systems (a chassis manager, an aggregator), which is made
/// for it: as many as a host has resources under way.
pub(super) const MOST_AT_ONCE: usize = 10;

/// Where sessions are opened, unless the service root says otherwise (DSP0266, "Session login").
const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";

/// How long a BMC may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// For one request that may change something.
    pub(super) change: Duration,
    /// For one read.
    pub(super) read: Duration,
    /// For coming to its senses.
    pub(super) patience: Patience,
}

/// How the next request proves who asks.
#[derive(Clone, Debug)]
enum RequestAuth {
    Basic,
    Session(Arc<SecretString>),
}

#[derive(Debug, Default)]
struct Access {
    session: Option<(Arc<SecretString>, String)>,
    /// This BMC has no sessions, or has none left.
    no_sessions: bool,
    /// The credentials were refused: they are not tried again in this process.
    refused: Option<String>,
    /// On our own clock: when credentials were refused that were accepted before. Some BMCs do so
    /// for a moment.
    doubted: Option<Duration>,
    /// Whether a session was open in this process.
    had_session: bool,
}

/// What was learned about the resources of a BMC.
#[derive(Debug, Default)]
struct Resources {
    /// Read at least once: what is answered for them later without sense is a BMC that is starting
    /// anew.
    known: HashSet<String>,
    /// Where paths were moved to for good.
    moved: HashMap<String, String>,
    /// On our own clock: since when the BMC makes no sense.
    odd_since: Option<Duration>,
    /// Where sessions are opened.
    sessions: Option<String>,
    /// Requests whose answer was not valid JSON, each with the reason.
    flaws: BTreeMap<String, String>,
}

/// One BMC.
#[derive(Debug)]
pub(super) struct Bmc {
    pub(super) endpoint: Url,
    username: String,
    password: SecretString,
    trusting: Trusting,
    pub(super) limits: Limits,
    pub(super) tasks: Tasks,
    authentication: Authentication,
    pub(super) clock: Arc<dyn Clock>,
    resources: std::sync::Mutex<Resources>,
    access: RwLock<Access>,
    /// The slowest read that was answered in this process.
    slowest: std::sync::Mutex<Duration>,
    /// Whether the credentials were accepted. Until then one request at a time is made: five at
    /// once with a wrong password would be five wrong log-ins.
    proven: AtomicBool,
    door: Mutex<()>,
    places: Semaphore,
    systems: AtomicUsize,
    /// Whether it lists more than one system: read once for all of them, because the list of a
    /// large chassis is long.
    pub(super) has_siblings: OnceCell<bool>,
    /// A 401 said that basic authentication is none of the ways in.
    pub(super) no_basic: AtomicBool,
    /// Until when, on our own clock, nobody tries to reach it again, and why it could not be
    /// reached.
    down: std::sync::Mutex<Option<(Duration, String)>>,
}

/// A BMC's words without the addresses that were sent to it, as far as they may hold secrets.
fn without_addresses(message: String, sent: &Value) -> String {
    match sent {
        Value::String(text) if text.contains("://") => message.replace(text.as_str(), &shown_url(text)),
        Value::Object(fields) => fields.values().fold(message, without_addresses),
        Value::Array(items) => items.iter().fold(message, without_addresses),
        _ => message,
    }
}

impl Bmc {
    pub(super) fn new(
        endpoint: Url,
        username: String,
        password: SecretString,
        trusting: Trusting,
        limits: Limits,
        authentication: Authentication,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            endpoint,
            username,
            password,
            trusting,
            limits,
            tasks: Tasks::default(),
            authentication,
            clock,
            resources: std::sync::Mutex::default(),
            access: RwLock::default(),
            slowest: std::sync::Mutex::default(),
            proven: AtomicBool::new(false),
            door: Mutex::default(),
            places: Semaphore::new(AT_ONCE),
            systems: AtomicUsize::new(0),
            has_siblings: OnceCell::new(),
            no_basic: AtomicBool::new(false),
            down: std::sync::Mutex::default(),
        }
    }

    /// One more system is reached through this BMC.
    pub(super) fn add_system(&self) {
        let before = self.systems.fetch_add(1, Ordering::Relaxed);
        if (AT_ONCE..MOST_AT_ONCE).contains(&before) {
            self.places.add_permits(1);
        }
    }

    /// The address for people, without credentials.
    pub(super) fn address(&self) -> String {
        self.endpoint.origin().ascii_serialization()
    }

    /// Host and port.
    pub(super) fn authority(&self) -> String {
        self.endpoint.authority().to_owned()
    }

    /// Sends a change, once.
    pub(super) async fn change(
        &self,
        method: Method,
        path: &str,
        body: &Value,
        etag: Option<&str>,
    ) -> Result<RedfishResponse, BackendError> {
        // The right to act is asked for again where this is not the first change of a call.
        before_change(&format!("{method} {path}")).await?;
        self.tasks.forget(path);
        let mut result = self.request(&method, path, Some(body), etag).await;
        let watched = match &result {
            Ok(begun) => self.watch(&format!("{method} {path}"), begun).await,
            Err(_) => Ok(()),
        };
        if let Err(error) = watched {
            result = Err(error);
        }
        // Redfish messages quote the value that was refused, and an address may hold a token.
        result.map_err(|error| match error {
            BackendError::Rejected { address, request, status, message, retry_after, transient } => {
                let message = without_addresses(message, body);
                BackendError::Rejected { address, request, status, message, retry_after, transient }
            }
            BackendError::TaskFailed { address, request, message, nothing_changed } => {
                let message = without_addresses(message, body);
                BackendError::TaskFailed { address, request, message, nothing_changed }
            }
            BackendError::OutcomeUnknown { address, request, answer } => {
                let answer = without_addresses(answer, body);
                BackendError::OutcomeUnknown { address, request, answer }
            }
            other => other,
        })
    }

    async fn request(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
        etag: Option<&str>,
    ) -> Result<RedfishResponse, BackendError> {
        self.fail_if_down()?;
        let _alone = if self.proven.load(Ordering::Acquire) { None } else { Some(self.door.lock().await) };
        let _place = self.places.acquire().await;
        self.fail_if_down()?;
        let mut proof = self.proof().await?;
        let mut renewed = false;
        loop {
            let result = self.send(method, path, body, etag, &proof).await;
            let Err(BackendError::Unauthorized { message, .. }) = &result else {
                // The service root answers everybody (DSP0266, "Authentication"), so it proves
                // nothing.
                let asks = path.trim_end_matches('/') != "/redfish/v1";
                if asks && matches!(&result, Ok(_) | Err(BackendError::Rejected { .. })) {
                    self.proven.store(true, Ordering::Release);
                    let doubted = self.access.read().await.doubted.is_some();
                    if doubted {
                        self.access.write().await.doubted = None;
                    }
                }
                return result;
            };
            match &proof {
                // The session ended; the BMC refused the request, so it may be sent again under a
                // new one.
                RequestAuth::Session(token) if !renewed => {
                    renewed = true;
                    self.forget_session(token).await;
                    proof = self.proof().await?;
                }
                // Not the password was wrong but the way in: a log-in is the first try of the
                // password.
                RequestAuth::Basic if self.only_sessions() && !renewed => {
                    renewed = true;
                    proof = self.proof().await?;
                }
                RequestAuth::Session(_) | RequestAuth::Basic => return Err(self.refused(message.clone()).await),
            }
        }
    }

    async fn send(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
        etag: Option<&str>,
        proof: &RequestAuth,
    ) -> Result<RedfishResponse, BackendError> {
        let dress = |mut request: RequestBuilder| {
            request = match proof {
                RequestAuth::Basic => request.basic_auth(&self.username, Some(self.password.expose_secret())),
                RequestAuth::Session(token) => {
                    let mut value = header::HeaderValue::from_str(token.expose_secret())
                        .map_err(|_| self.protocol("the session's token is not a valid header value"))?;
                    value.set_sensitive(true);
                    request.header("X-Auth-Token", value)
                }
            };
            if let Some(etag) = etag {
                request = request.header(header::IF_MATCH, etag);
            }
            if let Some(body) = body {
                request = request.json(body);
            }
            Ok(request)
        };
        let begun = self.clock.monotonic();
        let response = self.exchange(method, path, dress).await?;
        let answer = self.read(method, path, response).await;
        if *method == Method::GET {
            let took = self.clock.monotonic().saturating_sub(begun);
            let mut slowest = self.slowest.lock().unwrap_or_else(PoisonError::into_inner);
            *slowest = took.max(*slowest);
        }
        answer
    }

    /// Sends a request, and again where the BMC moved it to.
    async fn exchange(
        &self,
        method: &Method,
        path: &str,
        dress: impl Fn(RequestBuilder) -> Result<RequestBuilder, BackendError> + Send,
    ) -> Result<Response, BackendError> {
        let moved = self.resources.lock().unwrap_or_else(PoisonError::into_inner).moved.get(path).cloned();
        let mut at = moved.unwrap_or_else(|| path.to_owned());
        for _ in 0..=redirect::MOST {
            let response = self.deliver(method, &at, dress(self.build(method, &at)?)?).await?;
            match self.redirected(method, &at, &response)? {
                Some(to) => at = to,
                None => return Ok(response),
            }
        }
        Err(self.protocol(&format!("{method} {path} was redirected in a circle")))
    }

    /// Remembers where a path was moved for good.
    pub(super) fn moved(&self, path: &str, to: &str) {
        let mut resources = self.resources.lock().unwrap_or_else(PoisonError::into_inner);
        resources.moved.insert(path.to_owned(), to.to_owned());
    }

    /// The time limit of a request.
    pub(super) fn limit(&self, method: &Method) -> Duration {
        if *method == Method::GET { self.limits.read } else { self.limits.change }
    }

    fn build(&self, method: &Method, path: &str) -> Result<RequestBuilder, BackendError> {
        let url = self.endpoint.join(path).map_err(|_| self.protocol(&format!("{path:?} is not a valid address")))?;
        if url.origin() != self.endpoint.origin() {
            return Err(self.protocol(&format!("{path:?} leads to another host; credentials are not sent there")));
        }
        let reuses = path.starts_with(SESSIONS) || *method == Method::GET;
        let client = if reuses { &self.trusting.client } else { &self.trusting.fresh };
        Ok(client
            .request(method.clone(), url)
            .header("OData-Version", "4.0")
            .header(header::ACCEPT, "application/json")
            // Compression turns entity tags weak, which some BMCs then refuse.
            .header(header::ACCEPT_ENCODING, "identity"))
    }

    async fn deliver(&self, method: &Method, path: &str, request: RequestBuilder) -> Result<Response, BackendError> {
        let limit = self.limit(method);
        match within(limit, request.send()).await {
            Some(Ok(response)) => Ok(response),
            Some(Err(error)) => Err(self.undelivered(method, path, &error)),
            None => {
                let cause = no_answer_within(limit);
                if *method == Method::GET {
                    self.is_down(&cause);
                    return Err(BackendError::Unreachable { address: self.address(), cause });
                }
                Err(self.reply_lost(method, path, cause))
            }
        }
    }

    /// The path of an address on this BMC; `None` when it is another host's.
    pub(super) fn own_path(&self, address: &str) -> Option<String> {
        let url = self.endpoint.join(address).ok()?;
        // Some BMCs name themselves by another name in Location; only the path counts.
        Some(url.path().to_owned())
    }
}
