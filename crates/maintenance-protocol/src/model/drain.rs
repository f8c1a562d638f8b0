//! Draining the Node of a server: the request, the record and the view.

use jiff::Timestamp;
use serde::Deserialize;
use serde::Serialize;
use std::time::Duration;

use super::location::other_cluster;

/// The request about the Node of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainWish {
    /// The Node's name.
    pub node: String,
    /// How long evicting may take.
    pub timeout: Duration,
    /// How long the Node may take to be Ready again before it is uncordoned.
    pub ready_timeout: Duration,
    /// Whether Pods are evicted whose `emptyDir` volumes are lost with them.
    pub delete_emptydir_data: bool,
    /// Whether Pods are evicted that no controller makes again.
    pub force: bool,
}

/// A Node that is drained for a maintenance, and may be cordoned by it: recorded before it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRecord {
    /// The Node's name.
    pub node: String,
    /// Its cluster, by the UID of the namespace `kube-system`; `None`: not known.
    pub cluster: Option<String>,
    /// Whether other people had cordoned it before: then it is theirs to uncordon.
    #[serde(default, skip_serializing_if = "is_false")]
    pub theirs: bool,
    /// Nodes that were drained for it before this one, and are uncordoned with or before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "what serde asks for")]
pub(super) fn is_false(value: &bool) -> bool {
    !value
}

impl DrainRecord {
    /// Returns the cluster of ours, if a Node that was seen is known to be in another one.
    #[must_use]
    pub fn elsewhere(&self, view: &DrainView) -> Option<&str> {
        other_cluster(self.cluster.as_deref(), view.cluster.as_deref())
    }

    /// Whether the Node that was drained may get Pods again.
    #[must_use]
    pub fn is_opened(&self, view: &DrainView) -> bool {
        view.exists && !view.cordoned && self.elsewhere(view).is_none()
    }

    /// Why the server of the Node may be in use again, or by another maintenance; `None`: nothing
    /// shows it.
    #[must_use]
    pub fn in_use(&self, view: &DrainView) -> Option<String> {
        let node = &self.node;
        if self.is_opened(view) {
            let why = "was uncordoned by another author: workloads may run on the server again";
            return Some(format!("Node {node}, which was drained, {why}"));
        }
        let other = view.held_by.as_ref().filter(|_| self.elsewhere(view).is_none())?;
        Some(format!("Node {node}, which was drained, was cordoned for {other} since"))
    }
}

/// A Node and its Pods, as they were seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is seen by itself")]
pub struct DrainView {
    /// The cluster that was asked, by the UID of its namespace `kube-system`; `None`: a role does
    /// not let it be read.
    pub cluster: Option<String>,
    /// Whether the cluster has the Node.
    pub exists: bool,
    /// Whether it is cordoned, by whomever.
    pub cordoned: bool,
    /// Whether this maintenance cordoned it.
    pub ours: bool,
    /// Another maintenance that cordoned it, of another store or one of this store that is active,
    /// for people; `None`: there is none.
    pub held_by: Option<String>,
    /// The incarnation of another maintenance of this store that cordoned it; one that is active is
    /// told by `held_by`.
    pub left_by: Option<String>,
    /// Whether it was Ready when this maintenance cordoned it.
    pub was_ready: bool,
    /// Whether it is Ready.
    pub ready: bool,
    /// When its kubelet was heard last (`kube-node-lease`, its clock); `None`: unknown.
    pub heard: Option<Timestamp>,
    /// Pods that have to leave, as `namespace/name`, with why one has not left where that is known.
    pub left: Vec<String>,
    /// Whether each of those is ending already, so that none has to be evicted.
    pub only_ending: bool,
    /// Pods that may not be evicted as configured, with the reason.
    pub refused: Vec<String>,
}
