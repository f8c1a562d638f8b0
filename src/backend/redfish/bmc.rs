//! A BMC client with its sessions and limits, shared by every system behind the BMC.

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
    backend::{BackendError, before_change, share::PlanShare},
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

/// Concurrent requests to a BMC with one system; more overload small BMCs.
const AT_ONCE: usize = 4;
/// The maximum for a BMC with many systems (a chassis manager or aggregator). It equals the number
/// of concurrent resource operations in a Terraform host.
pub(super) const MOST_AT_ONCE: usize = 10;

/// The default session collection; the service root can override it (DSP0266, "Session login").
const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// For a request that can change something.
    pub(super) change: Duration,
    /// For a read.
    pub(super) read: Duration,
    /// For recovery after senseless answers.
    pub(super) patience: Patience,
}

/// How the next request authenticates.
#[derive(Clone, Debug)]
enum RequestAuth {
    Basic,
    Session(Arc<SecretString>),
}

#[derive(Debug, Default)]
struct Access {
    session: Option<(Arc<SecretString>, String)>,
    /// The BMC lacks sessions, or all of them are in use.
    no_sessions: bool,
    /// The BMC rejected the credentials: this process does not try them again.
    refused: Option<String>,
    /// The monotonic time at which previously accepted credentials were rejected. Some BMCs do so
    /// temporarily.
    doubted: Option<Duration>,
    /// True if this process has opened a session.
    had_session: bool,
}

/// Cached facts about a BMC's resources.
#[derive(Debug, Default)]
struct Resources {
    /// Resources that were read successfully. A later senseless answer for them means that the BMC
    /// is restarting.
    known: HashSet<String>,
    /// Permanent redirects by path.
    moved: HashMap<String, String>,
    /// The monotonic time of the first senseless answer.
    odd_since: Option<Duration>,
    sessions: Option<String>,
    /// Requests with invalid JSON in the answer, each with the reason.
    flaws: BTreeMap<String, String>,
}

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
    /// The slowest answered read in this process.
    slowest: std::sync::Mutex<Duration>,
    /// True if the credentials were accepted. Until then, requests are sequential, because five
    /// concurrent requests with a wrong password count as five failed logins.
    proven: AtomicBool,
    door: Mutex<()>,
    places: Semaphore,
    /// The time that reads took in a plan.
    share: PlanShare,
    systems: AtomicUsize,
    /// True if the BMC lists several systems. Read once for all of them, because a large chassis
    /// has a long list.
    pub(super) has_siblings: OnceCell<bool>,
    /// True if a 401 excluded basic authentication.
    pub(super) no_basic: AtomicBool,
    /// The monotonic time until which no connection is attempted, and the cause.
    down: std::sync::Mutex<Option<(Duration, String)>>,
}

