//! HTTP probes.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::StreamExt as _;
use reqwest::{Client, Method, StatusCode, header, redirect::Policy};
use sha2::{Digest, Sha256};
use url::Url;

use super::{
    Probe, ProbeError,
    local::{LOCAL, NoLocalNames, is_local, names_local},
};
use crate::{
    clock::{no_answer_within, within},
    tls,
};

const MOST_REDIRECTS: usize = 10;

/// The settings of HTTP probes.
#[derive(Clone, Debug)]
pub struct ProbeSettings {
    /// Time limit of a request, and of each pause while an image is read.
    pub timeout: Duration,
    /// The minimum number of bytes that an image host must send in each `timeout`.
    pub least_rate: u64,
    /// The maximum image size, in bytes.
    pub greatest_size: u64,
    /// Additional trusted authorities, as PEM.
    pub ca_certificate_pem: Option<String>,
    /// True if an image host can redirect to loopback, link-local and metadata addresses.
    pub allow_local_redirects: bool,
}

impl Default for ProbeSettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            // 26 KiB per second.
            least_rate: 256 << 10,
            greatest_size: 64 << 30,
            ca_certificate_pem: None,
            allow_local_redirects: false,
        }
    }
}

/// Probes with GET and HEAD, and follows redirects as the machine itself would, except to local
/// addresses.
#[derive(Debug)]
pub struct HttpProbe {
    client: Client,
    /// For redirects; rejects names with local addresses.
    redirected: Client,
    allow_local_redirects: bool,
    timeout: Duration,
    least_rate: u64,
    greatest_size: u64,
}

impl HttpProbe {
    /// Returns a probe. The error concerns the configured certificate.
    pub fn new(settings: &ProbeSettings) -> Result<Self, String> {
        let trust = tls::of_this_machine(settings.ca_certificate_pem.as_deref(), &["h2", "http/1.1"])
            .map_err(|error| format!("the CA certificate for images cannot be read: {error}"))?;
        let builder = || {
            Client::builder()
                .tls_backend_preconfigured(trust.clone())
                .connect_timeout(settings.timeout)
                .read_timeout(settings.timeout)
                // A signed URL is a secret: it must not reach other hosts, or any host unencrypted.
                .referer(false)
                .redirect(Policy::none())
                .user_agent(concat!("terraform-provider-metal/", env!("CARGO_PKG_VERSION")))
        };
        let ProbeSettings { timeout, least_rate, greatest_size, allow_local_redirects, .. } = *settings;
        let redirected = if allow_local_redirects { builder() } else { builder().dns_resolver(Arc::new(NoLocalNames)) };
        let client = builder().build().map_err(|error| plain(&error))?;
        let redirected = redirected.build().map_err(|error| plain(&error))?;
        Ok(Self { client, redirected, allow_local_redirects, timeout, least_rate, greatest_size })
    }

    async fn ask(&self, method: Method, url: &str, range: bool) -> Result<reqwest::Response, ProbeError> {
        let no_answer = |cause| ProbeError::NoAnswer { url: shown(url), cause };
        let first: Url = url.parse().map_err(|_| no_answer("not a URL".to_owned()))?;
        let following = async {
            let mut at = first.clone();
            for _ in 0..=MOST_REDIRECTS {
                let client = if at.host() == first.host() { &self.client } else { &self.redirected };
                let mut request = client.request(method.clone(), at.clone());
                if range {
                    request = request.header(header::RANGE, "bytes=0-0");
                }
                let response = request.send().await.map_err(|error| plain(&error))?;
                match self.next(&first, &at, &response)? {
                    Some(next) => at = next,
                    None => return Ok(response),
                }
            }
            Err("too many redirects".to_owned())
        };
        match within(self.timeout, following).await {
            Some(answer) => answer.map_err(no_answer),
            None => Err(no_answer(no_answer_within(self.timeout))),
        }
    }

