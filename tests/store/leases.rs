//! Leases of the embedded store across wall clock changes. It uses the machine's own clock, which
//! people and NTP adjust.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use sqlx::{SqliteConnection, sqlite::SqliteConnectOptions};
use terraform_provider_metal::{
    clock::{Boot, BootTime, Clock, SystemClock},
    maintenance::lock::place_kept_until,
    store::{LockView, SqliteOptions, SqliteStore, Store},
};

use crate::{
    bench::{apply, hold, join},
    records::{HOLD_PLACE, TTL, key, request, runner, token},
};

/// A machine with independent wall and boot clocks.
#[derive(Debug)]
struct Machine {
    at: Mutex<(Timestamp, Option<BootTime>)>,
    real: SystemClock,
}

impl Machine {
    fn new() -> Arc<Self> {
        let boot = Boot { machine: "machine".into(), id: "first".into(), namespace: "time".into() };
        let since = Duration::from_hours(5);
        let at = ("2026-11-22T10:00:00Z".parse().unwrap(), Some(BootTime { boot, since }));
        Arc::new(Self { at: Mutex::new(at), real: SystemClock::default() })
    }

    /// Advances both clocks.
    fn pass(&self, time: Duration) {
        let mut at = self.at.lock().unwrap();
        at.0 += time;
        if let Some(boot) = &mut at.1 {
            boot.since += time;
        }
    }

    /// Sets the wall clock.
    fn step(&self, by: SignedDuration) {
        self.at.lock().unwrap().0 += by;
    }

    /// Reboots the machine; its wall clock then differs by `by`.
    fn reboot(&self, by: SignedDuration) {
        self.step(by);
        let mut at = self.at.lock().unwrap();
        let boot = at.1.as_mut().unwrap();
        boot.since = Duration::from_secs(20);
        boot.boot.id = "second".into();
    }

    /// Changes the reported boot time.
    fn change(&self, change: impl FnOnce(&mut Option<BootTime>)) {
        change(&mut self.at.lock().unwrap().1);
    }
}

#[async_trait]
impl Clock for Machine {
    fn now(&self) -> Timestamp {
        self.at.lock().unwrap().0
    }

    fn monotonic(&self) -> Duration {
        self.real.monotonic()
    }

    fn boot(&self) -> Option<BootTime> {
        self.at.lock().unwrap().1.clone()
    }

    async fn sleep(&self, duration: Duration) {
        self.real.sleep(duration).await;
    }
}

struct Bench {
    machine: Arc<Machine>,
    folder: tempfile::TempDir,
    store: SqliteStore,
}

impl Bench {
    async fn new() -> Self {
        let (machine, folder) = (Machine::new(), tempfile::tempdir().unwrap());
        let store = open(&folder.path().join("it.sqlite"), &machine).await;
        Self { machine, folder, store }
    }

    /// Opens the store like a new process.
    async fn again(&self) -> SqliteStore {
        open(&self.folder.path().join("it.sqlite"), &self.machine).await
    }

    async fn raw(&self, sql: &'static str) {
        use sqlx::ConnectOptions as _;
        let options = SqliteConnectOptions::new().filename(self.folder.path().join("it.sqlite"));
        let mut db: SqliteConnection = options.connect().await.unwrap();
        sqlx::query(sql).execute(&mut db).await.unwrap();
    }
}

async fn open(path: &Path, machine: &Arc<Machine>) -> SqliteStore {
    SqliteStore::open(path, machine.clone(), SqliteOptions::default()).await.unwrap()
}

/// Returns true if the only record's process is alive. Reads and transactions must agree.
async fn alive(store: &SqliteStore) -> bool {
    let view = store.view(&key("k")).await.unwrap();
    let seen = is_alive(&view);
    let acts =
        apply(store, &key("k"), |lock, leases, now| Ok(leases.alive(lock.active[0].attachment.as_ref().unwrap(), now)))
            .await;
    assert_eq!(acts.unwrap(), seen, "{view:?}");
    let all = store.view_all().await.unwrap();
    assert_eq!(is_alive(&all[0]), seen, "{all:?}");
    seen
}

fn is_alive(view: &LockView) -> bool {
    view.leases.alive(view.lock.active[0].attachment.as_ref().unwrap(), view.now)
}

/// Returns the time until the only record's process counts as disconnected.
async fn left(store: &SqliteStore) -> SignedDuration {
    let view = store.view(&key("k")).await.unwrap();
    let attachment = view.lock.active[0].attachment.clone().unwrap();
    view.leases.until(&attachment).unwrap().duration_since(view.now)
}

fn seconds(n: i64) -> SignedDuration {
    SignedDuration::from_secs(n)
}

#[tokio::test]
async fn a_wall_clock_that_is_set_forwards_ends_no_lease_while_calls_go_on() {
    let bench = Bench::new().await;
    let (uid, fence) = hold(&bench.store, &key("k"), &request("a", 1)).await;
    bench.machine.step(seconds(31));
    assert!(alive(&bench.again().await).await, "the wall clock moved, but the process is alive");
    let may_act = apply(&bench.store, &key("k"), |lock, leases, now| Ok(lock.may_act(&uid, fence, leases, now))).await;
    assert!(may_act.unwrap());
    // The lease ends after its real duration, at any wall clock time.
    bench.machine.pass(TTL);
    assert!(!alive(&bench.again().await).await);
}

