//! Ironic's HTTP client: authentication, API versions, error mapping and retries.
//!
//! A change without a reply is never repeated here. A change that a locked node rejects was not
//! applied. The client repeats it after a pause with jitter, within a limit.

use std::{sync::Arc, time::Duration};

use reqwest::{Method, RequestBuilder, Response, header};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use tokio::sync::{OnceCell, Semaphore};
use url::Url;

use crate::{
    backend::{
        BackendError, before_change,
        web::{self, BodyError},
    },
    clock::{Clock, no_answer_within, within},
    outbound::{self, HttpClient, Refused, Route},
    tls,
};

use super::{
    answer,
    keystone::{Keystone, Token},
    node::LEAST,
    settings::{IronicAccess, IronicSettings, IronicTrust},
};

/// The request header with the API version.
const VERSION: &str = "X-OpenStack-Ironic-API-Version";
/// The header in every answer with the newest supported version.
const NEWEST: &str = "X-OpenStack-Ironic-API-Maximum-Version";
const READ_TRIES: usize = 3;
/// The pause between attempts.
const READ_PAUSE: Duration = Duration::from_millis(300);
/// The number of concurrent requests.
const AT_ONCE: usize = 16;
/// The maximum answer size, in bytes.
const LARGEST: usize = 64 << 20;

/// A connection to an Ironic service.
#[derive(Debug)]
pub(super) struct Client {
    http: Http,
    endpoint: Option<Url>,
    access: Access,
    pub(super) clock: Arc<dyn Clock>,
    change_limit: Duration,
    read_limit: Duration,
    pub(super) lock_patience: Duration,
    newest: OnceCell<u32>,
    places: Semaphore,
}

#[derive(Debug)]
enum Access {
    Open,
    Basic { username: String, password: SecretString },
    Keystone(Box<Keystone>),
}

/// Clients for both schemes: a catalog can contain either.
#[derive(Clone, Debug)]
pub(super) struct Http {
    secure: HttpClient,
    plain: HttpClient,
}

impl Http {
    fn new(settings: &IronicSettings) -> Result<Self, String> {
        // Without an account, no request carries credentials.
        let plain_text = settings.plain_http || matches!(settings.access, IronicAccess::Open);
        let client = |secure| {
            HttpClient::new(secure, Route::new(plain_text, "ironic.plain_http = true"), |builder| {
                let builder = builder.connect_timeout(settings.request_timeout.min(settings.read_timeout));
                Ok(match &settings.trust {
                    IronicTrust::System => {
                        builder.tls_backend_preconfigured(tls::of_this_machine(None, &["h2", "http/1.1"])?)
                    }
                    IronicTrust::Anything => builder.tls_danger_accept_invalid_certs(true),
                    IronicTrust::Authority(pem) => web::only_authorities(builder, pem)?,
                })
            })
        };
        Ok(Self { secure: client(true)?, plain: client(false)? })
    }

    pub(super) fn request(&self, method: Method, url: Url) -> Result<RequestBuilder, Refused> {
        if url.scheme() == "https" { self.secure.request(method, url) } else { self.plain.request(method, url) }
    }
}

struct Way {
    base: String,
    token: Option<SecretString>,
}

impl Client {
    pub(super) fn new(settings: &IronicSettings, clock: &Arc<dyn Clock>) -> Result<Self, String> {
        let http = Http::new(settings)?;
        let access = match &settings.access {
            IronicAccess::Open => Access::Open,
            IronicAccess::Basic { username, password } => {
                Access::Basic { username: username.clone(), password: password.clone() }
            }
            IronicAccess::Keystone(keystone) => {
                let keystone = Keystone::new(*keystone.clone(), http.clone(), settings.read_timeout, Arc::clone(clock));
                Access::Keystone(Box::new(keystone))
            }
        };
        if settings.endpoint.is_none() && !matches!(access, Access::Keystone(_)) {
            return Err("an endpoint is needed where no Keystone catalog lists one".to_owned());
        }
        Ok(Self {
            http,
            endpoint: settings.endpoint.clone(),
            access,
            clock: Arc::clone(clock),
            change_limit: settings.request_timeout,
            read_limit: settings.read_timeout,
            lock_patience: settings.lock_patience,
            newest: OnceCell::new(),
            places: Semaphore::new(AT_ONCE),
        })
    }

    /// Returns the address for display. If the endpoint comes from a catalog, it is Keystone's
    /// address.
    pub(super) fn address(&self) -> String {
        match (&self.endpoint, &self.access) {
            (Some(endpoint), _) => shown(endpoint),
            (None, Access::Keystone(keystone)) => keystone.address(),
            (None, _) => String::new(),
        }
    }

    /// Returns host and port, which identify a server by address.
    pub(super) fn authority(&self) -> String {
        let url = self.endpoint.clone().or_else(|| Url::parse(&self.address()).ok());
        url.map(|url| url.authority().to_owned()).unwrap_or_default()
    }

