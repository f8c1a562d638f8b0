//! Tests of single drain rules.

use shown_text::OneLine;

use super::*;
use crate::{
    ids::LockKey,
    model::lock::{EnqueueRequest, Leases, ServerLock},
    step::Step,
};

const NOW: &str = "2026-11-21T10:00:00Z";

fn at(seconds: u64) -> Timestamp {
    after(NOW.parse().unwrap(), Duration::from_secs(seconds))
}

fn record() -> Maintenance {
    let mut lock = ServerLock::new(LockKey::new("k"));
    lock.enqueue(EnqueueRequest::sample("a"), &Leases::default(), at(0)).unwrap();
    let mut record = lock.active.remove(0).into_inner();
    record.spec.drain = Some(Box::new(DrainWish {
        node: "n1".into(),
        timeout: Duration::from_mins(10),
        ready_timeout: Duration::from_mins(15),
        delete_emptydir_data: false,
        force: false,
    }));
    record.drained = Some(Box::new(DrainRecord {
        node: "n1".into(),
        cluster: Some("c1".into()),
        theirs: false,
        before: Vec::new(),
    }));
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
        progress.attempts.push(Attempt { reply: Reply::Accepted, ..Attempt::intended(action.clone(), at(*seconds)) });
    }
    progress
}

fn cordon(theirs: bool) -> Action {
    Action::CordonNode { theirs, cluster: Some("c1".into()) }
}

fn drained(view: DrainView, attempts: &[(Action, u64)], now: u64) -> Verdict {
    drain(&record(), &progress(attempts), &facts(view), &Limits::default(), at(now))
}

#[test]
fn a_node_is_cordoned_then_emptied_and_what_blocks_is_told() {
    assert_eq!(drained(view(), &[], 0), Verdict::Act(cordon(false)));
    let left = vec!["prod/db-0 (its disruption budget allows none)".into()];
    let full = DrainView { cordoned: true, ours: true, left, ..view() };
    assert_eq!(drained(full.clone(), &[], 0), Verdict::Act(Action::EvictPods));
    let evicted = [(Action::EvictPods, 10)];
    let Verdict::Wait { why, until } = drained(full.clone(), &evicted, 12) else { panic!() };
    assert!(why.raw().contains("db-0") && why.raw().contains("allows none"), "{why}");
    assert_eq!(until, Some(at(15)));
    assert_eq!(drained(full.clone(), &evicted, 15), Verdict::Act(Action::EvictPods), "round by round");
    let ending = DrainView { only_ending: true, ..full.clone() };
    for attempts in [&[][..], &evicted] {
        let judged = drained(ending.clone(), attempts, 15);
        assert!(matches!(judged, Verdict::Wait { until, .. } if until == Some(at(20))), "{judged:?}");
    }
    assert!(matches!(drained(ending, &[], 600), Verdict::Fail(cause) if cause.raw().contains("db-0")));
    let Verdict::Fail(cause) = drained(full.clone(), &evicted, 600) else { panic!() };
    assert!(cause.raw().contains("600 s") && cause.raw().contains("db-0"), "{cause}");
    let empty = DrainView { left: Vec::new(), ..full };
    assert_eq!(drained(empty, &evicted, 15), Verdict::Done);
}

#[test]
fn nothing_is_cordoned_that_cannot_be_drained() {
    let refused = DrainView { refused: vec!["prod/scratch (emptyDir)".into()], ..view() };
    assert!(matches!(drained(refused, &[], 0), Verdict::Fail(cause) if cause.raw().contains("scratch")));
    assert!(
        matches!(drained(DrainView::default(), &[], 0), Verdict::Fail(cause) if cause.raw().contains("not contain Node n1"))
    );
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
    let judged = drain(&first, &progress(&[]), &facts(theirs.clone()), &Limits::default(), at(0));
    assert_eq!(judged, Verdict::Act(cordon(true)));
    let mut noted = first.clone();
    note_cordoned(&mut noted, &cordon(true));
    let made = progress(&[(cordon(true), 0)]);
    let judged = |view: DrainView| drain(&noted, &made, &facts(view), &Limits::default(), at(1));
    assert_eq!(judged(theirs.clone()), Verdict::Done);
    assert_eq!(
        judged(view()),
        Verdict::Act(cordon(false)),
        "the other maintenance uncordoned it, and ours had not cordoned it"
    );
    let back = uncordon(&noted, &progress(&[]), &Facts::default(), &Limits::default(), at(0));
    assert_eq!(back, Verdict::Done, "the other maintenance uncordons it, in any cluster");
}

#[test]
fn a_node_that_has_another_name_now_is_drained_too() {
    let mut renamed = record();
    renamed.spec.drain.as_mut().unwrap().node = "n2".into();
    let cordoned = DrainView { cordoned: true, ..view() };
    let judged = drain(&renamed, &progress(&[]), &facts(cordoned), &Limits::default(), at(0));
    assert_eq!(judged, Verdict::Act(cordon(true)));
}

