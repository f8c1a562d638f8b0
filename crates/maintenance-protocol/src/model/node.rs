//! The Lease of the Node of a server: the request, the record and the view.

use serde::Deserialize;
use serde::Serialize;

use super::location::other_cluster;

/// The Lease of a Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLease {
    /// The namespace of the Leases, usually `medik8s-leases`.
    pub namespace: String,
    /// The Node's name.
    pub node: String,
}

/// The request about the Node of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeWish {
    /// Which Lease. It is honoured.
    pub lease: NodeLease,
    /// Whether it is also taken, for as long as the server is held.
    pub take: bool,
}

/// What a record knows of the Lease of its Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Who was seen to hold it, while that keeps this from starting.
    pub held_by: Option<String>,
    /// The one that may be ours: recorded before it is taken.
    pub taken: Option<NodeLease>,
    /// The cluster of the Node, by the UID of its namespace `kube-system`, as it was seen last
    /// before the Lease was taken; `None`: a role hides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
}

impl NodeRecord {
    /// Whether there is nothing to know.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the cluster of the Lease that was taken, if one that was seen is known to be in
    /// another.
    #[must_use]
    pub fn elsewhere(&self, seen: &SeenLease) -> Option<&str> {
        other_cluster(self.cluster.as_deref(), seen.cluster.as_deref())
    }
}

/// The Lease of a Node, as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenLease {
    /// The cluster that was asked, by the UID of its namespace `kube-system`; `None`: a role hides
    /// it.
    pub cluster: Option<String>,
    /// Whose it is.
    pub view: NodeView,
}

/// Whose the Lease of a Node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeView {
    /// It has no holder, or it has expired.
    Free,
    /// This maintenance's.
    Ours,
    /// Somebody else's; who, in words.
    Held(String),
}
