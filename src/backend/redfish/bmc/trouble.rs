//! Handles a BMC that does not answer or whose answer is unusable.

use super::{BackendError, Bmc, Duration, Method, PoisonError, no_answer_within, show_fingerprint};
use crate::{backend::web, outbound};

impl Bmc {
    pub(super) fn undelivered(&self, method: &Method, path: &str, error: &reqwest::Error) -> BackendError {
        let cause = if error.is_timeout() { no_answer_within(self.limit(method)) } else { web::cause(error) };
        if let Some(cause) = outbound::refusal(error) {
            return BackendError::Withheld { address: self.address().into(), cause: cause.into() };
        }
        if error.is_connect() {
            if let Some(problem) = self.certificate_problem(&cause) {
                return BackendError::Untrusted { address: self.address().into(), cause: problem.into() };
            }
            if let Some(problem) = handshake_problem(&cause) {
                return self.protocol(&problem);
            }
            self.is_down(&cause);
            return BackendError::Unreachable { address: self.address().into(), cause: cause.into() };
        }
        self.reply_lost(method, path, cause)
    }

    /// Returns the error for an answer that did not arrive completely in time. A read is not
    /// repeated: the BMC counts as unreachable for a moment.
    pub(in crate::backend::redfish) fn unanswered(&self, method: &Method, path: &str, cause: String) -> BackendError {
        if *method == Method::GET {
            self.is_down(&cause);
            return BackendError::Unreachable { address: self.address().into(), cause: cause.into() };
        }
        self.reply_lost(method, path, cause)
    }

    pub(super) fn certificate_problem(&self, cause: &str) -> Option<String> {
        if !cause.contains("certificate") && !cause.contains("Certificate") {
            return None;
        }
        let seen = *self.trusting.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Some(match seen {
            Some(seen) if self.trusting.expected == Some(seen) => {
                format!("the BMC presents the pinned certificate, but the TLS handshake failed ({cause})")
            }
            Some(seen) => format!(
                "the BMC's certificate differs from the pinned one; its SHA-256 is {}. If the certificate was renewed, \
                 set certificate_sha256 to this value",
                show_fingerprint(&seen)
            ),
            None => format!(
                "the BMC's certificate is not trusted ({cause}). Set its authority (ca_certificate_file) or pin it \
                 (certificate_sha256: `terraform-provider-metal check` shows its SHA-256)"
            ),
        })
    }

    pub(super) fn fail_if_down(&self) -> Result<(), BackendError> {
        let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        if down.as_ref().is_some_and(|(until, _)| self.clock.monotonic() >= *until) {
            *down = None;
        }
        match &*down {
            Some((_, cause)) => {
                Err(BackendError::Unreachable { address: self.address().into(), cause: cause.clone().into() })
            }
            None => Ok(()),
        }
    }

    /// Marks the BMC as unreachable for a moment, so that its other systems do not repeat the wait.
    pub(super) fn is_down(&self, cause: &str) {
        self.is_down_until(self.clock.monotonic() + self.limits.change.min(Duration::from_secs(2)), cause);
    }

    pub(super) fn is_down_until(&self, until: Duration, cause: &str) {
        *self.down.lock().unwrap_or_else(PoisonError::into_inner) = Some((until, cause.to_owned()));
    }

    pub(in crate::backend::redfish) fn reply_lost(&self, method: &Method, path: &str, cause: String) -> BackendError {
        BackendError::ReplyLost {
            address: self.address().into(),
            request: format!("{method} {path}").into(),
            cause: cause.into(),
        }
    }

    pub(in crate::backend::redfish) fn protocol(&self, what: &str) -> BackendError {
        BackendError::Protocol { address: self.address().into(), what: what.into() }
    }

    pub(in crate::backend::redfish) fn no_system(&self, what: &str) -> BackendError {
        BackendError::NoSystem { address: self.address().into(), what: what.into() }
    }

    pub(in crate::backend::redfish) fn unsupported(&self, what: &str) -> BackendError {
        BackendError::Unsupported { address: self.address().into(), what: what.into() }
    }
}

/// Explains a TLS handshake that failed before the certificate check; `None` for any other cause.
fn handshake_problem(cause: &str) -> Option<String> {
    let signs = [
        "HandshakeFailure",
        "ProtocolVersion",
        "peer is incompatible",
        "InsufficientSecurity",
        "NoCipherSuitesInCommon",
    ];
    signs.iter().any(|sign| cause.contains(sign)).then(|| {
        format!(
            "the TLS handshake failed ({cause}): the BMC offers neither TLS 1.3 nor TLS 1.2 with ECDHE and AES-GCM or \
             ChaCha20. TLS below 1.2, RSA key exchange and CBC ciphers are not supported. Update the BMC's firmware or \
             enable TLS 1.2 with ECDHE ciphers on it; otherwise reach it through a TLS proxy"
        )
    })
}
