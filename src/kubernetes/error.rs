//! Classification of API server errors.

use std::{fmt, io, time::Duration};

use kube::client::AuthError;
use kube::core::Status;

use super::RequestInfo;
use crate::{clock::no_answer_within, shown::OneLine};

/// A rejected object field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldProblem {
    /// The API server's path, for example `spec.image`.
    pub field: OneLine,
    /// The problem.
    pub problem: OneLine,
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

/// A failed request to an API server. Messages contain no credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The configuration is not usable; no request was sent.
    #[error("{address}: {cause}")]
    Configuration {
        /// The configured source.
        address: OneLine,
        /// The problem.
        cause: OneLine,
    },
    /// The request did not reach the server, or it was only a read.
    #[error("{address}: {cause}")]
    Unreachable {
        /// The address.
        address: OneLine,
        /// The cause, for display.
        cause: OneLine,
    },
    /// No reply to a change arrived; its outcome is unknown.
    #[error("{address}: the reply to {request} was lost ({cause}); it may have been applied")]
    ReplyLost {
        /// The address.
        address: OneLine,
        /// Verb, resource and name.
        request: OneLine,
        /// The cause, for display.
        cause: OneLine,
    },
    /// Authentication failed (401), or credentials were unavailable.
    #[error("{address}: the cluster does not accept the credentials: {message}")]
    Unauthorized {
        /// The address, without credentials.
        address: OneLine,
        /// The message.
        message: OneLine,
    },
    /// Authorization failed (403). Names the permission that a role needs.
    #[error(
        "{address}: {request} is not allowed; a Role or ClusterRole must grant the verb {verb:?} on {resource} \
         ({message})"
    )]
    Forbidden {
        /// The address, without credentials.
        address: OneLine,
        /// Verb, resource and name.
        request: OneLine,
        /// The missing verb.
        verb: &'static str,
        /// The resource with its group, and the namespace if it has one.
        resource: OneLine,
        /// The message.
        message: OneLine,
    },
    /// The role allows the request, but an admission webhook or plugin rejected it (403).
    #[error("{address}: a cluster policy denied {request}; roles do not affect it: {message}")]
    Denied {
        /// The address, without credentials.
        address: OneLine,
        /// Verb, resource and name.
        request: OneLine,
        /// The message.
        message: OneLine,
    },
    /// The object does not exist (404).
    #[error("{address}: {request}: not found")]
    NotFound {
        /// The address, without credentials.
        address: OneLine,
        /// Verb, resource and name.
        request: OneLine,
    },
    /// The object already exists (409 `AlreadyExists`).
    #[error("{address}: {request}: it already exists")]
    AlreadyExists {
        /// The address, without credentials.
        address: OneLine,
        /// Verb, resource and name.
        request: OneLine,
    },
    /// Another author changed the object or owns a field (409 `Conflict`).
    #[error("{address}: {request}: {message}")]
    Conflict {
        /// The address, without credentials.
        address: OneLine,
        /// Verb, resource and name.
        request: OneLine,
        /// The message; for field conflicts it names the managers.
        message: OneLine,
    },
    /// The server no longer has the history since the last observation (410): everything must be
    /// listed again.
    #[error("{address}: {request}: {message}")]
    Expired {
        /// The address, without credentials.
        address: OneLine,
        /// Verb, resource and name.
        request: OneLine,
        /// The message.
        message: OneLine,
    },
    /// The server is overloaded (429); the request was not applied.
    #[error("{address}: the API server is overloaded ({request}: {message})")]
    Busy {
        /// The address, without credentials.
        address: OneLine,
        /// Verb, resource and name.
        request: OneLine,
        /// The message.
        message: OneLine,
        /// The requested pause.
        retry_after: Option<Duration>,
    },
    /// The API server rejects the object (400, 422).
    #[error("{address}: {request} was refused: {message}")]
    Invalid {
        /// The address, without credentials.
        address: OneLine,
        /// Verb, resource and name.
        request: OneLine,
        /// The message.
        message: OneLine,
        /// The rejected fields, if the server listed them.
        fields: Vec<FieldProblem>,
    },
    /// Any other answer.
    #[error("{address}: {request} was answered with {code}: {message}")]
    Rejected {
        /// The address, without credentials.
        address: OneLine,
        /// Verb, resource and name.
        request: OneLine,
        /// HTTP status.
        code: u16,
        /// The message.
        message: OneLine,
    },
    /// The answer violates the API.
    #[error("{address}: {request}: {what}")]
    Protocol {
        /// The address, without credentials.
        address: OneLine,
        /// Verb, resource and name.
        request: OneLine,
        /// The violation.
        what: OneLine,
    },
}

