//! The Kubernetes store over a connection that loses, refuses, cuts and delays requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use serde_json::json;
use terraform_provider_metal::{
    maintenance::{
        ids::Uid,
        lock::{Leases, ServerLock},
        queue::{Turn, turn},
    },
    store::{Store, StoreError},
};
use tokio::sync::Notify;

use crate::{
    bench::{apply, finish, hold, join, soon, try_admit},
    kubernetes_only::{impatient, open, shared, through, writes_lock},
    records::{AGING, TTL, id, key, request, runner},
    support::{
        kubernetes::Kubernetes,
        kubernetes_proxy::{Deal, Proxy, Seen, status, too_many},
        toxiproxy::Toxiproxy,
    },
    talk::{enqueue, said, timed, until},
    watching::outlives,
};

/// Loses the reply to a change, and commits `others` further changes before the retry.
async fn reply_lost(others: u32) -> (Result<Uid, StoreError>, Vec<String>, u64) {
    let cluster = shared().await;
    let (namespace, proxy) = (cluster.namespace(), Proxy::to(cluster).await);
    let direct = open(&cluster.store(&namespace)).await;
    let unsure = open(&through(&proxy, cluster, &namespace)).await;
    enqueue(&*direct, &key("k"), &request("first", 9)).await.unwrap();
    let (lost, again) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (told, wait) = (lost.clone(), again.clone());
    let mut left = 1;
    let mut gone = false;
    proxy.rule(move |seen| {
        if writes_lock(seen) && left > 0 {
            left -= 1;
            gone = true;
            return Deal::LoseReply;
        }
        if gone {
            // The first read after the lost reply waits for the other changes.
            gone = false;
            told.notify_one();
            return Deal::Wait(wait.clone());
        }
        Deal::Pass
    });
    let wish = request("a", 1);
    let k = key("k");
    let ours = enqueue(&*unsure, &k, &wish);
    let theirs = async {
        lost.notified().await;
        for n in 0..others {
            enqueue(&*direct, &key("k"), &request(&format!("other{n}"), 2)).await.unwrap();
        }
        again.notify_one();
    };
    let (result, ()) = tokio::join!(ours, theirs);
    let tickets = direct.view(&key("k")).await.unwrap().lock.last_ticket;
    assert_eq!(direct.contents().await.unwrap().violations(), [""; 0]);
    (result, said(&*direct, &id("a")).await, tickets)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_reply_was_lost_is_made_once_however_much_others_change() {
    for others in [0, 1, 8, 25] {
        let (result, said, tickets) = reply_lost(others).await;
        result.unwrap();
        assert_eq!((said, tickets), (vec!["enqueued".to_owned()], u64::from(others) + 2), "{others}");
    }
    // Past the lock's memory of recent changes, the outcome is reported as unknown.
    let (result, said, tickets) = reply_lost(60).await;
    assert!(matches!(result, Err(StoreError::Unavailable { .. })), "{result:?}");
    assert_eq!((said, tickets), (vec!["enqueued".to_owned()], 62));
}

/// Any reply to a write can be lost, repeatedly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_over_a_way_that_loses_replies_is_done_exactly_once() {
    const ASKED: u32 = 60;
    const SERVERS: u32 = 12;
    let cluster = shared().await;
    let (namespace, proxy) = (cluster.namespace(), Proxy::to(cluster).await);
    let direct = open(&cluster.store(&namespace)).await;
    let store = open(&through(&proxy, cluster, &namespace)).await;
    let mut chance = 1u32;
    proxy.rule(move |seen| {
        chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if seen.method != "GET" && chance >> 30 == 0 { Deal::LoseReply } else { Deal::Pass }
    });
    let asking = (0..6u32).map(|task| {
        let store = store.clone();
        tokio::spawn(async move {
            for n in (task..ASKED).step_by(6) {
                let key = key(&format!("k{}", n % SERVERS));
                enqueue(&*store, &key, &request(&format!("m{n}"), n)).await.unwrap();
            }
        })
    });
    for asked in asking.collect::<Vec<_>>() {
        tokio::time::timeout(Duration::from_secs(50), asked).await.expect("it ends").unwrap();
    }
    for n in 0..ASKED {
        assert_eq!(said(&*direct, &id(&format!("m{n}"))).await, ["enqueued"], "m{n}");
    }
    for n in 0..SERVERS {
        let view = direct.view(&key(&format!("k{n}"))).await.unwrap();
        assert_eq!((view.lock.active.len() as u64, view.lock.last_ticket), (5, 5), "k{n}");
    }
    assert_eq!(direct.contents().await.unwrap().violations(), [""; 0]);
}

