//! A replaced process sends nothing more, and its successor waits for its last call.

use super::{faulty::Faulty, *};

#[tokio::test(start_paused = true)]
async fn a_heartbeat_after_the_check_of_the_store_does_not_count_for_the_call() {
    let world = World::new();
    let slow = Faulty::of(&world);
    slow.plan(|plan| plan.slow_intent = Some(Tuning::default().lease + Duration::from_secs(10)));
    let alice = world.process_on("alice", slow);
    let preparing = tokio::spawn(async move { alice.hold(&wish("off", giving_back::off()), &control()).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let operator = world.process("carol");
    let id = MaintenanceId::new("ops", "off").unwrap();
    let seen = operator.active(&id).await.unwrap().generation;
    let released = operator.force_release(&id, seen, "node needed", None, &control()).await.unwrap();
    assert_eq!(released.finish, Finish::Over);
    let said = preparing.await.unwrap();
    assert!(matches!(said, Err(EngineError::LeaseLost(_))), "{said:?}");
    world.machine.with(|inside| assert_eq!(inside.resets, []));
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_predecessor_survives_the_process_that_waits() {
    let world = World::new();
    world.machine.with(|inside| inside.ignores_graceful = true);
    let alice = world.process("alice");
    tokio::spawn(async move { alice.hold(&wish("rescue", boots_rescue()), &control()).await });
    tokio::time::sleep(Duration::from_secs(11)).await;
    let (impatient, again) = (world.process("carol"), world.process("dave"));
    let id = MaintenanceId::new("ops", "rescue").unwrap();
    let seen = impatient.active(&id).await.unwrap().generation;
    let taken = Instant::now();
    let stopped = control();
    stopped.stop.cancel();
    let interrupted = impatient.force_release(&id, seen, "node needed", None, &stopped).await.unwrap();
    assert_eq!((interrupted.finish, taken.elapsed()), (Finish::Interrupted, Duration::ZERO));
    let seen = again.active(&id).await.unwrap().generation;
    let released = again.force_release(&id, seen, "node needed", None, &control()).await.unwrap();
    assert_eq!(released.finish, Finish::Over);
    // Alice renewed a second earlier.
    assert!(taken.elapsed() + Duration::from_secs(1) >= Tuning::default().lease, "{:?}", taken.elapsed());
}

/// A call can consist of several requests. A process that is fenced between them sends no more.
#[tokio::test(start_paused = true)]
async fn a_call_of_several_requests_ends_where_its_process_was_replaced() {
    for replaced in [false, true] {
        let world = World::new();
        world.machine.with(|inside| inside.refuses_first_form = Some(Duration::from_secs(5)));
        let alice = world.process("alice");
        let preparing = tokio::spawn(async move { alice.hold(&wish("rescue", boots_rescue()), &control()).await });
        while world.machine.with(|inside| inside.forms) == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if !replaced {
            assert_eq!(preparing.await.unwrap().unwrap().finish, Finish::Reached);
            assert_eq!(world.machine.with(|inside| inside.forms), 2);
            continue;
        }
        let carol = world.process("carol");
        let id = MaintenanceId::new("ops", "rescue").unwrap();
        let seen = carol.active(&id).await.unwrap().generation;
        // Revokes the lock, and is stopped before it does anything.
        let stopped = control();
        stopped.stop.cancel();
        carol.force_release(&id, seen, "node needed", None, &stopped).await.unwrap();
        let said = preparing.await.unwrap();
        assert!(said.is_err() || said.is_ok_and(|driven| driven.finish == Finish::Lost));
        assert_eq!(world.machine.with(|inside| inside.forms), 1, "the second form was sent by a fenced process");
    }
}