impl ClusterError {
    /// Returns true if a later retry can succeed without intervention.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::ReplyLost { .. }
            | Self::Busy { .. }
            | Self::Expired { .. }
            | Self::Conflict { .. } => true,
            Self::Rejected { code, .. } => *code >= 500,
            _ => false,
        }
    }

    /// Returns the error for an answer that did not arrive in time.
    pub(super) fn silence(request: RequestInfo<'_>, address: &str, limit: Duration) -> Self {
        Self::no_reply(request, address, no_answer_within(limit))
    }

    fn no_reply(request: RequestInfo<'_>, address: &str, cause: String) -> Self {
        if request.writes() {
            Self::ReplyLost { address: address.into(), request: request.to_string().into(), cause: cause.into() }
        } else {
            Self::Unreachable { address: address.into(), cause: cause.into() }
        }
    }

    /// Converts a client error for a request. `limit` is the connection's time limit.
    pub(super) fn classify(error: kube::Error, request: RequestInfo<'_>, address: &str, limit: Duration) -> Self {
        let at = || address.to_owned();
        match error {
            kube::Error::Api(status) => Self::said(&status, request, address),
            kube::Error::Auth(error) => Self::Unauthorized { address: at().into(), message: chain(&error).into() },
            kube::Error::Service(error) => {
                let never_sent = any(&*error, hyper_util::client::legacy::Error::is_connect);
                let late = any(&*error, |error: &io::Error| error.kind() == io::ErrorKind::TimedOut);
                match chain(&*error) {
                    // Connection and request timeouts race, so both produce the same error.
                    _ if never_sent && late => {
                        Self::Unreachable { address: at().into(), cause: no_answer_within(limit).into() }
                    }
                    cause if never_sent => Self::Unreachable { address: at().into(), cause: cause.into() },
                    cause => Self::no_reply(request, address, cause),
                }
            }
            error @ (kube::Error::HyperError(_) | kube::Error::ReadEvents(_)) => {
                Self::no_reply(request, address, chain(&error))
            }
            error @ (kube::Error::InferConfig(_) | kube::Error::InferKubeconfig(_) | kube::Error::RustlsTls(_)) => {
                Self::Configuration { address: at().into(), cause: chain(&error).into() }
            }
            // A write could have been applied even if its answer is unreadable.
            error => {
                Self::Protocol { address: at().into(), request: request.to_string().into(), what: chain(&error).into() }
            }
        }
    }

    fn said(status: &Status, asked: RequestInfo<'_>, address: &str) -> Self {
        let (address, request) = (address.to_owned(), asked.to_string());
        let message = status.message.clone();
        let details = status.details.as_ref();
        match (status.code, status.reason.as_str()) {
            (401, _) => Self::Unauthorized { address: address.into(), message: message.into() },
            (403, _) if is_of_admission(&message) => {
                Self::Denied { address: address.into(), request: request.into(), message: message.into() }
            }
            (403, _) => Self::Forbidden {
                address: address.into(),
                request: request.into(),
                verb: missing_verb(asked.verb, &message),
                resource: match asked.namespace {
                    Some(namespace) => format!("{:?} in namespace {namespace:?}", asked.resource).into(),
                    None => format!("{:?}", asked.resource).into(),
                },
                message: message.into(),
            },
            (404, _) => Self::NotFound { address: address.into(), request: request.into() },
            (409, "AlreadyExists") => Self::AlreadyExists { address: address.into(), request: request.into() },
            (409, _) => Self::Conflict { address: address.into(), request: request.into(), message: message.into() },
            (410, _) => Self::Expired { address: address.into(), request: request.into(), message: message.into() },
            (429, _) => {
                let seconds = details.map_or(0, |details| details.retry_after_seconds);
                let retry_after = (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)));
                Self::Busy { address: address.into(), request: request.into(), message: message.into(), retry_after }
            }
            // For an unknown field, strict validation returns 500 without a reason (observed with
            // kube-apiserver 1.36).
            (400 | 422, _) => {
                let causes = details.map(|details| details.causes.as_slice()).unwrap_or_default();
                let fields = causes
                    .iter()
                    .filter(|cause| !cause.field.is_empty())
                    .map(|cause| FieldProblem {
                        field: cause.field.clone().into(),
                        problem: cause.message.clone().into(),
                    })
                    .collect();
                Self::Invalid { address: address.into(), request: request.into(), message: message.into(), fields }
            }
            (500, "") if message.contains("field not declared in schema") || message.contains("unknown field") => {
                Self::Invalid {
                    address: address.into(),
                    request: request.into(),
                    message: message.into(),
                    fields: Vec::new(),
                }
            }
            // The server timed out, but the operation could still be applied.
            (504, _) if asked.writes() => {
                Self::ReplyLost { address: address.into(), request: request.into(), cause: message.into() }
            }
            (code, _) => {
                Self::Rejected { address: address.into(), request: request.into(), code, message: message.into() }
            }
        }
    }
}

