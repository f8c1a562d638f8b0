//! Reads an answer within limits: body, status, and the machine's message about a refusal.

use std::{sync::atomic::Ordering, time::Duration};

use reqwest::{Method, Response, StatusCode, header};
use serde_json::Value;

use crate::{
    backend::{
        BackendError,
        web::{self, BodyError},
    },
    clock::{no_answer_within, within},
};

use super::{
    bmc::Bmc,
    lenient::{self, Document},
    message,
    outcome::{Applied, applied},
};

/// The maximum body size; a system has a few kilobytes.
const LARGEST_BODY: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct RedfishResponse {
    pub(super) body: Value,
    pub(super) etag: Option<String>,
    /// The methods that the resource supports, if the `Allow` header is present.
    pub(super) allow: Option<String>,
    /// The task monitor of a change that was answered with 202.
    pub(super) monitor: Option<String>,
}

impl Bmc {
    pub(super) async fn read(
        &self,
        method: &Method,
        path: &str,
        response: Response,
        until: Duration,
    ) -> Result<RedfishResponse, BackendError> {
        let status = response.status();
        let text = |name: header::HeaderName| {
            response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        // An empty entity tag counts as absent.
        let etag = text(header::ETAG).filter(|tag| !matches!(tag.trim(), "" | "\"\"" | "W/\"\""));
        let kind = text(header::CONTENT_TYPE).unwrap_or_default();
        let retry_after = text(header::RETRY_AFTER).and_then(|text| web::pause(&text, self.clock.now()));
        let (location, ways_in) = (text(header::LOCATION), text(header::WWW_AUTHENTICATE));
        let allow = text(header::ALLOW);
        let changes = *method != Method::GET;
        // Headers and body share one limit.
        let left = until.saturating_sub(self.clock.monotonic());
        let read = within(left, self.body(method, path, response)).await;
        let late = || {
            let limit = no_answer_within(self.limit(method));
            Err(self.unanswered(method, path, format!("the answer did not end in time: {limit}")))
        };
        let read = read.unwrap_or_else(late);
        let bytes = match read {
            Ok(bytes) => bytes,
            // The status already rejects the change, so an incomplete body does not matter.
            Err(_) if changes && applied(status, None) == Applied::No => Vec::new(),
            Err(BackendError::Protocol { what, .. }) if changes => return Err(self.unclear(method, path, what.raw())),
            Err(error) => return Err(error),
        };
        let document = if bytes.iter().all(u8::is_ascii_whitespace) {
            Ok(Document { body: Value::Null, flaw: None, is_refusal: false })
        } else {
            lenient::parse(&bytes)
        };
        if let Ok(Document { flaw: Some(flaw), .. }) = &document {
            self.note_flaw(&format!("{method} {path}"), flaw);
        }
        let is_refusal = document.as_ref().is_ok_and(|document| document.is_refusal);
        let parsed = document.map(|document| document.body);
        if changes && applied(status, parsed.as_ref().ok()) == Applied::Unknown {
            let words = match &parsed {
                Ok(body) => message::read(body).0,
                Err(_) if kind.contains("html") => "a web page instead of Redfish".to_owned(),
                Err(_) => "an answer that is not JSON".to_owned(),
            };
            return Err(self.unclear(method, path, &format!("{}: {words}", status.as_u16())));
        }
        // If a resource follows an error, the read was not granted, and the BMC's reason takes
        // precedence.
        if status.is_success() && (changes || !is_refusal) {
            return match parsed {
                Ok(body) => {
                    let etag = etag.or_else(|| body["@odata.etag"].as_str().map(str::to_owned));
                    let monitor = (changes && status == StatusCode::ACCEPTED).then(|| task(&body, location)).flatten();
                    Ok(RedfishResponse { body, etag, allow, monitor })
                }
                Err(_) if kind.contains("html") => {
                    Err(self.protocol(&format!(
                        "{method} {path} was answered with a web page instead of Redfish. Check that the endpoint is the BMC's \
                         own address"
                    )))
                }
                Err(error) => Err(self.protocol(&format!("the answer to {method} {path} is not JSON: {error}"))),
            };
        }
        let (message, later) = match &parsed {
            Ok(body) => message::read(body),
            Err(_) if kind.contains("html") => ("a web page instead of Redfish".to_owned(), false),
            Err(_) => ("an answer that is not JSON".to_owned(), false),
        };
        if status == StatusCode::UNAUTHORIZED {
            // RFC 9110, section 11.6.1: a 401 lists the accepted schemes. Without basic, a login is
            // a different method and not a second attempt.
            let elsewhere = ways_in.is_none_or(|ways| !ways.to_ascii_lowercase().contains("basic"));
            self.no_basic.store(elsewhere, Ordering::Relaxed);
            return Err(BackendError::Unauthorized { address: self.address().into(), message: message.into() });
        }
        let transient = later
            || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::CONFLICT)
            // The resource was read a moment ago, so the BMC is restarting.
            || (changes && status == StatusCode::NOT_FOUND)
            || (status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED);
        Err(BackendError::Rejected {
            address: self.address().into(),
            request: format!("{method} {path}").into(),
            status: status.as_u16(),
            message: message.into(),
            retry_after,
            transient,
        })
    }

    fn unclear(&self, method: &Method, path: &str, answer: &str) -> BackendError {
        BackendError::OutcomeUnknown {
            address: self.address().into(),
            request: format!("{method} {path}").into(),
            answer: answer.into(),
        }
    }

    async fn body(&self, method: &Method, path: &str, response: Response) -> Result<Vec<u8>, BackendError> {
        web::body(response, LARGEST_BODY).await.map_err(|error| match error {
            BodyError::Broken(cause) => self.reply_lost(method, path, cause),
            BodyError::TooLarge(_) => self.protocol(&format!("the answer to {method} {path} is {error}")),
        })
    }
}

/// Returns a task's monitor, or the task itself, from the header or the body (DSP0266,
/// "Asynchronous operations").
fn task(body: &Value, location: Option<String>) -> Option<String> {
    let named = body["TaskMonitor"].as_str().or_else(|| {
        let kind = body["@odata.type"].as_str().unwrap_or_default();
        body["@odata.id"].as_str().filter(|_| kind.contains("Task"))
    });
    location.or_else(|| named.map(str::to_owned))
}