/// A busy API server sends `Retry-After`, and the store sends no earlier request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_too_much_to_do_is_left_alone_for_as_long_as_it_asks() {
    let cluster = shared().await;
    let (namespace, proxy) = (cluster.namespace(), Proxy::to(cluster).await);
    let store = open(&through(&proxy, cluster, &namespace)).await;
    let _changes = store.changes(&key("k"));
    until("the watch", async || proxy.take_seen().iter().any(Seen::is_watch).then_some(())).await;
    let began = Instant::now();
    proxy.rule(move |_| if began.elapsed() < Duration::from_secs(3) { too_many() } else { Deal::Pass });
    enqueue(&*store, &key("k"), &request("a", 1)).await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
    let asked = proxy.take_seen().len();
    println!("{asked} requests, completed after {:?}", began.elapsed());
    assert!(asked < 20, "{asked} requests within {:?}", began.elapsed());
    assert_eq!(said(&*store, &id("a")).await, ["enqueued"]);
}

/// Repeated conflicts: each attempt reads again, with growing pauses. A process that is alone on a
/// lock writes without a read; after a conflict it reads first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_this_process_wrote_last_is_not_read_again() {
    let cluster = shared().await;
    let (namespace, proxy) = (cluster.namespace(), Proxy::to(cluster).await);
    let store = open(&through(&proxy, cluster, &namespace)).await;
    let (uid, fence) = join(&*store, &key("k"), &request("a", 1)).await.unwrap();
    proxy.take_seen();
    assert!(try_admit(&*store, &key("k"), &uid, fence).await.unwrap());
    let asked = proxy.take_seen();
    assert!(asked.len() == 1 && writes_lock(&asked[0]), "{asked:?}");
    let other = open(&cluster.store(&namespace)).await;
    join(&*other, &key("k"), &request("b", 2)).await.unwrap();
    finish(&*store, &key("k"), &uid, fence).await.unwrap();
    let asked = proxy.take_seen();
    assert_eq!(
        asked.iter().filter(|seen| writes_lock(seen)).count(),
        2,
        "one refused write and one accepted: {asked:?}"
    );
    let view = other.view(&key("k")).await.unwrap();
    assert_eq!(view.lock.active.len(), 1, "the other's record is still there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_conflicts_is_no_busy_loop() {
    let cluster = shared().await;
    let (namespace, proxy) = (cluster.namespace(), Proxy::to(cluster).await);
    let store = open(&through(&proxy, cluster, &namespace)).await;
    enqueue(&*store, &key("k"), &request("first", 1)).await.unwrap();
    proxy.take_seen();
    let began = Instant::now();
    proxy.rule(move |seen| match seen {
        seen if writes_lock(seen) && began.elapsed() < Duration::from_secs(3) => {
            Deal::Answer(409, "", status(409, "Conflict"))
        }
        _ => Deal::Pass,
    });
    let mut calls = 0;
    let change = |lock: &mut ServerLock, _: &Leases, _| {
        calls += 1;
        lock.last_ticket += 1;
        Ok(())
    };
    apply(&*store, &key("k"), change).await.unwrap();
    let asked = proxy.take_seen();
    println!("{calls} attempts and {} requests in {:?}", asked.len(), began.elapsed());
    // The longest pause is 100 ms, 50 ms on average.
    assert!((10..130).contains(&calls), "{calls} attempts in {:?}", began.elapsed());
    assert!(asked.len() <= calls * 3 + 5, "{} requests for {calls} attempts", asked.len());
    assert_eq!(store.view(&key("k")).await.unwrap().lock.last_ticket, 2, "the change was applied twice");
}

