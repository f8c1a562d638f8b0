//! Cost of waiting: BMC requests, CPU time and store watches.
use std::time::{Duration, Instant};

use bmc_simulator::{Simulator, SimulatorConfig};
use futures_util::future::join_all;
use serde_json::json;

use crate::{
    measure::{ms, peak_memory, processor_time},
    provider::Provider,
    table::Row,
};

const LOOK: Duration = Duration::from_secs(20);

pub async fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    for waiters in [1, 500] {
        rows.push(with(waiters).await);
    }
    rows
}

async fn with(waiters: usize) -> Row {
    let simulator = Simulator::start(SimulatorConfig::with_systems(waiters)).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("metal.db");
    let holder = Provider::start(&simulator, &store).await;
    for number in 1..=waiters {
        holder.create(&format!("node{number}"), &format!("held-{number}"), &json!({})).await;
    }
    holder.end().await;

    let provider = Provider::start(&simulator, &store).await;
    let more = json!({ "timeouts": { "create": "10m", "update": null, "delete": null } });
    let all = (1..=waiters).map(async |number| {
        let (_, problems) = provider.apply(&format!("node{number}"), &format!("waits-{number}"), &more).await;
        assert_eq!(problems.len(), 1, "withdrawn: {problems:?}");
    });
    let look = async {
        enqueued(&store, waiters).await;
        // Gives the last waiter time to start waiting.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (requests, used, begin) = (simulator.counts().requests, processor_time(provider.pid()), Instant::now());
        tokio::time::sleep(LOOK).await;
        let used = processor_time(provider.pid()).saturating_sub(used);
        let asked = simulator.counts().requests - requests;
        let share = used.as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0;
        let peak = peak_memory(provider.pid());
        let stop = Instant::now();
        provider.stop().await;
        (asked, share, peak, stop)
    };
    let (_, (asked, share, peak, stop)) = tokio::join!(join_all(all), look);
    let left = stop.elapsed();
    provider.end().await;
    simulator.stop().await;
    Row::new(
        format!("{waiters} waiting in one process, over {} s", LOOK.as_secs()),
        format!(
            "{asked} BMC requests, {share:.2} % of a core, {peak:.0} MiB; all left {} after an interrupt",
            ms(left)
        ),
    )
}

/// Waits until this many requests are queued in the store.
async fn enqueued(store: &std::path::Path, waiters: usize) {
    let mut database = crate::hand_over::open(store).await;
    loop {
        let query = "SELECT count(*) FROM audit WHERE what = 'enqueued' AND name LIKE 'waits-%'";
        let count: i64 = sqlx::query_scalar(query).fetch_one(&mut database).await.unwrap();
        if usize::try_from(count).unwrap() == waiters {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
