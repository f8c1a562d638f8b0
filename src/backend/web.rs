//! Shared HTTP client helpers: body limits, readable causes, `Retry-After`, and certificate
//! verification.

use std::time::Duration;

use futures_util::StreamExt as _;
use jiff::Timestamp;
use reqwest::{ClientBuilder, Response};

use crate::tls;

/// Why a body was not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    /// The connection broke.
    #[error("{0}")]
    Broken(String),
    /// The body exceeds this limit, in bytes.
    #[error("larger than {} MiB", .0 >> 20)]
    TooLarge(usize),
}

/// Reads a body in parts, up to `most` bytes.
pub(super) async fn body(response: Response, most: usize) -> Result<Vec<u8>, BodyError> {
    let mut bytes = Vec::new();
    let mut parts = response.bytes_stream();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| BodyError::Broken(cause(&error)))?;
        if bytes.len() + part.len() > most {
            return Err(BodyError::TooLarge(most));
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

/// Returns the innermost cause of a failed request, without the address, which can contain secrets.
pub(super) fn cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    tls::innermost(error).unwrap_or_else(|| error.to_string())
}

/// Parses `Retry-After`: seconds or a date (RFC 9110, section 10.2.3).
pub(super) fn pause(retry_after: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(seconds) = retry_after.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = jiff::fmt::rfc2822::parse(retry_after.trim()).ok()?.timestamp();
    Some(Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO))
}

/// Restricts trust to a PEM bundle's authorities.
pub(super) fn only_authorities(builder: ClientBuilder, pem: &str) -> Result<ClientBuilder, String> {
    let certificates = reqwest::Certificate::from_pem_bundle(pem.as_bytes())
        .map_err(|error| format!("the CA certificate cannot be read: {error}"))?;
    if certificates.is_empty() {
        return Err("the CA certificate file does not contain a certificate".to_owned());
    }
    Ok(builder.tls_certs_only(certificates))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(parts: Vec<Result<&'static str, std::io::Error>>) -> Response {
        let body = reqwest::Body::wrap_stream(futures_util::stream::iter(parts));
        Response::from(http::Response::new(body))
    }

    #[tokio::test]
    async fn a_body_is_read_up_to_its_limit_and_not_beyond() {
        assert_eq!(body(response(vec![Ok("ab"), Ok("cd")]), 4).await.unwrap(), b"abcd");
        let error = body(response(vec![Ok("ab"), Ok("cde")]), 4).await.unwrap_err();
        assert!(matches!(error, BodyError::TooLarge(4)), "{error}");
        // An endless body is not read to its end.
        let endless = futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![0; 1 << 16]));
        let endless = Response::from(http::Response::new(reqwest::Body::wrap_stream(endless)));
        assert!(matches!(body(endless, 1 << 20).await, Err(BodyError::TooLarge(_))));
        let broken = body(response(vec![Ok("ab"), Err(std::io::Error::other("cut off"))]), 4).await.unwrap_err();
        assert!(broken.to_string().contains("cut off"), "{broken}");
    }

    #[test]
    fn a_pause_is_seconds_or_a_date() {
        let now = "2026-11-21T10:00:00Z".parse().unwrap();
        assert_eq!(pause(" 7 ", now), Some(Duration::from_secs(7)));
        assert_eq!(pause("Sat, 21 Nov 2026 10:00:30 GMT", now), Some(Duration::from_secs(30)));
        assert_eq!(pause("Sat, 21 Nov 2026 09:00:00 GMT", now), Some(Duration::ZERO), "over");
        assert_eq!(pause("soon", now), None);
    }

    #[test]
    fn a_bundle_without_a_certificate_is_refused() {
        assert!(only_authorities(ClientBuilder::new(), "").is_err());
        assert!(only_authorities(ClientBuilder::new(), "-----BEGIN CERTIFICATE-----\nAA==\n").is_err());
    }
}
