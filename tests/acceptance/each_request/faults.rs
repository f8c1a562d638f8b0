//! API server requests and response faults.

use crate::servers::kubernetes_proxy::{Deal, Seen, status};

/// Returns the permission that a request needs: a verb and a resource, such as `patch nodes` or
/// `create pods/eviction`. Returns `None` for discovery and version requests, which are always
/// allowed.
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

/// Fault of one kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// RBAC denies every request of this kind.
    Forbidden,
    /// The server is overloaded for the first request.
    Overloaded,
    /// The server fails on the first request.
    Fails,
    /// The first request loses to a concurrent writer.
    Conflict,
    /// The first list or watch starts from an expired revision.
    Expired,
    /// The first request succeeds, but its reply is lost.
    LosesReply,
    /// The first request's credentials are rejected.
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

    /// Returns true if a server can respond this way to a request with this permission.
    pub fn happens_to(self, right: &str) -> bool {
        match self {
            Self::Conflict => matches!(verb(right), "patch" | "update" | "create"),
            Self::Expired => matches!(verb(right), "list" | "watch"),
            _ => true,
        }
    }

    /// Returns true if one run can inject it into every kind of request. Credentials are reloaded
    /// rarely, and without any permission a run stops early.
    pub fn may_meet_all(self) -> bool {
        !matches!(self, Self::Forbidden | Self::Unauthorized)
    }

    /// Returns true if the short form also tests it separately for this permission.
    pub fn is_tried_apart(self, right: &str) -> bool {
        let reads = matches!(verb(right), "get" | "list" | "watch");
        self == Self::Forbidden || (self == Self::Unauthorized && !reads)
    }

    /// Returns true if only the first request of a kind fails.
    pub fn happens_once(self) -> bool {
        self != Self::Forbidden
    }

    /// Returns the proxy's handling.
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
