//! Owners, windows and operations on simulated time. The event that ends a wait wakes the waiter.

use jiff::Timestamp;

use super::*;
use crate::maintenance::{
    ids::Uid,
    operate::{CompletionProof, OperationOutcome, OperationSpec, WhenOff},
    spec::Policy,
    window::{OnClose, WindowSpec},
};

/// The simulated clock starts at 10:00 UTC.
fn window(schedule: &str, minutes: u64, on_close: OnClose) -> WindowSpec {
    WindowSpec {
        schedule: schedule.into(),
        duration: Duration::from_mins(minutes),
        time_zone: "UTC".into(),
        exclude: Vec::new(),
        exclude_periods: Vec::new(),
        min_remaining: Duration::from_mins(10),
        on_close,
    }
}

fn patient() -> Control {
    Control { timeout: Duration::from_hours(100), ..control() }
}

pub(super) fn asks() -> Spec {
    Spec { policy: Policy::OwnerApproval, ..spec() }
}

fn owner(world: &World) -> Engine {
    let process = world.process("owner");
    Engine::new(Parts { owner: "owners".into(), ..process.parts })
}

pub(super) async fn claimed(world: &World) -> (Engine, LockKey) {
    let owner = owner(world);
    let id = MaintenanceId::new("db", "a").unwrap();
    let (key, _) = owner.claim(&ClaimWish { id, server: "node".into(), contact: None }).await.unwrap();
    (owner, key)
}

pub(super) fn yes(maintenance: Option<&str>) -> ApprovalWish {
    let maintenance = maintenance.map(|name| MaintenanceId::new("ops", name).unwrap());
    ApprovalWish { maintenance, digest: None, not_before: None, expires: None }
}

fn began(driven: &ReconcileResult) -> Timestamp {
    driven.record.admitted_at.unwrap()
}

