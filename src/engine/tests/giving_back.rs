//! Releases with obstacles. Each case is a former bug.

use super::*;
use crate::shown::AsRaw;

pub(super) fn off() -> Spec {
    Spec { server_power: Some(PowerTarget::Off), ..spec() }
}

#[tokio::test(start_paused = true)]
async fn a_busy_bmc_is_asked_again_before_the_power_is_cut() {
    let world = World::new();
    let engine = world.process("alice");
    world.machine.with(|inside| inside.busy_resets = 3);
    let held = engine.hold(&wish("m", off()), &control()).await.unwrap();
    assert_eq!(held.finish, Finish::Reached);
    world.machine.with(|inside| assert_eq!(inside.resets, [ResetType::GracefulShutdown]));
    release(&engine, &held).await;
    assert_as_before(&world.machine);
}

#[tokio::test(start_paused = true)]
async fn a_busy_bmc_is_asked_to_shut_down_again_however_short_a_shutdown_may_take() {
    let mut tuning = Tuning::default();
    tuning.limits.graceful_shutdown = Duration::from_secs(1);
    let world = World::new();
    let engine = world.process_with("alice", world.store.clone(), tuning);
    world.machine.with(|inside| inside.busy_resets = 3);
    let held = engine.hold(&wish("m", off()), &control()).await.unwrap();
    assert_eq!(held.finish, Finish::Reached);
    world.machine.with(|inside| assert_eq!(inside.resets.first(), Some(&ResetType::GracefulShutdown)));
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_power_is_not_known_is_not_switched() {
    for spec in [off(), boots_rescue(), Spec { server_power: None, ..boots_rescue() }] {
        let world = World::new();
        let engine = world.process("alice");
        world.machine.with(|inside| inside.hides_power = true);
        let failed = engine.hold(&wish("m", spec), &control()).await.unwrap();
        let Phase::Failed { cause, .. } = &failed.record.phase else { panic!("{:?}", failed.record.phase) };
        assert!(cause.shown().contains("no power state"), "{cause}");
        world.machine.with(|inside| {
            assert_eq!(inside.power, Some(PowerState::On));
            assert!(inside.resets.is_empty() && inside.image.is_none(), "nothing was changed");
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_time_limit_that_ends_a_wait_says_what_was_waited_for() {
    let world = World::new();
    let engine = world.process("alice");
    world.machine.with(|inside| inside.hides_power = true);
    let hasty = Control { timeout: Duration::from_secs(20), ..control() };
    let failed = engine.hold(&wish("m", off()), &hasty).await.unwrap();
    let Phase::Failed { cause, .. } = &failed.record.phase else { panic!("{:?}", failed.record.phase) };
    assert!(
        cause.shown().starts_with("timeouts.create ended at step 1/") && cause.shown().contains("; it shows no power"),
        "{cause}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_power_state_that_is_hidden_for_a_moment_is_waited_for() {
    let world = World::new();
    let engine = world.process("alice");
    world.machine.with(|inside| inside.hides_power = true);
    let machine = world.machine.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(40)).await;
        machine.with(|inside| inside.hides_power = false);
    });
    let held = engine.hold(&wish("m", off()), &control()).await.unwrap();
    assert_eq!(held.finish, Finish::Reached);
    assert_eq!(held.record.prior.as_ref().unwrap().power, PowerState::On);
    release(&engine, &held).await;
    assert_as_before(&world.machine);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_switches_nothing_needs_no_power_state() {
    let world = World::new();
    let engine = world.process("alice");
    world.machine.with(|inside| inside.hides_power = true);
    let held = engine.hold(&wish("m", spec()), &control()).await.unwrap();
    assert_eq!(held.finish, Finish::Reached);
    assert_eq!(release(&engine, &held).await.finish, Finish::Over);
    // A change that would switch the power is rejected, and the server stays locked.
    let held = engine.hold(&wish("m", spec()), &control()).await.unwrap();
    let changed = engine.resume(&held.record.uid, &wish("m", off()), &control()).await.unwrap().unwrap();
    assert!(matches!(changed.finish, Finish::NotUpdated { .. }), "{:?}", changed.finish);
    world.machine.with(|inside| assert!(inside.resets.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn an_overdue_hold_that_cannot_be_given_back_does_not_keep_a_waiter_for_ever() {
    let world = World::new();
    let first = world.process("first");
    let expiring = Spec { expires_after: Some(Duration::from_mins(10)), ..off() };
    first.hold(&wish("overdue", expiring), &control()).await.unwrap();
    first.close().await;
    tokio::time::sleep(Duration::from_mins(11)).await;
    world.machine.with(|inside| inside.ignores_power = true);
    let second = world.process("second");
    let waited = second.hold(&wish("next", spec()), &control()).await.unwrap();
    let Finish::TimedOut(reason) = &waited.finish else { panic!("{:?}", waited.finish) };
    assert!(reason.raw().contains("ops/overdue"), "{reason}");
    // After the restore succeeds, the waiter with the reserved position is next.
    world.machine.with(|inside| inside.ignores_power = false);
    let served = second.hold(&wish("next", spec()), &control()).await.unwrap();
    assert_eq!(served.finish, Finish::Reached);
    release(&second, &served).await;
    assert_as_before(&world.machine);
}

#[tokio::test(start_paused = true)]
async fn what_was_changed_before_the_last_look_is_put_back_by_the_next_destroy() {
    let world = World::new();
    let engine = world.process("alice");
    let held = engine.hold(&wish("m", off()), &control()).await.unwrap();
    // Another party inserts a medium after the rest was restored.
    let machine = world.machine.clone();
    let meddler = tokio::spawn(async move {
        while machine.power() != PowerState::On {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        machine.with(|inside| inside.image = Some("http://elsewhere/other.iso".into()));
    });
    let stuck = release(&engine, &held).await;
    meddler.await.unwrap();
    let Finish::Stuck(cause) = &stuck.finish else { panic!("{:?}", stuck.finish) };
    assert!(cause.raw().contains("virtual drive"), "{cause}");
    assert_eq!(release(&engine, &held).await.finish, Finish::Over);
    assert_as_before(&world.machine);
}

#[tokio::test(start_paused = true)]
async fn an_override_for_the_next_start_survives_the_start_that_gives_back() {
    let world = World::new();
    world.machine.with(|inside| {
        inside.boot.enabled = Some("Once".into());
        inside.boot.target = Some("Pxe".into());
    });
    let engine = world.process("alice");
    let held = engine.hold(&wish("m", boots_rescue()), &control()).await.unwrap();
    assert_eq!(held.finish, Finish::Reached);
    assert_eq!(release(&engine, &held).await.finish, Finish::Over);
    world.machine.with(|inside| {
        assert_eq!((inside.boot.enabled.as_raw(), inside.boot.target.as_raw()), (Some("Once"), Some("Pxe")));
        assert_eq!(inside.booted_from.last().map(String::as_str), Some("disk"), "it was not for our start");
    });
}

#[tokio::test(start_paused = true)]
async fn a_release_by_force_stops_who_acts_under_the_hold_and_what_was_booted_under_it() {
    let world = World::new();
    let (ours, operator) = (Arc::new(world.process("ours")), world.process("operator"));
    let hold = ours.hold(&wish("m", spec()), &control()).await.unwrap();
    let under =
        Spec { kind: MaintenanceKind::BootConfiguration, parent: Some(hold.record.uid.clone()), ..boots_rescue() };
    let booted = ours.hold(&wish("m.boot", under.clone()), &control()).await.unwrap();
    assert_eq!(booted.finish, Finish::Reached);
    // Another child change hangs in its first reset while the operator takes the server.
    let calls = world.machine.calls.load(Ordering::SeqCst);
    *world.machine.hang_at.lock().unwrap() = Some((calls + 4, false));
    let again = Spec { triggers: [("n".into(), "2".into())].into(), ..under };
    let acting = {
        let ours = ours.clone();
        tokio::spawn(async move { ours.hold(&wish("m.again", again), &control()).await.map(|driven| driven.finish) })
    };
    while !world.machine.hangs.load(Ordering::SeqCst) {
        assert!(!acting.is_finished(), "it sent fewer calls");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    *world.machine.hang_at.lock().unwrap() = None;
    let seen = operator.active(&hold.record.id).await.unwrap().generation;
    let released = operator.force_release(&hold.record.id, seen, "node needed", None, &control()).await.unwrap();
    assert_eq!(released.finish, Finish::Over);
    let left = acting.await.unwrap();
    assert!(matches!(left, Ok(Finish::Lost) | Err(_)), "{left:?}");
    assert_as_before(&world.machine);
    world.machine.with(|inside| {
        assert_eq!(inside.booted_from.last().map(String::as_str), Some("disk"), "the rescue system does not run on");
    });
}

#[tokio::test(start_paused = true)]
async fn going_on_with_another_wish_takes_the_steps_of_the_new_one() {
    let world = World::new();
    let engine = world.process("alice");
    world.machine.with(|inside| inside.ignores_graceful = true);
    let stopping = control();
    let stop = stopping.stop.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(20)).await;
        stop.cancel();
    });
    let interrupted = engine.hold(&wish("m", off()), &stopping).await.unwrap();
    assert_eq!(interrupted.finish, Finish::Interrupted);
    let resumed =
        engine.resume(&interrupted.record.uid, &wish("m", boots_rescue()), &control()).await.unwrap().unwrap();
    assert_eq!(resumed.finish, Finish::Reached);
    world.machine.with(|inside| assert_eq!(inside.booted_from, [IMAGE]));
    release(&engine, &resumed).await;
    assert_as_before(&world.machine);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_be_put_back_can_be_accepted_as_it_is() {
    let world = World::new();
    let (engine, operator) = (world.process("alice"), world.process("operator"));
    let held = engine.hold(&wish("m", off()), &control()).await.unwrap();
    world.machine.with(|inside| inside.ignores_power = true);
    assert!(matches!(release(&engine, &held).await.finish, Finish::Stuck(_)));
    let seen = operator.active(&held.record.id).await.unwrap().generation;
    let calls = world.machine.calls.load(Ordering::SeqCst);
    assert!(
        operator.release_without_restore(&held.record.id, seen + 1, "gone", None, &control()).await.is_err(),
        "another generation"
    );
    let (_, request) =
        operator.release_without_restore(&held.record.id, seen, "scrapped", None, &control()).await.unwrap();
    assert_eq!(request, None);
    assert_eq!(world.machine.calls.load(Ordering::SeqCst), calls, "the machine receives no call");
    let audit = world.store.audit(&held.record.id, 1).await.unwrap();
    assert!(audit[0].detail.shown().contains("scrapped; nothing was restored"), "{audit:?}");
    assert_eq!(operator.hold(&wish("next", spec()), &control()).await.unwrap().finish, Finish::Reached);
}

/// A BMC that briefly lists no drives has not emptied them.
#[tokio::test(start_paused = true)]
async fn a_drive_that_was_filled_and_is_not_listed_is_waited_for_and_not_left() {
    for (hidden, finish) in [(Duration::from_secs(40), true), (Duration::from_mins(30), false)] {
        let world = World::new();
        let engine = world.process("alice");
        let held = engine.hold(&wish("m", boots_rescue()), &control()).await.unwrap();
        world.machine.with(|inside| inside.no_drives = true);
        let machine = world.machine.clone();
        let shown = tokio::spawn(async move {
            tokio::time::sleep(hidden).await;
            machine.with(|inside| inside.no_drives = false);
        });
        let released = release(&engine, &held).await;
        if finish {
            assert_eq!(released.finish, Finish::Over);
        } else {
            let Finish::Stuck(cause) = &released.finish else { panic!("{:?}", released.finish) };
            assert!(cause.raw().contains("virtual drive Cd, which this maintenance used, is not listed"), "{cause}");
        }
        shown.await.unwrap();
        if !finish {
            assert_eq!(release(&engine, &held).await.finish, Finish::Over);
        }
        assert_as_before(&world.machine);
    }
}

/// Missing drives do not matter if no step used them: updated firmware can list none afterwards.
#[tokio::test(start_paused = true)]
async fn drives_that_nobody_used_may_be_gone_at_the_release() {
    let world = World::new();
    let engine = world.process("alice");
    let held = engine.hold(&wish("m", off()), &control()).await.unwrap();
    world.machine.with(|inside| inside.no_drives = true);
    assert_eq!(release(&engine, &held).await.finish, Finish::Over);
    assert_as_before(&world.machine);
}

/// A run that is interrupted before the BMC shows the medium does not leave it inserted: its
/// release waits for the medium.
#[tokio::test(start_paused = true)]
async fn a_medium_that_is_shown_late_does_not_stay_when_the_hold_is_left_meanwhile() {
    for leaves_after in [1, 5, 20] {
        let world = World::new();
        world.machine.with(|inside| inside.shows_media_after = Some(Duration::from_mins(1)));
        let engine = Arc::new(world.process("alice"));
        let first = control();
        let stop = first.stop.clone();
        let run = tokio::spawn({
            let engine = Arc::clone(&engine);
            async move { engine.hold(&wish("m", boots_rescue()), &first).await }
        });
        while world.machine.with(|inside| inside.image.is_none()) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::time::sleep(Duration::from_secs(leaves_after)).await;
        stop.cancel();
        let left = run.await.unwrap().unwrap();
        assert_eq!(left.finish, Finish::Interrupted, "after {leaves_after} s");
        let destroy = Control { timeout: Duration::from_mins(10), ..control() };
        let released = engine.release(&left.record.uid, "node", Ending::Completed, &destroy).await.unwrap().unwrap();
        assert_eq!(released.finish, Finish::Over, "after {leaves_after} s");
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_as_before(&world.machine);
    }
}
