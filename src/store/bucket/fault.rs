//! Maps a bucket's errors to store errors.

use std::ops::Deref;

use object_store::Error;

use super::url::Parsed;
use crate::store::{StoreError, fault::StoreErrors};

/// Codes of errors that end by waiting: the change was not stored, or its outcome is unknown.
const LATER: [&str; 7] = [
    "SlowDown",
    "InternalError",
    "ServiceUnavailable",
    "RequestTimeout",
    "TooManyRequests",
    "OperationAborted",
    "XMinioServerNotInitialized",
];

/// Creates one store's errors.
#[derive(Clone, Debug)]
pub(super) struct ErrorMapper {
    about: StoreErrors,
    bucket: String,
}

impl ErrorMapper {
    pub(super) fn new(place: &Parsed) -> Self {
        Self { about: StoreErrors::new(&place.address), bucket: place.bucket.clone() }
    }

    /// Maps an error. Its texts repeat requests, which can contain signatures, so only the server's
    /// status, code and message are shown.
    pub(super) fn object(&self, error: &Error) -> StoreError {
        let text = error.to_string();
        let code = between(&text, "<Code>", "</Code>").unwrap_or_default();
        let message = between(&text, "<Message>", "</Message>").unwrap_or_default();
        let said = |hint: &str| {
            [code, message, hint].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ")
        };
        let status =
            between(&text, "status code: ", " ").and_then(|status| status.trim_end_matches(':').parse::<u16>().ok());
        match (code, status) {
            ("RequestTimeTooSkewed", _) => {
                self.unavailable(said("this machine's clock differs from the store's clock; correct it"))
            }
            ("ExpiredToken" | "TokenRefreshRequired", _) => {
                self.forbidden(said("this process's credentials have expired; run the command again with new ones"))
            }
            ("NoSuchBucket", _) => {
                self.forbidden(format!("the bucket {:?} does not exist: create it first", self.bucket))
            }
            (code, _) if LATER.contains(&code) => self.unavailable(said("")),
            (_, Some(status)) if status >= 500 || matches!(status, 408 | 429) => {
                self.unavailable(format!("the server answered {status}{}", prefixed(&said(""))))
            }
            (_, Some(301 | 307 | 308)) => self.forbidden(said("the bucket is in another region; add ?region=…")),
            (_, Some(status)) => self.forbidden(format!(
                "the server answered {status}{}; `store roles s3` prints the permissions",
                prefixed(&said(""))
            )),
            (_, None) => self.without_answer(error),
        }
    }

    /// Maps an error without a status: the request failed, or the client could not send it.
    fn without_answer(&self, error: &Error) -> StoreError {
        match error {
            Error::NotImplemented { .. } | Error::NotSupported { .. } | Error::UnknownConfigurationKey { .. } => {
                self.forbidden(cause(error))
            }
            Error::InvalidPath { .. } => self.unreadable(cause(error)),
            _ => self.unavailable(cause(error)),
        }
    }
}

impl Deref for ErrorMapper {
    type Target = StoreErrors;

    fn deref(&self) -> &StoreErrors {
        &self.about
    }
}

fn prefixed(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

/// Returns the innermost cause. The outer causes repeat the request.
pub(super) fn cause(error: &Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(start)?;
    rest.split_once(end).map(|(found, _)| found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::bucket::url::parse;

    fn mapped(text: &str) -> StoreError {
        let about = ErrorMapper::new(&parse("s3://locks").unwrap());
        about.object(&Error::Generic { store: "S3", source: text.to_owned().into() })
    }

    #[test]
    fn an_error_shows_its_code_and_no_request() {
        let status = |status: &str, code: &str| {
            mapped(&format!(
                "Error performing PUT http://h/b?sig=hunter2 in 1ms - Server returned non-2xx status code: {status}: \
                 <Error><Code>{code}</Code><Message>what it is</Message><StringToSign>hunter2</StringToSign></Error>"
            ))
        };
        for (error, transient, said) in [
            (status("503 Service Unavailable", "SlowDown"), true, "SlowDown: what it is"),
            (status("403 Forbidden", "RequestTimeTooSkewed"), true, "clock differs"),
            (status("400 Bad Request", "ExpiredToken"), false, "have expired"),
            (status("404 Not Found", "NoSuchBucket"), false, "create it first"),
            (status("403 Forbidden", "AccessDenied"), false, "store roles s3"),
            (status("502 Bad Gateway", ""), true, "answered 502"),
            (status("409 Conflict", "OperationAborted"), true, "OperationAborted"),
            (mapped("connection refused"), true, "connection refused"),
        ] {
            assert_eq!(error.is_transient(), transient, "{error}");
            assert!(error.to_string().contains(said) && !error.to_string().contains("hunter2"), "{error}");
        }
    }
}
