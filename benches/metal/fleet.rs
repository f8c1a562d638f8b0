//! A whole fleet held and released by one run with matching `-parallelism`: cost per server for a
//! hundred and a thousand servers.
use std::time::{Duration, Instant};

use bmc_simulator::{JournalMode, Simulator, SimulatorConfig};
use futures_util::future::join_all;
use serde_json::json;

use crate::{
    measure::{ms, peak_memory, ratio},
    provider::Provider,
    table::Row,
};

const SIZES: [usize; 3] = [100, 300, 1000];

/// Cost per server in a fleet.
struct Cost {
    requests: f64,
    held: Duration,
    given_back: Duration,
    memory: f64,
}

pub async fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut smallest: Option<Cost> = None;
    for size in SIZES {
        let cost = of(size).await;
        let row = Row::new(
            format!("{size} servers held and released in one run, all in parallel"),
            format!(
                "per server: {:.2} BMC requests, held in {}, released in {}; {:.0} MiB in all",
                cost.requests,
                ms(cost.held),
                ms(cost.given_back),
                cost.memory
            ),
        );
        rows.push(match &smallest {
            None => row,
            Some(least) => row.against(
                format!(
                    "per server among {}: {:.2} requests, {}, {}; {:.0} MiB in all",
                    SIZES[0],
                    least.requests,
                    ms(least.held),
                    ms(least.given_back),
                    least.memory
                ),
                ratio(cost.held + cost.given_back, least.held + least.given_back),
            ),
        });
        smallest.get_or_insert(cost);
    }
    rows
}

async fn of(size: usize) -> Cost {
    let mut config = SimulatorConfig::with_systems(size);
    config.journal = JournalMode::CountOnly;
    let simulator = Simulator::start(config).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let provider = Provider::start(&simulator, &folder.path().join("metal.db")).await;
    simulator.clear_journal();
    // Waiting for a free BMC connection counts against the timeout.
    let more = json!({ "timeouts": { "create": "30m", "update": null, "delete": "30m" } });
    let begin = Instant::now();
    let all = (1..=size).map(|number| {
        let (provider, more) = (&provider, &more);
        async move { provider.create(&format!("node{number}"), &format!("held-{number}"), more).await }
    });
    let holds = join_all(all).await;
    let held = begin.elapsed();
    for hold in &holds {
        assert_eq!(hold.attribute("state"), "InMaintenance");
    }
    let begin = Instant::now();
    join_all(holds.into_iter().map(|hold| provider.destroy(hold))).await;
    let given_back = begin.elapsed();
    let memory = peak_memory(provider.pid());
    provider.end().await;
    let servers = u32::try_from(size).unwrap();
    #[allow(clippy::cast_precision_loss, reason = "a few thousand")]
    let requests = simulator.counts().requests as f64 / f64::from(servers);
    simulator.stop().await;
    Cost { requests, held: held / servers, given_back: given_back / servers, memory }
}
