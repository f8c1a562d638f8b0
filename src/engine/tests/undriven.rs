//! Undriven attachments end, although their process lives.

use super::{
    faulty::{Faulty, Plan},
    *,
};
use crate::store::Store;

/// Two heartbeats of the default lease.
const TWO_BEATS: Duration = Duration::from_secs(21);

/// Ways in which a create fails after its enqueue was committed, while patience lasts.
const FAILURES: [fn(&mut Plan, usize); 2] = [|plan, times| plan.finds = times, |plan, times| plan.replies = times];

/// Runs a request that fails in one of these ways.
async fn fails(engine: &Engine, store: &Faulty, failure: fn(&mut Plan, usize), name: &str) {
    store.plan(|plan| failure(plan, usize::MAX));
    let failed = engine.hold(&wish(name, spec()), &control()).await;
    assert!(matches!(failed, Err(EngineError::Store(_))), "{failed:?}");
    store.plan(|plan| failure(plan, 0));
}

#[tokio::test(start_paused = true)]
async fn the_same_process_goes_on_with_what_it_left_undriven() {
    for failure in FAILURES {
        let world = World::new();
        let store = Faulty::of(&world);
        let alice = world.process_on("alice", store.clone());
        fails(&alice, &store, failure, "mine").await;
        let left = only(&world).await;
        assert!(left.attachment.is_some(), "the commit succeeded");
        let again = alice.hold(&wish("mine", spec()), &control()).await.unwrap();
        assert_eq!((again.finish, again.record.uid), (Finish::Reached, left.uid));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_create_keeps_no_server_from_others_while_its_process_lives_on() {
    for failure in FAILURES {
        let world = World::new();
        let store = Faulty::of(&world);
        let alice = world.process_on("alice", store.clone());
        fails(&alice, &store, failure, "mine").await;
        tokio::time::sleep(TWO_BEATS).await;
        let left = only(&world).await;
        assert_eq!(left.attachment, None, "nothing drives it");
        // The queue position expires, and then the server is free for others.
        let bob = world.process("bob");
        let began = Instant::now();
        let driven = bob.hold(&wish("his", spec()), &control()).await.unwrap();
        assert_eq!(driven.finish, Finish::Reached);
        assert!(began.elapsed() <= spec().hold_place_for, "{:?}", began.elapsed());
        alice.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_detach_that_did_not_arrive_is_made_up_for() {
    let world = World::new();
    let store = Faulty::of(&world);
    let alice = world.process_on("alice", store.clone());
    store.plan(|plan| plan.detaches = 1);
    let held = alice.hold(&wish("mine", spec()), &control()).await.unwrap();
    assert_eq!(held.finish, Finish::Reached);
    assert!(only(&world).await.attachment.is_some());
    tokio::time::sleep(TWO_BEATS).await;
    assert_eq!(only(&world).await.attachment, None);
    alice.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_drive_that_panicked_or_was_dropped_lets_go() {
    for panics in [true, false] {
        let world = World::new();
        let alice = Arc::new(world.process("alice"));
        world.machine.with(|inside| inside.panics = panics);
        let (driver, wish) = (Arc::clone(&alice), wish("mine", boots_rescue()));
        let drive = tokio::spawn(async move { driver.hold(&wish, &control()).await.map(drop) });
        if panics {
            assert!(drive.await.unwrap_err().is_panic());
        } else {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drive.abort();
            assert!(drive.await.unwrap_err().is_cancelled());
        }
        world.machine.with(|inside| inside.panics = false);
        assert!(only(&world).await.attachment.is_some());
        tokio::time::sleep(TWO_BEATS).await;
        assert_eq!(only(&world).await.attachment, None);
        let again = alice.hold(&self::wish("mine", boots_rescue()), &control()).await.unwrap();
        assert_eq!(again.finish, Finish::Reached);
    }
}

/// A driven record stays attached, however often the process detaches from others on the same
/// server.
#[tokio::test(start_paused = true)]
async fn what_is_driven_stays_attached() {
    let world = World::new();
    let store = Faulty::of(&world);
    let alice = Arc::new(world.process_on("alice", store.clone()));
    alice.hold(&wish("holds", spec()), &control()).await.unwrap();
    let waiter = Arc::clone(&alice);
    let waiting = tokio::spawn(async move { waiter.hold(&wish("waits", spec()), &control()).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    fails(&alice, &store, FAILURES[0], "fails").await;
    tokio::time::sleep(TWO_BEATS * 3).await;
    let view = world.store.view_all().await.unwrap().remove(0);
    let attached: Vec<_> = view.lock.active.iter().filter(|record| record.attachment.is_some()).collect();
    assert_eq!(attached.iter().map(|record| record.id.name()).collect::<Vec<_>>(), ["waits"]);
    let twice = alice.hold(&wish("waits", spec()), &control()).await;
    assert!(matches!(twice, Err(EngineError::Refused(_))), "two resources of one name: {twice:?}");
    assert!(!waiting.is_finished());
    waiting.abort();
}
