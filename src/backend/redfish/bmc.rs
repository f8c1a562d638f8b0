//! One BMC: requests, sessions, limits. Shared by every system behind it.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use reqwest::{Method, RequestBuilder, Response, header};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use tokio::sync::{Mutex, RwLock, Semaphore};
use url::Url;

use crate::{
    backend::{BackendError, before_change},
    clock::{Clock, no_answer_within, within},
    maintenance::machine::shown_url,
};

use super::{
    answer::Answer,
    redirect,
    settings::{Authentication, Patience},
    trust::{Trusting, show_fingerprint},
};

/// Requests under way at once on the BMC of one system; more choke small ones.
const AT_ONCE: usize = 4;
/// The same on one that stands for many systems (a chassis manager, an aggregator), which is made for it: as many as a
/// host has resources under way.
pub(super) const MOST_AT_ONCE: usize = 10;
/// How often a read is tried again when the connection broke or the BMC asked to wait.
const READ_TRIES: usize = 3;
/// The longest wait that a BMC may ask for between two tries of a read.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

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
enum Proof {
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
    /// On our own clock: when credentials were refused that were accepted before. Some BMCs do so for a moment.
    doubted: Option<Duration>,
    /// Whether a session was open in this process.
    had_session: bool,
}

/// What was learned about the resources of a BMC.
#[derive(Debug, Default)]
struct Resources {
    /// Read at least once: what is answered for them later without sense is a BMC that is starting anew.
    known: HashSet<String>,
    /// Where paths were moved to for good.
    moved: HashMap<String, String>,
    /// On our own clock: since when the BMC makes no sense.
    odd_since: Option<Duration>,
    /// Where sessions are opened.
    sessions: Option<String>,
}

/// One BMC.
#[derive(Debug)]
pub(super) struct Bmc {
    pub(super) endpoint: Url,
    username: String,
    password: SecretString,
    trusting: Trusting,
    pub(super) limits: Limits,
    authentication: Authentication,
    pub(super) clock: Arc<dyn Clock>,
    resources: std::sync::Mutex<Resources>,
    access: RwLock<Access>,
    /// Whether the credentials were accepted. Until then one request at a time is made: five at once with a wrong
    /// password would be five wrong log-ins.
    proven: AtomicBool,
    door: Mutex<()>,
    places: Semaphore,
    systems: AtomicUsize,
    /// A 401 said that basic authentication is none of the ways in.
    pub(super) no_basic: AtomicBool,
    /// Until when, on our own clock, nobody tries to reach it again, and why it could not be reached.
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
            authentication,
            clock,
            resources: std::sync::Mutex::default(),
            access: RwLock::default(),
            proven: AtomicBool::new(false),
            door: Mutex::default(),
            places: Semaphore::new(AT_ONCE),
            systems: AtomicUsize::new(0),
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

