//! The Lease of the Node of a server: the request, the record and the view.

use serde::Deserialize;
use serde::Serialize;

/// The Lease of a Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLease {
    /// The namespace of the Leases, usually `medik8s-leases`.
    pub namespace: String,
    /// The Node's name.
    pub node: String,
}

/// What is asked about the Node of a server.
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
}

impl NodeRecord {
    /// Whether there is nothing to know.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Whose the Lease of a Node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeView {
    /// Nobody's, or its time is over.
    Free,
    /// This maintenance's.
    Ours,
    /// Somebody else's; who, in words.
    Held(String),
}

/// What is to be done with a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeVerb {
    /// Look whose it is.
    Look,
    /// Take it, unless somebody else has it.
    Take,
    /// Give it back, if it is ours.
    Return,
}
