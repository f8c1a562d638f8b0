//! Interpretation of Ironic's error answers. Pure.
//!
//! Measured with Ironic 39.0.0: an error body is `{"error_message": "…"}`, and its text is nested
//! JSON (`faultstring`, or `description` for a rejected version). Newer middleware and Keystone
//! answer with an object.

use std::time::Duration;

use serde_json::Value;

use crate::{backend::BackendError, shown};

/// An error answer's category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// 409: another operation has locked the node (`NodeLocked`). Nothing was applied.
    Locked,
    /// 503, or no conductor currently serves the node. Nothing was applied.
    Busy,
    /// 401.
    Unauthenticated,
    /// 403.
    Denied,
    /// 404 for a node or one of its parts.
    NotFound,
    /// 406: the service does not support the API version.
    Version,
    /// Another 4xx.
    Refused,
    /// Another 5xx: the request could have been applied.
    Unknown,
}

/// Extracts an error answer's message as one line.
pub(super) fn message(body: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(body).ok();
    let words = parsed.as_ref().and_then(words).unwrap_or_else(|| body.trim().to_owned());
    let words = if words.is_empty() { "no explanation".to_owned() } else { words };
    shown::line(&words).into_owned()
}

fn words(body: &Value) -> Option<String> {
    for key in ["error_message", "error", "faultstring", "description", "message", "title"] {
        match body.get(key) {
            Some(Value::String(text)) => {
                let inner: Option<Value> = serde_json::from_str(text).ok();
                return inner.as_ref().filter(|it| it.is_object()).and_then(words).or_else(|| Some(text.clone()));
            }
            Some(object @ Value::Object(_)) => return words(object),
            _ => {}
        }
    }
    None
}

/// Returns the category for a status and message.
pub(super) fn meaning(status: u16, message: &str) -> Meaning {
    // Ironic answers 404 or 400 while the node's conductor is not running (`NoValidHost`, Ironic
    // 39.0.0, conductor/rpcapi.py, get_topic_for).
    if message.contains("No valid host was found") || message.contains("No conductor service registered") {
        return Meaning::Busy;
    }
    match status {
        401 => Meaning::Unauthenticated,
        403 => Meaning::Denied,
        404 => Meaning::NotFound,
        406 => Meaning::Version,
        409 if message.contains("is locked by host") => Meaning::Locked,
        503 | 429 => Meaning::Busy,
        status if status >= 500 => Meaning::Unknown,
        _ => Meaning::Refused,
    }
}

/// Returns true if Ironic itself sent the error, not a proxy or ingress in front of it.
fn is_of_ironic(body: &str) -> bool {
    serde_json::from_str::<Value>(body).is_ok_and(|body| body.get("error_message").is_some())
}

/// Returns true if Ironic itself reports that the node does not exist or is hidden from this
/// account (Ironic 39.0.0, common/exception.py, `NodeNotFound`).
pub(super) fn is_no_node(error: &BackendError) -> bool {
    match error {
        BackendError::Rejected { status: 404, message, transient: false, .. } => {
            message.raw().starts_with("Node ") && message.raw().contains("could not be found")
        }
        _ => false,
    }
}

/// Converts an error answer into a machine error. `changes` is true if the request could have
/// changed something.
pub(super) fn error(
    address: &str,
    request: &str,
    status: u16,
    body: &str,
    retry_after: Option<Duration>,
    changes: bool,
) -> BackendError {
    let message = message(body);
    let (address, request) = (address.to_owned(), request.to_owned());
    match meaning(status, &message) {
        Meaning::Unauthenticated => BackendError::Denied {
            message: format!("{address}: {request}: the credentials were refused ({message})").into(),
        },
        Meaning::Denied => BackendError::Denied {
            message: format!("{address}: {request}: not allowed ({message}). The Ironic guide lists the policy rules")
                .into(),
        },
        Meaning::Version => {
            BackendError::Unsupported { address: address.into(), what: format!("{request}: {message}").into() }
        }
        Meaning::Unknown if changes => BackendError::OutcomeUnknown {
            address: address.into(),
            request: request.into(),
            answer: format!("{status}: {message}").into(),
        },
        Meaning::NotFound if !is_of_ironic(body) => {
            let message = format!("the answer is not from Ironic ({message})");
            BackendError::Rejected {
                address: address.into(),
                request: request.into(),
                status,
                message: message.into(),
                retry_after,
                transient: true,
            }
        }
        meaning => {
            let transient = matches!(meaning, Meaning::Locked | Meaning::Busy | Meaning::Unknown);
            BackendError::Rejected {
                address: address.into(),
                request: request.into(),
                status,
                message: message.into(),
                retry_after,
                transient,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKED: &str = r#"{"error_message": "{\"faultcode\": \"Client\", \"faultstring\": \"Node 5f is locked by host harness, please retry after the current operation is completed.\", \"debuginfo\": null}"}"#;

    #[test]
    fn words_are_read_from_json_inside_json_and_from_objects() {
        assert!(message(LOCKED).starts_with("Node 5f is locked by host harness"));
        let version = r#"{"error_message": "{\"code\": 406, \"title\": \"Not Acceptable\", \"description\": \"Version 1.999 was requested\"}"}"#;
        assert_eq!(message(version), "Version 1.999 was requested");
        assert_eq!(message(r#"{"error_message": {"faultstring": "no"}}"#), "no");
        assert_eq!(message(r#"{"error": {"message": "Keystone says no", "code": 401}}"#), "Keystone says no");
        assert_eq!(message(r#"{"error_message": "plain"}"#), "plain");
        assert_eq!(message("<html>"), "<html>");
        assert_eq!(message(""), "no explanation");
        assert!(!message("a\u{1b}[2Jb").contains('\u{1b}'));
    }

    #[test]
    fn a_locked_node_is_told_apart_from_other_conflicts() {
        assert_eq!(meaning(409, &message(LOCKED)), Meaning::Locked);
        assert_eq!(meaning(409, "Node 5f is associated with instance 7"), Meaning::Refused);
        assert_eq!(meaning(503, "There are no free conductor workers"), Meaning::Busy);
        assert_eq!(meaning(400, "No valid host was found. Reason: No conductor service registered"), Meaning::Busy);
        assert_eq!(meaning(500, "Timed out waiting for a reply"), Meaning::Unknown);
        let read = error("a", "GET /x", 500, "", None, false);
        assert!(read.is_transient() && !read.outcome_unknown());
        assert!(error("a", "PUT /x", 500, "", None, true).outcome_unknown());
        assert!(error("a", "PUT /x", 409, LOCKED, None, true).is_transient());
        assert!(!error("a", "PUT /x", 409, r#"{"error_message":"associated"}"#, None, true).is_transient());
    }

    #[test]
    fn only_ironic_itself_says_that_a_node_is_not_there() {
        let gone =
            r#"{"error_message": "{\"faultcode\": \"Client\", \"faultstring\": \"Node n1 could not be found.\"}"}"#;
        let told = error("a", "GET /x", 404, gone, None, false);
        assert!(is_no_node(&told) && !told.is_transient());
        for foreign in ["404 page not found", "<html>Node n1 could not be found</html>", "", r#"{"error": "no route"}"#]
        {
            let told = error("a", "GET /x", 404, foreign, None, false);
            assert!(!is_no_node(&told) && told.is_transient(), "{told}");
        }
        let part =
            error("a", "GET /x", 404, r#"{"error_message": "Inventory record could not be found"}"#, None, false);
        assert!(!is_no_node(&part) && !part.is_transient());
    }
}