#[tokio::test]
async fn a_wall_clock_that_is_set_back_keeps_no_dead_process_alive() {
    let bench = Bench::new().await;
    hold(&bench.store, &key("k"), &request("a", 1)).await;
    bench.machine.step(seconds(-3600));
    assert!(left(&bench.store).await <= seconds(30), "{:?}", left(&bench.store).await);
    bench.machine.pass(TTL);
    assert!(!alive(&bench.again().await).await, "the lease outlived its monotonic duration");
}

#[tokio::test]
async fn another_boot_is_proof_of_death_whatever_the_wall_clock_says() {
    for step in [-86_400, -3600, 0] {
        let bench = Bench::new().await;
        hold(&bench.store, &key("k"), &request("a", 1)).await;
        bench.machine.reboot(seconds(step));
        let after = bench.again().await;
        assert!(!alive(&after).await, "stepped by {step}s: no process outlives its machine's boot");
        // This includes a boot clock that is still below the old lease's end.
        assert!(left(&after).await <= seconds(0), "{:?}", left(&after).await);
        apply(&after, &key("k"), |lock, leases, now| {
            let uid = lock.active[0].uid.clone();
            lock.attach(&uid, runner(2), token(), leases, now)
        })
        .await
        .unwrap();
    }
}

/// A queue position is kept from the process's last renewal; after a reboot, from the first read.
#[tokio::test]
async fn a_place_is_not_kept_for_the_length_of_a_step() {
    let bench = Bench::new().await;
    hold(&bench.store, &key("k"), &request("a", 1)).await;
    join(&bench.store, &key("k"), &request("b", 2)).await.unwrap();
    bench.machine.reboot(seconds(-86_400));
    let after = bench.again().await;
    // Another process works after the reboot.
    after.renew(&runner(3), TTL).await.unwrap();
    bench.machine.pass(HOLD_PLACE + Duration::from_secs(1));
    let view = after.view(&key("k")).await.unwrap();
    let waiter = view.lock.active.iter().find(|record| record.id.name() == "b").unwrap();
    let until = place_kept_until(waiter, &view.leases, view.now).unwrap();
    assert!(until <= view.now, "the queue position is kept until {until}; now: {}", view.now);
}

#[tokio::test]
async fn a_process_that_said_good_bye_is_gone_at_any_hour() {
    for step in [-3600, 3600] {
        let bench = Bench::new().await;
        hold(&bench.store, &key("k"), &request("a", 1)).await;
        bench.machine.step(seconds(step));
        bench.machine.pass(Duration::from_secs(1));
        bench.store.resign(&runner(1).id).await.unwrap();
        assert!(!alive(&bench.again().await).await, "{step}");
        bench.machine.step(seconds(-7200));
        assert!(!alive(&bench.again().await).await, "{step}");
    }
}

/// Boot clocks of different machines are not comparable, nor is a boot clock without an ID.
#[tokio::test]
async fn of_another_machine_the_wall_clock_has_to_do() {
    for other in [
        Some(Boot { machine: "another".into(), id: "its own".into(), namespace: "time".into() }),
        Some(Boot { machine: String::new(), id: "its own".into(), namespace: "time".into() }),
        Some(Boot { machine: "machine".into(), id: "first".into(), namespace: "shifted".into() }),
        None,
    ] {
        let bench = Bench::new().await;
        hold(&bench.store, &key("k"), &request("a", 1)).await;
        let view = other.clone();
        bench.machine.change(|at| *at = view.map(|boot| BootTime { boot, since: Duration::from_hours(4000) }));
        let there = bench.again().await;
        assert!(alive(&there).await, "{other:?}");
        bench.machine.pass(TTL);
        assert!(!alive(&there).await, "{other:?}");
    }
}

#[tokio::test]
async fn a_lease_of_an_older_version_is_read_by_the_wall_clock() {
    let bench = Bench::new().await;
    hold(&bench.store, &key("k"), &request("a", 1)).await;
    bench.raw("UPDATE leases SET machine = NULL, boot = NULL, namespace = NULL, boot_until = NULL").await;
    let reader = bench.again().await;
    assert!(alive(&reader).await);
    bench.machine.pass(TTL);
    assert!(!alive(&reader).await);
    reader.renew(&runner(1), TTL).await.unwrap();
    bench.machine.step(seconds(3600));
    assert!(alive(&reader).await, "the lease renewed by this version has ended");
}

/// Reads the real clock of the system that runs these tests.
#[tokio::test]
async fn the_clock_of_this_machine_names_its_boot() {
    use sqlx::ConnectOptions as _;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("it.sqlite");
    let store = SqliteStore::open(&path, Arc::new(SystemClock::default()), SqliteOptions::default()).await.unwrap();
    store.renew(&runner(1), TTL).await.unwrap();
    let mut db = SqliteConnectOptions::new().filename(&path).connect().await.unwrap();
    let (boot, until): (String, i64) =
        sqlx::query_as("SELECT boot, boot_until FROM leases").fetch_one(&mut db).await.unwrap();
    assert_eq!(boot, std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim());
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let uptime: f64 = uptime.split_whitespace().next().unwrap().parse().unwrap();
    let ends = Duration::from_nanos(until.unsigned_abs()).as_secs_f64();
    assert!((ends - uptime - TTL.as_secs_f64()).abs() < 60.0, "{ends} {uptime}");
}
