//! What can go wrong between us and a machine.

use std::time::Duration;

/// A failed request to a machine. Messages name no credential and echo no request body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The name is not in the configuration.
    #[error("no server named {server:?} is configured; configured are: {known}")]
    UnknownServer {
        /// The name that was asked for.
        server: String,
        /// The configured names, shortened for people.
        known: String,
        /// Where a server is added: a whole sentence for people.
        advice: &'static str,
    },
    /// Nothing of the request reached the machine.
    #[error("{address}: {cause}")]
    Unreachable {
        /// Where it was tried, without credentials.
        address: String,
        /// Why, for example `connection refused` or `no answer within 10s`.
        cause: String,
    },
    /// Nothing of the request reached the cluster that knows the machine.
    #[error("{address}: {cause}")]
    ClusterAway {
        /// Where it was tried.
        address: String,
        /// The cause, for people.
        cause: String,
    },
    /// A change was sent and no reply came: it may have been applied. Observe before anything else.
    #[error("{address}: the reply to {request} was lost ({cause}); it may have been applied")]
    ReplyLost {
        /// Where it was sent, without credentials.
        address: String,
        /// Method and path.
        request: String,
        /// The cause, for people.
        cause: String,
    },
    /// A change was answered, and the answer does not tell whether it was applied: 5xx other than
    /// 503, or a success that cannot be read. Observe before anything else.
    #[error("{address}: {request} was answered with {answer}; it may have been applied")]
    OutcomeUnknown {
        /// Where it was sent, without credentials.
        address: String,
        /// Method and path.
        request: String,
        /// Status, and the machine's own words.
        answer: String,
    },
    /// A change was accepted, and the task that carries it out failed.
    #[error("{address}: {request} was accepted, and its task failed: {message}")]
    TaskFailed {
        /// Where it was sent, without credentials.
        address: String,
        /// Method and path.
        request: String,
        /// The task's state and the machine's message.
        message: String,
        /// Whether the message shows that the task changed nothing. Otherwise only the machine
        /// shows how far it came.
        nothing_changed: bool,
    },
    /// A request that follows another one of the same call was not sent, because the process may
    /// not act any more, or cannot know whether it may. What the earlier ones did is to be
    /// observed.
    #[error("{request} was not sent: {cause}")]
    NotSent {
        /// Method and path.
        request: String,
        /// The cause, for people.
        cause: String,
    },
    /// The machine's certificate was not the expected one, or is signed by nobody we were told to
    /// trust.
    #[error("{address}: {cause}")]
    Untrusted {
        /// Where it was tried.
        address: String,
        /// What is wrong with the certificate and what to do.
        cause: String,
    },
    /// User name or password were refused. Tried once, so that no account is locked out.
    #[error("{address}: the BMC refused the credentials ({message})")]
    Unauthorized {
        /// Where it was tried.
        address: String,
        /// What the BMC said.
        message: String,
    },
    /// The machine understood the request and refused it.
    #[error("{address}: {request} was answered with {status}: {message}")]
    Rejected {
        /// Where it was sent, without credentials.
        address: String,
        /// Method and path.
        request: String,
        /// HTTP status.
        status: u16,
        /// The machine's own words: Redfish extended information with its message id and
        /// resolution.
        message: String,
        /// How long the machine asked us to wait, when it did.
        retry_after: Option<Duration>,
        /// Whether the same request may be accepted later (for example 503, or 409 while in POST).
        transient: bool,
    },
    /// The configured system is not behind its BMC.
    #[error("{address}: {what}")]
    NoSystem {
        /// Where it was looked for.
        address: String,
        /// What there is instead.
        what: String,
    },
    /// The system that manages servers answers that it does not have this one.
    #[error("{address}: {what}")]
    NoServer {
        /// The system's address.
        address: String,
        /// The name, and where to find the existing ones.
        what: String,
    },
    /// Neither the server nor the configuration gives the server an identity that could be locked.
    #[error("{address}: {what}")]
    NoLockKey {
        /// The system's address.
        address: String,
        /// Why there is none, and how to set one.
        what: String,
    },
    /// The machine cannot do that at all.
    #[error("{address}: {what}")]
    Unsupported {
        /// Where it was tried.
        address: String,
        /// What it lacks.
        what: String,
    },
    /// Something that has to be there is not: an API, an object, a part of one.
    #[error("{address}: {what}")]
    Missing {
        /// Where it was looked for.
        address: String,
        /// What is missing.
        what: String,
    },
    /// We are not allowed to, or not known. The message says what a role would have to allow.
    #[error("{message}")]
    Denied {
        /// The message.
        message: String,
    },
    /// An object that was made from the configuration was refused.
    #[error("{address}: {request} was refused: {message}")]
    Invalid {
        /// The address, without credentials.
        address: String,
        /// The request, in words.
        request: String,
        /// The message, field by field.
        message: String,
        /// The attribute that the refused field was made from, for example
        /// `boot_configuration.image`.
        attribute: Option<&'static str>,
    },
    /// This configuration does not reach the place of the record.
    #[error("{message}")]
    Elsewhere {
        /// Both places.
        message: String,
    },
    /// Another server is there than the one whose lock a record has.
    #[error("{address} is another server than the one that is held: it shows {shown}; nothing was done to it")]
    OtherServer {
        /// Where it was asked.
        address: String,
        /// Its identifiers, and the lock of each.
        shown: String,
    },
    /// The Node of a server, or its Lease, was not reached or not changed. The server itself may be
    /// well.
    #[error("{what}: {cause}; {block}.kubeconfig or METAL_NODE_KUBECONFIG names its cluster")]
    Node {
        /// What may be left there, and for which maintenance.
        what: String,
        /// The block of the configuration that is about it.
        block: &'static str,
        /// What its cluster said.
        cause: Box<BackendError>,
    },
    /// What came back is not what the protocol says.
    #[error("{address}: {what}")]
    Protocol {
        /// Where it came from.
        address: String,
        /// What was wrong with it.
        what: String,
    },
}

impl BackendError {
    /// Whether the configuration of the server is wrong: nothing but a change of it, or of the
    /// BMC's account, helps.
    #[must_use]
    pub fn is_misconfigured(&self) -> bool {
        matches!(
            self,
            Self::UnknownServer { .. }
                | Self::Untrusted { .. }
                | Self::Unauthorized { .. }
                | Self::NoSystem { .. }
                | Self::NoServer { .. }
                | Self::NoLockKey { .. }
        )
    }

    /// Whether the change may have been applied: no reply came, or one that does not tell.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::Node { cause, .. } => cause.outcome_unknown(),
            Self::TaskFailed { nothing_changed, .. } => !nothing_changed,
            _ => matches!(self, Self::ReplyLost { .. } | Self::OutcomeUnknown { .. } | Self::NotSent { .. }),
        }
    }

    /// How long the machine asked to be left alone, when it did.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Rejected { retry_after, .. } => *retry_after,
            Self::Node { cause, .. } => cause.retry_after(),
            _ => None,
        }
    }

    /// Whether asking again later can help without anybody's doing.
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