/// The server ends every watch immediately or reports that its revision is too old.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_cannot_be_kept_is_no_busy_loop() {
    let cluster = shared().await;
    let (namespace, proxy) = (cluster.namespace(), Proxy::to(cluster).await);
    let direct = open(&cluster.store(&namespace)).await;
    let gone =
        json!({"type": "ERROR", "object": serde_json::from_str::<serde_json::Value>(&status(410, "Expired")).unwrap()});
    let answers =
        [(200, String::new()), (200, format!("{gone}\n")), (410, status(410, "Expired")), (500, status(500, "x"))];
    for (round, (code, body)) in answers.into_iter().enumerate() {
        let what = format!("{code} {body}");
        let store = open(&through(&proxy, cluster, &namespace)).await;
        proxy.rule(move |seen| if seen.is_watch() { Deal::Answer(code, "", body.clone()) } else { Deal::Pass });
        let k = key(&format!("k{round}"));
        let mut changes = store.changes(&k);
        proxy.take_seen();
        let began = Instant::now();
        until("some watches", async || (proxy.count() > 3).then_some(())).await;
        until("some time", async || (began.elapsed() > Duration::from_secs(4)).then_some(())).await;
        let asked = proxy.take_seen().len();
        println!("{what}: {asked} requests in {:?}", began.elapsed());
        assert!(asked < 60, "{what}: {asked} requests in {:?}", began.elapsed());
        // The watch delivers the change as soon as the server allows it.
        proxy.rule(|_| Deal::Pass);
        changes.mark_unchanged();
        enqueue(&*direct, &k, &request(&format!("m{round}"), 1)).await.unwrap();
        soon("the change", changes.changed()).await.unwrap();
    }
}

/// Without its watch cache, the API server depends on etcd's history, which was compacted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_outlives_a_cut_and_the_compaction_of_what_it_missed() {
    let start = || Kubernetes::start_with(&["--watch-cache=false"]);
    let cluster = tokio::task::spawn_blocking(start).await.unwrap();
    let (namespace, way) = (cluster.namespace(), Toxiproxy::to(&cluster.host()));
    let direct = open(&cluster.store(&namespace)).await;
    let cut_off = cluster.kubeconfig_at(&format!("https://{}", way.host()), "admin");
    let watching = open(&Kubernetes::store_of(&namespace, &cut_off)).await;
    let mut etcd = etcd_client::Client::connect([cluster.etcd_host()], None).await.unwrap();
    outlives(&*direct, &*watching, &way, &mut etcd, Duration::from_secs(12)).await;
    watching.close().await;
}

