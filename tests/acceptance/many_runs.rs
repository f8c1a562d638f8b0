//! Many parallel CI jobs with separate checkouts on one store. `MANY_RUNS=200` (soak test) matches
//! a large organisation.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bmc_simulator::SimulatorConfig;
use futures_util::future::join_all;

use crate::{
    servers::postgres::Postgres,
    support::{
        host::Host,
        simulator::{Fleet, maintenance},
        workspace::Workspace,
    },
};

/// Runs per server.
const PER_SERVER: usize = 10;

/// Available memory of this machine, in KiB.
fn available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find(|line| line.starts_with("MemAvailable:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_runs_on_one_store_all_have_their_turn() {
    let runs: usize = std::env::var("MANY_RUNS").map_or(12, |text| text.parse().expect("MANY_RUNS is a number"));
    let servers = runs.div_ceil(PER_SERVER);
    let server = Postgres::start(&["max_connections=1000"]);
    let database = server.database();
    let url = server.url("postgres", &database);
    let fleet = Fleet::with(SimulatorConfig::with_systems(servers)).await;
    let before: Vec<_> = (1..=servers).map(|node| fleet.system(&format!("node{node}"))).collect();

    let (least, over) = (Arc::new(AtomicU64::new(available())), Arc::new(AtomicBool::new(false)));
    let (seen, end, at_first) = (least.clone(), over.clone(), available());
    let watch = std::thread::spawn(move || {
        while !end.load(Ordering::Relaxed) {
            seen.fetch_min(available(), Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    let began = Instant::now();
    let all = (0..runs).map(|run| {
        let (fleet, url) = (&fleet, &url);
        async move {
            let mut workspace = Workspace::new(Host::OpenTofu);
            workspace.set("METAL_COORDINATION_URL", url);
            workspace.set("TF_LOG", "ERROR");
            let more = "server_power = \"Off\"\n  timeouts = { create = \"2h\", delete = \"2h\" }";
            fleet.configure(
                &workspace,
                &maintenance(&format!("node{}", run % servers + 1), &format!("run-{run}"), more),
            );
            let limit = Duration::from_hours(2);
            workspace.start_apply().wait(limit).await.succeeded();
            workspace.start_destroy().wait(limit).await.succeeded();
        }
    });
    join_all(all).await;
    let took = began.elapsed();
    over.store(true, Ordering::Relaxed);
    watch.join().unwrap();
    let used = at_first.saturating_sub(least.load(Ordering::Relaxed)) / 1024;
    println!(
        "{runs} runs for {servers} servers: {:.1} s, {used} MiB at most, {} MiB per run",
        took.as_secs_f64(),
        used / runs as u64
    );

    for (node, before) in before.iter().enumerate() {
        let name = format!("node{}", node + 1);
        let after = fleet.system(&name);
        assert_eq!((after.power, &after.boot), (before.power, &before.boot), "{name}");
        // Each run powers off and on again, with no other change.
        let resets = fleet.resets(&name);
        let of_this = (0..runs).filter(|run| run % servers == node).count();
        assert_eq!(resets.len(), 2 * of_this, "{name}: {resets:?}");
        assert!(resets.chunks(2).all(|pair| pair[0] != "On" && pair[1] == "On"), "{name}: {resets:?}");
    }
    let held =
        server.sql(&database, "SELECT count(*) FILTER (WHERE fate <> 'ended'), count(*) FROM metal.maintenances");
    assert_eq!(held, format!("0|{runs}"));
}
