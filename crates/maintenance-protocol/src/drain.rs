//! Draining the server's Kubernetes Node: shared data types and rules.
//!
//! Under the lock and before any server change, the provider cordons the Node and evicts its Pods
//! through the API, which respects disruption budgets. After the restore it uncordons a previously
//! Ready Node when the Node is Ready again. If the server ends off, it waits until the cluster
//! reports the Node as not Ready. A Node that another author cordoned stays cordoned.

use shown_text::OneLine;

pub use super::model::drain::{DrainRecord, DrainView, DrainWish};

use std::time::Duration;

use jiff::Timestamp;

use super::{
    machine::{PowerTarget, ResetType},
    model::{
        facts::Facts,
        shown_time::shown_time,
        verdict::{Limits, Need, Verdict, after},
    },
    power::pursue,
    spec::Spec,
    state::{Maintenance, Progress},
    step::{Action, Attempt, Reply},
};

/// Pause between two rounds of evictions, and between two reads of a Node.
pub(super) const PAUSE: Duration = Duration::from_secs(5);
/// Time until a cluster reports a silent Node as not Ready. The node controller waits 40 s, or 50 s
/// since Kubernetes 1.32.
const NOTICED: Duration = Duration::from_mins(1);
/// Maximum number of Pods in a message.
const NAMED: usize = 5;

/// Returns the configured drain. `None` without a Node, or under a parent that drained the Node.
#[must_use]
pub fn wanted(spec: &Spec) -> Option<&DrainWish> {
    spec.drain.as_deref().filter(|_| spec.parent.is_none())
}

/// Joins the first names of a list, for people.
#[must_use]
pub fn some(names: &[OneLine]) -> String {
    let more = names.len().saturating_sub(NAMED);
    let mut shown = names.iter().take(NAMED).map(OneLine::shown).collect::<Vec<_>>().join("; ");
    if more > 0 {
        shown.push_str(&format!("; and {more} more"));
    }
    shown
}

/// Delays the prior state's recording while a maintenance in another store has cordoned the Node.
/// Otherwise the release would restore that maintenance's changes.
#[must_use]
pub(super) fn is_unshared(record: &Maintenance, progress: &Progress, facts: &Facts, now: Timestamp) -> Verdict {
    let Some(wish) = wanted(&record.spec).filter(|_| record.prior.is_none()) else { return Verdict::Done };
    let Some(view) = &facts.drain else { return Verdict::Look(Need::Drain) };
    other_holder(wish, view, began(record, progress), now).unwrap_or(Verdict::Done)
}

/// Returns the step's start for the attached process. A process that continues after a kill gets
/// the full time limit.
fn began(record: &Maintenance, progress: &Progress) -> Timestamp {
    record.attachment.as_ref().map_or(progress.since, |attachment| attachment.since.max(progress.since))
}

fn other_holder(wish: &DrainWish, view: &DrainView, began: Timestamp, now: Timestamp) -> Option<Verdict> {
    let other = view.held_by.as_ref()?;
    let (node, until) = (&wish.node, after(began, wish.timeout));
    let why = format!("waiting for {other} to release Node {node} (timeout at {})", shown_time(until));
    if now < until {
        return Some(Verdict::Wait { why: why.into(), until: Some(after(now, PAUSE).min(until)) });
    }
    let taken = wish.timeout.as_secs();
    Some(Verdict::Fail(format!(
        "Node {node} stayed cordoned for {other} for {taken} s. If that maintenance has ended, run prune --nodes with \
         its store, or uncordon the Node and remove its annotations terraform-provider-metal/*"
    ).into()))
}

