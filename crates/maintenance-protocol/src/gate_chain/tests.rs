//! Tests of chain rules that the exploration does not cover.

use std::time::Duration;

use super::*;
use crate::{
    change::LockChange,
    decide::decide,
    gate::{AwaitedNode, ExternalSystem, GateRecord, QueueAuthority},
    ids::{LockKey, Runner, Token},
    machine::PowerState,
    model::lock::{EnqueueRequest, Leases, ServerLock},
    situation::{Goal, Objective},
    spec::{BootMethod, BootSpec, MaintenanceKind, Spec, WaitFor},
    state::{Ending, PriorState},
    step::{Attempt, Step},
};

#[test]
fn a_request_is_withdrawn_once_the_node_of_a_server_that_runs_is_ready_again() {
    let at = |seconds: u64| after("2026-11-21T10:00:00Z".parse().unwrap(), Duration::from_secs(seconds));
    let mut lock = ServerLock::new(LockKey::new("k"));
    lock.enqueue(EnqueueRequest::sample("a"), &Leases::default(), at(0)).unwrap();
    let mut record = lock.active.remove(0).into_inner();
    let system = ExternalSystem {
        gate: Some("outer".into()),
        loss: Loss::Restore,
        ..ExternalSystem::own("Outer", QueueAuthority::OnTurn, true)
    };
    record.gates = vec![GateRecord { asked: true, granted: true, entered: true, ..GateRecord::new(system) }];
    let prior = |power| PriorState { power, boot: None, media: Vec::new(), recorded_at: at(0) };
    record.prior = Some(prior(PowerState::On));
    let judged = |record: &Maintenance, ready: bool, heard: Option<u64>, now: u64, asked: bool| {
        let awaited = AwaitedNode {
            node: "Node n1".into(),
            request: "the label".into(),
            ready,
            heard: heard.map(at),
            timeout: Duration::from_mins(15),
        };
        let view = GateView { awaited: Some(awaited), ..GateView::of(ExternalState::Granted) };
        let facts = Facts { gates: [(0, view)].into(), ..Facts::default() };
        let mut progress = Progress::new(vec![Step::LeaveGate], at(100));
        if asked {
            progress.attempts.push(Attempt::intended(Action::LeaveGate, at(100)));
        }
        leave(record, &progress, &facts, &Limits::default(), at(now))
    };
    let waits = |verdict: Verdict, word: &str| {
        assert!(matches!(&verdict, Verdict::Wait { why, .. } if why.raw().contains(word)), "{word}: {verdict:?}");
    };
    let act = Verdict::Act(Action::LeaveGate);
    waits(judged(&record, false, None, 101, false), "Node n1 to be Ready again before the label is removed");
    waits(judged(&record, true, Some(99), 101, false), "the kubelet of Node n1 to report again");
    assert_eq!(judged(&record, true, Some(103), 104, false), act);
    assert_eq!(judged(&record, true, None, 104, false), act, "a role can hide the last report");
    let late = judged(&record, false, None, 1_000, false);
    assert!(
        matches!(&late, Verdict::Fail(why) if why.raw().contains("within 900 s") && why.raw().contains("the label stays"))
    );
    assert!(
        !matches!(judged(&record, false, None, 101, true), Verdict::Wait { why, .. } if why.raw().contains("Ready"))
    );
    // A server that ends off does not run a kubelet.
    record.prior = Some(prior(PowerState::Off));
    assert_eq!(judged(&record, false, None, 101, false), act);
    record.prior = None;
    assert_eq!(judged(&record, false, None, 101, false), act, "nothing was done to it");
}

#[test]
fn what_acts_under_a_chain_reads_the_gate_that_boots_its_server() {
    let own =
        [GateRecord::new(ExternalSystem { boots: true, ..ExternalSystem::own("own", QueueAuthority::Ours, true) })];
    let image = Some("registry.example/rescue:3".into());
    let boot = BootSpec { image, ..BootSpec::new(BootMethod::External("of_a_system".to_owned())) };
    let spec = Spec { boot: Some(boot), ..Spec::new(MaintenanceKind::BootConfiguration, "node1") };
    let view = |boot| GateView { boot, ..GateView::of(ExternalState::Granted) };
    let mut facts = Facts { outer_gates: 1, ..Facts::default() };
    facts.gates.insert(0, view(None));
    assert_eq!(ready_of(&own, &spec, &facts), Some(Verdict::Look(Need::Gate(1))));
    facts.gates.insert(1, view(Some(BootReadiness::Ready)));
    assert_eq!(ready_of(&own, &spec, &facts), None);
}

