//! Probes over HTTP.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use reqwest::{Client, Method, StatusCode, header};
use sha2::{Digest, Sha256};

use super::{Probe, ProbeError};
use crate::clock::{no_answer_within, within};

/// How URLs are asked.
#[derive(Clone, Debug)]
pub struct ProbeSettings {
    /// Time limit of one question, and of each pause while an image is read.
    pub timeout: Duration,
    /// Authorities trusted besides the usual ones, as PEM.
    pub ca_certificate_pem: Option<String>,
}

impl Default for ProbeSettings {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(10), ca_certificate_pem: None }
    }
}

/// Asks with GET and HEAD, and follows redirects as the machine itself would.
#[derive(Debug)]
pub struct HttpProbe {
    client: Client,
    timeout: Duration,
}

impl HttpProbe {
    /// A probe. The error is about the given certificate.
    pub fn new(settings: &ProbeSettings) -> Result<Self, String> {
        let mut builder = Client::builder()
            .connect_timeout(settings.timeout)
            .read_timeout(settings.timeout)
            .user_agent(concat!("terraform-provider-metal/", env!("CARGO_PKG_VERSION")));
        if let Some(pem) = &settings.ca_certificate_pem {
            let certificates = reqwest::Certificate::from_pem_bundle(pem.as_bytes())
                .map_err(|error| format!("the CA certificate for images cannot be read: {error}"))?;
            builder = builder.tls_certs_merge(certificates);
        }
        let client = builder.build().map_err(|error| plain(&error))?;
        Ok(Self { client, timeout: settings.timeout })
    }

    async fn ask(&self, method: Method, url: &str, range: bool) -> Result<reqwest::Response, ProbeError> {
        let mut request = self.client.request(method, url);
        if range {
            request = request.header(header::RANGE, "bytes=0-0");
        }
        let no_answer = |cause| ProbeError::NoAnswer { url: shown(url), cause };
        match within(self.timeout, request.send()).await {
            Some(Ok(response)) => Ok(response),
            Some(Err(error)) if !error.is_timeout() => Err(no_answer(plain(&error))),
            _ => Err(no_answer(no_answer_within(self.timeout))),
        }
    }

    async fn digest(&self, url: &str) -> Result<String, ProbeError> {
        let response = self.ask(Method::GET, url, false).await?;
        expect_success(url, response.status())?;
        let mut hash = Sha256::new();
        let mut body = response.bytes_stream();
        while let Some(part) = body.next().await {
            let part = part.map_err(|error| ProbeError::NoAnswer { url: shown(url), cause: plain(&error) })?;
            hash.update(&part);
        }
        Ok(hash.finalize().iter().fold(String::with_capacity(64), |mut text, byte| {
            use std::fmt::Write as _;
            let _ = write!(text, "{byte:02x}");
            text
        }))
    }
}

#[async_trait]
impl Probe for HttpProbe {
    async fn check_image(&self, url: &str, sha256: Option<&str>) -> Result<(), ProbeError> {
        if let Some(expected) = sha256 {
            let found = self.digest(url).await?;
            return if found == expected {
                Ok(())
            } else {
                Err(ProbeError::Digest { url: shown(url), found, expected: expected.to_owned() })
            };
        }
        let mut status = self.ask(Method::HEAD, url, false).await?.status();
        if matches!(status, StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED | StatusCode::FORBIDDEN) {
            // A signed address may allow GET alone; one byte is enough to know.
            status = self.ask(Method::GET, url, true).await?.status();
        }
        expect_success(url, status)
    }

    async fn check_status(&self, url: &str, status: u16) -> Result<(), ProbeError> {
        let found = self.ask(Method::GET, url, false).await?.status().as_u16();
        if found == status {
            Ok(())
        } else {
            Err(ProbeError::Status { url: shown(url), found, expected: status.to_string() })
        }
    }
}

fn expect_success(url: &str, status: StatusCode) -> Result<(), ProbeError> {
    if status.is_success() {
        Ok(())
    } else {
        Err(ProbeError::Status { url: shown(url), found: status.as_u16(), expected: "200".to_owned() })
    }
}

/// A URL as people may see it: without user, password, query and fragment.
fn shown(text: &str) -> String {
    let Ok(mut url) = url::Url::parse(text) else { return "an address that is no URL".to_owned() };
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

/// An error's chain in one line, without the URL that reqwest adds (it may hold a token).
fn plain(error: &reqwest::Error) -> String {
    let mut text = Vec::new();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push(cause.to_string());
        source = cause.source();
    }
    text.pop().unwrap_or_else(|| if error.is_builder() { "not a URL".to_owned() } else { "no reason given".to_owned() })
}
