//! Time from one holder's release to the next holder's start, from the store's audit log.
use std::{path::Path, time::Duration};

use bmc_simulator::{Simulator, SimulatorConfig};
use futures_util::future::join_all;
use jiff::Timestamp;
use serde_json::json;
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};

use crate::{
    measure::{median, ms, percentile, ratio},
    provider::Provider,
    table::Row,
};

/// Number of consecutive holders.
const TURNS: usize = 60;

pub async fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    for processes in [1, 6] {
        rows.push(among(processes).await);
    }
    rows
}

async fn among(processes: usize) -> Row {
    let simulator = Simulator::start(SimulatorConfig::with_systems(1)).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("metal.db");
    let mut providers = Vec::new();
    for _ in 0..processes {
        providers.push(Provider::start(&simulator, &store).await);
    }
    let more = json!({ "timeouts": { "create": "10m", "update": null, "delete": null } });
    let turns = (0..TURNS).map(|turn| {
        let (provider, more) = (&providers[turn % processes], &more);
        async move {
            let held = provider.create("node1", &format!("turn-{turn}"), more).await;
            provider.destroy(held).await;
        }
    });
    join_all(turns).await;
    for provider in providers {
        provider.end().await;
    }
    let gaps = gaps(&store).await;
    let transaction = transaction(&store).await;
    simulator.stop().await;
    let place = if processes == 1 { "in one process".to_owned() } else { format!("across {processes} processes") };
    let shown = |share| ms(percentile(&gaps, share));
    Row::new(
        format!("hand-over {place}, SQLite, {} turns", gaps.len()),
        format!("p50 {}, p90 {}, p99 {}, most {}", shown(0.5), shown(0.9), shown(0.99), shown(1.0)),
    )
    .against(format!("one transaction in the same file: {}", ms(transaction)), ratio(median(&gaps), transaction))
}

pub async fn open(store: &Path) -> SqliteConnection {
    SqliteConnectOptions::new().filename(store).busy_timeout(Duration::from_secs(30)).connect().await.unwrap()
}

/// Returns the times between `released` of one holder and `admitted` of the next.
async fn gaps(store: &Path) -> Vec<Duration> {
    let mut database = open(store).await;
    let query = "SELECT at, what FROM audit WHERE what IN ('admitted', 'released') ORDER BY id";
    let events: Vec<(String, String)> = sqlx::query_as(query).fetch_all(&mut database).await.unwrap();
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    let pairs = events.windows(2).filter(|pair| pair[0].1 == "released" && pair[1].1 == "admitted");
    let gaps: Vec<Duration> = pairs.map(|pair| at(&pair[1].0).duration_since(at(&pair[0].0)).unsigned_abs()).collect();
    assert_eq!(gaps.len(), TURNS - 1, "strictly one after the other");
    gaps
}

/// Times a small write to the same file, with the store's settings.
async fn transaction(store: &Path) -> Duration {
    let mut database = open(store).await;
    sqlx::query("CREATE TABLE bench (n INTEGER)").execute(&mut database).await.unwrap();
    let mut times = Vec::new();
    for n in 0..200 {
        let begin = std::time::Instant::now();
        let mut transaction = database.begin_with("BEGIN IMMEDIATE").await.unwrap();
        sqlx::query("INSERT INTO bench VALUES (?)").bind(n).execute(&mut *transaction).await.unwrap();
        transaction.commit().await.unwrap();
        times.push(begin.elapsed());
    }
    median(&times)
}
