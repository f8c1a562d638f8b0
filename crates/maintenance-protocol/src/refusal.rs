//! Refusals with a request to wait.
//!
//! A BMC that starts up, or whose service restarts, refuses every change for minutes. The status of
//! the answer varies (400, 409, 500, 503), so the text decides. It contains the message ids, the
//! messages and the machine's resolutions.

use std::time::Duration;

use super::model::verdict::Limits;

/// Vendors' message ids for a service that is not ready.
///
/// Dell: the provider is not ready (RAC0508), an internal service failed (SYS446), an import is in
/// progress (SYS431). Data sources are unavailable (SYS518), iDRAC is not ready (SWC0700). HPE: the
/// resource is not ready (`ResourceNotReadyRetry`), is flashed (`ResourceTemporarilyUnavailable`),
/// or iLO resets (`ResetInProgress`). The others belong to the DMTF base registry.
const NOT_READY: [&str; 11] = [
    "RAC0508",
    "SYS431",
    "SYS446",
    "SYS518",
    "SWC0700",
    "ResourceNotReadyRetry",
    "ResourceTemporarilyUnavailable",
    "ResetInProgress",
    "ServiceTemporarilyUnavailable",
    "ServiceInUnknownState",
    "ServiceShuttingDown",
];

/// Phrases of a machine that is not ready, in lower case.
const PHRASES: [&str; 8] = [
    "not ready",
    "not yet ready",
    "is initializing",
    "is starting",
    "not started yet",
    "temporarily unavailable",
    "try again later",
    "retry later",
];

/// Words of a resolution that requests a pause and the same request again, in lower case.
const WAIT: [&str; 4] = ["wait", "minutes", "later", "seconds"];
const AGAIN: [&str; 5] = ["retry", "try again", "again later", "again in ", "resubmit"];

/// Returns true if the text means that the machine is not ready and the same request can succeed
/// later.
#[must_use]
pub fn asks_to_wait(text: &str) -> bool {
    let has_id = |id: &&str| {
        text.match_indices(*id).any(|(at, found)| !text[at + found.len()..].starts_with(char::is_alphanumeric))
    };
    if NOT_READY.iter().any(has_id) {
        return true;
    }
    let text = text.to_lowercase();
    let any = |words: &[&str]| words.iter().any(|word| text.contains(word));
    any(&PHRASES) || (any(&WAIT) && any(&AGAIN))
}

/// The text before the machine's requested pause, at a refusal's end.
const ASKED_PAUSE: &str = "; Retry-After: ";

/// Returns the text for a requested pause (`Retry-After`), which is appended to a refusal.
#[must_use]
pub fn asked_pause_text(pause: Duration) -> String {
    format!("{ASKED_PAUSE}{} s", pause.as_secs())
}

/// Returns the pause before a rejected call is sent again: as long as the machine requests, within
/// bounds.
pub(super) fn pause_after(message: &str, limits: &Limits) -> Duration {
    let asked = message.rsplit_once(ASKED_PAUSE).and_then(|(_, rest)| rest.strip_suffix(" s")?.parse().ok());
    asked.map_or(Duration::ZERO, Duration::from_secs).min(limits.post).max(limits.retry_pause)
}

/// Returns how long a call rejected with this message is repeated. If the machine is not ready,
/// only the run's time limit ends the attempts.
pub(super) fn busy_for(message: &str, limits: &Limits) -> Duration {
    if message.contains("DuringSystemPOST") || message.contains("in POST") {
        limits.post
    } else if asks_to_wait(message) {
        Duration::MAX
    } else {
        limits.busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_not_ready_is_recognized_by_id_or_by_text() {
        for text in [
            "500: \"Unable to complete the operation because the provider is not ready.\" (IDRAC.2.9.RAC0508) Wait for few minutes, \
             refresh the page and retry.",
            "\"An internal error occurred\" (IDRAC.2.8.SYS446)",
            "\"iDRAC is not ready.\" (IDRAC.1.6.SWC0700)",
            "\"no words\" (iLO.2.30.ResourceNotReadyRetry)",
            "\"The service is temporarily unavailable. Retry in 30 seconds.\" (Base.1.12.ServiceTemporarilyUnavailable)",
            "\"A service of the BMC has not started yet.\" (X.1.0.Other) Try again in some minutes.",
            "\"The BMC is initializing.\" (SMC.1.0.GeneralError)",
            "503: \"System is busy\" (ExtendedError.1.0.Busy) Please try again later.",
        ] {
            assert!(asks_to_wait(text), "{text}");
        }
        for text in [
            "400: \"no\" (Base.1.8.PropertyValueNotInList) Choose a value from the enumeration list that the implementation can \
             support and resubmit the request if the operation failed.",
            "500: \"An internal error occurred\" (Base.1.12.InternalError) Resubmit the request. If the problem persists, \
             consider resetting the service.",
            "\"The change is in use\" (Base.1.12.ResourceInUse) Remove the condition and resubmit the request if the operation \
             failed.",
            "\"a longer id\" (IDRAC.2.8.SYS4460)",
            "connection refused",
            "",
        ] {
            assert!(!asks_to_wait(text), "{text}");
        }
    }
}