#[test]
fn a_node_that_an_ended_maintenance_left_cordoned_becomes_ours() {
    let left = DrainView { cordoned: true, left_by: Some("ended".into()), ..view() };
    assert_eq!(drained(left.clone(), &[], 0), Verdict::Act(cordon(false)), "the record exists after a crash, too");
    let first = Maintenance { drained: None, ..record() };
    let judged = drain(&first, &progress(&[]), &facts(left), &Limits::default(), at(0));
    assert_eq!(judged, Verdict::Act(cordon(false)));
}

#[test]
fn a_node_that_was_drained_under_an_earlier_name_is_uncordoned_too() {
    let mut renamed = record();
    renamed.spec.drain.as_mut().unwrap().node = "n2".into();
    for theirs in [false, true] {
        let mut renamed = renamed.clone();
        note_cordoned(&mut renamed, &cordon(theirs));
        note_cordoned(&mut renamed, &cordon(theirs));
        assert_eq!(renamed.drained.as_ref().unwrap().before, ["n1"]);
        assert!(crate::restore::steps(&renamed).contains(&Step::UncordonNode));
        let judged = |progress: &Progress| uncordon(&renamed, progress, &facts(view()), &Limits::default(), at(1));
        assert_eq!(judged(&progress(&[])), Verdict::Act(Action::UncordonNode), "theirs: {theirs}");
        assert_eq!(judged(&progress(&[(Action::UncordonNode, 0)])), Verdict::Done);
    }
    // Another author cordoned the first Node. The second Node is in an unreachable cluster.
    let mut of_others = renamed.clone();
    of_others.drained.as_mut().unwrap().theirs = true;
    let mut elsewhere = renamed.clone();
    elsewhere.drained.as_mut().unwrap().cluster = Some("c2".into());
    for mut record in [of_others, elsewhere] {
        note_cordoned(&mut record, &cordon(false));
        assert_eq!(record.drained.unwrap().before, [] as [String; 0]);
    }
}

#[test]
fn a_process_that_goes_on_with_a_drain_has_time_of_its_own() {
    use crate::ids::{Attachment, Generation, Runner, Token};
    let full = DrainView { cordoned: true, ours: true, left: vec!["prod/db-0".into()], ..view() };
    let mut record = record();
    let judged = |record: &Maintenance, now| {
        drain(record, &progress(&[(Action::EvictPods, 10)]), &facts(full.clone()), &Limits::default(), at(now))
    };
    assert!(matches!(judged(&record, 700), Verdict::Fail(_)));
    record.attachment = Some(Attachment {
        runner: Runner::new("r", "r", "h", 1),
        generation: Generation::default(),
        token: Token::default(),
        since: at(690),
    });
    assert_eq!(judged(&record, 700), Verdict::Act(Action::EvictPods));
    assert!(matches!(judged(&record, 1290), Verdict::Fail(_)));
}

#[test]
fn a_node_that_a_maintenance_of_another_store_has_is_waited_for() {
    let other = DrainView { cordoned: true, held_by: Some("the maintenance a/b".into()), ..view() };
    let waits = drained(other.clone(), &[], 1);
    assert!(matches!(&waits, Verdict::Wait { why, .. } if why.raw().contains("the maintenance a/b")), "{waits:?}");
    assert!(
        matches!(drained(other.clone(), &[], 600), Verdict::Fail(why) if why.raw().contains("the maintenance a/b"))
    );
    let recorded = |view: DrainView| is_unshared(&record(), &progress(&[]), &facts(view), at(1));
    assert!(matches!(recorded(other), Verdict::Wait { .. }), "it could have switched the server off");
    assert_eq!(recorded(view()), Verdict::Done);
}

