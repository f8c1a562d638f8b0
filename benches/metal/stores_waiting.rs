//! Cost of idle waiters, for the store and for the machines on which they run.
use std::time::{Duration, Instant};

use crate::{
    measure::processor_time,
    stores::{Backing, Kind, key, kinds, open, runner},
    stores_lock::{join, keep_alive, request, try_admit},
    stores_worker::{Crowd, PROCESSES},
    table::Row,
};

/// Longer than a lease, because each waiter checks the lease ahead of it when that would expire.
const LOOK: Duration = Duration::from_secs(40);

pub async fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in kinds() {
        for waiters in [100, 1000] {
            rows.push(with(kind, waiters).await);
        }
    }
    rows
}

async fn with(kind: Kind, waiters: usize) -> Row {
    let backing = Backing::start(kind);
    let store = open(&backing.url()).await;
    let heart = keep_alive(store.clone(), runner(0)).await;
    let first = join(&*store, &key("lock"), &request("first", &runner(0))).await;
    assert!(try_admit(&*store, &first).await);
    let mut crowd = Crowd::start(&backing.url()).await;
    crowd.wait("lock", waiters, 0).await;
    // Gives the last waiters time to start waiting.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let used = || crowd.pids().into_iter().map(processor_time).sum::<Duration>();
    let (before, asked, begin) = (used(), backing.requests().await, Instant::now());
    tokio::time::sleep(LOOK).await;
    let (used, took) = (used().saturating_sub(before), begin.elapsed().as_secs_f64());
    let asked = backing.requests().await.map(|now| now - asked.unwrap());
    drop(crowd);
    drop(heart);
    store.close().await;
    let processor = used.as_secs_f64() / took * 100.0;
    #[allow(clippy::cast_precision_loss, reason = "a few thousand")]
    let requests = asked.map(|asked| {
        let rate = asked as f64 / took;
        format!("{rate:.1} requests per second, {:.4} per waiter; ", rate / waiters as f64)
    });
    Row::new(
        format!(
            "{}: {waiters} waiting in {PROCESSES} processes while nothing changes, {} s",
            kind.name(),
            LOOK.as_secs()
        ),
        format!("{}{processor:.1} % of a core for all of them", requests.unwrap_or_default()),
    )
}