    /// Reads a resource. Tried again, a few times, when that changes nothing: the connection broke or the BMC asked to
    /// wait.
    pub(super) async fn get(&self, path: &str) -> Result<Answer, BackendError> {
        let result = self.get_again(path).await;
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
            cause: format!("{cause}, and with sense before: it may be starting anew"),
        })
    }

    /// Reads a resource, once.
    pub(super) async fn get_once(&self, path: &str) -> Result<Answer, BackendError> {
        self.request(&Method::GET, path, None, None).await
    }

    async fn get_again(&self, path: &str) -> Result<Answer, BackendError> {
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

    /// Sends a change, once.
    pub(super) async fn change(
        &self,
        method: Method,
        path: &str,
        body: &Value,
        etag: Option<&str>,
    ) -> Result<Answer, BackendError> {
        // The right to act is asked for again where this is not the first change of a call.
        before_change(&format!("{method} {path}")).await?;
        let mut result = self.request(&method, path, Some(body), etag).await;
        let watched = match &result {
            Ok(begun) => self.watch(&format!("{method} {path}"), begun).await,
            Err(_) => Ok(()),
        };
        if let Err(error) = watched {
            result = Err(error);
        }
        // Redfish messages quote the value that was refused, and an address may hold a token.
        let result = result.map_err(|error| match error {
            BackendError::Rejected { address, request, status, message, retry_after, transient } => {
                let message = without_addresses(message, body);
                BackendError::Rejected { address, request, status, message, retry_after, transient }
            }
            BackendError::OutcomeUnknown { address, request, answer } => {
                let answer = without_addresses(answer, body);
                BackendError::OutcomeUnknown { address, request, answer }
            }
            other => other,
        });
        if let Err(error @ BackendError::OutcomeUnknown { .. }) = &result {
            tracing::warn!("{error}");
        }
        result
    }

    async fn request(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
        etag: Option<&str>,
    ) -> Result<Answer, BackendError> {
        self.fail_if_down()?;
        let _alone = if self.proven.load(Ordering::Acquire) { None } else { Some(self.door.lock().await) };
        let _place = self.places.acquire().await;
        self.fail_if_down()?;
        let mut proof = self.proof().await?;
        let mut renewed = false;
        loop {
            let result = self.send(method, path, body, etag, &proof).await;
            let Err(BackendError::Unauthorized { message, .. }) = &result else {
                // The service root answers everybody (DSP0266, "Authentication"), so it proves nothing.
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
                // The session ended; the BMC refused the request, so it may be sent again under a new one.
                Proof::Session(token) if !renewed => {
                    renewed = true;
                    self.forget_session(token).await;
                    proof = self.proof().await?;
                }
                // Not the password was wrong but the way in: a log-in is the first try of the password.
                Proof::Basic if self.only_sessions() && !renewed => {
                    renewed = true;
                    proof = self.proof().await?;
                }
                Proof::Session(_) | Proof::Basic => return Err(self.refused(message.clone()).await),
            }
        }
    }

    /// The credentials were refused. Those that were never accepted are not tried again, so that no account is locked out.
    /// Those that were are tried once more after a while: HPE, AMI and NVIDIA BMCs refuse them for a moment.
    async fn refused(&self, message: String) -> BackendError {
        let mut access = self.access.write().await;
        self.refuse(&mut access, message)
    }

    fn refuse(&self, access: &mut Access, message: String) -> BackendError {
        let now = self.clock.monotonic();
        let doubt = self.limits.patience.doubt;
        if self.proven.load(Ordering::Acquire) && access.doubted.is_none_or(|since| now.saturating_sub(since) < doubt) {
            let since = *access.doubted.get_or_insert(now);
            let cause = format!(
                "it refused the credentials that it accepted before ({message}); they are tried once more {}s after that",
                doubt.as_secs_f32()
            );
            self.is_down_until(since + doubt, &cause);
            return BackendError::Unreachable { address: self.address(), cause };
        }
        access.refused.get_or_insert_with(|| message.clone());
        BackendError::Unauthorized { address: self.address(), message }
    }

    /// How the next request proves who asks. The first one to a BMC uses basic authentication, because a single read is
    /// not worth a log-in and a log-out; a session is opened when more follow.
    async fn proof(&self) -> Result<Proof, BackendError> {
        let mut access = self.access.write().await;
        if let Some(message) = &access.refused {
            return Err(BackendError::Unauthorized { address: self.address(), message: message.clone() });
        }
        if let Some((token, _)) = &access.session {
            return Ok(Proof::Session(Arc::clone(token)));
        }
        let first = !self.proven.load(Ordering::Acquire) && !self.only_sessions();
        if self.authentication == Authentication::Basic || access.no_sessions || first {
            return Ok(Proof::Basic);
        }
        // Others wait for this log-in: one is enough.
        match self.log_in().await {
            Ok((token, path)) => {
                access.had_session = true;
                access.session = Some((Arc::clone(&token), path));
                Ok(Proof::Session(token))
            }
            // The same credentials were accepted before: what is refused is the log-in itself.
            Err(BackendError::Unauthorized { .. })
                if self.proven.load(Ordering::Acquire) && !access.had_session && !self.only_sessions() =>
            {
                access.no_sessions = true;
                Ok(Proof::Basic)
            }
            Err(BackendError::Unauthorized { message, .. }) => Err(self.refuse(&mut access, message)),
            // No session service, or no session left, or one may have been opened whose name we do not know: it is never
            // tried again, because that makes it worse.
            Err(BackendError::Rejected { .. } | BackendError::Protocol { .. }) => {
                access.no_sessions = true;
                Ok(Proof::Basic)
            }
            Err(error) if error.outcome_unknown() => {
                if self.only_sessions() {
                    // What was to be sent under the session was not sent.
                    return Err(BackendError::Unreachable { address: self.address(), cause: error.to_string() });
                }
                access.no_sessions = true;
                Ok(Proof::Basic)
            }
            Err(error) => Err(error),
        }
    }

    fn only_sessions(&self) -> bool {
        self.authentication == Authentication::Session && self.no_basic.load(Ordering::Relaxed)
    }

    async fn log_in(&self) -> Result<(Arc<SecretString>, String), BackendError> {
        let known = self.resources.lock().unwrap_or_else(PoisonError::into_inner).sessions.clone();
        if let Some(path) = known {
            return self.log_in_at(&path).await;
        }
        match self.log_in_at(SESSIONS).await {
            Err(error @ BackendError::Rejected { status: 404 | 405, .. }) => {
                let root = self.exchange(&Method::GET, "/redfish/v1/", Ok).await?;
                let root = self.read(&Method::GET, "/redfish/v1/", root).await?.body;
                match root["Links"]["Sessions"]["@odata.id"].as_str() {
                    Some(path) if path.trim_end_matches('/') != SESSIONS => self.log_in_at(path).await,
                    _ => Err(error),
                }
            }
            result => result,
        }
    }

    async fn log_in_at(&self, at: &str) -> Result<(Arc<SecretString>, String), BackendError> {
        let body = json!({ "UserName": self.username, "Password": self.password.expose_secret() });
        let response = self.exchange(&Method::POST, at, |request| Ok(request.json(&body))).await?;
        let token = response.headers().get("X-Auth-Token").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let location =
            response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let answer = self.read(&Method::POST, at, response).await?;
        let path = location.as_deref().and_then(|location| self.own_path(location));
        let path = path.or_else(|| answer.body["@odata.id"].as_str().map(str::to_owned));
        match (token, path) {
            (Some(token), Some(path)) => Ok((Arc::new(SecretString::from(token)), path)),
            _ => Err(self.protocol("the log-in was accepted without a token and an address of the session")),
        }
    }

    async fn forget_session(&self, token: &Arc<SecretString>) {
        let mut access = self.access.write().await;
        if access.session.as_ref().is_some_and(|(current, _)| Arc::ptr_eq(current, token)) {
            access.session = None;
        }
    }

    /// Ends the session, if there is one.
    pub(super) async fn log_out(&self) {
        let session = self.access.write().await.session.take();
        if let Some((token, path)) = session {
            let proof = Proof::Session(token);
            if let Err(error) = self.send(&Method::DELETE, &path, None, None, &proof).await {
                tracing::debug!(%error, "the session was not ended; it ends by itself");
            }
        }
    }

    async fn send(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
        etag: Option<&str>,
        proof: &Proof,
    ) -> Result<Answer, BackendError> {
        let dress = |mut request: RequestBuilder| {
            request = match proof {
                Proof::Basic => request.basic_auth(&self.username, Some(self.password.expose_secret())),
                Proof::Session(token) => {
                    let mut value = header::HeaderValue::from_str(token.expose_secret())
                        .map_err(|_| self.protocol("the session's token cannot be sent back"))?;
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
        let response = self.exchange(method, path, dress).await?;
        self.read(method, path, response).await
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
        let url = self.endpoint.join(path).map_err(|_| self.protocol(&format!("{path:?} is no address")))?;
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

    fn undelivered(&self, method: &Method, path: &str, error: &reqwest::Error) -> BackendError {
        let cause = if error.is_timeout() { no_answer_within(self.limit(method)) } else { plain(error) };
        if error.is_connect() {
            if let Some(problem) = self.certificate_problem(&cause) {
                return BackendError::Untrusted { address: self.address(), cause: problem };
            }
            self.is_down(&cause);
            return BackendError::Unreachable { address: self.address(), cause };
        }
        self.reply_lost(method, path, cause)
    }

    fn certificate_problem(&self, cause: &str) -> Option<String> {
        if !cause.contains("certificate") && !cause.contains("Certificate") {
            return None;
        }
        let seen = *self.trusting.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Some(match seen {
            Some(seen) if self.trusting.expected == Some(seen) => {
                format!("the BMC presents the pinned certificate, and the TLS handshake with it failed ({cause})")
            }
            Some(seen) => format!(
                "the BMC presents another certificate than the pinned one; its SHA-256 is {}. If the certificate was \
                 renewed, set certificate_sha256 to that",
                show_fingerprint(&seen)
            ),
            None => format!(
                "the BMC's certificate is not trusted ({cause}). Give the authority that signed it (ca_certificate_file) or \
                 pin it (certificate_sha256)"
            ),
        })
    }

    /// The path of an address on this BMC; `None` when it is another host's.
    pub(super) fn own_path(&self, address: &str) -> Option<String> {
        let url = self.endpoint.join(address).ok()?;
        // Some BMCs name themselves by another name in Location; only the path counts.
        Some(url.path().to_owned())
    }

    fn fail_if_down(&self) -> Result<(), BackendError> {
        let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        if down.as_ref().is_some_and(|(until, _)| self.clock.monotonic() >= *until) {
            *down = None;
        }
        match &*down {
            Some((_, cause)) => Err(BackendError::Unreachable { address: self.address(), cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// Remembers for a moment that it cannot be reached: the other systems behind it need not wait as long again.
    fn is_down(&self, cause: &str) {
        self.is_down_until(self.clock.monotonic() + self.limits.change.min(Duration::from_secs(2)), cause);
    }

    fn is_down_until(&self, until: Duration, cause: &str) {
        *self.down.lock().unwrap_or_else(PoisonError::into_inner) = Some((until, cause.to_owned()));
    }

    pub(super) fn reply_lost(&self, method: &Method, path: &str, cause: String) -> BackendError {
        BackendError::ReplyLost { address: self.address(), request: format!("{method} {path}"), cause }
    }

    pub(super) fn protocol(&self, what: &str) -> BackendError {
        BackendError::Protocol { address: self.address(), what: what.to_owned() }
    }

    pub(super) fn unsupported(&self, what: &str) -> BackendError {
        BackendError::Unsupported { address: self.address(), what: what.to_owned() }
    }
}

/// The innermost cause of an error, without the address that reqwest adds.
pub(super) fn plain(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
