//! Reading an answer: its body in full and within limits, its status, and the machine's words about a refusal.

use std::{sync::atomic::Ordering, time::Duration};

use futures_util::StreamExt as _;
use reqwest::{Method, Response, StatusCode, header};
use serde_json::Value;

use crate::{backend::BackendError, clock::within};

use super::{
    bmc::{Bmc, plain},
    message,
};

/// The largest body that is read; a system has a few kilobytes.
const LARGEST_BODY: usize = 4 << 20;

/// An answer that was read whole.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) body: Value,
    pub(super) etag: Option<String>,
}

impl Bmc {
    pub(super) async fn read(&self, method: &Method, path: &str, response: Response) -> Result<Answer, BackendError> {
        let status = response.status();
        let text = |name: header::HeaderName| {
            response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        let (etag, kind) = (text(header::ETAG), text(header::CONTENT_TYPE).unwrap_or_default());
        let retry_after = text(header::RETRY_AFTER).and_then(|text| text.parse().ok()).map(Duration::from_secs);
        let (location, ways_in) = (text(header::LOCATION), text(header::WWW_AUTHENTICATE));
        let bytes = match within(self.timeout, self.body(method, path, response)).await {
            Some(read) => read?,
            None => return Err(self.reply_lost(method, path, "the answer did not end in time".to_owned())),
        };
        if status.is_redirection() {
            let to = location.and_then(|to| self.endpoint.join(&to).ok()).map(|to| to.origin().ascii_serialization());
            return Err(self.protocol(&format!(
                "{method} {path} was redirected to {}; redirects are not followed, so that credentials go nowhere else. Set \
                 endpoint to the BMC's own address",
                to.unwrap_or_else(|| "nowhere".to_owned())
            )));
        }
        let parsed: Result<Value, _> =
            if bytes.iter().all(u8::is_ascii_whitespace) { Ok(Value::Null) } else { serde_json::from_slice(&bytes) };
        if status.is_success() {
            return match parsed {
                Ok(body) => Ok(Answer { etag: etag.or_else(|| body["@odata.etag"].as_str().map(str::to_owned)), body }),
                // The change was accepted; what else was said matters to nobody.
                Err(_) if *method != Method::GET => Ok(Answer { body: Value::Null, etag }),
                Err(_) if kind.contains("html") => {
                    Err(self.protocol(&format!("{method} {path} was answered with a web page instead of Redfish")))
                }
                Err(error) => Err(self.protocol(&format!("the answer to {method} {path} is no JSON: {error}"))),
            };
        }
        let (message, later) = match &parsed {
            Ok(body) => message::read(body),
            Err(_) if kind.contains("html") => ("a web page instead of Redfish".to_owned(), false),
            Err(_) => ("an answer that is no JSON".to_owned(), false),
        };
        if status == StatusCode::UNAUTHORIZED {
            // RFC 9110, section 11.6.1: a refusal lists the ways in. Where basic is not among them, a log-in is another way
            // and not another try.
            let elsewhere = ways_in.is_none_or(|ways| !ways.to_ascii_lowercase().contains("basic"));
            self.no_basic.store(elsewhere, Ordering::Relaxed);
            return Err(BackendError::Unauthorized { address: self.address(), message });
        }
        let transient = later
            || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::CONFLICT)
            || (status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED);
        Err(BackendError::Rejected {
            address: self.address(),
            request: format!("{method} {path}"),
            status: status.as_u16(),
            message,
            retry_after,
            transient,
        })
    }

    async fn body(&self, method: &Method, path: &str, response: Response) -> Result<Vec<u8>, BackendError> {
        let mut bytes = Vec::new();
        let mut parts = response.bytes_stream();
        while let Some(part) = parts.next().await {
            let part = part.map_err(|error| self.reply_lost(method, path, plain(&error)))?;
            if bytes.len() + part.len() > LARGEST_BODY {
                return Err(
                    self.protocol(&format!("the answer to {method} {path} is larger than {} MiB", LARGEST_BODY >> 20))
                );
            }
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    }
}
