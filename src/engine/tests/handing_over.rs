//! Handover from one maintenance to the next without a restore.

use tokio::task::JoinHandle;

use super::{giving_back::off, *};
use crate::maintenance::hand_over::HandOver;

fn direct(spec: Spec) -> Spec {
    Spec { hand_over: HandOver::Direct, ..spec }
}

fn processes(world: &World) -> (Arc<Engine>, Arc<Engine>, Arc<Engine>) {
    let process = |name| Arc::new(world.process(name));
    (process("first"), process("second"), process("third"))
}

/// Starts a run that waits for the server. Returns after it is queued.
async fn waits(engine: &Arc<Engine>, name: &'static str, spec: Spec) -> JoinHandle<ReconcileResult> {
    let asker = Arc::clone(engine);
    let run = tokio::spawn(async move { asker.hold(&wish(name, spec), &control()).await.unwrap() });
    let id = wish(name, self::spec()).id;
    while engine.held_by_name(&id).await.unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    run
}

#[tokio::test(start_paused = true)]
async fn the_next_one_takes_the_server_as_it_is_and_restores_the_first_state() {
    let world = World::new();
    let (first, second, third) = processes(&world);
    let held = first.hold(&wish("a", direct(off())), &control()).await.unwrap();
    let next = waits(&second, "b", direct(boots_rescue())).await;
    let last = waits(&third, "c", direct(spec())).await;
    let queue = second.queue().await.unwrap();
    let told: Vec<_> = queue.iter().map(|line| line.hand_over.as_deref()).collect();
    assert_eq!(told, [Some("to ops/b unchanged"), Some("from ops/a unchanged"), None]);
    let before = world.machine.with(|inside| inside.resets.len());

    let over = release(&first, &held).await;
    assert_eq!((over.finish, over.record.handed_to.unwrap().to_string()), (Finish::Over, "ops/b".to_owned()));
    world.machine.with(|inside| assert_eq!((inside.power, inside.resets.len()), (Some(PowerState::Off), before)));
    let held = next.await.unwrap();
    assert_eq!(held.finish, Finish::Reached);
    assert_eq!(held.record.prior.as_ref().unwrap().power, PowerState::On, "of before the first");
    world.machine.with(|inside| assert_eq!(inside.booted_from.last().map(String::as_str), Some(IMAGE)));

    assert_eq!(release(&second, &held).await.finish, Finish::Over);
    world.machine.with(|inside| assert_eq!(inside.image.as_deref(), Some(IMAGE), "it still runs the rescue system"));
    let held = last.await.unwrap();
    assert_eq!(held.record.took_over.as_ref().unwrap().to_string(), "ops/b");
    let over = release(&third, &held).await;
    assert_eq!((over.finish, over.record.handed_to), (Finish::Over, None));
    assert_as_before(&world.machine);
    assert_eq!(world.store.view(&held.record.lock_key).await.unwrap().lock.active, []);
}

#[tokio::test(start_paused = true)]
async fn it_is_restored_unless_both_sides_and_everything_between_want_it_as_it_is() {
    for (from, to, between) in [
        (off(), direct(spec()), None),
        (direct(off()), spec(), None),
        (direct(off()), direct(spec()), Some(spec())),
        (direct(off()), direct(spec()), Some(Spec { priority: 1, ..spec() })),
    ] {
        let world = World::new();
        let (first, second, third) = processes(&world);
        let held = first.hold(&wish("a", from.clone()), &control()).await.unwrap();
        let mut runs = Vec::new();
        if let Some(between) = between.clone() {
            runs.push(waits(&third, "between", between).await);
        }
        runs.push(waits(&second, "b", to.clone()).await);
        let over = release(&first, &held).await;
        assert_eq!(over.record.handed_to, None, "{from:?} {to:?} {between:?}");
        let machine = world.machine.with(|inside| inside.power);
        assert_eq!(machine, Some(PowerState::On), "{from:?} {to:?} {between:?}");
        for run in runs {
            let held = run.await.unwrap();
            assert_eq!(held.record.took_over, None);
            release(&second, &held).await;
        }
        assert_as_before(&world.machine);
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_restores_the_state_before_the_first() {
    let world = World::new();
    let (first, second, _) = processes(&world);
    let held = first.hold(&wish("a", direct(off())), &control()).await.unwrap();
    let next = waits(&second, "b", direct(boots_rescue())).await;
    *world.probe.image.lock().unwrap() =
        Some(ProbeError::Status { url: IMAGE.into(), found: 404, expected: "200".into() });
    release(&first, &held).await;
    let failed = next.await.unwrap();
    assert!(matches!(failed.record.phase, Phase::Failed { .. }), "{:?}", failed.record.phase);
    assert_as_before(&world.machine);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_away_gets_nothing_and_a_forced_release_restores() {
    let world = World::new();
    let (first, second, _) = processes(&world);
    let held = first.hold(&wish("a", direct(off())), &control()).await.unwrap();
    let place = MaintenanceRequest { wait_for: WaitFor::Enqueued, ..wish("b", direct(spec())) };
    second.hold(&place, &control()).await.unwrap();
    assert_eq!(release(&first, &held).await.record.handed_to, None);
    assert_as_before(&world.machine);
    second.release(&second.active(&place.id).await.unwrap().uid, "node", Ending::Completed, &control()).await.unwrap();

    let held = first.hold(&wish("c", direct(off())), &control()).await.unwrap();
    let next = waits(&second, "d", direct(spec())).await;
    let seen = held.record.generation;
    let over = first.force_release(&held.record.id, seen, "stuck", None, &control()).await.unwrap();
    assert_eq!((over.finish, over.record.handed_to), (Finish::Over, None));
    let held = next.await.unwrap();
    assert_eq!(held.record.took_over, None);
    release(&second, &held).await;
    assert_as_before(&world.machine);
}
