//! Throughput of one process in a store, compared with the store engine's own limit in the same
//! run.
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use terraform_provider_metal::store::Store;

use crate::{
    measure::middle,
    stores::{Backing, Kind, key, kinds, open, runner},
    stores_lock::{Place, TTL, finish, join, keep_alive, request, try_admit},
    stores_plain::Plain,
    table::Row,
};

const TASKS: usize = 8;
/// Sequential lock keys per task.
const EACH: usize = 40;
/// The first round creates the keys and does not count.
const ROUNDS: usize = 6;

const NAMES: [&str; 4] = ["enqueue", "admit", "heartbeat", "release"];

pub async fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in kinds() {
        rows.extend(of(kind).await);
    }
    rows
}

async fn of(kind: Kind) -> Vec<Row> {
    let backing = Backing::start(kind);
    let (store, plain) = (open(&backing.url()).await, Plain::open(&backing).await);
    let heart = keep_alive(Arc::clone(&store), runner(0)).await;
    let mut rates: [Vec<f64>; 4] = Default::default();
    let mut shares: [Vec<f64>; 4] = Default::default();
    let mut limits = Vec::new();
    for round in 0..ROUNDS {
        let limit = rate(plain.all(round, TASKS, EACH).await);
        let took = operations(&store, round).await;
        if round == 0 {
            continue;
        }
        limits.push(limit);
        for (n, took) in took.into_iter().enumerate() {
            rates[n].push(rate(took));
            shares[n].push(rate(took) / limit);
        }
    }
    drop(heart);
    store.close().await;
    NAMES.iter().enumerate().map(|(n, name)| row(kind, name, &rates[n], &limits, &shares[n])).collect()
}

fn row(kind: Kind, name: &str, rates: &[f64], limits: &[f64], shares: &[f64]) -> Row {
    Row::new(
        format!("{}: {name}, {TASKS} tasks on different locks, one process", kind.name()),
        format!("{:.0} per second ({})", middle(rates), range(rates)),
    )
    .against(format!("plain transactions: {:.0} per second ({})", middle(limits), range(limits)), middle(shares))
}

fn range(of: &[f64]) -> String {
    let (least, most) = (of.iter().copied().fold(f64::MAX, f64::min), of.iter().copied().fold(0.0, f64::max));
    format!("{least:.0} to {most:.0}")
}

/// Returns operations per second.
fn rate(took: Duration) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a few hundred")]
    let all = (TASKS * EACH) as f64;
    all / took.as_secs_f64()
}

/// Runs each kind of operation in all tasks, one kind after the other.
async fn operations(store: &Arc<dyn Store>, round: usize) -> [Duration; 4] {
    let mut took = [Duration::ZERO; 4];
    let mut places = vec![Vec::new(); TASKS];
    for (n, took) in took.iter_mut().enumerate() {
        let begin = Instant::now();
        let tasks = places.into_iter().enumerate().map(|(task, places)| {
            let store = Arc::clone(store);
            tokio::spawn(async move { one_kind(n, &*store, round, task, places).await })
        });
        places = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
        *took = begin.elapsed();
    }
    took
}

async fn one_kind(kind: usize, store: &dyn Store, round: usize, task: usize, mut places: Vec<Place>) -> Vec<Place> {
    for n in 0..EACH {
        match kind {
            0 => {
                let wish = request(&format!("m-{round}-{task}-{n}"), &runner(0));
                places.push(join(store, &key(&format!("lock-{task}-{n}")), &wish).await);
            }
            1 => assert!(try_admit(store, &places[n]).await),
            2 => store.renew(&runner(100 + task), TTL).await.unwrap(),
            _ => finish(store, &places[n]).await,
        }
    }
    places
}
