//! Calls that take effect after their reply, and child records of a maintenance that stopped
//! midway.

use super::*;

/// How a run ends during the server's shutdown.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// It is interrupted, and a later run destroys the maintenance.
    InterruptThenDestroy,
    /// `timeouts.create` ends.
    CreateTimesOut,
    /// It dies, and a person releases the maintenance by force.
    ForcedRelease,
    /// It dies, and a person ends the maintenance without a restore while the next maintenance
    /// waits.
    AcceptedAsIs,
}

async fn ends_during_shutdown(takes: Duration, after: Duration, end: End) {
    let case = format!("a shutdown of {takes:?}, {end:?} after {after:?}");
    let world = World::new();
    world.machine.with(|inside| inside.shutdown_takes = Some(takes));
    let off = Spec { server_power: Some(PowerTarget::Off), ..spec() };
    let engine = Arc::new(world.process("first"));
    let first = Control { timeout: if end == End::CreateTimesOut { after } else { control().timeout }, ..control() };
    let stop = first.stop.clone();
    let run = tokio::spawn({
        let engine = Arc::clone(&engine);
        async move { engine.hold(&wish("off", off), &first).await }
    });
    let id = MaintenanceId::new("ops", "off").unwrap();
    let person = world.process("person");
    if end != End::CreateTimesOut {
        tokio::time::sleep(after).await;
    }
    match end {
        End::InterruptThenDestroy => {
            stop.cancel();
            let driven = run.await.unwrap().unwrap();
            if matches!(driven.record.phase, Phase::Preparing(_) | Phase::InMaintenance { .. }) {
                assert_eq!(release(&person, &driven).await.finish, Finish::Over, "{case}");
            }
        }
        End::CreateTimesOut => {
            let driven = run.await.unwrap().unwrap();
            if matches!(driven.record.phase, Phase::InMaintenance { .. }) {
                release(&person, &driven).await;
            }
        }
        End::ForcedRelease => {
            run.abort();
            let record = person.active(&id).await.unwrap();
            person.force_release(&id, record.generation, "needed", None, &control()).await.unwrap();
        }
        End::AcceptedAsIs => {
            run.abort();
            let next = tokio::spawn({
                let engine = world.process("next");
                async move { engine.hold(&wish("next", spec()), &control()).await.unwrap() }
            });
            let record = person.active(&id).await.unwrap();
            person.release_without_restore(&id, record.generation, "broken", None, &control()).await.unwrap();
            let next = next.await.unwrap();
            let found = world.machine.power();
            tokio::time::sleep(takes * 2).await;
            assert_eq!(world.machine.power(), found, "{case}: the server changed under the next maintenance");
            assert_eq!(next.finish, Finish::Reached, "{case}");
            return;
        }
    }
    // Every sent call has taken effect by now, and the server is restored.
    tokio::time::sleep(takes * 2 + Duration::from_mins(5)).await;
    assert_eq!(world.machine.power(), PowerState::On, "{case}");
    let view = world.store.view(&LockKey::new("11111111-uuid")).await.unwrap();
    assert_eq!(view.lock.slot, None, "{case}");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_that_was_sent_meets_neither_the_restore_nor_the_next_maintenance() {
    for takes in [4, 40, 140] {
        for after in [1, 3, 20] {
            for end in [End::InterruptThenDestroy, End::CreateTimesOut, End::ForcedRelease, End::AcceptedAsIs] {
                Box::pin(ends_during_shutdown(Duration::from_secs(takes), Duration::from_secs(after), end)).await;
            }
        }
    }
}

/// A maintenance with a ready boot configuration as its child.
async fn hold_with_boot(engine: &Engine) -> (ReconcileResult, ReconcileResult) {
    let hold = engine.hold(&wish("hold", spec()), &control()).await.unwrap();
    let under =
        Spec { kind: MaintenanceKind::BootConfiguration, parent: Some(hold.record.uid.clone()), ..boots_rescue() };
    let boot = engine.hold(&wish("hold.boot", under), &control()).await.unwrap();
    (hold, boot)
}

#[tokio::test(start_paused = true)]
async fn a_boot_configuration_ends_under_a_hold_that_was_left_in_an_update() {
    let world = World::new();
    let engine = world.process("alice");
    let (hold, boot) = hold_with_boot(&engine).await;
    let stopped = Control { timeout: Duration::from_hours(1), ..control() };
    let stop = stopped.stop.clone();
    let resumes = Arc::new(world.process("update"));
    let update = tokio::spawn({
        let (engine, uid) = (Arc::clone(&resumes), hold.record.uid.clone());
        let off = Spec { server_power: Some(PowerTarget::Off), ..spec() };
        async move { engine.resume(&uid, &wish("hold", off), &stopped).await.unwrap().unwrap() }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    stop.cancel();
    let left = update.await.unwrap();
    assert!(matches!(left.record.phase, Phase::Preparing(_)), "{:?}", left.record.phase);
    let destroy = Control { timeout: Duration::from_mins(10), ..control() };
    let child = engine.release(&boot.record.uid, "node", Ending::Completed, &destroy).await.unwrap().unwrap();
    assert_eq!(child.finish, Finish::Over);
    let parent = engine.release(&hold.record.uid, "node", Ending::Completed, &destroy).await.unwrap().unwrap();
    assert_eq!(parent.finish, Finish::Over);
    assert_as_before(&world.machine);
}

#[tokio::test(start_paused = true)]
async fn a_boot_configuration_ends_with_a_hold_whose_release_is_stuck() {
    let world = World::new();
    let engine = world.process("alice");
    let (hold, boot) = hold_with_boot(&engine).await;
    world.machine.with(|inside| inside.deaf = true);
    let short = Control { timeout: Duration::from_mins(2), ..control() };
    let _ = engine.release(&hold.record.uid, "node", Ending::Completed, &short).await;
    let record = engine.held(&hold.record.uid).await.unwrap().unwrap().record;
    assert!(matches!(record.phase, Phase::Releasing { stuck: Some(_), .. }), "{:?}", record.phase);
    world.machine.with(|inside| inside.deaf = false);
    let child = engine.release(&boot.record.uid, "node", Ending::Completed, &short).await.unwrap().unwrap();
    assert_eq!(child.finish, Finish::Over);
    let parent = engine.release(&hold.record.uid, "node", Ending::Completed, &control()).await.unwrap().unwrap();
    assert_eq!(parent.finish, Finish::Over);
    assert_as_before(&world.machine);
}
