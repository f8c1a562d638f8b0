//! A step's wait is recorded for readers of the queue.

use super::*;

/// Returns the only maintenance's wait, as the queue shows it.
async fn told(world: &World) -> String {
    world.process("reader").queue().await.unwrap().remove(0).waiting_for.unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn what_a_step_waits_for_is_told_by_the_queue_with_few_commits() {
    let world = World::new();
    world.machine.with(|inside| inside.shutdown_takes = Some(Duration::from_mins(2)));
    let engine = Arc::new(world.process("a"));
    let holding = tokio::spawn({
        let engine = Arc::clone(&engine);
        async move { engine.hold(&wish("one", Spec { server_power: Some(PowerTarget::Off), ..spec() }), &control()).await }
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    let at_first = told(&world).await;
    assert!(at_first.ends_with("setting the power"), "a short wait is not worth a commit: {at_first}");
    tokio::time::sleep(Duration::from_secs(9)).await;
    let waits = told(&world).await;
    assert!(waits.contains("setting the power: graceful, forced at"), "{waits}");

    // An unchanged wait is not written again.
    let (key, before) = (only(&world).await.lock_key, *world.store.changes(&only(&world).await.lock_key).borrow());
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(*world.store.changes(&key).borrow(), before);
    holding.await.unwrap().unwrap();
    assert_eq!(told(&world).await, "", "it is held");
    assert!(!serde_json::to_string(&only(&world).await).unwrap().contains("waits_for"));
}
