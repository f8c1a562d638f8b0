//! Time from one holder's completed release to the next holder's admission, across processes.
use std::time::Duration;

use crate::{
    measure::{median, ms, percentile, ratio},
    stores::{Backing, Kind, key, kinds, open, runner},
    stores_lock::{finish, join, keep_alive, request, try_admit},
    stores_plain::Plain,
    stores_worker::{Crowd, Hold, PROCESSES, monotonic},
    table::Row,
};

/// Number of waiters, repetitions, and measured holds per round. With a thousand waiters, hundreds
/// still remain after the measurement.
const CROWDS: [(usize, usize, usize); 4] = [(1, 60, 1), (10, 10, 10), (100, 2, 100), (1000, 1, 300)];

pub async fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in kinds() {
        for (waiters, rounds, most) in CROWDS {
            let row = among(kind, waiters, rounds, most).await;
            println!("{}: {} ({})", row.what, row.measured, row.reference);
            rows.push(row);
        }
    }
    rows
}

async fn among(kind: Kind, waiters: usize, rounds: usize, most: usize) -> Row {
    let backing = Backing::start(kind);
    let store = open(&backing.url()).await;
    let gate = runner(0);
    let heart = keep_alive(store.clone(), gate.clone()).await;
    let mut crowd = Crowd::start(&backing.url()).await;
    let (mut gaps, mut requests, mut queued) = (Vec::new(), 0, Duration::ZERO);
    for round in 0..rounds {
        let name = format!("lock-{round}");
        let first = join(&*store, &key(&name), &request(&format!("{name}-first"), &gate)).await;
        assert!(try_admit(&*store, &first).await);
        let begun = monotonic();
        crowd.wait(&name, waiters, round).await;
        queued += Duration::from_nanos((monotonic() - begun).unsigned_abs());
        // Gives the last waiter time to start waiting.
        tokio::time::sleep(Duration::from_millis(if waiters > 100 { 3000 } else { 150 })).await;
        let before = backing.requests().await;
        let ends = monotonic();
        finish(&*store, &first).await;
        let mut holds = vec![Hold { admitted: 0, ends, ended: monotonic() }];
        // Reports from different processes can arrive out of order.
        holds.extend(crowd.holds(waiters.min(most + PROCESSES)).await);
        holds.truncate(most + 1);
        requests += backing.requests().await.unwrap_or_default() - before.unwrap_or_default();
        for pair in holds.windows(2) {
            assert!(pair[1].admitted > pair[0].ends, "strictly one after the other: {pair:?}");
            // Other processes can observe a commit before its reply arrives.
            gaps.push(Duration::from_nanos(u64::try_from(pair[1].admitted - pair[0].ended).unwrap_or(0)));
        }
    }
    drop(crowd);
    drop(heart);
    store.close().await;
    let plain = Plain::open(&backing).await.median().await;
    let asked = match kind {
        Kind::Sqlite => String::new(),
        #[allow(clippy::cast_precision_loss, reason = "a few thousand")]
        Kind::Postgres | Kind::Kubernetes => {
            format!(", {:.1} round trips each", requests as f64 / gaps.len() as f64)
        }
    };
    let shown = |share| ms(percentile(&gaps, share));
    let rounds = u32::try_from(rounds).unwrap();
    Row::new(
        format!("{}: hand-over among {waiters} waiting in {PROCESSES} processes, {} turns", kind.name(), gaps.len()),
        format!(
            "p50 {}, p99 {}, most {}{asked}; all were in the queue after {}",
            shown(0.5),
            shown(0.99),
            shown(1.0),
            ms(queued / rounds)
        ),
    )
    .against(format!("one plain transaction: {}", ms(median(&[plain]))), ratio(median(&gaps), plain))
}