/// Cordons the Node and evicts its Pods.
#[must_use]
pub(super) fn drain(
    record: &Maintenance,
    progress: &Progress,
    facts: &Facts,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let Some(wish) = wanted(&record.spec) else { return Verdict::Done };
    let Some(view) = &facts.drain else { return Verdict::Look(Need::Drain) };
    let node = &wish.node;
    if !view.exists {
        return Verdict::Fail(format!("the cluster does not contain Node {node}, which kubernetes_node names").into());
    }
    if !view.refused.is_empty() {
        return Verdict::Fail(format!("Node {node} cannot be drained: {}", some(&view.refused)).into());
    }
    let began = began(record, progress);
    if let Some(waits) = other_holder(wish, view, began, now) {
        return waits;
    }
    let until = after(began, wish.timeout);
    // Also record a Node that another author cordoned, because it must not receive Pods before the
    // release. A Node orphaned by an ended maintenance becomes ours, because no other process
    // uncordons it.
    let left = view.left_by.is_some();
    if !view.cordoned || !is_noted(record, wish, view) || left {
        let theirs = view.cordoned && !view.ours && !left;
        let action = Action::CordonNode { theirs, cluster: view.cluster.clone() };
        return pursue(action, &progress.attempts, limits.settle, limits, now);
    }
    if view.left.is_empty() {
        return Verdict::Done;
    }
    if now >= until {
        let taken = wish.timeout.as_secs();
        return Verdict::Fail(format!("Node {node} was not drained within {taken} s: {}", some(&view.left)).into());
    }
    let last = progress.attempts.iter().rev().find(|attempt| attempt.action == Action::EvictPods);
    let wait = |from: Timestamp| {
        let given_up = shown_time(until);
        let why = format!("Node {node} is being drained (timeout at {given_up}); remaining: {}", some(&view.left));
        Verdict::Wait { why: why.into(), until: Some(after(from, PAUSE).min(until)) }
    };
    match last {
        // All Pods are terminating, so earlier rejections are irrelevant.
        _ if view.only_ending => wait(now),
        Some(last) if matches!(last.reply, Reply::Refused { transient: false, .. }) => {
            pursue(Action::EvictPods, &progress.attempts, limits.settle, limits, now)
        }
        Some(last) if now < after(last.at, PAUSE) => wait(last.at),
        // Repeating an eviction is safe: the API deletes only the Pod with the given UID.
        _ => Verdict::Act(Action::EvictPods),
    }
}

fn is_noted(record: &Maintenance, wish: &DrainWish, view: &DrainView) -> bool {
    record.drained.as_ref().is_some_and(|drained| drained.node == wish.node && drained.elsewhere(view).is_none())
}

/// Returns true if the Node is already drained for this record.
#[must_use]
pub fn is_drained(record: &Maintenance, wish: &DrainWish, view: &DrainView) -> bool {
    let is_empty = view.left.is_empty() && view.refused.is_empty() && view.held_by.is_none();
    view.cordoned && is_empty && is_noted(record, wish, view)
}

/// Blocks an action that can interrupt workloads after the drained Node accepts Pods again. A
/// server that is off does not run workloads. A server that is shutting down possibly hosts its own
/// API server, so the Node can be unreadable.
#[must_use]
pub(super) fn may_send(record: &Maintenance, action: &Action, facts: &Facts) -> Verdict {
    let Some(drained) = record.drained.as_ref().filter(|_| action.may_stop()) else { return Verdict::Done };
    let shuts_down = |attempt: &Attempt| {
        attempt.action == Action::Reset(ResetType::GracefulShutdown) && attempt.reply == Reply::Accepted
    };
    if record.phase.progress().is_some_and(|progress| progress.attempts.iter().any(shuts_down)) {
        return Verdict::Done;
    }
    let Some(machine) = &facts.machine else { return Verdict::Look(Need::Machine) };
    if machine.power.settled() == Some(PowerTarget::Off) {
        return Verdict::Done;
    }
    let Some(view) = &facts.drain else { return Verdict::Look(Need::Drain) };
    let node = &drained.node;
    if let Some(cluster) = drained.elsewhere(view) {
        return Verdict::Fail(
            format!(
                "Node {node} was drained in another cluster (kube-system {cluster}), which this configuration does not \
             reach"
            )
            .into(),
        );
    }
    match drained.in_use(view) {
        None => Verdict::Done,
        Some(why) => Verdict::Fail(
            format!(
                "{why}. {} does not stop the server: run it again when the Node is cordoned and no other maintenance \
             uses it",
                record.id
            )
            .into(),
        ),
    }
}

/// Blocks a release from stopping a server whose Node accepts Pods again, until the Node is
/// drained.
#[must_use]
pub(super) fn before_stop(
    record: &Maintenance,
    progress: &Progress,
    action: &Action,
    facts: &Facts,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let names = wanted(&record.spec).zip(record.drained.as_ref());
    if names.is_none_or(|(wish, drained)| wish.node != drained.node) {
        return Verdict::Done;
    }
    let begun = progress.attempts.iter().any(|attempt| matches!(attempt.action, Action::CordonNode { .. }));
    match may_send(record, action, facts) {
        // Evict the Pods before the server stops.
        Verdict::Done if begun && !stops(progress) => drain(record, progress, facts, limits, now),
        Verdict::Fail(_) if is_open(record, facts) => drain(record, progress, facts, limits, now),
        Verdict::Look(need) => Verdict::Look(need),
        // The release takes precedence over other Node problems.
        _ => Verdict::Done,
    }
}

