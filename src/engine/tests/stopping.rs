//! A process that must stop while the store is unreachable.

use super::{faulty::Faulty, *};
use crate::store::StoppableStore;

/// Longest time until a run ends after Ctrl-C if only the store is unreachable.
const SOON: Duration = Duration::from_secs(5);

/// Counts a fault-free run's store requests.
async fn requests(world: &World, run: impl AsyncFn(&World, &Engine, &Control)) -> usize {
    let store = Faulty::of(world);
    run(world, &world.process_on("alice", store.clone()), &Control { timeout: Duration::from_secs(40), ..control() })
        .await;
    let mut counted = 0;
    store.plan(|plan| counted = plan.requests);
    counted
}

/// The store falls silent at each request of a run, and the process must stop then.
async fn ends_soon(name: &str, world: impl AsyncFn() -> World, run: impl AsyncFn(&World, &Engine, &Control)) {
    let all = requests(&world().await, &run).await;
    assert!(all > 3, "{name}: {all} requests");
    let mut late = Vec::new();
    for first in 0..all {
        let world = world().await;
        let store = Faulty::of(&world);
        let control = control();
        store.plan(|plan| {
            plan.silent_from = Some(first);
            plan.stop = control.stop.clone();
        });
        let (stop, clock) = (control.stop.clone(), world.clock.clone());
        let alice = world.process_on("alice", Arc::new(StoppableStore::new(store, stop, clock)));
        let stopped = async {
            control.stop.cancelled().await;
            Instant::now()
        };
        let (asked, ()) = tokio::join!(stopped, run(&world, &alice, &control));
        if asked.elapsed() > SOON {
            late.push((first, asked.elapsed()));
        }
    }
    assert!(late.is_empty(), "{name}: request without an answer, and the time until the end: {late:?}");
}

/// Another process has the server.
async fn held() -> World {
    let world = World::new();
    world.process("bob").hold(&wish("his", spec()), &control()).await.unwrap();
    world
}

async fn free() -> World {
    World::new()
}

#[tokio::test(start_paused = true)]
async fn a_waiter_ends_soon() {
    ends_soon("waits", held, async |_, engine, control| {
        let _ = engine.hold(&wish("mine", spec()), control).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_hold_ends_soon() {
    ends_soon("boots", free, async |_, engine, control| {
        let _ = engine.hold(&wish("mine", boots_rescue()), control).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_release_ends_soon() {
    let holding = async || {
        let world = World::new();
        world.process("alice").hold(&wish("mine", boots_rescue()), &control()).await.unwrap();
        world
    };
    ends_soon("releases", holding, async |world, engine, control| {
        let uid = only(world).await.uid;
        let _ = engine.release(&uid, "node", Ending::Completed, control).await;
    })
    .await;
}

/// After a stop, all requests without an answer share one limit, however far apart they come.
#[tokio::test(start_paused = true)]
async fn requests_after_a_stop_share_one_limit() {
    let world = World::new();
    let silent = Faulty::of(&world);
    silent.plan(|plan| plan.silent_from = Some(0));
    let stop = CancellationToken::new();
    let store = StoppableStore::new(silent, stop.clone(), world.clock.clone());
    stop.cancel();
    let mut waited = Duration::ZERO;
    for _ in 0..10 {
        let began = Instant::now();
        store.view_all().await.unwrap_err();
        waited += began.elapsed();
        tokio::time::sleep(Duration::from_secs(11)).await;
    }
    assert!(waited < SOON, "{waited:?}");
}
