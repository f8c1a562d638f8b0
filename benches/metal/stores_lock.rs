//! One maintenance's store operations, in the engine's order.
use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use terraform_provider_metal::{
    maintenance::{
        change::RecordChange,
        decide::{Decision, DecisionInput, Goal, Objective, decide},
        ids::{Fence, LockKey, MaintenanceId, Runner, Token, Uid},
        lock::{AskingState, EnqueueRequest, Leases, Refusal, ServerLock},
        power::Limits,
        prepare::Facts,
        queue::{Turn, turn},
        spec::{MaintenanceKind, Spec, WaitFor},
        state::{Ending, Phase},
    },
    store::{Store, StoreError},
};
use tokio_util::task::AbortOnDropHandle;

/// The engine's own values.
pub const TTL: Duration = Duration::from_secs(30);
const AGING: Duration = Duration::from_hours(24);
const SAY_AGAIN: Duration = Duration::from_mins(1);

/// A queue position and the right to act on it.
#[derive(Clone, Debug)]
pub struct Place {
    pub key: LockKey,
    pub uid: Uid,
    pub generation: Fence,
}

/// Creates a process's request, with a new uid.
pub fn request(name: &str, runner: &Runner) -> EnqueueRequest {
    EnqueueRequest {
        gates: Vec::new(),
        uid: Uid::new(uuid::Uuid::now_v7().to_string()),
        id: MaintenanceId::new("bench", name).unwrap(),
        owner: "bench".into(),
        spec: Spec::new(MaintenanceKind::Maintenance, "node"),
        runner: runner.clone(),
        keeps_place: false,
        location: None,
        asking: AskingState::default(),
    }
}

/// Applies a transition and returns its result.
async fn apply<T: Send>(
    store: &dyn Store,
    key: &LockKey,
    mut change: impl FnMut(&mut ServerLock, &Leases, Timestamp) -> Result<T, Refusal> + Send,
) -> Result<T, StoreError> {
    let mut said = None;
    store
        .transact(key, &mut |lock, leases, now| {
            said = Some(change(lock, leases, now)?);
            Ok(())
        })
        .await?;
    Ok(said.unwrap())
}

/// Joins the queue and attaches. The process needs a lease.
pub async fn join(store: &dyn Store, key: &LockKey, request: &EnqueueRequest) -> Place {
    let joined = apply(store, key, |lock, leases, now| {
        let uid = lock.enqueue(request.clone(), leases, now)?.uid().clone();
        let generation = lock.attach(&uid, request.runner.clone(), Token::default(), leases, now)?;
        Ok((uid, generation))
    });
    let (uid, generation) = joined.await.unwrap();
    Place { key: key.clone(), uid, generation }
}

/// Acquires the lock if this record is next in the queue.
pub async fn try_admit(store: &dyn Store, place: &Place) -> bool {
    let admitted = apply(store, &place.key, |lock, leases, now| {
        lock.drop_absent(leases, now);
        if turn(lock, leases, &place.uid, AGING, now) != Turn::Yours {
            return Ok(false);
        }
        lock.admit(&place.uid, place.generation, Phase::InMaintenance { since: now }, now)?;
        Ok(true)
    });
    admitted.await.unwrap()
}

/// Waits for the lock and acquires it.
pub async fn admit(store: &Arc<dyn Store>, place: &Place) {
    let mut changes = store.changes(&place.key);
    let mut said = String::new();
    let (facts, limits) = (Facts::default(), Limits::default());
    let intent = Objective { goal: Goal::Hold(WaitFor::InMaintenance), stop: false, timed_out: false, waited: None };
    loop {
        changes.borrow_and_update();
        let view = store.view(&place.key).await.unwrap();
        let decision = decide(&DecisionInput {
            lock: &view.lock,
            leases: &view.leases,
            now: view.now,
            queue: &view.queue,
            uid: &place.uid,
            fence: place.generation,
            intent: &intent,
            facts: &facts,
            limits: &limits,
            aging: AGING,
        });
        match decision {
            Decision::Change(RecordChange::Admit(_)) => {
                if try_admit(&**store, place).await {
                    return;
                }
            }
            Decision::Wait { reason, wake, .. } => {
                said.clone_from(&reason);
                let wake = wake.and_then(|at| Duration::try_from(at.duration_since(view.now)).ok());
                let limit = wake.map_or(SAY_AGAIN, |wake| wake.clamp(Duration::from_millis(10), SAY_AGAIN));
                let _ = tokio::time::timeout(limit, changes.changed()).await;
            }
            other => panic!("a waiter waits or is admitted: {other:?}"),
        }
    }
}

pub async fn finish(store: &dyn Store, place: &Place) {
    let finished = apply(store, &place.key, |lock, _, now| {
        let over = Phase::Completed { at: now, ending: Ending::Completed };
        lock.finish(&place.uid, place.generation, &over, now)
    });
    finished.await.unwrap();
}

/// Renews a process's lease until the value is dropped.
pub async fn keep_alive(store: Arc<dyn Store>, runner: Runner) -> AbortOnDropHandle<()> {
    store.renew(&runner, TTL).await.unwrap();
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            tokio::time::sleep(TTL / 3).await;
            store.renew(&runner, TTL).await.unwrap();
        }
    }))
}