/// All processes continue after the restart. Nothing is lost or repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn an_api_server_that_is_killed_costs_nothing_but_time() {
    const SERVERS: u32 = 3;
    const PEOPLE: u32 = 30;
    let mut cluster = tokio::task::spawn_blocking(Kubernetes::start).await.unwrap();
    let url = cluster.store(&cluster.namespace());
    let handles = join_all((0..3).map(|_| open(&url))).await;
    let inside: Arc<Vec<AtomicU32>> = Arc::new((0..SERVERS).map(|_| AtomicU32::new(0)).collect());
    let served = Arc::new(AtomicU32::new(0));
    let people = (0..PEOPLE).map(|n| {
        let (store, inside, served) = (handles[n as usize % handles.len()].clone(), inside.clone(), served.clone());
        async move {
            let k = key(&format!("k{}", n % SERVERS));
            let mut changes = store.changes(&k);
            // The restart takes longer than the store's retry limit.
            let patient = async |what: &str| until(what, async || store.renew(&runner(n), TTL * 4).await.ok()).await;
            patient("a lease").await;
            let wish = request(&format!("m{n}"), n);
            let (uid, generation) = until("a place", async || {
                let asked = apply(&*store, &k, |lock, leases, now| {
                    let uid = lock.enqueue(wish.clone(), leases, now)?.uid().clone();
                    let generation = lock.attach(&uid, wish.runner.clone(), crate::records::token(), leases, now)?;
                    Ok((uid, generation))
                });
                asked.await.ok()
            })
            .await;
            until("the turn", async || {
                changes.mark_unchanged();
                let view = store.view(&k).await.ok()?;
                let mine = turn(&view.lock, &view.leases, &uid, AGING, view.now) == Turn::Yours;
                if mine && try_admit(&*store, &k, &uid, generation).await.ok()? {
                    return Some(());
                }
                let _ = tokio::time::timeout(Duration::from_secs(1), changes.changed()).await;
                None
            })
            .await;
            let others = inside[(n % SERVERS) as usize].fetch_add(1, Ordering::SeqCst);
            assert_eq!(others, 0, "two hold {k}");
            tokio::task::yield_now().await;
            inside[(n % SERVERS) as usize].fetch_sub(1, Ordering::SeqCst);
            until("the end", async || finish(&*store, &k, &uid, generation).await.ok()).await;
            served.fetch_add(1, Ordering::SeqCst);
            generation.generation
        }
    });
    let killing = async {
        until("the first completed requests", async || (served.load(Ordering::SeqCst) >= 4).then_some(())).await;
        let again = move || {
            cluster.kill();
            cluster.start_again();
            cluster
        };
        tokio::task::spawn_blocking(again).await.unwrap()
    };
    let both = async { tokio::join!(join_all(people), killing) };
    let (mut generations, _cluster) =
        tokio::time::timeout(Duration::from_secs(90), both).await.expect("a lock for each person");
    let mut all: Vec<u64> = (1..=u64::from(PEOPLE / SERVERS)).flat_map(|n| [n; SERVERS as usize]).collect();
    generations.sort_unstable();
    all.sort_unstable();
    assert_eq!(generations, all);
    let contents = open(&url).await.contents().await.unwrap();
    assert_eq!(contents.violations(), [""; 0]);
    assert_eq!((contents.history.len(), contents.audit.len()), (PEOPLE as usize, 3 * PEOPLE as usize));
}

/// During an outage, every call fails within the retry limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_away_is_said_to_be_away() {
    const PATIENCE: Duration = Duration::from_secs(2);
    let cluster = shared().await;
    let (namespace, way) = (cluster.namespace(), Toxiproxy::to(&cluster.host()));
    let config = cluster.kubeconfig_at(&format!("https://{}", way.host()), "admin");
    let url = Kubernetes::store_of(&namespace, &config);
    let store = impatient(&url, PATIENCE).await.unwrap();
    let (uid, generation) = hold(&store, &key("k"), &request("a", 1)).await;
    for silent in [false, true] {
        if silent {
            way.lose_replies();
        } else {
            way.cut();
        }
        let view = async { store.view(&key("k")).await.map(drop) };
        let renew = async { store.renew(&runner(1), TTL).await };
        let contents = async { store.contents().await.map(drop) };
        let opened = async { impatient(&url, PATIENCE).await.map(drop) };
        let results = tokio::join!(timed(view), timed(renew), timed(contents), timed(opened));
        for (result, took) in [results.0, results.1, results.2, results.3] {
            assert!(matches!(result, Err(StoreError::Unavailable { .. })), "{result:?}");
            assert!(took < PATIENCE * 3, "{took:?}: {result:?}");
        }
        way.cut();
        way.heal();
        way.mend();
    }
    until("an answer", async || store.view(&key("k")).await.ok()).await;
    finish(&store, &key("k"), &uid, generation).await.unwrap();
    assert_eq!(said(&store, &id("a")).await, ["enqueued", "admitted", "released"]);
}
