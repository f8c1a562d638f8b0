//! Time per call of the pure rules.
use std::{
    collections::HashMap,
    hint::black_box,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use terraform_provider_metal::maintenance::{
    decide::{DecisionInput, Goal, Objective, decide},
    ids::{Fence, LockKey, MaintenanceId, Runner, Token, Uid},
    lock::{AskingState, EnqueueRequest, Leases, ServerLock},
    power::Limits,
    prepare::Facts,
    queue::Queue,
    spec::{MaintenanceKind, Spec, WaitFor},
    window::{OnClose, WindowSpec},
};

use crate::{measure::median, table::Row};

const ROUNDS: usize = 31;

/// Returns the median time per call, over several rounds.
fn per_call(calls: u32, mut call: impl FnMut()) -> Duration {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        for _ in 0..calls {
            call();
        }
        times.push(begin.elapsed() / calls);
    }
    median(&times)
}

fn shown(time: Duration) -> String {
    if time < Duration::from_micros(10) {
        format!("{} ns", time.as_nanos())
    } else {
        format!("{:.1} µs", time.as_secs_f64() * 1e6)
    }
}

fn window(schedule: &str) -> WindowSpec {
    WindowSpec {
        schedule: schedule.into(),
        duration: Duration::from_hours(4),
        time_zone: "Europe/Berlin".into(),
        exclude: vec!["2026-12-24".into()],
        exclude_periods: Vec::new(),
        min_remaining: Duration::from_hours(1),
        on_close: OnClose::Finish,
    }
}

/// Returns a server with this many connected waiters, and the last waiter.
fn crowd(waiters: u32) -> (ServerLock, Leases, Uid, Fence) {
    let now: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
    let mut lock = ServerLock::new(LockKey::new("key"));
    let mut leases = Leases(HashMap::new());
    let mut last = (Uid::new(String::new()), Fence::default());
    for n in 0..waiters {
        let runner = Runner::new(format!("runner-{n}"), "bench", "bench", n);
        leases.0.insert(runner.id.clone(), "2026-11-21T11:00:00Z".parse().unwrap());
        let uid = Uid::new(format!("uid-{n}"));
        let request = EnqueueRequest {
            gates: Vec::new(),
            uid: uid.clone(),
            id: MaintenanceId::new("bench", &format!("m{n}")).unwrap(),
            owner: "bench".into(),
            spec: Spec::new(MaintenanceKind::Maintenance, "node"),
            runner: runner.clone(),
            keeps_place: false,
            location: None,
            asking: AskingState::default(),
        };
        lock.enqueue(request, &leases, now).unwrap();
        let generation = lock.attach(&uid, runner, Token::default(), &leases, now).unwrap();
        last = (uid, generation);
    }
    (lock, leases, last.0, last.1)
}

pub fn measure() -> Vec<Row> {
    let now: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
    let mut rows = Vec::new();
    for waiters in [1, 10, 100] {
        let (lock, leases, uid, generation) = crowd(waiters);
        let intent =
            Objective { goal: Goal::Hold(WaitFor::InMaintenance), stop: false, timed_out: false, waited: None };
        let (facts, limits) = (Facts::default(), Limits::default());
        let time = per_call(2000, || {
            black_box(decide(&DecisionInput {
                lock: &lock,
                leases: &leases,
                now,
                // Not cached, as for the first reader of a view.
                queue: &Queue::default(),
                uid: &uid,
                fence: generation,
                intent: &intent,
                facts: &facts,
                limits: &limits,
                aging: Duration::from_hours(24),
            }));
        });
        rows.push(Row::new(format!("`decide` for the last of {waiters} waiting"), shown(time)));
    }
    for (what, schedule, exclude) in [
        ("next Saturday", "0 22 * * SAT", "2026-12-24"),
        ("29 February, in two years", "0 22 29 2 *", "2026-12-24"),
        ("daily, but excluded for ten years", "0 22 * * *", "2026-01-01/2036-12-31"),
    ] {
        let spec = WindowSpec { exclude: vec![exclude.into()], ..window(schedule) };
        let compiled = spec.compile().unwrap();
        let asked = per_call(500, || {
            black_box(compiled.next_opening(now));
        });
        rows.push(Row::new(format!("`next_opening`, {what} (`{schedule}`)"), shown(asked)));
    }
    let spec = window("0 22 * * SAT");
    let whole = per_call(200, || {
        black_box(spec.compile().unwrap().may_start(now));
    });
    rows.push(Row::new("reading a window and judging a start", shown(whole)));
    rows
}
