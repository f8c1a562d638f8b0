//! What an API server said, in our words.

use kube::client::AuthError;
use std::{fmt, io, time::Duration};

use kube::core::Status;

use super::RequestInfo;
use crate::clock::no_answer_within;

/// One field of an object that the API server refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldProblem {
    /// Where, as the API server writes it, for example `spec.image`.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

/// A failed request to an API server. Messages name no credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// There is no usable configuration; nothing was asked.
    #[error("{address}: {cause}")]
    Configuration {
        /// What was configured.
        address: String,
        /// What is wrong with it.
        cause: String,
    },
    /// Nothing of the request reached the server, or it was only a read.
    #[error("{address}: {cause}")]
    Unreachable {
        /// Where it was tried.
        address: String,
        /// The cause, for people.
        cause: String,
    },
    /// A change was sent and no reply came: it may have been applied.
    #[error("{address}: the reply to {request} was lost ({cause}); it may have been applied")]
    ReplyLost {
        /// Where it was sent.
        address: String,
        /// Verb, resource and name.
        request: String,
        /// The cause, for people.
        cause: String,
    },
    /// Who we are was not believed (401), or could not be told.
    #[error("{address}: the cluster does not accept the credentials: {message}")]
    Unauthorized {
        /// The address, without credentials.
        address: String,
        /// The message.
        message: String,
    },
    /// We may not (403). Says what a role would have to allow.
    #[error(
        "{address}: {request} is not allowed; a Role or ClusterRole has to give the verb {verb:?} on {resource} ({message})"
    )]
    Forbidden {
        /// The address, without credentials.
        address: String,
        /// Verb, resource and name.
        request: String,
        /// The missing verb.
        verb: &'static str,
        /// The resource with its group, and the namespace if it has one.
        resource: String,
        /// The message.
        message: String,
    },
    /// We may, and a rule of the cluster is against it: an admission webhook or plugin (403).
    #[error("{address}: a rule of the cluster denied {request}, which no role changes: {message}")]
    Denied {
        /// The address, without credentials.
        address: String,
        /// Verb, resource and name.
        request: String,
        /// The message.
        message: String,
    },
    /// It is not there (404).
    #[error("{address}: {request}: not found")]
    NotFound {
        /// The address, without credentials.
        address: String,
        /// Verb, resource and name.
        request: String,
    },
    /// It is there already (409 `AlreadyExists`).
    #[error("{address}: {request}: it exists already")]
    AlreadyExists {
        /// The address, without credentials.
        address: String,
        /// Verb, resource and name.
        request: String,
    },
    /// Somebody else changed it meanwhile, or owns a field (409 `Conflict`).
    #[error("{address}: {request}: {message}")]
    Conflict {
        /// The address, without credentials.
        address: String,
        /// Verb, resource and name.
        request: String,
        /// The message; of a conflict of field managers it names them.
        message: String,
    },
    /// What was seen last is too long ago for the server to tell what changed since (410): all has
    /// to be read again.
    #[error("{address}: {request}: {message}")]
    Expired {
        /// The address, without credentials.
        address: String,
        /// Verb, resource and name.
        request: String,
        /// The message.
        message: String,
    },
    /// The server is asked too much (429); nothing was done.
    #[error("{address}: the API server has too much to do ({request}: {message})")]
    Busy {
        /// The address, without credentials.
        address: String,
        /// Verb, resource and name.
        request: String,
        /// The message.
        message: String,
        /// How long it asked us to wait.
        retry_after: Option<Duration>,
    },
    /// The object is not one that the API server takes (400, 422).
    #[error("{address}: {request} was refused: {message}")]
    Invalid {
        /// The address, without credentials.
        address: String,
        /// Verb, resource and name.
        request: String,
        /// The message.
        message: String,
        /// Field by field, where it was said so.
        fields: Vec<FieldProblem>,
    },
    /// Any other answer.
    #[error("{address}: {request} was answered with {code}: {message}")]
    Rejected {
        /// The address, without credentials.
        address: String,
        /// Verb, resource and name.
        request: String,
        /// HTTP status.
        code: u16,
        /// The message.
        message: String,
    },
    /// What came back is not what the API says.
    #[error("{address}: {request}: {what}")]
    Protocol {
        /// The address, without credentials.
        address: String,
        /// Verb, resource and name.
        request: String,
        /// What was wrong with it.
        what: String,
    },
}

impl ClusterError {
    /// Whether asking again later can help without anybody's doing.
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

    /// No answer came in time.
    pub(super) fn silence(request: RequestInfo<'_>, address: &str, limit: Duration) -> Self {
        Self::no_reply(request, address, no_answer_within(limit))
    }

    fn no_reply(request: RequestInfo<'_>, address: &str, cause: String) -> Self {
        if request.writes() {
            Self::ReplyLost { address: address.to_owned(), request: request.to_string(), cause }
        } else {
            Self::Unreachable { address: address.to_owned(), cause }
        }
    }

