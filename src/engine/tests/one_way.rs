//! A store that answers reads but stores no changes, beginning at any change of a run.

use super::{
    faulty::{Faulty, OneWay},
    *,
};
use crate::store::StoreError;

/// Time limits of the runs, and the store's share after them.
const LIMIT: Duration = Duration::from_secs(45);
const RELEASE_LIMIT: Duration = Duration::from_secs(20);
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// Margin for requests with a last try, pauses and one read from the server.
const SLACK: Duration = Duration::from_secs(3);

fn limited() -> Control {
    Control { timeout: LIMIT, release_timeout: RELEASE_LIMIT, ..control() }
}

type Ended = Result<Option<ReconcileResult>, EngineError>;

/// The store becomes one-way at each change of a run, in each way. The run ends at its limit plus
/// the store's timeout, without a request loop, and its error names the store. A new process
/// continues after the store recovers.
async fn ends_in_time(
    name: &str,
    world: impl AsyncFn() -> World,
    run: impl AsyncFn(&World, &Engine, &Control) -> Ended,
) {
    let all = {
        let (world, mut changes) = (world().await, 0);
        let store = Faulty::of(&world);
        let engine = world.process_on("alice", store.clone());
        let _ = run(&world, &engine, &limited()).await;
        engine.close().await;
        store.plan(|plan| changes = plan.changes);
        changes
    };
    assert!(all > 2, "{name}: {all} changes");
    for how in [OneWay::Rejects, OneWay::Hangs, OneWay::Denies] {
        for first in 0..all {
            let world = world().await;
            let store = Faulty::of(&world);
            store.plan(|plan| plan.one_way = Some((first, how)));
            let alice = world.process_on("alice", store.clone());
            let began = Instant::now();
            let ended = run(&world, &alice, &limited()).await;
            alice.close().await;
            let took = began.elapsed();
            let limit = LIMIT + RELEASE_LIMIT + STORE_TIMEOUT + SLACK;
            assert!(took <= limit, "{name}, {how:?} from change {first} on: {took:?}");
            if let Err(error) = &ended {
                let said = error.to_string();
                assert!(said.contains("the disk is full") || said.contains("time limit"), "{said}");
                assert!(
                    how != OneWay::Denies || took < LIMIT,
                    "{name}, {first}: a denied change is not repeated: {took:?}: {said}"
                );
            }
            // The next run is a new process, after the first process's lease.
            tokio::time::sleep(Duration::from_mins(1)).await;
            let again = world.process("alice");
            let _ = run(&world, &again, &control())
                .await
                .unwrap_or_else(|error| panic!("{name}, {how:?}, {first}: {error}"));
            again.close().await;
        }
    }
}

async fn free() -> World {
    World::new()
}

#[tokio::test(start_paused = true)]
async fn a_hold_ends_in_time_on_a_one_way_store() {
    ends_in_time("boots", free, async |_, engine, control| {
        engine.hold(&wish("mine", boots_rescue()), control).await.map(Some)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_ends_in_time_on_a_one_way_store() {
    let held = async || {
        let world = World::new();
        world.process("bob").hold(&wish("his", spec()), &control()).await.unwrap();
        world
    };
    ends_in_time("waits", held, async |_, engine, control| engine.hold(&wish("mine", spec()), control).await.map(Some))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_release_ends_in_time_on_a_one_way_store() {
    let holding = async || {
        let world = World::new();
        world.process("alice").hold(&wish("mine", boots_rescue()), &control()).await.unwrap();
        world
    };
    ends_in_time("releases", holding, async |world, engine, control| {
        let Some(uid) = world.store.view_all().await.unwrap().first().map(|view| view.lock.active[0].uid.clone())
        else {
            return Ok(None);
        };
        engine.release(&uid, "node", Ending::Completed, control).await
    })
    .await;
}

/// If a run changed the server, its error names the record.
#[tokio::test(start_paused = true)]
async fn the_error_names_the_fault_and_the_record() {
    let world = World::new();
    let store = Faulty::of(&world);
    let control = limited();
    world.process("alice").hold(&wish("mine", boots_rescue()), &control).await.unwrap();
    store.plan(|plan| plan.one_way = Some((4, OneWay::Rejects)));
    let uid = only(&world).await.uid;
    let error = world.process_on("alice", store).release(&uid, "node", Ending::Completed, &control).await.unwrap_err();
    let EngineError::StoreLost { id, cause } = &error else { panic!("{error}") };
    assert_eq!(id.to_string(), "ops/mine");
    assert!(matches!(**cause, StoreError::Unwritable { .. }), "{cause}");
}