#[test]
fn nothing_is_sent_once_the_node_is_open_again() {
    use crate::{
        machine::{MachineView, PowerState},
        state::Phase,
    };
    let seen = |facts: Facts, power| Facts { machine: Some(MachineView { power, ..MachineView::default() }), ..facts };
    let on = |facts| seen(facts, PowerState::On);
    let (open, closed) = (view(), DrainView { cordoned: true, ..view() });
    let under_way = |steps: &[Step]| Phase::Preparing(Progress::new(steps.to_vec(), at(0)));
    let held = Phase::InMaintenance { since: at(0) };
    let shutdown = Action::Reset(ResetType::GracefulShutdown);
    for (phase, action, view, sends) in [
        // Cordoning belongs to the drain, and the ending steps do not stop the server.
        (under_way(&[Step::DrainNode, Step::ApplyPower]), &cordon(false), &open, true),
        (under_way(&[Step::UncordonNode]), &Action::UncordonNode, &open, true),
        (under_way(&[Step::LeaveGate]), &Action::LeaveGate, &open, true),
        (under_way(&[Step::ApplyPower]), &shutdown, &open, false),
        (under_way(&[Step::ApplyPower]), &Action::Reset(ResetType::On), &open, true),
        (under_way(&[Step::EnterGate]), &Action::EnterGate, &open, false),
        (under_way(&[Step::ApplyPower]), &shutdown, &closed, true),
        (held.clone(), &shutdown, &open, false),
        (held.clone(), &shutdown, &closed, true),
        (held.clone(), &shutdown, &DrainView { exists: false, ..open.clone() }, true),
        (held.clone(), &shutdown, &DrainView { held_by: Some("another".into()), ..closed.clone() }, false),
        // A Node with the same name in another cluster is unrelated.
        (held.clone(), &shutdown, &DrainView { cluster: Some("c2".into()), ..closed.clone() }, false),
    ] {
        let record = Maintenance { phase, ..record() };
        let verdict = may_send(&record, action, &on(facts(view.clone())));
        assert_eq!(verdict == Verdict::Done, sends, "{:?} {view:?}: {verdict:?}", record.phase);
        assert_eq!(matches!(verdict, Verdict::Fail(_)), !sends);
    }
    let record = Maintenance { phase: held, ..record() };
    let judged = |record: &Maintenance, facts: &Facts| may_send(record, &shutdown, facts);
    assert_eq!(judged(&record, &Facts::default()), Verdict::Look(Need::Machine));
    assert_eq!(judged(&record, &on(Facts::default())), Verdict::Look(Need::Drain), "each decision reads the Node");
    assert_eq!(judged(&Maintenance { drained: None, ..record.clone() }, &Facts::default()), Verdict::Done);
    // A server that is off or shutting down possibly hosts its own Node's API server.
    assert_eq!(judged(&record, &seen(Facts::default(), PowerState::Off)), Verdict::Done);
    let mut ends = Progress::new(vec![Step::SwitchOff], at(0));
    let made = Attempt::intended(shutdown.clone(), at(0));
    for (reply, sends) in [(Reply::Accepted, true), (Reply::Unknown, false)] {
        ends.attempts = vec![Attempt { reply, ..made.clone() }];
        let record = Maintenance { phase: Phase::Preparing(ends.clone()), ..record.clone() };
        assert_eq!(judged(&record, &on(facts(view()))) == Verdict::Done, sends);
    }
}

#[test]
fn a_node_is_uncordoned_once_it_was_heard_and_is_ready() {
    let ours = DrainView { cordoned: true, ours: true, was_ready: true, ..view() };
    let judged = |view: DrainView, now| uncordon(&record(), &progress(&[]), &facts(view), &Limits::default(), at(now));
    assert_eq!(judged(ours.clone(), 0), Verdict::Act(Action::UncordonNode));
    let stale = DrainView { heard: at(0).checked_sub(jiff::SignedDuration::from_secs(1)).ok(), ..ours.clone() };
    assert!(matches!(judged(stale, 0), Verdict::Wait { .. }), "the report is older than the restart");
    let heard = DrainView { heard: Some(at(3)), ..ours.clone() };
    assert_eq!(judged(heard, 4), Verdict::Act(Action::UncordonNode));
    let away = DrainView { ready: false, ..ours.clone() };
    assert!(matches!(judged(away.clone(), 60), Verdict::Wait { .. }));
    assert!(matches!(judged(away.clone(), 900), Verdict::Fail(_)), "the timeout is a failure");
    // A Node that was not Ready before is not awaited.
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
        record.spec.operation = Some(OperationSpec { reset, when_off: WhenOff::Skip, proof: CompletionProof::Power });
        record
    };
    let prior = |power| {
        let prior = PriorState { power, boot: None, media: Vec::new(), recorded_at: at(0) };
        Maintenance { prior: Some(prior), ..record() }
    };
    let ours = DrainView { ours: true, cordoned: true, was_ready: true, ..view() };
    let away = DrainView { ready: false, ..ours.clone() };
    let judged = |record: &Maintenance, view: &DrainView, now| {
        uncordon(record, &progress(&[]), &facts(view.clone()), &Limits::default(), at(now))
    };
    let act = Verdict::Act(Action::UncordonNode);
    for record in [switched_off(ResetType::ForceOff), switched_off(ResetType::GracefulShutdown), prior(PowerState::Off)]
    {
        let Verdict::Wait { why, .. } = judged(&record, &ours, 1) else { panic!() };
        assert!(why.raw().contains("notices that it is off"), "{why}");
        assert_eq!(judged(&record, &away, 1), act);
        assert_eq!(judged(&record, &ours, 60), act, "a cluster without a node controller");
    }
    for record in [switched_off(ResetType::ForceRestart), prior(PowerState::On)] {
        assert!(matches!(judged(&record, &away, 60), Verdict::Wait { why, .. } if why.raw().contains("Ready again")));
    }
}

#[test]
fn a_node_of_that_name_in_another_cluster_is_not_taken_for_ours() {
    let there = DrainView { cluster: Some("c2".into()), ours: true, ..view() };
    let judged = uncordon(&record(), &progress(&[]), &facts(there), &Limits::default(), at(0));
    assert!(matches!(judged, Verdict::Fail(cause) if cause.raw().contains("another cluster")));
}

#[test]
fn a_long_list_is_cut() {
    let names: Vec<OneLine> = (0..7).map(|n| format!("p{n}").into()).collect();
    assert_eq!(some(&names), "p0; p1; p2; p3; p4; and 2 more");
}
