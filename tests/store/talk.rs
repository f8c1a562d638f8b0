//! Helpers shared by the store tests.

#![allow(dead_code)]

use std::time::{Duration, Instant};

use jiff::Timestamp;
use terraform_provider_metal::{
    maintenance::{
        approval::{Approval, Claim, Scope},
        ids::{LockKey, MaintenanceId, Uid},
        lock::{EnqueueRequest, Leases, ServerLock},
        spec::Spec,
    },
    store::{Store, StoreError},
};

use crate::{
    bench::apply,
    records::{TTL, id, key, request, runner, spec},
};

/// Polls until the closure returns a value.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(began.elapsed() < Duration::from_mins(1), "{what} did not happen within a minute");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Observes and renews a lease for several times its length. Returns `None` after a long pause of
/// the test machine, which proves nothing about the store. Repeat it with [`until`].
///
/// # Panics
/// If the lease ended despite renewals in time.
pub async fn renewed_in_time(
    length: Duration,
    times: u32,
    alive: impl AsyncFn() -> bool,
    renew: impl AsyncFn(),
) -> Option<()> {
    let began = Instant::now();
    let mut renewed = began;
    renew().await;
    while began.elapsed() < length * times {
        let alive = alive().await;
        tokio::time::sleep(length / 10).await;
        let next = Instant::now();
        renew().await;
        if renewed.elapsed() >= length {
            return None;
        }
        assert!(alive, "the lease ended after {:?}", began.elapsed());
        renewed = next;
    }
    Some(())
}

pub async fn enqueue(store: &dyn Store, key: &LockKey, wish: &EnqueueRequest) -> Result<Uid, StoreError> {
    apply(store, key, |lock, leases, now| Ok(lock.enqueue(wish.clone(), leases, now)?.uid().clone())).await
}

/// Returns a name's audit events.
pub async fn said(store: &dyn Store, id: &MaintenanceId) -> Vec<String> {
    store.audit(id, 1000).await.unwrap().into_iter().map(|line| line.what.to_string()).collect()
}

pub fn claim(name: &str) -> Claim {
    Claim {
        uid: Uid::new(uuid::Uuid::now_v7().to_string()),
        id: id(name),
        owner: "team".into(),
        contact: None,
        server: "node-1".into(),
        since: Timestamp::UNIX_EPOCH,
        by: "ada".into(),
    }
}

pub fn approval(scope: Scope) -> Approval {
    let uid = Uid::new(uuid::Uuid::now_v7().to_string());
    Approval { uid, scope, not_before: None, expires: None, at: Timestamp::UNIX_EPOCH, by: "ada".into(), used_by: None }
}

pub fn of(name: &str) -> Scope {
    Scope::Maintenance { id: id(name), digest: spec().digest().into() }
}

pub async fn approve(store: &dyn Store, key: &LockKey, approval: &Approval) -> Result<(), StoreError> {
    apply(store, key, |lock, _, now| lock.approve(approval.clone(), "team", now)).await
}

/// Returns the result and the duration.
pub async fn timed<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let began = Instant::now();
    let result = future.await;
    (result, began.elapsed())
}

/// Hundreds of waiters disconnect; they do not block the next waiter.
pub async fn a_crowd_leaves(store: &dyn Store) {
    for n in 0..150 {
        let wish =
            EnqueueRequest { spec: Spec { hold_place_for: Duration::ZERO, ..spec() }, ..request(&format!("m{n}"), n) };
        enqueue(store, &key("k"), &wish).await.unwrap();
    }
    let wish = request("next", 1000);
    store.renew(&runner(1000), TTL).await.unwrap();
    apply(store, &key("k"), |lock, leases, now| {
        lock.drop_absent(leases, now);
        let uid = lock.enqueue(wish.clone(), leases, now)?.uid().clone();
        lock.attach(&uid, wish.runner.clone(), crate::records::token(), leases, now)
    })
    .await
    .unwrap();
    let left = until("the expiry of all queue positions", async || {
        let drop_absent = |lock: &mut ServerLock, leases: &Leases, now| {
            lock.drop_absent(leases, now);
            Ok(lock.active.iter().map(|record| record.id.clone()).collect::<Vec<_>>())
        };
        let left = apply(store, &key("k"), drop_absent).await.unwrap();
        (left.len() == 1).then_some(left)
    })
    .await;
    assert_eq!(left, [id("next")]);
    assert_eq!(said(store, &id("m149")).await, ["enqueued", "dropped"]);
}

/// Requests of one process share a commit whose reply is lost, while another process continues.
#[cfg(unix)]
pub async fn a_group_loses_its_reply<S: Store + 'static>(
    direct: &std::sync::Arc<S>,
    through: &std::sync::Arc<S>,
    proxy: &crate::support::toxiproxy::Toxiproxy,
) {
    // HTTP/2 sends at most 64 KiB without a reply from the server (RFC 9113, section 6.9.2), and
    // replies are lost too.
    const ASKING: u32 = 20;
    let (k, calls) = (key("k"), std::sync::atomic::AtomicU32::new(0));
    let asking = (0..ASKING).map(async |n| {
        let wish = request(&format!("m{n}"), n);
        let asked = apply(&**through, &k, |lock, leases, now| {
            if calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 {
                // The lock was read. The next write includes everything queued by then.
                proxy.lose_replies();
            }
            Ok(lock.enqueue(wish.clone(), leases, now)?.uid().clone())
        });
        asked.await.unwrap();
    });
    let theirs = async {
        until("a change", async || (direct.view(&k).await.unwrap().lock.last_ticket > 0).then_some(())).await;
        enqueue(&**direct, &k, &request("other", 99)).await.unwrap();
        proxy.cut();
        proxy.heal();
    };
    let all = async { tokio::join!(futures_util::future::join_all(asking), theirs) };
    tokio::time::timeout(Duration::from_secs(50), all).await.expect("it ends");
    for n in 0..ASKING {
        assert_eq!(said(&**direct, &id(&format!("m{n}"))).await, ["enqueued"], "m{n}");
    }
    let view = direct.view(&key("k")).await.unwrap();
    let mut tickets: Vec<_> = view.lock.active.iter().map(|record| record.ticket_number).collect();
    tickets.sort_unstable();
    assert_eq!(tickets, (1..=u64::from(ASKING) + 1).collect::<Vec<_>>());
    assert_eq!(direct.contents().await.unwrap().violations(), [""; 0]);
}
