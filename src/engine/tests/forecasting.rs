//! Plan and apply agree: for each generated lock state, a run sends the forecast calls, releases
//! the forecast maintenance, and ends as forecast.

use super::*;
use crate::maintenance::{
    approval::{Approval, Claim, Scope},
    forecast::{Coming, Outlook, Run, SeenServer},
    ids::Uid,
    lock::{Leases, Refusal, ServerLock},
    spec::Policy,
    window::{OnClose, WindowSpec},
};

/// The holder at plan time.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Holder {
    Nobody,
    /// A holder without expiry.
    Holds,
    /// Overdue without a process.
    Overdue,
    /// Overdue after a failed release.
    Stuck,
    /// A process drives it.
    Attended,
}

/// The waiter at plan time.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Waiter {
    Nobody,
    Disconnected,
    Present,
}

/// The answers of owner and window.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    NotAsked,
    Missing,
    Approved,
    Closed,
}

/// An earlier run's result.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Left {
    Nothing,
    Place,
}

fn expiring(spec: Spec) -> Spec {
    Spec { expires_after: Some(Duration::from_hours(1)), ..spec }
}

fn off() -> Spec {
    Spec { server_power: Some(PowerTarget::Off), ..spec() }
}

fn under(spec: Spec, says: Says) -> Spec {
    let window = WindowSpec {
        schedule: "0 3 * * *".into(),
        duration: Duration::from_hours(1),
        time_zone: "UTC".into(),
        exclude: Vec::new(),
        exclude_periods: Vec::new(),
        min_remaining: Duration::ZERO,
        on_close: OnClose::Finish,
    };
    match says {
        Says::NotAsked => spec,
        Says::Closed => Spec { window: Some(window), ..spec },
        Says::Missing | Says::Approved => Spec { policy: Policy::OwnerApproval, ..spec },
    }
}

async fn key(world: &World) -> LockKey {
    world.process("looks").lock_key_now("node").await.unwrap().unwrap()
}

/// Claims the server, and approves `spec` in the case `Approved`.
async fn claim(world: &World, says: Says, spec: &Spec) {
    let key = key(world).await;
    let digest = spec.digest();
    let mut claimed = |lock: &mut ServerLock, _: &Leases, now: jiff::Timestamp| -> Result<(), Refusal> {
        let id = MaintenanceId::new("db", "a").unwrap();
        let (uid, owner, server, by) = (Uid::new("c"), "db".into(), "node".into(), "db".into());
        lock.claim(Claim { uid, id, owner, contact: None, server, since: now, by }, now)?;
        if says != Says::Approved {
            return Ok(());
        }
        let scope = Scope::Maintenance { id: MaintenanceId::new("ops", "run").unwrap(), digest: digest.clone().into() };
        let (uid, by) = (Uid::new("a"), "db".into());
        lock.approve(Approval { uid, scope, not_before: None, expires: None, at: now, by, used_by: None }, "db", now)
    };
    world.store.transact(&key, &mut claimed).await.unwrap();
}

