//! One dead BMC among ten: its effect on the others, and the time to stop a wait for it.
use std::time::Instant;

use bmc_simulator::{Availability, Fault, Simulator, SimulatorConfig};
use futures_util::{StreamExt as _, stream};
use serde_json::json;

use crate::{
    measure::{ms, ratio},
    provider::{AT_ONCE, Held, Provider},
    table::Row,
};

/// Request timeout of `Provider::start`.
const REQUEST_TIMEOUT: &str = "3 s";

pub async fn measure() -> Vec<Row> {
    let simulator = Simulator::start(SimulatorConfig::with_systems(10)).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("metal.db");
    let provider = Provider::start(&simulator, &store).await;
    let mut held = Vec::new();
    for number in 1..=10 {
        held.push(provider.create(&format!("node{number}"), &format!("held-{number}"), &json!({})).await);
    }
    provider.end().await;

    let healthy = {
        let provider = Provider::start(&simulator, &store).await;
        let (time, _) = refresh(&provider, &held).await;
        provider.end().await;
        time
    };
    let bmc = simulator.bmc_of("node5").unwrap();
    let mut rows = Vec::new();
    for (name, how) in [("refuses", 0), ("is silent", 1), ("answers 500", 2)] {
        match how {
            0 => simulator.set_availability(&bmc, Availability::Refusing).await.unwrap(),
            1 => simulator.set_availability(&bmc, Availability::Silent).await.unwrap(),
            _ => {
                let _ = simulator.inject(Fault::error(500, "broken").on_bmc(&bmc));
            }
        }
        let provider = Provider::start(&simulator, &store).await;
        let (time, warnings) = refresh(&provider, &held).await;
        let what = format!("refresh of 10 servers of which one BMC {name} (time limit of a request {REQUEST_TIMEOUT})");
        rows.push(
            Row::new(what, format!("{}, {warnings} warning", ms(time)))
                .against(format!("all ten answer: {}", ms(healthy)), ratio(time, healthy)),
        );
        provider.end().await;
        if how == 1 {
            // A new process, because the current process has marked the BMC as down and delays its
            // next request.
            let provider = Provider::start(&simulator, &store).await;
            rows.push(stopped(&provider, &held[4]).await);
            provider.end().await;
        }
        simulator.clear_faults();
        simulator.set_availability(&bmc, Availability::Up).await.unwrap();
    }
    simulator.stop().await;
    rows
}

async fn refresh(provider: &Provider, held: &[Held]) -> (std::time::Duration, usize) {
    let begin = Instant::now();
    let reads = stream::iter(held).map(async |held| provider.read(held).await.1.len());
    let warnings: Vec<usize> = reads.buffer_unordered(AT_ONCE).collect().await;
    (begin.elapsed(), warnings.iter().sum())
}

/// Measures from StopProvider until a read that waits for the silent BMC returns.
async fn stopped(provider: &Provider, silent: &Held) -> Row {
    let read = async {
        provider.read(silent).await;
        Instant::now()
    };
    let stop = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let begin = Instant::now();
        provider.stop().await;
        begin
    };
    let (end, begin) = tokio::join!(read, stop);
    Row::new("an interrupt while a BMC is silent, until the read has returned", ms(end - begin))
}