/// Removes potentially secret addresses that were sent to a BMC from its message.
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
            share: PlanShare::default(),
            systems: AtomicUsize::new(0),
            has_siblings: OnceCell::new(),
            no_basic: AtomicBool::new(false),
            down: std::sync::Mutex::default(),
        }
    }

    /// Registers another system behind this BMC.
    pub(super) fn add_system(&self) {
        let before = self.systems.fetch_add(1, Ordering::Relaxed);
        if (AT_ONCE..MOST_AT_ONCE).contains(&before) {
            self.places.add_permits(1);
        }
    }

    /// Returns the address for display, without credentials.
    pub(super) fn address(&self) -> String {
        self.endpoint.origin().ascii_serialization()
    }

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
        // Rechecks the lock unless this is the call's first change.
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
        // Redfish messages quote the rejected value, and an address can contain a token.
        result.map_err(|error| match error {
            BackendError::Rejected { address, request, status, message, retry_after, transient } => {
                let message = without_addresses(message.into_raw(), body);
                BackendError::Rejected { address, request, status, message: message.into(), retry_after, transient }
            }
            BackendError::TaskFailed { address, request, message, nothing_changed } => {
                let message = without_addresses(message.into_raw(), body);
                BackendError::TaskFailed { address, request, message: message.into(), nothing_changed }
            }
            BackendError::OutcomeUnknown { address, request, answer } => {
                let answer = without_addresses(answer.into_raw(), body);
                BackendError::OutcomeUnknown { address, request, answer: answer.into() }
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
                // The service root does not require authentication (DSP0266, "Authentication"), so
                // it proves nothing.
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
                // The session expired. The request was rejected, so it can be repeated in a new
                // session.
                RequestAuth::Session(token) if !renewed => {
                    renewed = true;
                    self.forget_session(token).await;
                    proof = self.proof().await?;
                }
                // The method was rejected, not the password: a login is the password's first
                // attempt.
                RequestAuth::Basic if self.only_sessions() && !renewed => {
                    renewed = true;
                    proof = self.proof().await?;
                }
                RequestAuth::Session(_) | RequestAuth::Basic => {
                    return Err(self.refused(message.clone().into_raw()).await);
                }
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
        let servers = self.systems.load(Ordering::Relaxed);
        let counted =
            if *method == Method::GET { self.share.begin(self.limits.read, servers, &*self.clock) } else { None };
        let limit = counted.as_ref().map_or(Duration::MAX, |(left, _)| *left).min(self.limit(method));
        if limit.is_zero() {
            return Err(self.unanswered(method, path, "its reads took their whole share of this plan".to_owned()));
        }
        let until = begun + limit;
        let response = self.exchange(method, path, until, dress).await?;
        let answer = self.read(method, path, response, until).await;
        if *method == Method::GET {
            let took = self.clock.monotonic().saturating_sub(begun);
            let mut slowest = self.slowest.lock().unwrap_or_else(PoisonError::into_inner);
            *slowest = took.max(*slowest);
        }
        answer
    }

    /// Returns when a request that starts now must be answered completely.
    fn until(&self, method: &Method) -> Duration {
        self.clock.monotonic() + self.limit(method)
    }

    /// Sends a request and follows redirects within the BMC.
    async fn exchange(
        &self,
        method: &Method,
        path: &str,
        until: Duration,
        dress: impl Fn(RequestBuilder) -> Result<RequestBuilder, BackendError> + Send,
    ) -> Result<Response, BackendError> {
        let moved = self.resources.lock().unwrap_or_else(PoisonError::into_inner).moved.get(path).cloned();
        let mut at = moved.unwrap_or_else(|| path.to_owned());
        for _ in 0..=redirect::MOST {
            let response = self.deliver(method, &at, until, dress(self.build(method, &at)?)?).await?;
            match self.redirected(method, &at, &response)? {
                Some(to) => at = to,
                None => return Ok(response),
            }
        }
        Err(self.protocol(&format!("{method} {path} was redirected in a loop")))
    }

    /// Stores a permanent redirect.
    pub(super) fn moved(&self, path: &str, to: &str) {
        let mut resources = self.resources.lock().unwrap_or_else(PoisonError::into_inner);
        resources.moved.insert(path.to_owned(), to.to_owned());
    }

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
        let request = client.request(method.clone(), url);
        Ok(request
            .map_err(|refused| BackendError::Withheld {
                address: self.address().into(),
                cause: refused.to_string().into(),
            })?
            .header("OData-Version", "4.0")
            .header(header::ACCEPT, "application/json")
            // Compression weakens entity tags, and some BMCs then reject them.
            .header(header::ACCEPT_ENCODING, "identity"))
    }

    async fn deliver(
        &self,
        method: &Method,
        path: &str,
        until: Duration,
        request: RequestBuilder,
    ) -> Result<Response, BackendError> {
        match within(until.saturating_sub(self.clock.monotonic()), request.send()).await {
            Some(Ok(response)) => Ok(response),
            Some(Err(error)) => Err(self.undelivered(method, path, &error)),
            None => Err(self.unanswered(method, path, no_answer_within(self.limit(method)))),
        }
    }

    /// Returns an address's path on this BMC; `None` for another host.
    pub(super) fn own_path(&self, address: &str) -> Option<String> {
        let url = self.endpoint.join(address).ok()?;
        // Some BMCs use another name for themselves in Location, so only the path matters.
        Some(url.path().to_owned())
    }
}
