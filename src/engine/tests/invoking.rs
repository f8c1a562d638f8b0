//! Invoked operations, performed once per invocation however a run ends, and locks for one run.

use super::*;
use crate::maintenance::operate::{CompletionProof, OperationOutcome, OperationSpec, WhenOff};

fn operation(reset: ResetType, trigger: &str) -> Spec {
    let triggers = (!trigger.is_empty()).then(|| ("n".into(), trigger.into()));
    let operation = OperationSpec { reset, when_off: WhenOff::Skip, proof: CompletionProof::Power };
    let triggers = triggers.into_iter().collect();
    Spec { operation: Some(operation), triggers, ..Spec::new(MaintenanceKind::Operation, "node") }
}

async fn made(engine: &Engine, spec: Spec) -> ReconcileResult {
    match engine.invoke(&wish("op", spec), &control()).await.unwrap() {
        Invoked::Driven(driven) => driven,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_invocation_that_dies_at_any_call_is_made_once() {
    for after in [false, true] {
        let mut call = 1;
        loop {
            let world = World::new();
            *world.machine.hang_at.lock().unwrap() = Some((call, after));
            let first = Arc::new(world.process("first"));
            let doomed = {
                let first = first.clone();
                let wish = wish("op", operation(ResetType::ForceOff, ""));
                tokio::spawn(async move { first.invoke(&wish, &control()).await.map(|_| ()) })
            };
            while !doomed.is_finished() && !world.machine.hangs.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let died = !doomed.is_finished();
            doomed.abort();
            first.lease.resign().await;
            *world.machine.hang_at.lock().unwrap() = None;
            let second = world.process("second");
            // Another reason or priority is the same invocation.
            let again = Spec { reason: Some("again".into()), ..operation(ResetType::ForceOff, "") };
            let record = match second.invoke(&wish("op", again), &control()).await.unwrap() {
                Invoked::MadeBefore(record) => record,
                Invoked::Driven(driven) => driven.record,
                other @ Invoked::NotEnded(_) => panic!("{other:?}"),
            };
            assert_eq!(record.outcome, Some(OperationOutcome::Proven), "died at call {call}, after: {after}");
            world.machine.with(|inside| {
                assert_eq!(inside.resets, [ResetType::ForceOff], "died at call {call}, after: {after}");
            });
            if !died {
                break;
            }
            call += 1;
        }
        assert!(call > 3, "only {call} calls were walked");
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_stands_for_its_triggers_and_its_content() {
    let world = World::new();
    let engine = world.process("alice");
    made(&engine, operation(ResetType::ForceOff, "1")).await;
    let again = engine.invoke(&wish("op", operation(ResetType::ForceOff, "1")), &control()).await.unwrap();
    assert!(matches!(again, Invoked::MadeBefore(_)), "{again:?}");
    made(&engine, operation(ResetType::On, "1")).await;
    made(&engine, operation(ResetType::On, "2")).await;
    let last = made(&engine, operation(ResetType::ForceOff, "2")).await;
    world.machine.with(|inside| assert_eq!(inside.resets, [ResetType::ForceOff, ResetType::On, ResetType::ForceOff]));
    engine.forget_made(&last.record, &control()).await.unwrap();
    // The server is off: the operation runs again without sending anything.
    let skipped = made(&engine, operation(ResetType::ForceOff, "2")).await;
    assert_eq!(skipped.record.outcome, Some(OperationOutcome::Skipped));
}

#[tokio::test(start_paused = true)]
async fn a_plan_knows_what_an_invocation_meets() {
    let world = World::new();
    let engine = world.process("alice");
    let first = made(&engine, operation(ResetType::ForceOff, "1")).await.record;
    // Older than a plan's cached read.
    tokio::time::sleep(Duration::from_mins(1)).await;
    let again = Spec { reason: Some("again".into()), ..operation(ResetType::ForceOff, "1") };
    let met = engine.earlier_invocation(&first.id, &again).await;
    assert!(matches!(&met, Some(EarlierInvocation::Made(record)) if record.uid == first.uid), "{met:?}");
    for other in [operation(ResetType::ForceOff, "2"), operation(ResetType::On, "1")] {
        let met = engine.earlier_invocation(&first.id, &other).await;
        assert!(matches!(&met, Some(EarlierInvocation::Other(record)) if record.uid == first.uid), "{met:?}");
    }
    // A resource adopts an identical operation, unless its state replaces it.
    let same = operation(ResetType::ForceOff, "1");
    assert!(engine.made_before(&first.id, &same).await.is_some());
    assert!(engine.made_before(&first.id, &again).await.is_none());
    engine.note_managed(&first.uid);
    assert!(engine.made_before(&first.id, &same).await.is_none());
    let mut other = world.process("bob");
    other.parts.owner = "others".into();
    assert!(other.earlier_invocation(&first.id, &same).await.is_none());
    assert!(other.made_before(&first.id, &same).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_a_person_releases_after_it_was_made_is_made_again() {
    let world = World::new();
    let (first, person) = (world.process("first"), world.process("person"));
    let record = made(&first, operation(ResetType::ForceOff, "1")).await.record;
    first.lease.resign().await;
    person.force_release(&record.id, record.generation, "again", None, &control()).await.unwrap();
    let again = made(&person, operation(ResetType::ForceOff, "1")).await.record;
    // The server is off, so nothing is sent.
    assert_eq!((again.uid == record.uid, again.outcome), (false, Some(OperationOutcome::Skipped)));
}

#[tokio::test(start_paused = true)]
async fn a_record_of_another_owner_or_kind_is_never_ended() {
    let world = World::new();
    let engine = world.process("alice");
    let held = engine.hold(&wish("op", spec()), &control()).await.unwrap();
    let refused = engine.invoke(&wish("op", operation(ResetType::ForceOff, "")), &control()).await;
    assert!(matches!(refused, Err(EngineError::Refused(_))), "{refused:?}");
    release(&engine, &held).await;
    made(&engine, operation(ResetType::ForceOff, "1")).await;
    let mut other = world.process("bob");
    other.parts.owner = "others".into();
    let refused = other.invoke(&wish("op", operation(ResetType::On, "2")), &control()).await;
    assert!(matches!(refused, Err(EngineError::Refused(_))), "{refused:?}");
    world.machine.with(|inside| assert_eq!(inside.resets, [ResetType::ForceOff]));
}

#[tokio::test(start_paused = true)]
async fn a_listener_is_told_what_its_drive_waits_for_and_no_other() {
    let world = World::new();
    let (first, second) = (world.process("first"), world.process("second"));
    let held = first.hold(&wish("one", spec()), &control()).await.unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let lines = told.clone();
    let two = wish("two", spec());
    let listening = second.listen(&two.id, move |line| lines.lock().unwrap().push(line.to_owned()));
    let short = Control { timeout: Duration::from_mins(1), ..control() };
    second.hold(&two, &short).await.unwrap();
    assert!(told.lock().unwrap()[0].starts_with("ops/two on node: queued, 1 ahead: ops/one"), "{told:?}");
    drop(listening);
    told.lock().unwrap().clear();
    release(&first, &held).await;
    second.hold(&two, &control()).await.unwrap();
    assert!(told.lock().unwrap().is_empty(), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn an_open_lock_outlives_its_expiry_while_its_process_lives() {
    let world = World::new();
    let (first, second) = (world.process("first"), world.process("second"));
    let expiring = Spec { expires_after: Some(Duration::from_mins(10)), ..boots_rescue() };
    let open = first.open(&wish("run", expiring.clone()), &control()).await.unwrap();
    let uid = open.record.uid.clone();
    tokio::time::sleep(Duration::from_hours(2)).await;
    // Another process with the same configuration is rejected immediately, because the first
    // process lives.
    let twice = second.open(&wish("run", expiring), &control()).await;
    assert!(matches!(twice, Err(EngineError::Refused(_))), "{twice:?}");
    let short = Control { timeout: Duration::from_mins(5), ..control() };
    let waited = second.hold(&wish("two", spec()), &short).await.unwrap();
    assert!(matches!(waited.finish, Finish::TimedOut(_)), "{:?}", waited.finish);
    assert!(first.is_open(&uid).await.unwrap().is_ok());
    let closed = Box::pin(first.close_lock(&uid, &control())).await.unwrap().unwrap();
    assert_eq!(closed.finish, Finish::Over);
    assert_as_before(&world.machine);
    assert!(Box::pin(first.close_lock(&uid, &control())).await.unwrap().is_none(), "closed twice");
}

#[tokio::test(start_paused = true)]
async fn the_open_lock_of_a_dead_process_is_adopted_before_and_reclaimed_after_its_expiry() {
    for adopted in [true, false] {
        let world = World::new();
        let first = world.process("first");
        let expiring = Spec { expires_after: Some(Duration::from_mins(10)), ..boots_rescue() };
        first.open(&wish("run", expiring.clone()), &control()).await.unwrap();
        first.lease.resign().await;
        let second = world.process("second");
        if adopted {
            let open = second.open(&wish("run", expiring), &control()).await.unwrap();
            assert_eq!(open.finish, Finish::Reached);
            world.machine.with(|inside| assert_eq!(inside.booted_from, [IMAGE], "booted again"));
            Box::pin(second.close_lock(&open.record.uid, &control())).await.unwrap();
        } else {
            let driven = second.hold(&wish("two", spec()), &control()).await.unwrap();
            assert_eq!(driven.finish, Finish::Reached);
            assert!(driven.record.admitted_at.unwrap() >= "2026-11-21T10:10:00Z".parse().unwrap());
        }
        assert_as_before(&world.machine);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_opened_is_restored() {
    let world = World::new();
    let engine = Arc::new(world.process("alice"));
    let stop = CancellationToken::new();
    *world.machine.hang_at.lock().unwrap() = Some((12, true));
    let opening = {
        let (engine, control) = (engine.clone(), Control { stop: stop.clone(), ..control() });
        tokio::spawn(async move { engine.open(&wish("run", boots_rescue()), &control).await.unwrap() })
    };
    while !world.machine.hangs.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
    *world.machine.hang_at.lock().unwrap() = None;
    let driven = opening.await.unwrap();
    assert_eq!(driven.finish, Finish::Interrupted);
    assert!(matches!(driven.record.phase, Phase::Failed { .. }), "{:?}", driven.record.phase);
    world.machine.with(|inside| assert_eq!((inside.power, &inside.image), (Some(PowerState::On), &None)));
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_released_by_force_is_not_closed_again() {
    let world = World::new();
    let (first, person) = (world.process("first"), world.process("person"));
    let open = first.open(&wish("run", boots_rescue()), &control()).await.unwrap();
    let (uid, seen) = (open.record.uid.clone(), open.record.generation);
    person.force_release(&open.record.id, seen, "needed", None, &control()).await.unwrap();
    let resets = world.machine.with(|inside| inside.resets.clone());
    let other = person.hold(&wish("two", spec()), &control()).await.unwrap();
    let lost = first.is_open(&uid).await.unwrap().unwrap_err().unwrap();
    assert!(matches!(lost.phase, Phase::Completed { ending: Ending::Released { .. }, .. }), "{:?}", lost.phase);
    assert!(Box::pin(first.close_lock(&uid, &control())).await.unwrap().is_none());
    assert_eq!(world.machine.with(|inside| inside.resets.clone()), resets);
    assert_eq!(release(&person, &other).await.finish, Finish::Over);
}
