//! Refreshes of many held servers: requests, connections, time relative to a plain client, memory.
use std::time::{Duration, Instant};

use bmc_simulator::{JournalMode, Simulator, SimulatorConfig};
use futures_util::{StreamExt as _, stream};
use serde_json::json;

use crate::{
    measure::{median, ms, peak_memory, ratio},
    plain_client,
    provider::{AT_ONCE, Held, Provider},
    table::Row,
};

const SIZES: [usize; 3] = [100, 300, 1000];
const LATENCY: Duration = Duration::from_millis(100);

pub async fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, shared) in [("one BMC each", false), ("all behind one BMC", true)] {
        for size in SIZES {
            rows.extend(layout(name, shared, size).await);
        }
    }
    rows
}

async fn layout(name: &str, shared: bool, size: usize) -> Vec<Row> {
    let mut config = SimulatorConfig::with_systems(size);
    if shared {
        config = config.behind_one_bmc();
    }
    config.journal = JournalMode::CountOnly;
    let simulator = Simulator::start(config).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("metal.db");

    let provider = Provider::start(&simulator, &store).await;
    let holds = stream::iter(1..=size)
        .map(async |number| provider.create(&format!("node{number}"), &format!("held-{number}"), &json!({})).await);
    let held: Vec<Held> = holds.buffer_unordered(AT_ONCE).collect().await;
    provider.end().await;

    let mut rows = Vec::new();
    for latency in [Duration::ZERO, LATENCY] {
        // Slow BMCs are measured for the largest fleet alone.
        if !latency.is_zero() && size != SIZES[2] {
            continue;
        }
        let what = format!("refresh of {size} held servers, {name}, {} latency", ms(latency));
        rows.push(refresh(&simulator, &held, latency, folder.path(), what).await);
    }
    simulator.stop().await;
    rows
}

/// Requests per machine, rounded so that the session per BMC does not count.
fn per_machine(requests: u64, machines: usize) -> usize {
    (usize::try_from(requests).unwrap() + machines / 2) / machines
}

/// The client sends the same number of requests per machine as the provider.
async fn refresh(
    simulator: &Simulator,
    held: &[Held],
    latency: Duration,
    folder: &std::path::Path,
    what: String,
) -> Row {
    let connections = || simulator.bmcs().iter().map(|bmc| bmc.connections_opened).sum::<u64>();
    let mut times = Vec::new();
    let mut wires = Vec::new();
    let mut references = Vec::new();
    let (mut requests, mut opened, mut peak) = (0, 0, 0_f64);
    // The first round is discarded; with 100 ms latency it would equal the others.
    let rounds = if latency.is_zero() { 4 } else { 1 };
    for round in 0..rounds {
        let provider = Provider::start(simulator, &folder.join("metal.db")).await;
        simulator.set_latency(latency);
        let before = connections();
        simulator.clear_journal();
        let begin = Instant::now();
        provider.refresh_all(held).await;
        let time = begin.elapsed();
        let used = crate::measure::processor_time(provider.pid());
        requests = simulator.counts().requests;
        opened = connections() - before;
        peak = peak.max(peak_memory(provider.pid()));
        simulator.set_latency(Duration::ZERO);
        // Cost of the wire protocol alone, in the same process.
        let begin = Instant::now();
        let reads = stream::iter(0..held.len()).map(async |number| provider.read_what_asks_nobody(number).await);
        reads.buffer_unordered(AT_ONCE).collect::<()>().await;
        let wire = begin.elapsed();
        provider.end().await;

        simulator.set_latency(latency);
        let per_machine = per_machine(requests, held.len());
        let reference = plain_client::time(simulator, folder, per_machine).await;
        simulator.set_latency(Duration::ZERO);
        eprintln!("{what}: {} against {}, provider's processor time so far {}", ms(time), ms(reference), ms(used));
        if round > 0 || rounds == 1 {
            times.push(time);
            wires.push(wire);
            references.push(reference);
        }
    }
    let (time, wire, reference) = (median(&times), median(&wires), median(&references));
    #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
    let per_server = requests as f64 / held.len() as f64;
    let measured = format!("{}, {per_server:.2} requests per server, {opened} connections, {peak:.0} MiB", ms(time));
    let both = ratio(time, wire + reference);
    let per_machine = per_machine(requests, held.len());
    let reference_text = format!(
        "plain client, {per_machine} GETs per server: {}; the wire alone, as many reads without a BMC: {} (ratio to both: {both:.2})",
        ms(reference),
        ms(wire)
    );
    Row::new(what, measured).against(reference_text, ratio(time, reference))
}
