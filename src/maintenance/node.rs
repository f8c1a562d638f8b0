//! The Kubernetes Node that runs on a server, and the Lease that the operators of medik8s share for it: words that rules and
//! stores share, and the rules about it.
//!
//! Whoever drains, remediates or updates such a Node holds its Lease. It is looked at when it is our turn, and again and
//! again while somebody else holds it: then nobody behind us waits for that. When asked, it is taken as the first step under
//! our slot and given back as the last one.

pub use super::model::node::{NodeLease, NodeRecord, NodeVerb, NodeView, NodeWish};

use jiff::{SignedDuration, Timestamp};

use super::{
    change::Change,
    decide::{Decision, Situation},
    gate::Order,
    power::{Limits, Need, Verdict, pursue},
    prepare::Facts,
    queue::Turn,
    state::{Maintenance, Progress},
    step::Action,
};

/// How often a Lease of somebody else is looked at. Whoever holds one renews it, so that being told of every change would
/// be told of many.
const PAUSE: SignedDuration = SignedDuration::from_secs(5);

/// The name under which a maintenance holds a Lease: its own, so that a person finds it, and its incarnation.
#[must_use]
pub fn identity(record: &Maintenance) -> String {
    format!("metal/{}/{}", record.id, record.uid)
}

/// The Lease that a record waits for or takes; `None`: it has none, or acts under a hold that has looked at it.
#[must_use]
pub fn wanted(record: &Maintenance) -> Option<&NodeWish> {
    record.spec.node.as_ref().filter(|_| record.spec.parent.is_none())
}

/// What a waiter has to do about its Node before it may start; `None`: nothing.
#[must_use]
pub(super) fn ask(at: &Situation<'_>, record: &Maintenance, turn: &Turn) -> Option<Decision> {
    wanted(record)?;
    // Who waits for something else anyway does not look, unless it is about to ask the server's own system.
    let asks_next = record.gates.iter().any(|gate| gate.system.order != Order::OnTurn && !gate.asked);
    if record.node.held_by.is_none() && *turn != Turn::Yours && !asks_next {
        return None;
    }
    let held_by = match &at.facts.node {
        None => return Some(Decision::Look(Need::Node)),
        Some(NodeView::Held(by)) => Some(by.clone()),
        Some(NodeView::Free | NodeView::Ours) => None,
    };
    (record.node.held_by != held_by).then_some(Decision::Change(Change::NodeHeld(held_by)))
}

/// When a waiter looks at its Node again.
pub(super) fn look_again(record: &Maintenance, now: Timestamp) -> Option<Timestamp> {
    record.node.held_by.as_ref().and_then(|_| now.checked_add(PAUSE).ok())
}

/// Taking it: the first step under our slot.
#[must_use]
pub(super) fn take(progress: &Progress, facts: &Facts, limits: &Limits, now: Timestamp) -> Verdict {
    match &facts.node {
        None => Verdict::Look(Need::Node),
        Some(NodeView::Ours) => Verdict::Done,
        Some(NodeView::Free) => pursue(Action::TakeNode, &progress.attempts, limits.settle, limits, now),
        // Somebody was faster. Nothing has been done to the server yet.
        Some(NodeView::Held(by)) => Verdict::Wait { why: format!("its Node is held by {by}"), until: None },
    }
}

/// Giving it back: the last step of all.
#[must_use]
pub(super) fn give_back(progress: &Progress, facts: &Facts, limits: &Limits, now: Timestamp) -> Verdict {
    match &facts.node {
        None => Verdict::Look(Need::Node),
        Some(NodeView::Ours) => pursue(Action::ReturnNode, &progress.attempts, limits.settle, limits, now),
        Some(NodeView::Free | NodeView::Held(_)) => Verdict::Done,
    }
}
/// Notes that the Lease may be ours from now on.
pub(super) fn note_taken(record: &mut Maintenance, action: &Action) {
    if *action == Action::TakeNode {
        record.node.taken = wanted(record).map(|wish| wish.lease.clone());
    }
}