fn at(time: &str) -> Timestamp {
    format!("2026-11-21T{time}Z").parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn it_starts_at_the_moment_when_its_window_opens() {
    let world = World::new();
    let engine = world.process("alice");
    let windowed = Spec { window: Some(window("30 12 * * *", 60, OnClose::Finish)), ..spec() };
    let held = engine.hold(&wish("m", windowed), &patient()).await.unwrap();
    assert_eq!(held.finish, Finish::Reached);
    let late = began(&held).duration_since(at("12:30:00"));
    assert!(late.as_secs() == 0 && !late.is_negative(), "{late}");
}

#[tokio::test(start_paused = true)]
async fn too_little_of_an_opening_is_left_alone() {
    let world = World::new();
    let engine = world.process("alice");
    // Open from 09:00 to 10:05; the maintenance needs ten minutes.
    let windowed = Spec { window: Some(window("0 9 * * *", 65, OnClose::Finish)), ..spec() };
    let held = engine.hold(&wish("m", windowed), &patient()).await.unwrap();
    assert_eq!(began(&held).duration_since("2026-11-22T09:00:00Z".parse().unwrap()).as_secs(), 0);
}

#[tokio::test(start_paused = true)]
async fn closing_stops_new_starts_only() {
    let world = World::new();
    let engine = world.process("alice");
    let windowed = Spec { window: Some(window("0 10 * * *", 30, OnClose::Finish)), ..spec() };
    let held = engine.hold(&wish("m", windowed), &patient()).await.unwrap();
    tokio::time::sleep(Duration::from_hours(2)).await;
    assert!(!engine.held(&held.record.uid).await.unwrap().unwrap().record.is_overdue(engine.now()));
    // A waiter behind it waits for the release and ignores the clock.
    let next =
        engine.hold(&wish("next", spec()), &Control { timeout: Duration::from_mins(5), ..control() }).await.unwrap();
    assert!(matches!(next.finish, Finish::TimedOut(_)));
    assert_eq!(release(&engine, &held).await.finish, Finish::Over);
}

#[tokio::test(start_paused = true)]
async fn closing_gives_back_where_it_says_so() {
    let world = World::new();
    let engine = world.process("alice");
    let off = Spec { server_power: Some(PowerTarget::Off), ..spec() };
    let windowed = Spec { window: Some(window("0 10 * * *", 30, OnClose::Release)), ..off };
    let held = engine.hold(&wish("m", windowed), &patient()).await.unwrap();
    assert_eq!(held.record.expires_at(), Some(at("10:30:00")));
    let next = engine.hold(&wish("next", spec()), &patient()).await.unwrap();
    assert_eq!(next.finish, Finish::Reached);
    assert!(began(&next) >= at("10:30:00"), "{}", began(&next));
    let over = engine.held(&held.record.uid).await.unwrap().unwrap();
    assert!(matches!(over.record.phase, Phase::Completed { ending: Ending::Expired, .. }));
    assert_as_before(&world.machine);
}

#[tokio::test(start_paused = true)]
async fn preparing_that_outlasts_its_window_is_undone_where_it_says_so() {
    let world = World::new();
    let engine = world.process("alice");
    *world.probe.image.lock().unwrap() = None;
    world.machine.with(|inside| inside.ignores_power = true);
    let mut limits = engine.parts.tuning;
    limits.limits.graceful_shutdown = Duration::from_mins(45);
    let engine = Engine::new(Parts { tuning: limits, ..engine.parts });
    let off = Spec { server_power: Some(PowerTarget::Off), ..spec() };
    let windowed = Spec { window: Some(window("0 10 * * *", 30, OnClose::Release)), ..off };
    let failed = engine.hold(&wish("m", windowed), &patient()).await.unwrap();
    let Phase::Failed { cause, at: ended } = &failed.record.phase else { panic!("{:?}", failed.record.phase) };
    assert!(cause.shown().contains("its window closed"), "{cause}");
    // Fails after the sent shutdown can no longer take effect.
    assert!(*ended >= at("10:45:00") && *ended < at("10:50:00"), "{ended}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_wakes_who_waits_for_it() {
    let world = World::new();
    let (owner, key) = claimed(&world).await;
    let asker = Arc::new(world.process("asker"));
    let waiting = {
        let asker = asker.clone();
        tokio::spawn(async move { asker.hold(&wish("m", asks()), &patient()).await.unwrap() })
    };
    tokio::time::sleep(Duration::from_mins(7)).await;
    assert!(owner.approve(&key, &Uid::new("a"), &yes(Some("other"))).await.is_err(), "no request exists for it");
    assert!(!waiting.is_finished());
    owner.approve(&key, &Uid::new("b"), &yes(Some("m"))).await.unwrap();
    let held = waiting.await.unwrap();
    assert_eq!(began(&held).duration_since(at("10:07:00")).as_secs(), 0);
    // A withdrawal after the start changes nothing.
    assert!(owner.withdraw_approval(&key, &Uid::new("b")).await.unwrap());
    assert!(asker.held(&held.record.uid).await.unwrap().unwrap().active);
    release(&asker, &held).await;
    // The next run requires a new approval.
    let again =
        asker.hold(&wish("m", asks()), &Control { timeout: Duration::from_mins(1), ..control() }).await.unwrap();
    assert!(
        matches!(&again.finish, Finish::TimedOut(reason) if reason.raw().contains("approval by owners")),
        "{:?}",
        again.finish
    );
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_it_escalates_when_it_said() {
    let world = World::new();
    let _owner = claimed(&world).await;
    let asker = world.process("asker");
    let escalates = Spec { escalate_after: Some(Duration::from_hours(72)), ..asks() };
    let held = asker.hold(&wish("m", escalates), &patient()).await.unwrap();
    assert_eq!(began(&held).duration_since("2026-11-24T10:00:00Z".parse().unwrap()).as_secs(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_approval_counts_from_its_time_on_and_until_it_expires() {
    let world = World::new();
    let (owner, key) = claimed(&world).await;
    let from = ApprovalWish { not_before: Some(at("11:00:00")), expires: Some(at("12:00:00")), ..yes(None) };
    owner.approve(&key, &Uid::new("a"), &from).await.unwrap();
    let asker = world.process("asker");
    let held = asker.hold(&wish("m", asks()), &patient()).await.unwrap();
    assert_eq!(began(&held).duration_since(at("11:00:00")).as_secs(), 0);
    release(&asker, &held).await;
    tokio::time::sleep(Duration::from_mins(90)).await;
    let late = asker.hold(&wish("m", asks()), &Control { timeout: Duration::from_mins(1), ..control() }).await.unwrap();
    assert!(matches!(&late.finish, Finish::TimedOut(reason) if reason.raw().contains("expired")), "{:?}", late.finish);
}

fn restart() -> Spec {
    let operation =
        OperationSpec { reset: ResetType::GracefulShutdown, when_off: WhenOff::Skip, proof: CompletionProof::Power };
    Spec { operation: Some(operation), ..Spec::new(MaintenanceKind::Operation, "node") }
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_dies_at_any_call_is_made_once() {
    for after in [false, true] {
        let mut call = 1;
        loop {
            let world = World::new();
            *world.machine.hang_at.lock().unwrap() = Some((call, after));
            let first = Arc::new(world.process("first"));
            let doomed = {
                let first = first.clone();
                tokio::spawn(async move { first.hold(&wish("op", restart()), &control()).await.map(|d| d.finish) })
            };
            while !doomed.is_finished() && !world.machine.hangs.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let died = !doomed.is_finished();
            doomed.abort();
            first.lease.resign().await;
            *world.machine.hang_at.lock().unwrap() = None;
            let second = world.process("second");
            let made = second.hold(&wish("op", restart()), &control()).await.unwrap();
            assert_eq!(made.finish, Finish::Reached, "died at call {call}, after: {after}");
            assert_eq!(made.record.outcome, Some(OperationOutcome::Proven), "died at call {call}, after: {after}");
            world.machine.with(|inside| {
                assert_eq!(inside.resets, [ResetType::GracefulShutdown], "died at call {call}, after: {after}");
            });
            // The operation has released the server, and its destroy neither waits nor contacts the
            // server.
            let other = second.hold(&wish("other", spec()), &control()).await.unwrap();
            assert_eq!(other.finish, Finish::Reached);
            assert_eq!(release(&second, &made).await.finish, Finish::Over);
            if !died {
                break;
            }
            call += 1;
        }
        assert!(call > 4, "only {call} calls were walked");
    }
}
