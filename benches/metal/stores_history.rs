//! One maintenance's store operations, with a short and a long history.
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use terraform_provider_metal::{
    maintenance::{
        ids::Token,
        lock::{AuditEvent, Leases, ServerLock},
        state::{Ending, Phase},
    },
    store::{Contents, Store},
};

use crate::{
    measure::{median, ms, ratio},
    stores::{Backing, Kind, key, kinds, open, runner},
    stores_lock::{finish, join, keep_alive, request, try_admit},
    table::Row,
};

const LITTLE: usize = 10;
const MUCH: usize = 100_000;
/// Limited by etcd's size.
const MUCH_IN_A_CLUSTER: usize = 10_000;
/// Number of lock keys that share the history.
const LOCKS: usize = 100;
const TURNS: usize = 150;

pub async fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in kinds() {
        rows.push(of(kind).await);
    }
    rows
}

async fn of(kind: Kind) -> Row {
    let mut stores = Vec::new();
    let most = if kind == Kind::Kubernetes { MUCH_IN_A_CLUSTER } else { MUCH };
    for records in [LITTLE, most] {
        let backing = Backing::start(kind);
        let empty = open(&backing.url()).await;
        empty.fill(&history(records)).await.unwrap();
        empty.close().await;
        // Filling the store changed its ID, so it is opened again.
        let store = open(&backing.url()).await;
        let heart = keep_alive(store.clone(), runner(0)).await;
        stores.push((backing, store, Vec::new(), heart));
    }
    for turn in 0..TURNS {
        for (_, store, times, _) in &mut stores {
            times.push(way(&**store, turn).await);
        }
    }
    let [little, much] = [0, 1].map(|n| median(&stores[n].2));
    for (_, store, _, heart) in &stores {
        heart.abort();
        store.close().await;
    }
    Row::new(
        format!("{}: enqueue, admit and release with {most} finished records, {TURNS} times", kind.name()),
        ms(much),
    )
    .against(format!("with {LITTLE}: {}", ms(little)), ratio(much, little))
}

async fn way(store: &dyn Store, turn: usize) -> Duration {
    let (wish, lock) = (request(&format!("new-{turn}"), &runner(0)), key(&format!("lock-{:03}", turn % LOCKS)));
    let begin = Instant::now();
    let place = join(store, &lock, &wish).await;
    assert!(try_admit(store, &place).await);
    finish(store, &place).await;
    begin.elapsed()
}

/// Returns ended maintenances with their audit log, created by the rules themselves.
fn history(records: usize) -> Contents {
    let begin: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let mut all = Contents { store_id: uuid::Uuid::new_v4().simple().to_string(), ..Contents::default() };
    let mut locks: Vec<ServerLock> = (0..LOCKS).map(|n| ServerLock::new(key(&format!("lock-{n:03}")))).collect();
    let mut events: Vec<AuditEvent> = Vec::new();
    for n in 0..records {
        let (lock, by) = (&mut locks[n % LOCKS], runner(n % 50));
        let now = begin + SignedDuration::from_secs(i64::try_from(n).unwrap());
        let leases = Leases([(by.id.clone(), now + SignedDuration::from_secs(30))].into());
        let uid = lock.enqueue(request(&format!("old-{}", n % 5000), &by), &leases, now).unwrap().uid().clone();
        let generation = lock.attach(&uid, by, Token::default(), &leases, now).unwrap();
        lock.admit(&uid, generation, Phase::InMaintenance { since: now }, now).unwrap();
        let over = Phase::Completed { at: now, ending: Ending::Completed };
        lock.finish(&uid, generation, &over, now).unwrap();
        all.history.append(&mut lock.finished);
        events.append(&mut lock.events);
        // One line per maintenance is enough.
        all.audit.extend(events.pop());
        events.clear();
    }
    all.locks = locks;
    all
}
