//! What an API server is asked, and what may go wrong with one of its answers.

use crate::servers::kubernetes_proxy::{Deal, Seen, status};

/// What a role would have to allow for a request: a verb and a kind with its subresource, `patch
/// nodes` or `create pods/eviction`. `None`: discovery and versions, which need none.
pub fn right(seen: &Seen) -> Option<String> {
    let path = seen.path.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let (["api", _, rest @ ..] | ["apis", _, _, rest @ ..]) = parts.as_slice() else { return None };
    let mut rest = rest;
    if let ["namespaces", _, inner @ ..] = rest
        && !inner.is_empty()
    {
        rest = inner;
    }
    let (kind, named, sub) = (rest.first()?, rest.get(1).is_some(), rest.get(2));
    let verb = match seen.method.as_str() {
        "GET" if seen.is_watch() => "watch",
        "GET" if named => "get",
        "GET" => "list",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        other => return Some(format!("{} {kind}", other.to_lowercase())),
    };
    Some(sub.map_or_else(|| format!("{verb} {kind}"), |sub| format!("{verb} {kind}/{sub}")))
}

fn verb(right: &str) -> &str {
    right.split(' ').next().unwrap_or_default()
}

/// What becomes of one kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A role does not allow it, as long as the run lasts.
    Forbidden,
    /// The server is overloaded, at the first of them.
    Overloaded,
    /// The server fails, at the first of them.
    Fails,
    /// Another writer was faster, at the first of them.
    Conflict,
    /// What a list or a watch would go on from is forgotten, at the first of them.
    Expired,
    /// It is carried out and its reply is lost, at the first of them.
    LosesReply,
    /// The credentials are not accepted, at the first of them.
    Unauthorized,
}

impl Fault {
    pub const ALL: [Self; 7] = [
        Self::Forbidden,
        Self::Overloaded,
        Self::Fails,
        Self::Conflict,
        Self::Expired,
        Self::LosesReply,
        Self::Unauthorized,
    ];

    /// Whether a server answers this to a request that needs this right.
    pub fn happens_to(self, right: &str) -> bool {
        match self {
            Self::Conflict => matches!(verb(right), "patch" | "update" | "create"),
            Self::Expired => matches!(verb(right), "list" | "watch"),
            _ => true,
        }
    }

    /// Whether one run may meet it at the first request of every kind. Credentials are asked for
    /// again only once in a while, and who may do nothing learns nothing.
    pub fn may_meet_all(self) -> bool {
        !matches!(self, Self::Forbidden | Self::Unauthorized)
    }

    /// Whether each right is tried by itself in the short form too.
    pub fn is_tried_apart(self, right: &str) -> bool {
        let reads = matches!(verb(right), "get" | "list" | "watch");
        self == Self::Forbidden || (self == Self::Unauthorized && !reads)
    }

    /// Whether the first request of a kind has it, and the next ones not.
    pub fn happens_once(self) -> bool {
        self != Self::Forbidden
    }

    /// The answer.
    pub fn deal(self) -> Deal {
        let said = |code, reason| Deal::Answer(code, "", status(code, reason));
        match self {
            Self::Forbidden => said(403, "Forbidden"),
            Self::Overloaded => said(429, "TooManyRequests"),
            Self::Fails => said(500, "InternalError"),
            Self::Conflict => said(409, "Conflict"),
            Self::Expired => said(410, "Expired"),
            Self::Unauthorized => said(401, "Unauthorized"),
            Self::LosesReply => Deal::LoseReply,
        }
    }
}