    /// Returns the service's newest API version, as the number after `1.`.
    pub(super) async fn newest(&self) -> Result<u32, BackendError> {
        self.newest.get_or_try_init(|| self.tried(|| self.ask_newest())).await.copied()
    }

    async fn ask_newest(&self) -> Result<u32, BackendError> {
        let way = self.way(None).await?;
        let response = self.deliver(&Method::GET, "/v1", &way, |request| request).await?;
        let newest = response.headers().get(NEWEST).and_then(|text| text.to_str().ok());
        let newest: Option<u32> = newest.and_then(|text| text.strip_prefix("1.")?.parse().ok());
        let status = response.status().as_u16();
        match newest {
            Some(newest) if newest < LEAST => Err(self.unsupported(format!(
                "its newest API version is 1.{newest}; 1.{LEAST} or newer is required, because it reports faults"
            ))),
            Some(newest) => Ok(newest),
            // A proxy answers this way while its Ironic is unreachable. 404 means a wrong address.
            None if status >= 400 && status != 404 => {
                let answer = self.read(&Method::GET, "/v1", response, self.read_limit).await;
                Err(answer.err().unwrap_or_else(|| self.not_ironic(status)))
            }
            None => Err(self.not_ironic(status)),
        }
    }

    fn not_ironic(&self, status: u16) -> BackendError {
        let what = format!("GET /v1 returned {status} without the header {NEWEST}: it is not Ironic");
        BackendError::Protocol { address: self.address().into(), what: what.into() }
    }

    /// Returns true if the service supports an API version.
    pub(super) async fn has(&self, minor: u32) -> Result<bool, BackendError> {
        Ok(self.newest().await? >= minor)
    }

    fn withheld(&self, cause: String) -> BackendError {
        BackendError::Withheld { address: self.address().into(), cause: cause.into() }
    }

    pub(super) fn unsupported(&self, what: String) -> BackendError {
        BackendError::Unsupported { address: self.address().into(), what: what.into() }
    }

    pub(super) async fn get(&self, path: &str, minor: u32) -> Result<Value, BackendError> {
        self.tried(|| self.request(&Method::GET, path, minor, None, self.read_limit)).await
    }

