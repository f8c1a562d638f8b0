//! Draining the Kubernetes Node that runs on a server: words that rules and backends share, and the
//! rules about it.
//!
//! Under our slot, and before anything of the server changes, the Node is cordoned and its Pods are
//! evicted by the API, which honours their disruption budgets. After the server was restored, a
//! Node that was Ready before is uncordoned once it is Ready again, or, where the server is off
//! then, once the cluster has noticed that. A Node that other people cordoned stays cordoned: only
//! what we cordoned is uncordoned.

pub use super::model::drain::{DrainRecord, DrainView, DrainWish};

use std::time::Duration;

use jiff::Timestamp;

use super::{
    machine::PowerTarget,
    model::{
        facts::Facts,
        shown_time::shown_time,
        verdict::{Limits, Need, Verdict, after},
    },
    power::pursue,
    spec::Spec,
    state::{Maintenance, Progress},
    step::{Action, Reply, Step},
};

/// The pause between two rounds of evictions, and between two looks at a Node.
pub(super) const PAUSE: Duration = Duration::from_secs(5);
/// By when a cluster notices that a Node does not report any more: the node controller waits 40 s
/// (50 s from Kubernetes 1.32 on).
const NOTICED: Duration = Duration::from_mins(1);
/// So many Pods are named in a reason.
const NAMED: usize = 5;

/// The drain that a wish needs; `None`: it has no Node, or acts under a hold that has drained it.
#[must_use]
pub fn wanted(spec: &Spec) -> Option<&DrainWish> {
    spec.drain.as_deref().filter(|_| spec.parent.is_none())
}

/// Some of a list, for people.
#[must_use]
pub fn some(names: &[String]) -> String {
    let more = names.len().saturating_sub(NAMED);
    let mut shown = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
    if more > 0 {
        shown.push_str(&format!("; and {more} more"));
    }
    shown
}

/// Whether the state of a server may be recorded: not while a maintenance of another store has its
/// Node, and with it the server. What that one made of the server would be restored.
#[must_use]
pub(super) fn is_unshared(record: &Maintenance, progress: &Progress, facts: &Facts, now: Timestamp) -> Verdict {
    let Some(wish) = wanted(&record.spec).filter(|_| record.prior.is_none()) else { return Verdict::Done };
    let Some(view) = &facts.drain else { return Verdict::Look(Need::Drain) };
    other_store(wish, view, progress, now).unwrap_or(Verdict::Done)
}

fn other_store(wish: &DrainWish, view: &DrainView, progress: &Progress, now: Timestamp) -> Option<Verdict> {
    let other = view.held_by.as_ref()?;
    let why = format!("waiting for {other}, for which Node {} is cordoned", wish.node);
    let until = after(progress.since, wish.timeout);
    Some(if now < until {
        Verdict::Wait { why, until: Some(after(now, PAUSE).min(until)) }
    } else {
        Verdict::Fail(why)
    })
}

/// Cordoning and evicting.
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
        return Verdict::Fail(format!("the cluster has no Node {node}, which kubernetes_node names"));
    }
    if !view.refused.is_empty() {
        return Verdict::Fail(format!("Node {node} cannot be drained: {}", some(&view.refused)));
    }
    if let Some(waits) = other_store(wish, view, progress, now) {
        return waits;
    }
    let until = after(progress.since, wish.timeout);
    // One that other people cordoned is noted as well: it may not get Pods before the release.
    if !view.cordoned || record.drained.is_none() {
        let action = Action::CordonNode { cluster: view.cluster.clone() };
        return pursue(action, &progress.attempts, limits.settle, limits, now);
    }
    if view.left.is_empty() {
        return Verdict::Done;
    }
    if now >= until {
        let taken = wish.timeout.as_secs();
        return Verdict::Fail(format!("Node {node} was not drained within {taken} s: {}", some(&view.left)));
    }
    let last = progress.attempts.iter().rev().find(|attempt| attempt.action == Action::EvictPods);
    match last {
        Some(last) if matches!(last.reply, Reply::Refused { transient: false, .. }) => {
            pursue(Action::EvictPods, &progress.attempts, limits.settle, limits, now)
        }
        Some(last) if now < after(last.at, PAUSE) => {
            let given_up = shown_time(until);
            let why = format!("Node {node} is being drained (timeout at {given_up}); left are {}", some(&view.left));
            Verdict::Wait { why, until: Some(after(last.at, PAUSE).min(until)) }
        }
        // Evicting twice is evicting once: the API deletes exactly the Pod that is named by its
        // UID.
        _ => Verdict::Act(Action::EvictPods),
    }
}

