//! Determines from an answer if a change was applied, rejected, or has an unknown outcome.
//!
//! Only an answer that precedes any effect is a rejection: 4xx and 503 (RFC 9110, sections 15.5 and
//! 15.6.4), and the message IDs in `message.rs`. Any other 5xx can come from a proxy, or from a
//! service that failed after it had commanded the hardware. BMCs answer 500 to resets that they
//! performed.

use reqwest::StatusCode;
use serde_json::Value;

use super::message;

/// A change's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Applied {
    /// The change was accepted.
    Yes,
    /// The change was rejected.
    No,
    /// Only an observation can decide.
    Unknown,
}

/// Judges an answer. `body` is `None` if it is not JSON or incomplete.
pub(super) fn applied(status: StatusCode, body: Option<&Value>) -> Applied {
    if status.is_success() {
        return if body.is_some() { Applied::Yes } else { Applied::Unknown };
    }
    if status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE {
        return if body.is_some_and(message::says_not_applied) { Applied::No } else { Applied::Unknown };
    }
    Applied::No
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(status: u16, body: Option<&Value>) -> Applied {
        applied(StatusCode::from_u16(status).unwrap(), body)
    }

    #[test]
    fn only_a_refusal_says_that_nothing_was_applied() {
        let internal = json!({"error": {"code": "Base.1.8.InternalError", "message": "An internal error occurred"}});
        for status in [400, 401, 403, 404, 405, 409, 412, 415, 428, 429, 503] {
            assert_eq!(of(status, Some(&internal)), Applied::No, "{status}");
            assert_eq!(of(status, None), Applied::No, "{status}");
        }
        for status in [500, 501, 502, 504, 507] {
            assert_eq!(of(status, Some(&internal)), Applied::Unknown, "{status}");
            assert_eq!(of(status, None), Applied::Unknown, "{status}");
        }
        let busy =
            json!({"error": {"@Message.ExtendedInfo": [{"MessageId": "iLO.2.14.UnableToModifyDuringSystemPOST"}]}});
        assert_eq!(of(500, Some(&busy)), Applied::No);
        let never = json!({"error": {"@Message.ExtendedInfo": [{"MessageId": "Base.1.12.ActionNotSupported"}]}});
        assert_eq!(of(501, Some(&never)), Applied::No);
    }

    #[test]
    fn a_success_that_cannot_be_read_is_none() {
        assert_eq!(of(204, Some(&Value::Null)), Applied::Yes);
        assert_eq!(of(200, None), Applied::Unknown);
    }
}
