//! The Lease that medik8s operators share for a server's Kubernetes Node.
//!
//! A component that drains, remediates or updates a Node owns its Lease. A waiter reads the Lease
//! when it is next in the queue, and polls while another component owns it. Later waiters are not
//! blocked by that. If configured, acquiring the Lease is the first step under the lock, and
//! releasing it the last.

pub use super::model::node::{NodeLease, NodeRecord, NodeView, NodeWish, SeenLease};

use jiff::{SignedDuration, Timestamp};

use super::{
    change::RecordChange,
    model::{
        facts::Facts,
        gate::QueueAuthority,
        verdict::{Limits, Need, Verdict},
    },
    power::pursue,
    queue::Turn,
    situation::{Decision, DecisionInput},
    state::{Maintenance, Progress},
    step::Action,
};

/// Poll interval for another component's Lease. A watch would report every renewal.
const PAUSE: SignedDuration = SignedDuration::from_secs(5);

/// Returns the Lease's `holderIdentity`: the maintenance's name for people, and its UID.
#[must_use]
pub fn identity(record: &Maintenance) -> String {
    format!("metal/{}/{}", record.id, record.uid)
}

/// Returns the configured Lease. `None` without a Lease, or under a parent that already checked it.
#[must_use]
pub fn wanted(record: &Maintenance) -> Option<&NodeWish> {
    record.spec.node.as_ref().filter(|_| record.spec.parent.is_none())
}

/// Returns a waiter's next action for its Node before it can start; `None` if nothing is due.
#[must_use]
pub(super) fn ask(at: &DecisionInput<'_>, record: &Maintenance, turn: &Turn) -> Option<Decision> {
    let wish = wanted(record)?;
    // A waiter with another blocker does not read the Lease, unless it will send a request to its
    // external system.
    let asks_next = record.gates.iter().any(|gate| gate.system.order != QueueAuthority::OnTurn && !gate.asked);
    if record.node.held_by.is_none() && *turn != Turn::Yours && !asks_next {
        return None;
    }
    let Some(seen) = &at.facts.node else { return Some(Decision::Look(Need::Node)) };
    let held_by = match &seen.view {
        NodeView::Held(by) => Some(by.clone()),
        NodeView::Free | NodeView::Ours => None,
    };
    let cluster = if wish.take { seen.cluster.clone() } else { None };
    let is_new = record.node.held_by != held_by || record.node.cluster != cluster;
    is_new.then_some(Decision::Change(RecordChange::NodeSeen { held_by, cluster }))
}

/// Returns when a waiter reads its Node's Lease again.
pub(super) fn look_again(record: &Maintenance, now: Timestamp) -> Option<Timestamp> {
    record.node.held_by.as_ref().and_then(|_| now.checked_add(PAUSE).ok())
}

/// Acquires the Lease, as the first step under the lock.
#[must_use]
pub(super) fn take(progress: &Progress, facts: &Facts, limits: &Limits, now: Timestamp) -> Verdict {
    match facts.node.as_ref().map(|seen| &seen.view) {
        None => Verdict::Look(Need::Node),
        Some(NodeView::Ours) => Verdict::Done,
        Some(NodeView::Free) => pursue(Action::TakeNode, &progress.attempts, limits.settle, limits, now),
        // Another component acquired it first. The server is still unchanged.
        Some(NodeView::Held(by)) => Verdict::Wait { why: format!("its Node is held by {by}").into(), until: None },
    }
}

/// Releases the Lease, as the last step.
#[must_use]
pub(super) fn give_back(
    record: &Maintenance,
    progress: &Progress,
    facts: &Facts,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let Some(seen) = &facts.node else { return Verdict::Look(Need::Node) };
    if let Some(cluster) = record.node.elsewhere(seen) {
        let node = record.node.taken.as_ref().map(|lease| lease.node.shown()).unwrap_or_default();
        return Verdict::Fail(
            format!(
                "the Lease of Node {node} is in another cluster (kube-system {cluster}), which this configuration does \
             not reach"
            )
            .into(),
        );
    }
    match seen.view {
        NodeView::Ours => pursue(Action::ReturnNode, &progress.attempts, limits.settle, limits, now),
        NodeView::Free | NodeView::Held(_) => Verdict::Done,
    }
}

/// Returns why the holder no longer owns its Lease, to follow the Lease's name.
///
/// A Lease in a different cluster than the recorded one is ignored.
#[must_use]
pub fn lost(record: &Maintenance, seen: &SeenLease) -> Option<String> {
    if record.node.elsewhere(seen).is_some() {
        return None;
    }
    match &seen.view {
        NodeView::Free => Some("is not held: it was deleted".to_owned()),
        NodeView::Held(by) => Some(format!("is held by {by}")),
        NodeView::Ours => None,
    }
}

/// Records that the maintenance possibly owns the Lease.
pub(super) fn note_taken(record: &mut Maintenance, action: &Action) {
    if *action == Action::TakeNode {
        record.node.taken = wanted(record).map(|wish| wish.lease.clone());
    }
}

#[cfg(test)]
mod tests {
    use shown_text::OneLine;

    use super::*;
    use crate::{
        ids::LockKey,
        model::lock::{EnqueueRequest, Leases, ServerLock},
        step::Step,
    };

    fn now() -> Timestamp {
        "2026-11-21T10:00:00Z".parse().unwrap()
    }

    fn record(taken_in: Option<&str>) -> Maintenance {
        let mut lock = ServerLock::new(LockKey::new("k"));
        lock.enqueue(EnqueueRequest::sample("a"), &Leases::default(), now()).unwrap();
        let mut record = lock.active.remove(0).into_inner();
        let taken = NodeLease { namespace: "medik8s-leases".into(), node: "n1".into() };
        record.node = NodeRecord { held_by: None, taken: Some(taken), cluster: taken_in.map(OneLine::from) };
        record
    }

    fn given_back(taken_in: Option<&str>, seen_in: Option<&str>, view: NodeView) -> Verdict {
        let seen = SeenLease { cluster: seen_in.map(OneLine::from), view };
        let facts = Facts { node: Some(seen), ..Facts::default() };
        let progress = Progress::new(vec![Step::ReturnNode], now());
        give_back(&record(taken_in), &progress, &facts, &Limits::default(), now())
    }

    /// Leases never expire, so searching the wrong cluster would leave a Lease in its own cluster
    /// forever.
    #[test]
    fn a_lease_is_looked_for_in_its_own_cluster_only() {
        for view in [NodeView::Free, NodeView::Ours, NodeView::Held("other".into())] {
            let Verdict::Fail(why) = given_back(Some("c1"), Some("c2"), view) else { panic!() };
            assert!(why.raw().contains("n1") && why.raw().contains("c1"), "{why}");
        }
        // If a role hides a cluster's UID, the name decides.
        for (taken_in, seen_in) in [(Some("c1"), Some("c1")), (None, Some("c1")), (Some("c1"), None), (None, None)] {
            assert_eq!(given_back(taken_in, seen_in, NodeView::Free), Verdict::Done);
            assert_eq!(given_back(taken_in, seen_in, NodeView::Ours), Verdict::Act(Action::ReturnNode));
            assert_eq!(given_back(taken_in, seen_in, NodeView::Held("other".into())), Verdict::Done);
        }
    }
}