/// Whether a record may still change its server by a step: not once the Node that was drained for
/// it was uncordoned by another author. Workloads may run there again.
#[must_use]
pub(super) fn may_send(record: &Maintenance, facts: &Facts) -> Verdict {
    let Some(drained) = &record.drained else { return Verdict::Done };
    if let Some(progress) = record.phase.progress() {
        let drains = progress.steps.iter().skip(progress.current).any(|step| *step == Step::DrainNode);
        if drains || matches!(progress.step(), Some(Step::UncordonNode | Step::LeaveGate | Step::ReturnNode)) {
            return Verdict::Done;
        }
    }
    let Some(view) = &facts.drain else { return Verdict::Look(Need::Drain) };
    if !drained.is_opened(view) {
        return Verdict::Done;
    }
    Verdict::Fail(format!(
        "Node {}, which was drained, was uncordoned by another author. Workloads may run on the server again, so that nothing more \
         is sent to it. Cordon and drain the Node, or release {}",
        drained.node, record.id
    ))
}

/// Uncordoning, once the Node is back.
#[must_use]
pub(super) fn uncordon(
    record: &Maintenance,
    progress: &Progress,
    facts: &Facts,
    limits: &Limits,
    now: Timestamp,
) -> Verdict {
    let (Some(drained), Some(view)) = (&record.drained, &facts.drain) else {
        return if record.drained.is_some() { Verdict::Look(Need::Drain) } else { Verdict::Done };
    };
    let node = &drained.node;
    if let Some(cluster) = drained.elsewhere(view) {
        return Verdict::Fail(format!(
            "Node {node} is cordoned in another cluster (kube-system {cluster}) than the one that this configuration reaches"
        ));
    }
    if !view.exists || !view.ours {
        return Verdict::Done;
    }
    let is_off = record.final_power() == Some(PowerTarget::Off);
    let noticed = after(progress.since, NOTICED);
    // No kubelet comes back. A Node that the cluster still takes for Ready would get new Pods.
    if view.cordoned && is_off && view.ready && now < noticed {
        let why = format!(
            "Node {node} is uncordoned once the cluster notices that it is off (at the latest at {})",
            shown_time(noticed)
        );
        return Verdict::Wait { why, until: Some(after(now, PAUSE).min(noticed)) };
    }
    let awaited = view.cordoned && view.was_ready && !is_off;
    if awaited && !is_back(view.ready, view.heard, progress.since) {
        let patience = record.spec.drain.as_ref().map_or(Duration::from_mins(15), |wish| wish.ready_timeout);
        let until = after(progress.since, patience);
        if now >= until {
            return Verdict::Fail(format!("Node {node} was not Ready again within {} s", patience.as_secs()));
        }
        let why = format!("Node {node} is uncordoned once it is Ready again (timeout at {})", shown_time(until));
        return Verdict::Wait { why, until: Some(after(now, PAUSE).min(until)) };
    }
    pursue(Action::UncordonNode, &progress.attempts, limits.settle, limits, now)
}

/// Whether a Node that was Ready before is back: what was Ready a moment after a restart was said
/// before it. `heard`: when its kubelet was heard last; `None`: a role hides that.
pub(super) fn is_back(ready: bool, heard: Option<Timestamp>, since: Timestamp) -> bool {
    ready && heard.is_none_or(|heard| heard >= since)
}