/// Returns true if this step sent a power call.
fn stops(progress: &Progress) -> bool {
    progress.attempts.iter().any(|attempt| matches!(attempt.action, Action::Reset(_)))
}

fn is_open(record: &Maintenance, facts: &Facts) -> bool {
    record.drained.as_ref().zip(facts.drain.as_ref()).is_some_and(|(drained, view)| drained.is_opened(view))
}

/// Uncordons the Node after it is Ready.
#[must_use]
pub(super) fn uncordon(
    record: &Maintenance,
    progress: &Progress,
    facts: &Facts,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let Some(drained) = record.drained.as_ref() else { return Verdict::Done };
    let is_done = |attempt: &Attempt| attempt.action == Action::UncordonNode && attempt.reply == Reply::Accepted;
    let uncordons = || pursue(Action::UncordonNode, &progress.attempts, limits.settle, limits, now);
    // Nodes that were drained earlier are not read separately.
    let others = drained.before.is_empty() || progress.attempts.iter().any(is_done);
    if drained.theirs {
        return if others { Verdict::Done } else { uncordons() };
    }
    let Some(view) = &facts.drain else { return Verdict::Look(Need::Drain) };
    let node = &drained.node;
    if let Some(cluster) = drained.elsewhere(view) {
        return Verdict::Fail(
            format!(
                "Node {node} is cordoned in another cluster (kube-system {cluster}), which this configuration does not \
             reach"
            )
            .into(),
        );
    }
    if !view.exists || !view.ours {
        return if others { Verdict::Done } else { uncordons() };
    }
    let is_off = record.final_power() == Some(PowerTarget::Off);
    let noticed = after(progress.since, NOTICED);
    // Its kubelet does not start. The scheduler would still use a Node that the cluster reports as
    // Ready.
    if view.cordoned && is_off && view.ready && now < noticed {
        let why = format!(
            "Node {node} is uncordoned once the cluster notices that it is off (at the latest at {})",
            shown_time(noticed)
        );
        return Verdict::Wait { why: why.into(), until: Some(after(now, PAUSE).min(noticed)) };
    }
    let awaited = view.cordoned && view.was_ready && !is_off;
    if awaited && !is_back(view.ready, view.heard, progress.since) {
        let patience = record.spec.drain.as_ref().map_or(Duration::from_mins(15), |wish| wish.ready_timeout);
        let until = after(progress.since, patience);
        if now >= until {
            return Verdict::Fail(format!("Node {node} was not Ready again within {} s", patience.as_secs()).into());
        }
        let why = format!("Node {node} is uncordoned once it is Ready again (timeout at {})", shown_time(until));
        return Verdict::Wait { why: why.into(), until: Some(after(now, PAUSE).min(until)) };
    }
    uncordons()
}

/// Returns true if the Node is Ready and its kubelet reported after `since`. Shortly after a
/// restart the API can still show an old Ready status. A missing heartbeat is not checked.
pub(super) fn is_back(ready: bool, heard: Option<Timestamp>, since: Timestamp) -> bool {
    ready && heard.is_none_or(|heard| heard >= since)
}

/// Records that the Node is drained for this record and possibly cordoned by it.
pub(super) fn note_cordoned(record: &mut Maintenance, action: &Action) {
    if let Action::CordonNode { theirs, cluster } = action {
        let known = record.drained.take();
        let drained = |wish: &DrainWish| {
            let mut before = known.as_ref().map(|known| known.before.clone()).unwrap_or_default();
            // The server's Node has a new name. A Node in another cluster is unreachable.
            let other = known.filter(|known| known.node != wish.node && !known.theirs && known.cluster == *cluster);
            before.extend(other.map(|known| known.node));
            before.retain(|node| *node != wish.node);
            DrainRecord { node: wish.node.clone(), cluster: cluster.clone(), theirs: *theirs, before }
        };
        record.drained = wanted(&record.spec).map(drained).map(Box::new);
    }
}

#[cfg(test)]
mod tests;