    /// Repeats a read a few times if the connection broke or the service is busy.
    async fn tried<T, F>(&self, ask: impl Fn() -> F) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let mut tries = 0;
        loop {
            tries += 1;
            match ask().await {
                Err(error) if tries < READ_TRIES && may_pass(&error) => {}
                told => return told.map_err(as_read),
            }
            self.clock.sleep(jitter(READ_PAUSE)).await;
        }
    }

    /// Sends a change. Repeats it within a limit if the node is locked or the service is busy.
    pub(super) async fn change(
        &self,
        method: Method,
        path: &str,
        minor: u32,
        body: Option<&Value>,
    ) -> Result<Value, BackendError> {
        // Unsupported requests fail before the lock is checked.
        let newest = self.newest().await?;
        if newest < minor {
            return Err(self.unsupported(format!(
                "{method} {path} requires API version 1.{minor}, but this service supports at most 1.{newest}"
            )));
        }
        let until = self.clock.monotonic() + self.lock_patience;
        loop {
            before_change(&format!("{method} {path}")).await?;
            let error = match self.request(&method, path, minor, body, self.change_limit).await {
                Ok(answer) => return Ok(answer),
                Err(error @ BackendError::Rejected { transient: true, .. }) => error,
                Err(error) => return Err(error),
            };
            let asked = error.retry_after().unwrap_or(Duration::from_millis(700));
            let pause = jitter(asked);
            if self.clock.monotonic() + pause >= until {
                return Err(error);
            }
            tracing::debug!("{error}; trying again");
            self.clock.sleep(pause).await;
        }
    }

    async fn way(&self, refused: Option<&SecretString>) -> Result<Way, BackendError> {
        let (endpoint, token) = match &self.access {
            Access::Keystone(keystone) => {
                let Token { value, endpoint, .. } = keystone.token(refused).await?;
                (self.endpoint.clone().or(endpoint), Some(value))
            }
            Access::Open | Access::Basic { .. } => (self.endpoint.clone(), None),
        };
        let endpoint = endpoint.ok_or_else(|| BackendError::Missing {
            address: self.address().into(),
            what: "the catalog lists no baremetal service in this region and for this interface".into(),
        })?;
        let base = endpoint.as_str().trim_end_matches('/').trim_end_matches("/v1").to_owned();
        Ok(Way { base, token })
    }

    async fn request(
        &self,
        method: &Method,
        path: &str,
        minor: u32,
        body: Option<&Value>,
        limit: Duration,
    ) -> Result<Value, BackendError> {
        let _place = self.places.acquire().await;
        let mut way = self.way(None).await?;
        let mut renewed = false;
        loop {
            let dress = |request: RequestBuilder| {
                let request = request.header(VERSION, format!("1.{minor}")).timeout(limit);
                match body {
                    Some(body) => request.json(body),
                    None => request,
                }
            };
            let response = self.deliver(method, path, &way, dress).await?;
            // The token expired early. A rejected request was not applied.
            if response.status() == 401 && way.token.is_some() && !renewed {
                renewed = true;
                way = self.way(way.token.as_ref()).await?;
                continue;
            }
            return self.read(method, path, response, limit).await;
        }
    }

    async fn deliver(
        &self,
        method: &Method,
        path: &str,
        way: &Way,
        dress: impl Fn(RequestBuilder) -> RequestBuilder,
    ) -> Result<Response, BackendError> {
        let url = Url::parse(&format!("{}{path}", way.base));
        let url = url.map_err(|_| self.odd(method, path, "its address is not a valid URL"))?;
        let request = self.http.request(method.clone(), url);
        let mut request = request.map_err(|refused| self.withheld(refused.to_string()))?;
        request = request.header(header::ACCEPT, "application/json");
        request = match (&way.token, &self.access) {
            (Some(token), _) => {
                let mut value = header::HeaderValue::from_str(token.expose_secret()).map_err(|_| {
                    BackendError::Protocol { address: self.address().into(), what: "the token cannot be sent".into() }
                })?;
                value.set_sensitive(true);
                request.header("X-Auth-Token", value)
            }
            (None, Access::Basic { username, password }) => {
                request.basic_auth(username, Some(password.expose_secret()))
            }
            (None, _) => request,
        };
        let limit = if *method == Method::GET { self.read_limit } else { self.change_limit };
        match within(limit, dress(request).send()).await {
            Some(Ok(response)) => Ok(response),
            Some(Err(error)) if error.is_connect() || error.is_builder() => {
                if let Some(refused) = outbound::refusal(&error) {
                    return Err(self.withheld(refused));
                }
                Err(BackendError::Unreachable { address: self.address().into(), cause: web::cause(&error).into() })
            }
            Some(Err(error)) => Err(self.reply_lost(method, path, web::cause(&error))),
            None => Err(self.reply_lost(method, path, no_answer_within(limit))),
        }
    }

    fn reply_lost(&self, method: &Method, path: &str, cause: String) -> BackendError {
        BackendError::ReplyLost {
            address: self.address().into(),
            request: format!("{method} {path}").into(),
            cause: cause.into(),
        }
    }

    async fn read(
        &self,
        method: &Method,
        path: &str,
        response: Response,
        limit: Duration,
    ) -> Result<Value, BackendError> {
        let status = response.status().as_u16();
        let header = |name: header::HeaderName| response.headers().get(name).and_then(|text| text.to_str().ok());
        let retry_after = header(header::RETRY_AFTER).and_then(|text| web::pause(text, self.clock.now()));
        let text = match within(limit, web::body(response, LARGEST)).await {
            Some(Ok(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
            Some(Err(error @ BodyError::TooLarge(_))) => {
                return Err(self.odd(method, path, &format!("the answer is {error}")));
            }
            Some(Err(BodyError::Broken(cause))) => return Err(self.reply_lost(method, path, cause)),
            None => return Err(self.reply_lost(method, path, no_answer_within(limit))),
        };
        if !(200..300).contains(&status) {
            let request = format!("{method} {path}");
            let changes = *method != Method::GET;
            return Err(answer::error(&self.address(), &request, status, &text, retry_after, changes));
        }
        if text.trim().is_empty() || *method != Method::GET {
            return Ok(serde_json::from_str(&text).unwrap_or(Value::Null));
        }
        serde_json::from_str(&text).map_err(|_| self.odd(method, path, "the answer is not JSON"))
    }

    pub(super) fn odd(&self, method: &Method, path: &str, what: &str) -> BackendError {
        BackendError::Protocol { address: self.address().into(), what: format!("{method} {path}: {what}").into() }
    }
}

/// Returns true if a failed read should be repeated immediately.
fn may_pass(error: &BackendError) -> bool {
    matches!(error, BackendError::ReplyLost { .. } | BackendError::Rejected { transient: true, .. })
}

/// Converts an unknown outcome into "unreachable", because a read changes nothing.
fn as_read(error: BackendError) -> BackendError {
    match error {
        BackendError::ReplyLost { address, cause, .. } => BackendError::Unreachable { address, cause },
        other => other,
    }
}

/// Returns a URL without user, password and query.
fn shown(url: &Url) -> String {
    format!("{}{}", url.origin().ascii_serialization(), url.path().trim_end_matches('/'))
}

/// Returns 50% to 150% of a pause, so that waiters for the same lock spread out.
fn jitter(pause: Duration) -> Duration {
    let share = u32::from(uuid::Uuid::new_v4().as_bytes()[0]);
    pause.saturating_mul(128 + share) / 256
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_spread_around_what_was_asked() {
        for _ in 0..200 {
            let pause = jitter(Duration::from_secs(2));
            assert!((Duration::from_secs(1)..=Duration::from_secs(3)).contains(&pause), "{pause:?}");
        }
    }

    #[test]
    fn an_address_shows_no_account() {
        let url = Url::parse("https://u:p@host:6385/baremetal/?x=y").unwrap();
        assert_eq!(shown(&url), "https://host:6385/baremetal");
    }
}