/// Calls `judge` with the only record's situation.
fn judged<T>(
    lock: &ServerLock,
    (leases, now): (&Leases, Timestamp),
    fence: Fence,
    intent: &Objective,
    views: impl IntoIterator<Item = GateView>,
    judge: impl FnOnce(&DecisionInput<'_>) -> T,
) -> T {
    judge(&DecisionInput {
        lock,
        leases,
        now,
        queue: &queue::Queue::default(),
        uid: &lock.active[0].uid,
        fence,
        intent,
        facts: &Facts { gates: views.into_iter().enumerate().collect(), ..Facts::default() },
        limits: &Limits::default(),
        aging: Duration::from_secs(1),
    })
}

fn objective(goal: Goal, timed_out: bool) -> Objective {
    Objective { goal, stop: false, timed_out, waited: None }
}

/// Returns a lock with one attached request.
fn attached(request: EnqueueRequest, leases: &Leases, now: Timestamp) -> (ServerLock, Uid, Fence) {
    let mut lock = ServerLock::new(LockKey::new("k"));
    let uid = lock.enqueue(request, leases, now).unwrap().uid().clone();
    let runner = Runner::new("r", "ada", "desk", 1);
    let fence = lock.attach(&uid, runner, Token(uuid::Uuid::nil()), leases, now).unwrap();
    (lock, uid, fence)
}

/// Moves the only record, which entered this system on a running server, to a release step.
fn releases(lock: &mut ServerLock, name: &str, current: usize, steps: Vec<Step>, now: Timestamp) {
    let record = &mut lock.active[0];
    let system = ExternalSystem::own(name, QueueAuthority::Ours, true);
    record.gates = vec![GateRecord { asked: true, entered: true, ..GateRecord::new(system) }];
    record.prior = Some(PriorState { power: PowerState::On, boot: None, media: Vec::new(), recorded_at: now });
    let progress = Progress { current, ..Progress::new(steps, now) };
    record.phase = Phase::Releasing { ending: Ending::Completed, progress, stuck: None };
}

/// Returns a waiter's decision for these gate views.
fn decided(
    spec: Spec,
    gates: Vec<ExternalSystem>,
    prepare: impl FnOnce(&mut [GateRecord]),
    views: Vec<GateView>,
    timed_out: bool,
) -> Decision {
    let (now, leases) = (Timestamp::UNIX_EPOCH, Leases::default());
    let request = EnqueueRequest { spec, gates, ..EnqueueRequest::sample("a") };
    let (mut lock, _, fence) = attached(request, &leases, now);
    prepare(&mut lock.active[0].gates);
    judged(&lock, (&leases, now), fence, &objective(Goal::Hold(WaitFor::InMaintenance), timed_out), views, decide)
}

/// Returns a waiter's decision without an approval. It has requests at two gates, and the outer
/// gate granted.
fn kept_back(inner: ExternalState, timed_out: bool) -> Decision {
    use crate::spec::Policy;
    let spec =
        Spec { policy: Policy::OwnerApproval, require_claim: true, ..Spec::new(MaintenanceKind::Maintenance, "node") };
    let system = |name| ExternalSystem::own(name, QueueAuthority::Theirs, true);
    let asked = |gates: &mut [GateRecord]| gates.iter_mut().for_each(|gate| gate.asked = true);
    let views = vec![GateView::of(ExternalState::Granted), GateView::of(inner)];
    decided(spec, vec![system("outer"), system("inner")], asked, views, timed_out)
}

#[test]
fn a_waiter_that_is_kept_back_withdraws_requests_that_failed_and_the_inner_one_first() {
    let said = || "it".to_owned();
    for inner in [
        ExternalState::Failed(said().into()),
        ExternalState::Lost(said().into()),
        ExternalState::Leftovers(said().into()),
    ] {
        assert_eq!(kept_back(inner, false), Decision::Ask { place: 1, enter: false });
    }
    for inner in [ExternalState::Absent, ExternalState::Refused(said().into()), ExternalState::Taken(said().into())] {
        assert_eq!(kept_back(inner, false), Decision::Ask { place: 0, enter: false });
    }
}

#[test]
fn a_waiter_without_time_does_not_withdraw_an_outer_request_before_the_inner_one_is_back() {
    let inner = || ExternalState::Returning("it is free".into());
    assert!(matches!(kept_back(inner(), false), Decision::Wait { .. }));
    let over = Decision::Finished(Finish::TimedOut("waiting until it is free".into()));
    assert_eq!(kept_back(inner(), true), over);
}

#[test]
fn how_an_unasked_gate_was_is_remembered_from_the_last_look_before_the_start() {
    let memory = |power: &str| std::collections::BTreeMap::from([("power".to_owned(), power.to_owned())]);
    let before = |gates: &mut [GateRecord]| {
        gates[0].granted = true;
        gates[0].memory = memory("off");
    };
    let view = GateView { memory: memory("on"), ..GateView::of(ExternalState::Absent) };
    let own = ExternalSystem::own("own", QueueAuthority::Ours, true);
    let decision = decided(Spec::new(MaintenanceKind::Maintenance, "node"), vec![own], before, vec![view], false);
    assert!(
        matches!(&decision, Decision::Change(RecordChange::Gate { granted: true, said: None, again: true, .. })),
        "{decision:?}"
    );
}

#[test]
fn the_power_that_an_external_system_wants_by_now_is_noted_by_a_release_and_restored_again() {
    let now: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
    let leases = Leases::default();
    let (mut lock, _, fence) = attached(EnqueueRequest::sample("a"), &leases, now);
    releases(&mut lock, "Metal3", 1, vec![Step::StopForRestore, Step::RestorePower], now);
    let goal = objective(Goal::Release(Ending::Completed), false);
    let noted = |lock: &ServerLock, wanted: PowerTarget| {
        let view = GateView { power_after: Some(PowerAfter::Wanted(wanted)), ..GateView::of(ExternalState::Granted) };
        judged(lock, (&leases, now), fence, &goal, [view], |input| power_after(input, &lock.active[0]))
    };
    assert_eq!(noted(&lock, PowerTarget::On), None, "equal to the recorded power");
    let off = Some(PowerAfter::Wanted(PowerTarget::Off));
    let change = Decision::Change(RecordChange::PowerAfter(0, off));
    assert_eq!(noted(&lock, PowerTarget::Off), Some(change));
    note_power(&mut lock.active[0], 0, off, now);
    assert_eq!(noted(&lock, PowerTarget::Off), None);
    assert_eq!(lock.active[0].restored_power(), Some(PowerTarget::Off));
    assert_eq!(lock.active[0].phase.progress().and_then(Progress::step), Some(Step::StopForRestore));
    // The owner changed the power again.
    assert_eq!(noted(&lock, PowerTarget::On), Some(Decision::Change(RecordChange::PowerAfter(0, None))));
}

#[test]
fn a_second_release_continues_the_withdrawal_that_the_first_one_sent() {
    let now: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
    let runner = Runner::new("r", "ada", "desk", 1);
    let leases = Leases([(runner.id, after(now, Duration::from_mins(1)))].into());
    let limits = Limits::default();
    let moment = Moment { leases: &leases, now, limits: &limits, aging: Duration::from_secs(1) };
    let (mut lock, uid, fence) = attached(EnqueueRequest::sample("a"), &leases, now);
    lock.admit(&uid, fence, Phase::InMaintenance { since: now }, now).unwrap();
    let steps = vec![Step::StopForRestore, Step::RestorePower, Step::Verify, Step::LeaveGate];
    releases(&mut lock, "Parking", 3, steps, now);
    for change in [
        RecordChange::Intend { action: Action::LeaveGate, last_reset: None },
        // The time limit of the first release ends here.
        RecordChange::Stuck("timeout".into()),
        RecordChange::BeginRelease(Ending::Completed),
    ] {
        lock.apply(&LockChange::Driven { uid: &uid, fence, change: &change }, &moment).unwrap();
    }
    assert_eq!(lock.active[0].phase.progress().and_then(Progress::step), Some(Step::StopForRestore));
    let goal = objective(Goal::Release(Ending::Completed), false);
    let decided =
        |standing: ExternalState| judged(&lock, (&leases, now), fence, &goal, [GateView::of(standing)], decide);
    let said = || "it".to_owned();
    for standing in [
        ExternalState::Returning(said().into()),
        ExternalState::Leftovers(said().into()),
        ExternalState::Absent,
        ExternalState::Taken(said().into()),
    ] {
        let decision = decided(standing.clone());
        let Decision::Change(RecordChange::Progress(next)) = &decision else { panic!("{standing:?}: {decision:?}") };
        assert_eq!(next.step(), Some(Step::LeaveGate), "{standing:?}");
    }
    // Our withdrawal did not cause this.
    let revoked = decided(ExternalState::Lost(said().into()));
    assert!(matches!(revoked, Decision::Change(RecordChange::GateLost(0, _))), "{revoked:?}");
    let granted = decided(ExternalState::Granted);
    assert!(!matches!(granted, Decision::Change(RecordChange::GateLost(..))), "{granted:?}");
}
