//! Plans of many maintenances on one store: queue reads, and time per resource.
use std::time::{Duration, Instant};

use bmc_simulator::{JournalMode, Simulator, SimulatorConfig};
use futures_util::{StreamExt as _, stream};
use serde_json::json;

use crate::{
    measure::{ms, ratio},
    plain_client,
    provider::{AT_ONCE, Provider},
    table::Row,
};

const SERVERS: usize = 1000;

/// Plans one maintenance per server, with every tenth server held by another owner. The reference
/// is a plain client with the same number of BMC requests and no store.
pub async fn measure() -> Vec<Row> {
    let mut config = SimulatorConfig::with_systems(SERVERS).behind_one_bmc();
    config.journal = JournalMode::CountOnly;
    let simulator = Simulator::start(config).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("metal.db");
    let holder = Provider::start(&simulator, &store).await;
    for number in (1..=SERVERS).step_by(10) {
        holder.create(&format!("node{number}"), &format!("held-{number}"), &json!({})).await;
    }
    holder.end().await;
    let provider = Provider::start(&simulator, &store).await;
    simulator.clear_journal();
    let begin = Instant::now();
    let plans = stream::iter(1..=SERVERS).map(async |number| {
        let warnings = provider.plan(&format!("node{number}"), &format!("planned-{number}")).await;
        assert_eq!(warnings.iter().any(|warning| warning.contains("1 ahead")), number % 10 == 1, "{warnings:?}");
    });
    plans.buffer_unordered(AT_ONCE).collect::<()>().await;
    let time = begin.elapsed();
    let requests = usize::try_from(simulator.counts().requests).unwrap();
    provider.end().await;
    let per_machine = requests.div_ceil(SERVERS);
    let reference = plain_client::time(&simulator, folder.path(), per_machine).await;
    simulator.stop().await;
    let each = time / u32::try_from(SERVERS).unwrap();
    vec![
        Row::new(
            format!("plan of {SERVERS} maintenances behind one BMC"),
            format!("{}, {} each, {per_machine} requests per server", ms(time), ms(each)),
        )
        .against(
            format!("plain client, as many GETs: {}", ms(reference)),
            ratio(time, reference.max(Duration::from_nanos(1))),
        ),
    ]
}
