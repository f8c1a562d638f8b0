//! Errors of requests to machines.

use std::time::Duration;

use crate::shown::OneLine;

/// A failed request to a machine. Messages contain no credentials and no request body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The configuration does not list this server.
    #[error("server {server:?} is not configured; configured servers: {known}")]
    UnknownServer {
        /// The requested name.
        server: OneLine,
        /// The configured names, shortened for display.
        known: OneLine,
        /// How to add a server, as a whole sentence.
        advice: &'static str,
    },
    /// The request did not reach the machine.
    #[error("{address}: {cause}")]
    Unreachable {
        /// The address, without credentials.
        address: OneLine,
        /// The cause, for example `connection refused` or `no answer within 10s`.
        cause: OneLine,
    },
    /// The request did not reach the machine's cluster.
    #[error("{address}: {cause}")]
    ClusterAway {
        /// The address.
        address: OneLine,
        /// The cause, for display.
        cause: OneLine,
    },
    /// No reply to a change arrived; its outcome is unknown. Observe the machine first.
    #[error("{address}: the reply to {request} was lost ({cause}); it may have been applied")]
    ReplyLost {
        /// The address, without credentials.
        address: OneLine,
        /// Method and path.
        request: OneLine,
        /// The cause, for display.
        cause: OneLine,
    },
    /// The answer leaves the change's outcome unknown: 5xx except 503, or an unreadable success.
    /// Observe the machine first.
    #[error("{address}: {request} was answered with {answer}; it may have been applied")]
    OutcomeUnknown {
        /// The address, without credentials.
        address: OneLine,
        /// Method and path.
        request: OneLine,
        /// Status and the machine's message.
        answer: OneLine,
    },
    /// The machine accepted a change, but the task for it failed.
    #[error("{address}: {request} was accepted, but its task failed: {message}")]
    TaskFailed {
        /// The address, without credentials.
        address: OneLine,
        /// Method and path.
        request: OneLine,
        /// The task's state and the machine's message.
        message: OneLine,
        /// True if the message proves that the task changed nothing. Otherwise observe the machine.
        nothing_changed: bool,
    },
    /// A later request of the same call was not sent, because the process lost its lock or cannot
    /// confirm it. Observe the earlier requests' effect.
    #[error("{request} was not sent: {cause}")]
    NotSent {
        /// Method and path.
        request: OneLine,
        /// The cause, for display.
        cause: OneLine,
    },
    /// The machine's certificate is not the expected one, or no trusted authority signed it.
    #[error("{address}: {cause}")]
    Untrusted {
        /// The address.
        address: OneLine,
        /// The certificate problem and its fix.
        cause: OneLine,
    },
    /// The configuration forbids sending credentials there.
    #[error("{address}: {cause}")]
    Withheld {
        /// The address, without credentials.
        address: OneLine,
        /// The reason, and the setting that allows it.
        cause: OneLine,
    },
    /// The machine rejected user name or password. Tried once, to avoid locking the account.
    #[error("{address}: the BMC refused the credentials ({message})")]
    Unauthorized {
        /// The address.
        address: OneLine,
        /// The BMC's message.
        message: OneLine,
    },
    /// The machine rejected the request.
    #[error("{address}: {request} was answered with {status}: {message}")]
    Rejected {
        /// The address, without credentials.
        address: OneLine,
        /// Method and path.
        request: OneLine,
        /// HTTP status.
        status: u16,
        /// The machine's message: Redfish extended information with message ID and resolution.
        message: OneLine,
        /// The machine's `Retry-After`, if it sent it.
        retry_after: Option<Duration>,
        /// True if the same request can succeed later (for example 503, or 409 during POST).
        transient: bool,
    },
    /// The BMC does not have the configured system.
    #[error("{address}: {what}")]
    NoSystem {
        /// The BMC's address.
        address: OneLine,
        /// The systems that the BMC has.
        what: OneLine,
    },
    /// The system that manages servers does not have this server.
    #[error("{address}: {what}")]
    NoServer {
        /// The system's address.
        address: OneLine,
        /// The server's name, and where to find the existing names.
        what: OneLine,
    },
    /// Neither the server nor the configuration gives the server an identity that could be locked.
    #[error("{address}: {what}")]
    NoLockKey {
        /// The system's address.
        address: OneLine,
        /// The cause, and how to set a key.
        what: OneLine,
    },
    /// The machine does not support the operation.
    #[error("{address}: {what}")]
    Unsupported {
        /// The address.
        address: OneLine,
        /// The missing capability.
        what: OneLine,
    },
    /// A required API, object or part of an object is missing.
    #[error("{address}: {what}")]
    Missing {
        /// The address.
        address: OneLine,
        /// The missing item.
        what: OneLine,
    },
    /// Authentication or authorization failed. The message names the permissions that a role needs.
    #[error("{message}")]
    Denied {
        /// The message.
        message: OneLine,
    },
    /// An object built from the configuration was rejected.
    #[error("{address}: {request} was refused: {message}")]
    Invalid {
        /// The address, without credentials.
        address: OneLine,
        /// The request, in words.
        request: OneLine,
        /// The message, field by field.
        message: OneLine,
        /// The attribute behind the rejected field, for example `boot_configuration.image`.
        attribute: Option<&'static str>,
    },
    /// This configuration does not reach the record's location.
    #[error("{message}")]
    Elsewhere {
        /// Both locations.
        message: OneLine,
    },
    /// The address belongs to another server than the record's locked server.
    #[error("{address} is not the locked server: it reports {shown}; it was not changed")]
    OtherServer {
        /// The address.
        address: OneLine,
        /// The observed identifiers, and the lock for each.
        shown: OneLine,
    },
    /// The server's Node, or the Node's Lease, could not be reached or changed. The server itself
    /// can be healthy.
    #[error("{what}: {cause}; {block}.kubeconfig or METAL_NODE_KUBECONFIG names its cluster")]
    Node {
        /// Leftovers on the Node, and their maintenance.
        what: OneLine,
        /// The related configuration block.
        block: &'static str,
        /// The cluster's error.
        cause: Box<BackendError>,
    },
    /// The answer violates the protocol.
    #[error("{address}: {what}")]
    Protocol {
        /// The address.
        address: OneLine,
        /// The violation.
        what: OneLine,
    },
}

impl BackendError {
    /// Returns true if only a change to the server's configuration or the BMC account can help.
    #[must_use]
    pub fn is_misconfigured(&self) -> bool {
        matches!(
            self,
            Self::UnknownServer { .. }
                | Self::Untrusted { .. }
                | Self::Withheld { .. }
                | Self::Unauthorized { .. }
                | Self::NoSystem { .. }
                | Self::NoServer { .. }
                | Self::NoLockKey { .. }
        )
    }

    /// Returns true if the change could have been applied.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::Node { cause, .. } => cause.outcome_unknown(),
            Self::TaskFailed { nothing_changed, .. } => !nothing_changed,
            _ => matches!(self, Self::ReplyLost { .. } | Self::OutcomeUnknown { .. } | Self::NotSent { .. }),
        }
    }

    /// Returns the pause that the machine requested, if any.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Rejected { retry_after, .. } => *retry_after,
            Self::Node { cause, .. } => cause.retry_after(),
            _ => None,
        }
    }

    /// Returns true if a later retry can succeed without intervention.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::ClusterAway { .. }
            | Self::ReplyLost { .. }
            | Self::OutcomeUnknown { .. }
            | Self::TaskFailed { .. }
            | Self::NotSent { .. } => true,
            Self::Rejected { transient, .. } => *transient,
            Self::Node { cause, .. } => cause.is_transient(),
            _ => false,
        }
    }
}
