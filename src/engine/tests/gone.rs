//! States of the process that acted on a record before.

use super::*;
use crate::{engine::process, maintenance::ids::Uid};

/// Returns a record with an attached but idle process, whose lease lasts for `lease`.
async fn left_behind(world: &World, name: &str, mark: &str, lease: Duration) -> (Uid, Runner) {
    let engine = world.process(name);
    let runner = Runner { process: mark.to_owned(), ..engine.runner().clone() };
    let wish = MaintenanceRequest { wait_for: WaitFor::Enqueued, ..wish(name, spec()) };
    let held = Box::pin(engine.hold(&wish, &control())).await.unwrap();
    engine.store().renew(&runner, lease).await.unwrap();
    let token = crate::maintenance::ids::Token(uuid::Uuid::new_v4());
    let (key, uid) = (held.record.lock_key.clone(), held.record.uid.clone());
    let attach = &mut |lock: &mut crate::maintenance::lock::ServerLock,
                       leases: &crate::maintenance::lock::Leases,
                       now| lock.attach(&uid, runner.clone(), token, leases, now).map(drop);
    engine.store().transact(&key, attach).await.unwrap();
    (uid, runner)
}

async fn is_alive(world: &World, runner: &Runner) -> bool {
    let view = world.store.view_all().await.unwrap().remove(0);
    view.leases.0.get(&runner.id).is_some_and(|until| *until > view.now)
}

/// Returns a killed process's mark.
#[cfg(target_os = "linux")]
fn mark_of_the_dead() -> String {
    let mut marked = process::tests::Marked::start();
    marked.child.kill().unwrap();
    marked.child.wait().unwrap();
    marked.mark.clone()
}

#[cfg(target_os = "linux")]
#[tokio::test(start_paused = true)]
async fn only_the_process_of_the_record_that_is_taken_over_loses_its_lease() {
    let world = World::new();
    let dead = mark_of_the_dead();
    let lease = Duration::from_secs(25);
    let (_, first) = left_behind(&world, "first", &dead, lease).await;
    let (_, second) = left_behind(&world, "second", &dead, lease).await;
    let began = Instant::now();
    let driven = world.process("first").hold(&wish("first", spec()), &control()).await.unwrap();
    assert_eq!(driven.finish, Finish::Reached);
    assert!(began.elapsed() < lease, "the first process's end was detected");
    assert!(!is_alive(&world, &first).await || began.elapsed() > lease);
    assert!(is_alive(&world, &second).await, "no request touched its record");
}

#[cfg(target_os = "linux")]
#[tokio::test(start_paused = true)]
async fn a_process_that_runs_is_not_waited_for() {
    let world = World::new();
    let mark = process::own_mark();
    left_behind(&world, "first", &mark, Duration::from_secs(25)).await;
    let began = Instant::now();
    let refused = world.process("first").hold(&wish("first", spec()), &control()).await;
    assert!(matches!(refused, Err(EngineError::Refused(_))), "{refused:?}");
    assert!(began.elapsed() < Duration::from_secs(1));
    process::end_mark(&mark);
}

/// A changed wall clock can show any end for a lease.
#[tokio::test(start_paused = true)]
async fn the_wait_for_a_silent_process_is_bounded() {
    let hours = Duration::from_hours(5);
    for (control, longest) in [
        (control(), Tuning::default().lease),
        (Control { timeout: Duration::from_secs(4), ..control() }, Duration::from_secs(4)),
    ] {
        let world = World::new();
        left_behind(&world, "first", "an older form", hours).await;
        let began = Instant::now();
        let refused = world.process("first").hold(&wish("first", spec()), &control).await;
        assert!(matches!(refused, Err(EngineError::Refused(_))), "{refused:?}");
        assert!(began.elapsed() <= longest + Duration::from_secs(1), "{:?}", began.elapsed());
    }
}