/// The text in an admission error for an exhausted `ResourceQuota`.
pub const QUOTA_EXCEEDED: &str = "exceeded quota";

/// Returns the verb that a role lacks. A patch that creates its object also needs `create`
/// (k8s.io/apiserver, `pkg/endpoints/handlers/create.go`, `withAuthorization`).
fn missing_verb(verb: &'static str, message: &str) -> &'static str {
    if message.contains(" cannot create resource ") { "create" } else { verb }
}

/// Returns true if admission rejected a request that the roles allow: a webhook (k8s.io/apiserver,
/// `admission/plugin/webhook/errors/statuserror.go`), a policy
/// (`admission/plugin/policy/validating`) or a quota (`admission/plugin/resourcequota`).
fn is_of_admission(message: &str) -> bool {
    ["denied the request", "denied request", QUOTA_EXCEEDED].iter().any(|text| message.contains(text))
}

/// Returns true if the error or one of its sources matches.
fn any<E: std::error::Error + 'static>(error: &(dyn std::error::Error + 'static), is: fn(&E) -> bool) -> bool {
    let mut at = Some(error);
    while let Some(error) = at {
        if error.downcast_ref::<E>().is_some_and(is) {
            return true;
        }
        at = error.source();
    }
    false
}

/// Describes an exec plugin's failure without its output, arguments or variables.
fn plugin(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        let told = match error.downcast_ref::<AuthError>() {
            Some(AuthError::AuthExecRun { out, .. }) => format!("the exec plugin ended with {}", out.status),
            Some(AuthError::AuthExecStart(error)) => format!("the exec plugin cannot be started: {}", error.kind()),
            Some(
                AuthError::AuthExecParse(_)
                | AuthError::AuthExec(_)
                | AuthError::ExecPluginFailed
                | AuthError::MalformedTokenExpirationDate(_)
                | AuthError::InvalidBearerToken(_),
            ) => "the exec plugin printed no valid ExecCredential".to_owned(),
            _ => {
                next = error.source();
                continue;
            }
        };
        return Some(told);
    }
    None
}

/// Formats an error with its sources.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(told) = plugin(error) {
        return told;
    }
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_of_the_cluster_is_not_told_as_a_missing_role() {
        let request = RequestInfo { verb: "patch", resource: "nodes", namespace: None, name: Some("n1") };
        let said = |message: &str| {
            let status =
                Status { code: 403, message: message.to_owned(), reason: "Forbidden".into(), ..Status::default() };
            ClusterError::said(&status, request, "https://api").to_string()
        };
        let role = said("nodes \"n1\" is forbidden: User \"ci\" cannot patch resource \"nodes\" in API group \"\"");
        assert!(role.contains("must grant the verb \"patch\" on \"nodes\""), "{role}");
        let creates = said("nodes \"n1\" is forbidden: User \"ci\" cannot create resource \"nodes\" in API group \"\"");
        assert!(creates.contains("must grant the verb \"create\" on \"nodes\""), "{creates}");
        assert!(said("").contains("must grant the verb"), "without a message it is the role");
        for message in [
            "admission webhook \"baremetalhost.metal3.io\" denied the request: BMC address can not be changed",
            "nodes \"n1\" is forbidden: ValidatingAdmissionPolicy 'night' with binding 'night' denied request: not at night",
            "configmaps \"lock-1\" is forbidden: exceeded quota: small, requested: count/configmaps=1, used: 2, limited: 2",
        ] {
            let denied = said(message);
            assert!(!denied.contains("must grant the verb") && denied.contains(message), "{denied}");
        }
    }
}