    /// What a client's error means for a request; `limit`: how long a connection may take.
    pub(super) fn classify(error: kube::Error, request: RequestInfo<'_>, address: &str, limit: Duration) -> Self {
        let at = || address.to_owned();
        match error {
            kube::Error::Api(status) => Self::said(&status, request, address),
            kube::Error::Auth(error) => Self::Unauthorized { address: at(), message: chain(&error) },
            kube::Error::Service(error) => {
                let never_sent = any(&*error, hyper_util::client::legacy::Error::is_connect);
                let late = any(&*error, |error: &io::Error| error.kind() == io::ErrorKind::TimedOut);
                match chain(&*error) {
                    // Whether a connection or a request runs out of time first is chance.
                    _ if never_sent && late => Self::Unreachable { address: at(), cause: no_answer_within(limit) },
                    cause if never_sent => Self::Unreachable { address: at(), cause },
                    cause => Self::no_reply(request, address, cause),
                }
            }
            error @ (kube::Error::HyperError(_) | kube::Error::ReadEvents(_)) => {
                Self::no_reply(request, address, chain(&error))
            }
            error @ (kube::Error::InferConfig(_) | kube::Error::InferKubeconfig(_) | kube::Error::RustlsTls(_)) => {
                Self::Configuration { address: at(), cause: chain(&error) }
            }
            // A write that was carried out may be answered in a way that is not understood.
            error => Self::Protocol { address: at(), request: request.to_string(), what: chain(&error) },
        }
    }

    fn said(status: &Status, asked: RequestInfo<'_>, address: &str) -> Self {
        let (address, request) = (address.to_owned(), asked.to_string());
        let message = status.message.clone();
        let details = status.details.as_ref();
        match (status.code, status.reason.as_str()) {
            (401, _) => Self::Unauthorized { address, message },
            (403, _) if is_of_admission(&message) => Self::Denied { address, request, message },
            (403, _) => Self::Forbidden {
                address,
                request,
                verb: asked.verb,
                resource: match asked.namespace {
                    Some(namespace) => format!("{:?} in namespace {namespace:?}", asked.resource),
                    None => format!("{:?}", asked.resource),
                },
                message,
            },
            (404, _) => Self::NotFound { address, request },
            (409, "AlreadyExists") => Self::AlreadyExists { address, request },
            (409, _) => Self::Conflict { address, request, message },
            (410, _) => Self::Expired { address, request, message },
            (429, _) => {
                let seconds = details.map_or(0, |details| details.retry_after_seconds);
                let retry_after = (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)));
                Self::Busy { address, request, message, retry_after }
            }
            // Strict validation of an unknown field is answered with 500 and no reason (seen with
            // kube-apiserver 1.36).
            (400 | 422, _) => {
                let causes = details.map(|details| details.causes.as_slice()).unwrap_or_default();
                let fields = causes
                    .iter()
                    .filter(|cause| !cause.field.is_empty())
                    .map(|cause| FieldProblem { field: cause.field.clone(), problem: cause.message.clone() })
                    .collect();
                Self::Invalid { address, request, message, fields }
            }
            (500, "") if message.contains("field not declared in schema") || message.contains("unknown field") => {
                Self::Invalid { address, request, message, fields: Vec::new() }
            }
            // The server gave up on something that may yet be carried out.
            (504, _) if asked.writes() => Self::ReplyLost { address, request, cause: message },
            (code, _) => Self::Rejected { address, request, code, message },
        }
    }
}

/// How the admission of the API server reports a `ResourceQuota` that leaves no room.
pub const QUOTA_EXCEEDED: &str = "exceeded quota";

/// Returns true if admission, which follows the roles, rejected a request: a webhook
/// (k8s.io/apiserver, `admission/plugin/webhook/errors/statuserror.go`), a policy
/// (`admission/plugin/policy/validating`) or a quota (`admission/plugin/resourcequota`).
fn is_of_admission(message: &str) -> bool {
    ["denied the request", "denied request", QUOTA_EXCEEDED].iter().any(|text| message.contains(text))
}

/// Whether this is true of the error or of one that is behind it.
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

/// What may be told of an exec plugin that gave no credentials: never its output, arguments or
/// variables.
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

/// An error with what is behind it.
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
        assert!(role.contains("has to give the verb \"patch\" on \"nodes\""), "{role}");
        assert!(said("").contains("has to give the verb"), "without a message it is the role");
        for message in [
            "admission webhook \"baremetalhost.metal3.io\" denied the request: BMC address can not be changed",
            "nodes \"n1\" is forbidden: ValidatingAdmissionPolicy 'night' with binding 'night' denied request: not at night",
            "configmaps \"lock-1\" is forbidden: exceeded quota: small, requested: count/configmaps=1, used: 2, limited: 2",
        ] {
            let denied = said(message);
            assert!(!denied.contains("has to give the verb") && denied.contains(message), "{denied}");
        }
    }
}
