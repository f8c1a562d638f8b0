//! In-place changes to a held maintenance.

use super::*;
use crate::{
    maintenance::{lock::Refusal, update::Undone},
    shown::AsRaw,
};

fn power(power: PowerTarget) -> Spec {
    Spec { server_power: Some(power), ..spec() }
}

fn hasty() -> Control {
    Control { timeout: Duration::from_secs(20), ..control() }
}

fn is_held(record: &crate::maintenance::state::Maintenance) -> bool {
    matches!(record.phase, Phase::InMaintenance { .. }) && record.update.is_none()
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_refused_touches_nothing() {
    let world = World::new();
    let engine = world.process("alice");
    let held = engine.hold(&wish("m", power(PowerTarget::Off)), &control()).await.unwrap();
    let resets = world.machine.with(|inside| inside.resets.clone());
    world.machine.with(|inside| inside.no_drives = true);
    let driven = engine.resume(&held.record.uid, &wish("m", boots_rescue()), &control()).await.unwrap().unwrap();
    let Finish::NotUpdated { cause, undone: Undone::NothingChanged } = &driven.finish else { panic!("{driven:?}") };
    assert!(cause.raw().contains("virtual"), "{cause}");
    assert!(is_held(&driven.record));
    assert_eq!((&driven.record.spec, &driven.record.digest), (&held.record.spec, &held.record.digest));
    assert_eq!(world.machine.with(|inside| inside.resets.clone()), resets);
    assert_eq!(release(&engine, &driven).await.finish, Finish::Over);
    assert_as_before(&world.machine);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_fails_is_undone_and_the_server_stays_held() {
    let world = World::new();
    let engine = world.process("alice");
    let held = engine.hold(&wish("m", power(PowerTarget::Off)), &control()).await.unwrap();
    world.machine.with(|inside| inside.ignores_power = true);
    let driven = engine.resume(&held.record.uid, &wish("m", power(PowerTarget::On)), &hasty()).await.unwrap().unwrap();
    let Finish::NotUpdated { cause, undone: Undone::Done } = &driven.finish else { panic!("{driven:?}") };
    assert!(cause.raw().contains("timeouts.update"), "{cause}");
    assert!(is_held(&driven.record));
    assert_eq!(driven.record.spec.server_power, Some(PowerTarget::Off));
    let view = world.store.view(&held.record.lock_key).await.unwrap();
    assert_eq!(view.lock.slot.as_ref().map(|slot| &slot.uid), Some(&held.record.uid));
    world.machine.with(|inside| inside.ignores_power = false);
    // The same change succeeds after the machine obeys.
    let again = engine.resume(&held.record.uid, &wish("m", power(PowerTarget::On)), &control()).await.unwrap().unwrap();
    assert_eq!(again.finish, Finish::Reached);
    assert_eq!(again.record.spec.server_power, Some(PowerTarget::On));
    assert_eq!(release(&engine, &again).await.finish, Finish::Over);
    assert_as_before(&world.machine);
}

/// The next action after a process died during a change.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Continue,
    GoBack,
    Destroy,
}

/// Changes a held server up to the given machine call and dies there. Another process continues.
async fn dies_at_update(call: usize, after: bool, then: Then) -> bool {
    let what = format!("died at call {call}, after: {after}, then {then:?}");
    let world = World::new();
    let first = Arc::new(world.process("first"));
    let held = first.hold(&wish("m", power(PowerTarget::Off)), &control()).await.unwrap();
    let made = world.machine.calls.load(Ordering::SeqCst);
    *world.machine.hang_at.lock().unwrap() = Some((made + call, after));
    let (doomed, uid) = (first.clone(), held.record.uid.clone());
    let doomed = tokio::spawn(async move {
        doomed.resume(&uid, &wish("m", power(PowerTarget::On)), &control()).await.map(|driven| driven.is_some())
    });
    while !doomed.is_finished() && !world.machine.hangs.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let reached = doomed.is_finished();
    if !reached {
        doomed.abort();
        first.lease.resign().await;
    }
    *world.machine.hang_at.lock().unwrap() = None;
    let second = world.process("second");
    if then != Then::Destroy {
        let target = if then == Then::Continue { PowerTarget::On } else { PowerTarget::Off };
        let driven = second.resume(&held.record.uid, &wish("m", power(target)), &control()).await.unwrap().unwrap();
        assert_eq!(driven.finish, Finish::Reached, "{what}");
        assert!(is_held(&driven.record), "{what}: {driven:?}");
        let shown = world.machine.with(|inside| inside.power.and_then(PowerState::settled));
        assert_eq!((shown, driven.record.spec.server_power), (Some(target), Some(target)), "{what}");
    }
    let released = second.release(&held.record.uid, "node", Ending::Completed, &control()).await.unwrap().unwrap();
    assert_eq!(released.finish, Finish::Over, "{what}");
    assert_as_before(&world.machine);
    !reached
}

#[tokio::test(start_paused = true)]
async fn a_process_that_dies_in_a_change_is_continued_undone_or_released() {
    for then in [Then::Continue, Then::GoBack, Then::Destroy] {
        for after in [false, true] {
            let mut call = 1;
            while Box::pin(dies_at_update(call, after, then)).await {
                call += 1;
            }
            assert!(call > 3, "only {call} calls were walked");
        }
    }
}

fn of_state(state: &str, adopt: bool) -> MaintenanceRequest {
    MaintenanceRequest {
        asking: AskingState { state: state.into(), adopt, ..AskingState::default() },
        ..wish("m", spec())
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_a_state_manages_is_taken_over_only_on_purpose() {
    let world = World::new();
    let (one, two) = (world.process("one"), world.process("two"));
    let held = one.hold(&of_state("a", false), &control()).await.unwrap();
    // The create's last commit has marked it.
    assert_eq!(held.record.known_to.as_ref().map(|known| known.state.raw()), Some("a"));
    let refused = two.hold(&of_state("b", false), &control()).await.unwrap_err();
    assert!(matches!(refused, EngineError::Refused(Refusal::KnownToAnother { .. })), "{refused}");
    let refused = two.release_for("b", &held.record.uid, "node", Ending::Completed, &control()).await.unwrap_err();
    assert!(matches!(refused, EngineError::Refused(Refusal::KnownToAnother { .. })), "{refused}");
    let adopted = two.hold(&of_state("b", true), &control()).await.unwrap();
    let marked = adopted.record.known_to.as_ref().map(|known| known.state.raw());
    assert_eq!((&adopted.record.uid, marked), (&held.record.uid, Some("b")));
    let refused = one.release_for("a", &held.record.uid, "node", Ending::Completed, &control()).await.unwrap_err();
    assert!(matches!(refused, EngineError::Refused(Refusal::KnownToAnother { .. })), "{refused}");
    let released = two.release_for("b", &held.record.uid, "node", Ending::Completed, &control()).await.unwrap();
    assert_eq!(released.unwrap().finish, Finish::Over);
}

#[tokio::test(start_paused = true)]
async fn a_release_by_a_person_stands_and_a_block_keeps_everything_away() {
    let world = World::new();
    let (engine, person) = (world.process("ci"), world.process("carol"));
    let held = engine.hold(&wish("m", spec()), &control()).await.unwrap();
    let (id, seen) = (held.record.id.clone(), held.record.generation);
    let block = Some(Duration::from_hours(4));
    person.force_release(&id, seen, "node needed", block, &control()).await.unwrap();
    let refused = engine.hold(&wish("m", spec()), &control()).await.unwrap_err();
    let EngineError::Refused(Refusal::ReleasedBefore { released }) = &refused else { panic!("{refused}") };
    assert!(released.to_string().contains("carol") && released.reason == "node needed", "{released}");
    // Another run of the work is accepted, and waits until the block ends.
    let triggers = [("run".into(), "2".into())].into();
    let other = wish("m", Spec { triggers, ..spec() });
    let began = world.clock.now();
    let driven = engine.hold(&other, &Control { timeout: Duration::from_hours(5), ..control() }).await.unwrap();
    assert_eq!(driven.finish, Finish::Reached);
    assert!(world.clock.now().duration_since(began) >= jiff::SignedDuration::from_hours(4));
    release(&engine, &driven).await;
    assert!(engine.allow(&id).await.unwrap().is_empty(), "the first run already used the permission");
    let held = engine.hold(&wish("m", spec()), &control()).await.unwrap();
    person.force_release(&id, held.record.generation, "again", None, &control()).await.unwrap();
    assert_eq!(engine.forbidden(&id).await.unwrap().released.unwrap().reason, "again");
    assert_eq!(person.allow(&id).await.unwrap().released.len(), 1);
    let held = engine.hold(&wish("m", spec()), &control()).await.unwrap();
    release(&engine, &held).await;
}

#[tokio::test(start_paused = true)]
async fn what_acts_under_a_hold_is_its_owners_or_named_by_it() {
    let world = World::new();
    let engine = world.process("alice");
    let held = engine.hold(&wish("m", spec()), &control()).await.unwrap();
    let mut rival = world.process("bob");
    rival.parts.owner = "rivals".into();
    let under = Spec {
        kind: MaintenanceKind::BootConfiguration,
        parent: Some(held.record.uid.clone()),
        boot: Some(BootSpec { method: BootMethod::Pxe, image: None, ..boots_rescue().boot.unwrap() }),
        ..spec()
    };
    let refused = rival.hold(&wish("b", under.clone()), &control()).await.unwrap_err();
    assert!(matches!(refused, EngineError::Refused(Refusal::NotAllowedUnder { .. })), "{refused}");
    let allows = Spec { allow_under: vec!["rivals".into()], ..spec() };
    let driven = engine.resume(&held.record.uid, &wish("m", allows), &control()).await.unwrap().unwrap();
    assert_eq!(driven.finish, Finish::Reached);
    assert_eq!(rival.hold(&wish("b", under), &control()).await.unwrap().finish, Finish::Reached);
    assert_eq!(release(&engine, &driven).await.finish, Finish::Over);
    world.machine.with(|inside| assert_eq!(inside.boot.enabled.as_raw(), Some("Disabled")));
}
