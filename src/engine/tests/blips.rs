//! A store that does not answer one request, at each request of a run. The run continues, and
//! nothing is done twice.

use super::{
    faulty::{Faulty, Lost},
    *,
};
use crate::maintenance::operate::{CompletionProof, OperationSpec, WhenOff};

/// Compares a run without faults with runs that lose each request: all must end alike.
async fn ends_alike<T: PartialEq + std::fmt::Debug>(
    name: &str,
    world: impl AsyncFn() -> World,
    run: impl AsyncFn(&World, &Engine) -> T,
) {
    let ended = async |blip: Option<(usize, Lost)>| {
        let world = world().await;
        let store = Faulty::of(&world);
        store.plan(|plan| plan.blip = blip);
        let said = run(&world, &world.process_on("alice", store.clone())).await;
        let mut requests = 0;
        store.plan(|plan| requests = plan.requests);
        (said, world.machine.with(|inside| (inside.resets.clone(), inside.booted_from.clone())), requests)
    };
    let (said, did, requests) = ended(None).await;
    assert!(requests > 3, "{name}: {requests} requests");
    let mut wrong = Vec::new();
    for lost in [Lost::Request, Lost::Reply] {
        for number in 0..requests {
            let (now_said, now_did, _) = ended(Some((number, lost))).await;
            if now_said != said || now_did != did {
                wrong.push(format!("{lost:?} {number}: {now_said:?} {now_did:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{name}: expected {said:?} {did:?}\n{}", wrong.join("\n"));
}

fn told(driven: Result<ReconcileResult, EngineError>) -> Result<(Finish, &'static str), String> {
    driven.map(|driven| (driven.finish, driven.record.phase.name())).map_err(|error| error.to_string())
}

#[tokio::test(start_paused = true)]
async fn a_hold_goes_on() {
    ends_alike(
        "hold",
        async || World::new(),
        async |_, engine| told(engine.hold(&wish("mine", boots_rescue()), &control()).await),
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_operation_goes_on_and_is_made_once() {
    let operation =
        OperationSpec { reset: ResetType::GracefulShutdown, when_off: WhenOff::Skip, proof: CompletionProof::Power };
    let spec = Spec { operation: Some(operation), ..Spec::new(MaintenanceKind::Operation, "node") };
    ends_alike(
        "operation",
        async || World::new(),
        async |_, engine| {
            let made = engine.hold(&wish("op", spec.clone()), &control()).await;
            let outcome = made.as_ref().ok().and_then(|made| made.record.outcome);
            (told(made), outcome)
        },
    )
    .await;
}

/// A server that `alice` booted and holds.
async fn held() -> World {
    let world = World::new();
    world.process("alice").hold(&wish("mine", boots_rescue()), &control()).await.unwrap();
    world
}

#[tokio::test(start_paused = true)]
async fn a_release_goes_on() {
    ends_alike("release", held, async |world, engine| {
        let uid = only(world).await.uid;
        match engine.release(&uid, "node", Ending::Completed, &control()).await.transpose() {
            Some(driven) => told(driven),
            // The last change's reply was lost: the record has ended.
            None => Ok((Finish::Over, "Completed")),
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_change_of_a_hold_goes_on() {
    let off = || Spec { server_power: Some(PowerTarget::Off), ..spec() };
    ends_alike("change", held, async |world, engine| {
        let uid = only(world).await.uid;
        told(engine.resume(&uid, &wish("mine", off()), &control()).await.map(Option::unwrap))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_of_one_run_goes_on() {
    let run = async |_: &World, engine: &Engine| {
        let opened = engine.open(&wish("mine", boots_rescue()), &control()).await;
        let closed = match &opened {
            Ok(opened) => Box::pin(engine.close_lock(&opened.record.uid, &control())).await.transpose().map(told),
            Err(_) => None,
        };
        (told(opened), closed)
    };
    Box::pin(ends_alike("lock", async || World::new(), run)).await;
}
