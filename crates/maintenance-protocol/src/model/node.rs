//! Data types for the Lease of a server's Node: request, record and view.

use serde::Deserialize;
use serde::Serialize;
use shown_text::OneLine;

use super::location::other_cluster;

/// A Node's Lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLease {
    /// Namespace of the Leases, usually `medik8s-leases`.
    pub namespace: OneLine,
    /// Name of the Node.
    pub node: OneLine,
}

/// The configured Lease of a server's Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeWish {
    /// The Lease. Another holder blocks the start.
    pub lease: NodeLease,
    /// True if the maintenance also acquires the Lease while it owns the lock.
    pub take: bool,
}

/// The Lease state in a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The Lease's other holder, while it blocks the start.
    pub held_by: Option<OneLine>,
    /// The Lease that this maintenance possibly acquired. It is recorded before the acquisition.
    pub taken: Option<NodeLease>,
    /// The Node's cluster, as the UID of namespace `kube-system`, last read before the acquisition;
    /// `None` if a role hides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<OneLine>,
}

impl NodeRecord {
    /// Returns true if nothing is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the acquired Lease's cluster if the observed Lease is in a different cluster. An
    /// unknown cluster counts as equal.
    #[must_use]
    pub fn elsewhere(&self, seen: &SeenLease) -> Option<&OneLine> {
        other_cluster(self.cluster.as_ref(), seen.cluster.as_ref())
    }
}

/// The observed Lease of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenLease {
    /// The queried cluster, as the UID of namespace `kube-system`; `None` if a role hides it.
    pub cluster: Option<OneLine>,
    /// The Lease's holder.
    pub view: NodeView,
}

/// The holder of a Node's Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeView {
    /// The Lease is unclaimed or has expired.
    Free,
    /// This maintenance.
    Ours,
    /// Another component, described for people.
    Held(OneLine),
}