    /// Returns the address to which an answer redirects. Never leads from TLS to plain HTTP, or to
    /// a local address of another host than the configured one.
    fn next(&self, first: &Url, at: &Url, response: &reqwest::Response) -> Result<Option<Url>, String> {
        let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
        let (Some(location), 301 | 302 | 303 | 307 | 308) = (location, response.status().as_u16()) else {
            return Ok(None);
        };
        let next = at.join(location).map_err(|_| "it redirects to an address that is not a URL".to_owned())?;
        if at.scheme() == "https" && next.scheme() != "https" {
            return Err("it redirects from https to http".to_owned());
        }
        if !matches!(next.scheme(), "http" | "https") {
            return Err("it redirects to an address that is neither http nor https".to_owned());
        }
        if !self.allow_local_redirects && next.host() != first.host() && names_local(&next) {
            return Err(LOCAL.to_owned());
        }
        Ok(Some(next))
    }

    /// Returns the content's digest, and true if a redirect led to a local address.
    async fn digest(&self, url: &str) -> Result<(String, bool), ProbeError> {
        let response = self.ask(Method::GET, url, false).await?;
        let by_redirect = Url::parse(url).is_ok_and(|first| first.host() != response.url().host());
        let local = by_redirect && response.remote_addr().is_none_or(|address| is_local(address.ip()));
        expect_success(url, response.status())?;
        let refused = |cause| ProbeError::NoAnswer { url: shown(url), cause };
        let too_large = || ProbeError::TooLarge { url: shown(url), greatest: self.greatest_size };
        if response.content_length().is_some_and(|length| length > self.greatest_size) {
            return Err(too_large());
        }
        let mut hash = Sha256::new();
        let mut body = response.bytes_stream();
        let (mut read, mut reached) = (0u64, 0u64);
        loop {
            // Each span must deliver the least rate; otherwise a slow host could block the server
            // indefinitely.
            let span = async {
                while read - reached < self.least_rate {
                    let Some(part) = body.next().await else { return Ok(true) };
                    let part = part.map_err(|error| refused(plain(&error)))?;
                    read += part.len() as u64;
                    if read > self.greatest_size {
                        return Err(too_large());
                    }
                    hash.update(&part);
                }
                Ok(false)
            };
            let Some(ended) = within(self.timeout, span).await else {
                let (least, limit) = (self.least_rate, self.timeout.as_secs_f32());
                return Err(refused(format!("it sends less than {least} bytes in {limit}s")));
            };
            if ended? {
                break;
            }
            reached = read;
        }
        let found = hash.finalize().iter().fold(String::with_capacity(64), |mut text, byte| {
            use std::fmt::Write as _;
            let _ = write!(text, "{byte:02x}");
            text
        });
        Ok((found, local))
    }
}

