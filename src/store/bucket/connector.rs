//! The HTTP client below the object store, with the store's clock.
//!
//! `object_store` does not return the `Date` of a reply, so this connector notes it. It sends
//! requests through `outbound`, which checks where credentials go. It never retries.

use std::sync::Arc;

use async_trait::async_trait;
use http::header::{AGE, DATE};
use http_body_util::BodyExt as _;
use jiff::fmt::rfc2822;
use object_store::{
    ClientOptions,
    client::{
        HttpClient as ObjectClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    },
};
use url::{Host, Url};

use super::url::Parsed;
use crate::{
    outbound::{HttpClient, Route, Within, refusal},
    store::told::ToldTime,
    tls,
};

/// Networks of the services that give a machine its own credentials, without TLS.
const METADATA: [&str; 2] = ["169.254.0.0/16", "fd00:ec2::/32"];

/// A request that got no usable reply.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectorError {
    /// The address cannot be used.
    #[error("{0}")]
    Address(String),
    /// The request failed, without its URL.
    #[error("{0}")]
    Request(String),
    /// A cache answered, so the reply could be older than a change that was confirmed.
    #[error("a cache answered (its reply has an Age header): exclude the bucket from it")]
    Cached,
}

#[derive(Debug)]
struct Clients {
    secure: HttpClient,
    plain: HttpClient,
    metadata: HttpClient,
    place: Parsed,
    time: Arc<ToldTime>,
}

/// Creates clients for the object store; each is also such a client.
#[derive(Clone, Debug)]
pub(super) struct Connector(Arc<Clients>);

impl Connector {
    pub(super) fn new(place: &Parsed, time: Arc<ToldTime>) -> Result<Self, String> {
        let configured = |secure: bool| {
            HttpClient::new(secure, Route::new(place.plain_text, "&plain_text=true in coordination_url"), |builder| {
                Ok(builder.tls_backend_preconfigured(tls::of_this_machine(None, &["h2", "http/1.1"])?))
            })
        };
        let networks: Result<Vec<_>, String> = METADATA.iter().map(|network| network.parse()).collect();
        let metadata = Route::new(true, "").within(Within { networks: networks?.into(), setting: "link-local" });
        Ok(Self(Arc::new(Clients {
            secure: configured(true)?,
            plain: configured(false)?,
            metadata: HttpClient::new(false, metadata, Ok)?,
            place: place.clone(),
            time,
        })))
    }
}

impl Clients {
    fn of(&self, url: &Url) -> &HttpClient {
        if url.scheme() == "https" {
            return &self.secure;
        }
        let metadata = match url.host() {
            Some(Host::Ipv4(address)) => address.is_link_local(),
            Some(Host::Ipv6(address)) => address.segments()[..2] == [0xfd00, 0xec2],
            Some(Host::Domain(_)) | None => false,
        };
        if metadata { &self.metadata } else { &self.plain }
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        let (parts, body) = request.into_parts();
        let url: Url = parts.uri.to_string().parse().map_err(|error| ConnectorError::Address(format!("{error}")))?;
        let body = body.collect().await.map_err(|error| ConnectorError::Request(error.to_string()))?.to_bytes();
        let client = self.of(&url);
        let sent = client
            .request(parts.method, url.clone())
            .map_err(|refused| ConnectorError::Address(refused.to_string()))?
            .headers(parts.headers)
            .body(body);
        let failed = |error: reqwest::Error| {
            let cause = refusal(&error).or_else(|| tls::innermost(&error));
            ConnectorError::Request(cause.unwrap_or_else(|| error.without_url().to_string()))
        };
        let reply = sent.send().await.map_err(failed)?;
        let mut answer = http::Response::new(());
        *answer.status_mut() = reply.status();
        *answer.headers_mut() = reply.headers().clone();
        if self.place.is_served_by(url.host_str().unwrap_or_default()) {
            if answer.headers().contains_key(AGE) {
                return Err(ConnectorError::Cached);
            }
            let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok());
            if let Some(date) = date.and_then(|date| rfc2822::parse(date).ok()) {
                self.time.note(date.timestamp());
            }
        }
        let body = reply.bytes().await.map_err(failed)?;
        Ok(answer.map(|()| body.into()))
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<ObjectClient> {
        Ok(ObjectClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // The object store does not repeat requests after this kind of error.
        self.0.send(request).await.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))
    }
}