/// Creates the lock state; returns the tasks of living processes.
async fn set_up(world: &World, holder: Holder, spec: &Spec, waiter: Waiter) -> Vec<tokio::task::JoinHandle<()>> {
    let mut alive = Vec::new();
    let first = Arc::new(world.process("first"));
    match holder {
        Holder::Nobody => {}
        Holder::Holds => {
            first.hold(&wish("held", spec.clone()), &control()).await.unwrap();
        }
        Holder::Overdue | Holder::Stuck => {
            let held = first.hold(&wish("held", expiring(spec.clone())), &control()).await.unwrap();
            if holder == Holder::Stuck {
                world.machine.with(|inside| inside.deaf = true);
                let short = Control { timeout: Duration::from_secs(30), ..control() };
                let _ = first.release(&held.record.uid, "node", Ending::Completed, &short).await;
                world.machine.with(|inside| inside.deaf = false);
            }
            tokio::time::sleep(Duration::from_hours(2)).await;
        }
        Holder::Attended => {
            let ends = CompleteWhen::PowerState(PowerTarget::Off);
            let lasting = Spec { complete_when: Some(ends), ..expiring(self::spec()) };
            let wish = MaintenanceRequest { wait_for: WaitFor::Completed, ..wish("held", lasting) };
            alive.push(tokio::spawn(async move {
                let _ = first.hold(&wish, &Control { timeout: Duration::from_hours(9), ..control() }).await;
            }));
            tokio::time::sleep(Duration::from_mins(1)).await;
        }
    }
    let second = Arc::new(world.process("second"));
    match waiter {
        Waiter::Nobody => {}
        Waiter::Disconnected => {
            let blocked = under(self::spec(), Says::Closed);
            let short = Control { timeout: Duration::from_secs(1), ..control() };
            second.hold(&wish("waits", blocked), &short).await.unwrap();
        }
        Waiter::Present => {
            let waits = under(self::spec(), Says::Closed);
            alive.push(tokio::spawn(async move {
                let _ = second.hold(&wish("waits", waits), &control()).await;
            }));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
    alive
}

async fn active(world: &World, key: &LockKey) -> Vec<String> {
    let view = world.store.view(key).await.unwrap();
    view.lock.active.iter().map(|record| record.id.to_string()).collect()
}

async fn seen(world: &World) -> SeenServer {
    SeenServer {
        machine: Some(world.machine.observe().await.unwrap()),
        media: Some(world.machine.media(&[]).await.unwrap()),
        capabilities: Some(world.machine.capabilities().await.unwrap()),
    }
}

fn sent(steps: &[Coming]) -> Vec<String> {
    let calls = steps.iter().flat_map(|step| match step {
        Coming::Calls(action) => std::slice::from_ref(action),
        Coming::Reclaims(reclaimed) => &reclaimed.calls,
    });
    calls.map(ToString::to_string).collect()
}

async fn compare(holder: Holder, held: &Spec, waiter: Waiter, asked: &Spec, says: Says, left: Left) -> bool {
    let case = format!("{holder:?} {:?}, {waiter:?}, {:?}, {says:?}, {left:?}", held.effect(), asked.effect());
    let world = World::new();
    let alive = set_up(&world, holder, held, waiter).await;
    let asked = under(asked.clone(), says);
    claim(&world, says, &asked).await;
    if left == Left::Place {
        // Without time it only enqueues.
        let hasty = Control { timeout: Duration::ZERO, ..control() };
        let _ = world.process("earlier").hold(&wish("run", asked.clone()), &hasty).await;
    }
    let (key, caller) = (key(&world).await, world.process("caller"));
    let (view, made) = (world.store.view(&key).await.unwrap(), world.machine.with(|inside| inside.sent.len()));
    let (before, request) = (active(&world, &key).await, wish("run", asked));
    let intended = Intended { spec: &request.spec, id: Some(&request.id), replaces: None, adopt: false };
    let planned = caller.forecast_request(&view, &intended, seen(&world).await).await;
    let waits = planned.waits();
    let limit = Control { timeout: if waits { Duration::from_secs(2) } else { control().timeout }, ..control() };
    let done = caller.hold(&request, &limit).await;
    let calls = world.machine.with(|inside| inside.sent[made..].to_vec());
    assert_eq!(calls, sent(&planned.forecast.steps), "{case}: {:?}", planned.forecast);
    let after = active(&world, &key).await;
    let ended: Vec<_> = before.iter().filter(|id| !after.contains(id) && **id != request.id.to_string()).collect();
    let reclaimed = planned.forecast.steps.iter().filter_map(|step| match step {
        Coming::Reclaims(reclaimed) => Some(reclaimed.id.to_string()),
        Coming::Calls(_) => None,
    });
    let reclaimed: Vec<_> = reclaimed.collect();
    assert_eq!(ended, reclaimed.iter().collect::<Vec<_>>(), "{case}");
    match (&planned.forecast.outlook, &done) {
        (Outlook::Waits(_), Ok(driven)) => assert!(matches!(driven.finish, Finish::TimedOut(_)), "{case}: {driven:?}"),
        (Outlook::Finished(finish), Ok(driven)) => assert_eq!(finish, &driven.finish, "{case}"),
        (Outlook::Refused(refusal), Err(EngineError::Refused(refused))) => assert_eq!(refusal, refused, "{case}"),
        other => panic!("{case}: {other:?}"),
    }
    for task in alive {
        task.abort();
    }
    !reclaimed.is_empty()
}

/// Runs a case in its own runtime. Otherwise the heartbeats of all earlier cases run in its time.
fn alone<T>(case: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(case)
}

#[test]
fn a_create_does_what_its_plan_listed_in_every_state_of_the_lock() {
    let mut released = 0;
    for holder in [Holder::Nobody, Holder::Holds, Holder::Overdue, Holder::Stuck, Holder::Attended] {
        for held in [spec(), off(), boots_rescue()] {
            if matches!(holder, Holder::Nobody | Holder::Attended) && held != spec() {
                continue;
            }
            for waiter in [Waiter::Nobody, Waiter::Disconnected, Waiter::Present] {
                for says in [Says::NotAsked, Says::Missing, Says::Approved, Says::Closed] {
                    for asked in [spec(), off(), boots_rescue()] {
                        for left in [Left::Nothing, Left::Place] {
                            let reclaims = alone(compare(holder, &held, waiter, &asked, says, left));
                            released += usize::from(reclaims);
                        }
                    }
                }
            }
        }
    }
    assert!(released > 50, "only {released} cases released another maintenance");
}

#[tokio::test(start_paused = true)]
async fn a_change_and_a_destroy_do_what_their_plans_listed() {
    for from in [spec(), off(), boots_rescue()] {
        for to in [spec(), off(), boots_rescue()] {
            for says in [Says::NotAsked, Says::Missing, Says::Approved] {
                let case = format!("{:?} to {:?}, {says:?}", from.effect(), to.effect());
                let world = World::new();
                let (from, to) = (under(from.clone(), says), under(to.clone(), says));
                let engine = world.process("alice");
                let held = engine.hold(&wish("run", from), &control()).await.unwrap().record;
                claim(&world, says, &to).await;
                let view = world.store.view(&held.lock_key).await.unwrap();
                let made = world.machine.with(|inside| inside.sent.len());
                let wanted = engine.as_asked_here(&to);
                let run = Run::Change(&held.uid, &wanted);
                let planned = engine.forecast_run(&view, &run, &held.uid, seen(&world).await);
                let hasty = Control { timeout: Duration::from_mins(9), ..control() };
                let driven = engine.resume(&held.uid, &wish("run", to), &hasty).await.unwrap().unwrap();
                let calls = world.machine.with(|inside| inside.sent[made..].to_vec());
                assert_eq!(calls, sent(&planned.forecast.steps), "{case}: {:?}", planned.forecast);
                assert_eq!(planned.waits(), matches!(driven.finish, Finish::NotUpdated { .. }), "{case}");

                let view = world.store.view(&held.lock_key).await.unwrap();
                let made = world.machine.with(|inside| inside.sent.len());
                let planned = engine.forecast_run(&view, &Run::Release(&held.uid), &held.uid, seen(&world).await);
                assert_eq!(release(&engine, &driven).await.finish, Finish::Over, "{case}");
                let calls = world.machine.with(|inside| inside.sent[made..].to_vec());
                assert_eq!(calls, sent(&planned.forecast.steps), "{case}: {:?}", planned.forecast);
            }
        }
    }
}