/// Notes that the Node is drained for the record, and may be cordoned by us from now on.
pub(super) fn note_cordoned(record: &mut Maintenance, action: &Action) {
    if let Action::CordonNode { cluster } = action {
        let drained = |wish: &DrainWish| DrainRecord { node: wish.node.clone(), cluster: cluster.clone() };
        record.drained = wanted(&record.spec).map(drained).map(Box::new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::LockKey,
        machine::ResetType,
        model::lock::{EnqueueRequest, Leases, ServerLock},
        step::{Attempt, Step},
    };

    const NOW: &str = "2026-11-21T10:00:00Z";

    fn at(seconds: u64) -> Timestamp {
        after(NOW.parse().unwrap(), Duration::from_secs(seconds))
    }

    fn record() -> Maintenance {
        let mut lock = ServerLock::new(LockKey("k".into()));
        lock.enqueue(EnqueueRequest::sample("a"), &Leases::default(), at(0)).unwrap();
        let mut record = lock.active.remove(0).into_inner();
        record.spec.drain = Some(Box::new(DrainWish {
            node: "n1".into(),
            timeout: Duration::from_mins(10),
            ready_timeout: Duration::from_mins(15),
            delete_emptydir_data: false,
            force: false,
        }));
        record.drained = Some(Box::new(DrainRecord { node: "n1".into(), cluster: Some("c1".into()) }));
        record
    }

    fn view() -> DrainView {
        DrainView { cluster: Some("c1".into()), exists: true, ready: true, ..DrainView::default() }
    }

    fn facts(view: DrainView) -> Facts {
        Facts { drain: Some(Box::new(view)), ..Facts::default() }
    }

    fn progress(attempts: &[(Action, u64)]) -> Progress {
        let mut progress = Progress::new(vec![Step::DrainNode], at(0));
        for (action, seconds) in attempts {
            progress
                .attempts
                .push(Attempt { reply: Reply::Accepted, ..Attempt::intended(action.clone(), at(*seconds)) });
        }
        progress
    }

    fn drained(view: DrainView, attempts: &[(Action, u64)], now: u64) -> Verdict {
        drain(&record(), &progress(attempts), &facts(view), &Limits::default(), at(now))
    }

    #[test]
    fn a_node_is_cordoned_then_emptied_and_what_blocks_is_told() {
        assert_eq!(drained(view(), &[], 0), Verdict::Act(Action::CordonNode { cluster: Some("c1".into()) }));
        let left = vec!["prod/db-0 (its disruption budget allows none)".to_owned()];
        let full = DrainView { cordoned: true, ours: true, left, ..view() };
        assert_eq!(drained(full.clone(), &[], 0), Verdict::Act(Action::EvictPods));
        let evicted = [(Action::EvictPods, 10)];
        let Verdict::Wait { why, until } = drained(full.clone(), &evicted, 12) else { panic!() };
        assert!(why.contains("db-0") && why.contains("allows none"), "{why}");
        assert_eq!(until, Some(at(15)));
        assert_eq!(drained(full.clone(), &evicted, 15), Verdict::Act(Action::EvictPods), "round by round");
        let Verdict::Fail(cause) = drained(full.clone(), &evicted, 600) else { panic!() };
        assert!(cause.contains("600 s") && cause.contains("db-0"), "{cause}");
        let empty = DrainView { left: Vec::new(), ..full };
        assert_eq!(drained(empty, &evicted, 15), Verdict::Done);
    }

    #[test]
    fn nothing_is_cordoned_that_cannot_be_drained() {
        let refused = DrainView { refused: vec!["prod/scratch (emptyDir)".into()], ..view() };
        assert!(matches!(drained(refused, &[], 0), Verdict::Fail(cause) if cause.contains("scratch")));
        assert!(matches!(drained(DrainView::default(), &[], 0), Verdict::Fail(cause) if cause.contains("no Node n1")));
    }

    #[test]
    fn a_node_that_others_cordoned_is_emptied_and_stays_cordoned() {
        let theirs = DrainView { cordoned: true, left: vec!["a/b".into()], ..view() };
        assert_eq!(drained(theirs.clone(), &[], 0), Verdict::Act(Action::EvictPods));
        let back = uncordon(&record(), &progress(&[]), &facts(theirs), &Limits::default(), at(0));
        assert_eq!(back, Verdict::Done);
    }

    #[test]
    fn a_node_that_others_cordoned_is_noted_before_it_is_emptied() {
        let theirs = DrainView { cordoned: true, ..view() };
        let first = Maintenance { drained: None, ..record() };
        let judged = drain(&first, &progress(&[]), &facts(theirs), &Limits::default(), at(0));
        assert_eq!(judged, Verdict::Act(Action::CordonNode { cluster: Some("c1".into()) }));
    }

    #[test]
    fn a_node_that_a_maintenance_of_another_store_has_is_waited_for() {
        let other = DrainView { cordoned: true, held_by: Some("the maintenance a/b".into()), ..view() };
        let waits = drained(other.clone(), &[], 1);
        assert!(matches!(&waits, Verdict::Wait { why, .. } if why.contains("the maintenance a/b")), "{waits:?}");
        assert!(matches!(drained(other.clone(), &[], 600), Verdict::Fail(why) if why.contains("the maintenance a/b")));
        let recorded = |view: DrainView| is_unshared(&record(), &progress(&[]), &facts(view), at(1));
        assert!(matches!(recorded(other), Verdict::Wait { .. }), "it may have switched the server off");
        assert_eq!(recorded(view()), Verdict::Done);
    }

    #[test]
    fn nothing_is_sent_once_the_node_is_open_again() {
        use crate::state::Phase;
        let (open, closed) = (view(), DrainView { cordoned: true, ..view() });
        let under_way = |steps: &[Step]| Phase::Preparing(Progress::new(steps.to_vec(), at(0)));
        let held = Phase::InMaintenance { since: at(0) };
        for (phase, view, sends) in [
            // Its own step cordons it, and what ends it opens it.
            (under_way(&[Step::DrainNode, Step::ApplyPower]), &open, true),
            (under_way(&[Step::UncordonNode]), &open, true),
            (under_way(&[Step::LeaveGate]), &open, true),
            (under_way(&[Step::ApplyPower]), &open, false),
            (under_way(&[Step::EnterGate]), &open, false),
            (under_way(&[Step::ApplyPower]), &closed, true),
            (held.clone(), &open, false),
            (held.clone(), &closed, true),
            (held.clone(), &DrainView { exists: false, ..open.clone() }, true),
            // A Node of that name elsewhere says nothing.
            (held.clone(), &DrainView { cluster: Some("c2".into()), ..open.clone() }, true),
        ] {
            let record = Maintenance { phase, ..record() };
            let verdict = may_send(&record, &facts(view.clone()));
            assert_eq!(verdict == Verdict::Done, sends, "{:?} {view:?}: {verdict:?}", record.phase);
            assert_eq!(matches!(verdict, Verdict::Fail(_)), !sends);
        }
        let record = Maintenance { phase: held, ..record() };
        assert_eq!(may_send(&record, &Facts::default()), Verdict::Look(Need::Drain), "it is looked at each time");
        assert_eq!(may_send(&Maintenance { drained: None, ..record }, &Facts::default()), Verdict::Done);
    }

    #[test]
    fn a_node_is_uncordoned_once_it_was_heard_and_is_ready() {
        let ours = DrainView { cordoned: true, ours: true, was_ready: true, ..view() };
        let judged =
            |view: DrainView, now| uncordon(&record(), &progress(&[]), &facts(view), &Limits::default(), at(now));
        assert_eq!(judged(ours.clone(), 0), Verdict::Act(Action::UncordonNode));
        let stale = DrainView { heard: at(0).checked_sub(jiff::SignedDuration::from_secs(1)).ok(), ..ours.clone() };
        assert!(matches!(judged(stale, 0), Verdict::Wait { .. }), "said before the restart");
        let heard = DrainView { heard: Some(at(3)), ..ours.clone() };
        assert_eq!(judged(heard, 4), Verdict::Act(Action::UncordonNode));
        let away = DrainView { ready: false, ..ours.clone() };
        assert!(matches!(judged(away.clone(), 60), Verdict::Wait { .. }));
        assert!(matches!(judged(away.clone(), 900), Verdict::Fail(_)), "said, and not called done");
        // One that was not Ready before is not waited for.
        assert_eq!(judged(DrainView { was_ready: false, ..away }, 0), Verdict::Act(Action::UncordonNode));
        assert_eq!(judged(DrainView { ours: false, ..ours }, 0), Verdict::Done, "uncordoned by others");
        assert_eq!(judged(DrainView::default(), 0), Verdict::Done, "the Node was deleted");
    }

    #[test]
    fn a_node_whose_server_stays_off_is_uncordoned_once_the_cluster_knows() {
        use crate::{
            machine::PowerState,
            model::operation::{CompletionProof, OperationSpec, WhenOff},
            state::PriorState,
        };
        let switched_off = |reset| {
            let mut record = record();
            record.spec.operation =
                Some(OperationSpec { reset, when_off: WhenOff::Skip, proof: CompletionProof::Power });
            record
        };
        let prior = |power| {
            let prior = PriorState { power, boot: None, media: Vec::new(), last_reset: None, recorded_at: at(0) };
            Maintenance { prior: Some(prior), ..record() }
        };
        let ours = DrainView { ours: true, cordoned: true, was_ready: true, ..view() };
        let away = DrainView { ready: false, ..ours.clone() };
        let judged = |record: &Maintenance, view: &DrainView, now| {
            uncordon(record, &progress(&[]), &facts(view.clone()), &Limits::default(), at(now))
        };
        let act = Verdict::Act(Action::UncordonNode);
        for record in
            [switched_off(ResetType::ForceOff), switched_off(ResetType::GracefulShutdown), prior(PowerState::Off)]
        {
            let Verdict::Wait { why, .. } = judged(&record, &ours, 1) else { panic!() };
            assert!(why.contains("notices that it is off"), "{why}");
            assert_eq!(judged(&record, &away, 1), act);
            assert_eq!(judged(&record, &ours, 60), act, "a cluster without a node controller");
        }
        for record in [switched_off(ResetType::ForceRestart), prior(PowerState::On)] {
            assert!(matches!(judged(&record, &away, 60), Verdict::Wait { why, .. } if why.contains("Ready again")));
        }
    }

    #[test]
    fn a_node_of_that_name_in_another_cluster_is_not_taken_for_ours() {
        let there = DrainView { cluster: Some("c2".into()), ours: true, ..view() };
        let judged = uncordon(&record(), &progress(&[]), &facts(there), &Limits::default(), at(0));
        assert!(matches!(judged, Verdict::Fail(cause) if cause.contains("another cluster")));
    }

    #[test]
    fn a_long_list_is_cut() {
        let names: Vec<String> = (0..7).map(|n| format!("p{n}")).collect();
        assert_eq!(some(&names), "p0; p1; p2; p3; p4; and 2 more");
    }
}
