//! Data types for draining a server's Node: request, record and view.

use jiff::Timestamp;
use serde::Deserialize;
use serde::Serialize;
use shown_text::OneLine;
use std::time::Duration;

use super::location::other_cluster;

/// The configured drain of a server's Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainWish {
    /// The Node's name.
    pub node: OneLine,
    /// Time limit for evicting Pods.
    pub timeout: Duration,
    /// Time limit for the Node to become Ready before it is uncordoned.
    pub ready_timeout: Duration,
    /// True if the drain evicts Pods with `emptyDir` volumes, whose data is lost.
    pub delete_emptydir_data: bool,
    /// True if the drain evicts Pods without a controller.
    pub force: bool,
}

/// A Node that this maintenance drains, and possibly cordons. It is recorded before the cordon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRecord {
    /// The Node's name.
    pub node: OneLine,
    /// The Node's cluster, as the UID of namespace `kube-system`; `None` if unknown.
    pub cluster: Option<OneLine>,
    /// True if another author had cordoned the Node, and must therefore uncordon it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub theirs: bool,
    /// Nodes that were drained for this maintenance before this Node. They are uncordoned with this
    /// Node or earlier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<OneLine>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
pub(super) fn is_false(value: &bool) -> bool {
    !value
}

impl DrainRecord {
    /// Returns the recorded cluster if the observed Node is in a different cluster. An unknown
    /// cluster counts as equal.
    #[must_use]
    pub fn elsewhere(&self, view: &DrainView) -> Option<&OneLine> {
        other_cluster(self.cluster.as_ref(), view.cluster.as_ref())
    }

    /// Returns true if the drained Node accepts Pods again.
    #[must_use]
    pub fn is_opened(&self, view: &DrainView) -> bool {
        view.exists && !view.cordoned && self.elsewhere(view).is_none()
    }

    /// Returns a sentence if the server can be in use again, by workloads or another maintenance.
    #[must_use]
    pub fn in_use(&self, view: &DrainView) -> Option<String> {
        let node = &self.node;
        if self.is_opened(view) {
            let why = "was uncordoned by another author: workloads can run on the server again";
            return Some(format!("Node {node}, which was drained, {why}"));
        }
        let other = view.held_by.as_ref().filter(|_| self.elsewhere(view).is_none())?;
        Some(format!("Node {node}, which was drained, was cordoned for {other} since"))
    }
}

/// The observed state of a Node and its Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "independent observations")]
pub struct DrainView {
    /// The queried cluster, as the UID of namespace `kube-system`; `None` without permission to
    /// read it.
    pub cluster: Option<OneLine>,
    /// True if the cluster has the Node.
    pub exists: bool,
    /// True if any author cordoned it.
    pub cordoned: bool,
    /// True if this maintenance cordoned it.
    pub ours: bool,
    /// The other maintenance that cordoned it, for people. It is active in this store, or belongs
    /// to another store.
    pub held_by: Option<OneLine>,
    /// UID of an ended maintenance of this store that cordoned it. `held_by` covers active ones.
    pub left_by: Option<OneLine>,
    /// True if it was Ready when this maintenance cordoned it.
    pub was_ready: bool,
    /// True if it is Ready.
    pub ready: bool,
    /// The kubelet's last heartbeat (`kube-node-lease`, on its own clock); `None` if unknown.
    pub heard: Option<Timestamp>,
    /// Remaining Pods as `namespace/name`, with the blocking reason if known.
    pub left: Vec<OneLine>,
    /// True if every remaining Pod is already terminating.
    pub only_ending: bool,
    /// Pods that the configuration forbids to evict, with the reason.
    pub refused: Vec<OneLine>,
}