#[async_trait]
impl Probe for HttpProbe {
    async fn check_image(&self, url: &str, sha256: Option<&str>) -> Result<(), ProbeError> {
        if let Some(expected) = sha256 {
            let (found, local) = self.digest(url).await?;
            return if found == expected {
                Ok(())
            } else if local {
                Err(ProbeError::LocalDigest { url: shown(url), expected: expected.to_owned() })
            } else {
                Err(ProbeError::Digest { url: shown(url), found, expected: expected.to_owned() })
            };
        }
        let mut status = self.ask(Method::HEAD, url, false).await?.status();
        if matches!(status, StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED | StatusCode::FORBIDDEN) {
            // A signed URL can be limited to GET; one byte is sufficient.
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

/// Returns a URL for display, without user, password, query and fragment.
fn shown(text: &str) -> String {
    let Ok(mut url) = url::Url::parse(text) else { return "an address that is not a URL".to_owned() };
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

/// Returns a request's failure cause without reqwest's URL, which can contain a token.
fn plain(error: &reqwest::Error) -> String {
    tls::innermost(error)
        .unwrap_or_else(|| if error.is_builder() { "not a URL".to_owned() } else { "no reason given".to_owned() })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// Starts a host that sends this head and then repeats the part, with a pause.
    async fn host(head: String, part: &'static [u8], pause: Duration) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let head = head.clone();
                tokio::spawn(async move {
                    let mut request = [0; 4096];
                    let _ = stream.read(&mut request).await;
                    let _ = stream.write_all(head.as_bytes()).await;
                    loop {
                        within(pause, std::future::pending::<()>()).await;
                        if part.is_empty() || stream.write_all(part).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        format!("http://{address}/a.iso?token=s3cret")
    }

    fn probe() -> HttpProbe {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let settings = ProbeSettings {
            timeout: Duration::from_millis(300),
            least_rate: 10_000,
            greatest_size: 1_000_000,
            ..ProbeSettings::default()
        };
        HttpProbe::new(&settings).unwrap()
    }

    #[tokio::test]
    async fn a_host_that_drips_or_never_ends_or_is_too_large_is_given_up() {
        let endless = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_owned();
        for (head, part, pause, says) in [
            (endless.clone(), &b"x"[..], Duration::from_millis(5), "it sends less than"),
            (endless.clone(), &b""[..], Duration::from_mins(1), "did not answer"),
            (endless, &[b'x'; 4096][..], Duration::ZERO, "larger than 1000000 bytes"),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n".to_owned(),
                &b""[..],
                Duration::ZERO,
                "larger than 1000000 bytes",
            ),
        ] {
            let url = host(head.clone(), part, pause).await;
            let error = probe().check_image(&url, Some("00")).await.unwrap_err().to_string();
            assert!(error.contains(says), "{head:?}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_signed_address_is_told_to_no_other_host() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let other = listener.local_addr().unwrap();
        let told = Arc::new(AtomicUsize::new(0));
        let asked = Arc::clone(&told);
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            let text = String::from_utf8_lossy(&request[..read]).to_ascii_lowercase();
            asked.store(1 + usize::from(text.contains("s3cret") || text.contains("referer")), Ordering::SeqCst);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
        });
        let head = format!("HTTP/1.1 302 Found\r\nLocation: http://{other}/b.iso\r\nContent-Length: 0\r\n\r\n");
        let url = host(head, b"", Duration::ZERO).await;
        probe().check_image(&url, None).await.unwrap();
        serving.await.unwrap();
        assert_eq!(told.load(Ordering::SeqCst), 1, "the other host received the request");
    }

    /// A redirecting image host does not get information about the runner's services.
    #[tokio::test]
    async fn a_redirect_to_a_local_address_is_refused_and_its_digest_is_told_to_nobody() {
        let body = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx".to_owned();
        let inner = host(body, b"", Duration::from_secs(1)).await;
        let port = inner.parse::<Url>().unwrap().port().unwrap();
        for to in ["127.0.0.2", "localhost", "[::ffff:127.0.0.1]"] {
            let head =
                format!("HTTP/1.1 302 Found\r\nLocation: http://{to}:{port}/secret\r\nContent-Length: 0\r\n\r\n");
            let url = host(head, b"", Duration::ZERO).await;
            for sha256 in [None, Some("00")] {
                let error = probe().check_image(&url, sha256).await.unwrap_err().to_string();
                assert!(error.contains("loopback, link-local or metadata"), "{to}: {error}");
            }
        }
        // With the setting, the error still contains no digest.
        let head = format!("HTTP/1.1 302 Found\r\nLocation: http://localhost:{port}/\r\nContent-Length: 0\r\n\r\n");
        let url = host(head, b"", Duration::ZERO).await;
        let allowed =
            HttpProbe::new(&ProbeSettings { allow_local_redirects: true, ..ProbeSettings::default() }).unwrap();
        let error = allowed.check_image(&url, Some("00")).await.unwrap_err();
        assert!(matches!(error, ProbeError::LocalDigest { .. }), "{error}");
    }
}
