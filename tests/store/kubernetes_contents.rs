//! Kubernetes store: size limits, name pointers and garbage collection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::ListParams};
use terraform_provider_metal::{
    clock::SystemClock,
    maintenance::{
        ids::RunnerId,
        lock::{Leases, ServerLock},
    },
    store::{MemoryStore, RecordLookup, Store, StoreError},
};
use tokio::sync::Notify;

use crate::{
    bench::{HandClock, apply, finish, hold, join, kubernetes, soon},
    kubernetes_only::{maps, open, shared, through, writes_lock},
    records::{TTL, id, key, request, runner},
    support::{
        kubernetes::Kubernetes,
        kubernetes_proxy::{Deal, Proxy},
    },
    talk::{a_crowd_leaves, enqueue, until},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_waiters_that_went_away_do_not_block_a_server() {
    let cluster = shared().await;
    let store = open(&cluster.store(&cluster.namespace())).await;
    a_crowd_leaves(&*store).await;
    let contents = store.contents().await.unwrap();
    assert_eq!((contents.violations(), contents.audit.len()), (vec![], 301));
}

/// One object contains a server's whole lock, limited to 1 MiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_for_one_server_fit_into_its_object() {
    let cluster = shared().await;
    let namespace = cluster.namespace();
    let store = open(&cluster.store(&namespace)).await;
    let memory = MemoryStore::new(Arc::new(SystemClock::default()));
    for n in 0..1000 {
        let mut wish = request(&format!("maintenance-{n}"), n);
        wish.spec.reason = Some(format!("BIOS 2.19 for order {n}").into());
        wish.runner.id = RunnerId::new(uuid::Uuid::new_v4().to_string());
        wish.runner.url = Some(format!("https://ci.example.org/metal/jobs/{}", 4711 * n).into());
        wish.runner.commit = Some(uuid::Uuid::new_v4().simple().to_string().into());
        join(&memory, &key("k"), &wish).await.unwrap();
    }
    store.fill(&memory.contents().await.unwrap()).await.unwrap();
    let one_more = request("one-more", 1001);
    let began = Instant::now();
    enqueue(&*store, &key("k"), &one_more).await.unwrap();
    let took = began.elapsed();
    let view = store.view(&key("k")).await.unwrap();
    let expected = memory.view(&key("k")).await.unwrap();
    assert_eq!(view.lock.active[..1000], expected.lock.active[..]);
    assert_eq!(view.lock.active[1000].id, one_more.id);
    let all = maps(cluster, &namespace).await;
    let lock =
        all.list(&ListParams::default().labels("terraform-provider-metal/kind=lock")).await.unwrap().items.remove(0);
    let size = serde_json::to_vec(&lock).unwrap().len();
    println!("1001 waiters: {size} bytes, one more took {took:?}");
    assert!(size < 400_000, "{size} bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_too_long_fails_as_a_whole_and_says_what_is_wrong() {
    let cluster = shared().await;
    let namespace = cluster.namespace();
    let store = open(&cluster.store(&namespace)).await;
    let (uid, generation) = hold(&*store, &key("k"), &request("hold", 1)).await;
    let before = store.view(&key("k")).await.unwrap();
    // Incompressible data.
    let noise: String = (0..80_000).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect();
    let change = |lock: &mut ServerLock, _: &Leases, _| {
        lock.update(&uid, generation, |record| record.spec.reason = Some(noise.clone().into()))
    };
    let refused = apply(&*store, &key("k"), change).await.unwrap_err();
    assert!(matches!(refused, StoreError::Forbidden { .. }), "{refused}");
    assert!(refused.to_string().contains("1 MiB"), "{}", &refused.to_string()[..500.min(refused.to_string().len())]);
    assert_eq!(open(&cluster.store(&namespace)).await.view(&key("k")).await.unwrap().lock, before.lock);
}

/// Part of the object is reserved for the holder's writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_does_not_fill_an_object_so_far_that_its_holder_cannot_be_released() {
    let cluster = shared().await;
    let namespace = cluster.namespace();
    let store = open(&cluster.store(&namespace)).await;
    let (uid, generation) = hold(&*store, &key("k"), &request("hold", 1)).await;
    // Barely compressible data.
    let noise = || (0..2500).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect::<String>();
    let mut queued = 0;
    let refused = loop {
        let mut wish = request(&format!("m{queued}"), 2);
        wish.spec.reason = Some(noise().into());
        match enqueue(&*store, &key("k"), &wish).await {
            Ok(_) => queued += 1,
            Err(error) => break error,
        }
        assert!(queued < 100);
    };
    assert!(matches!(refused, StoreError::Forbidden { .. }), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("is full") && text.contains("of 1048576"), "{}", &text[..400.min(text.len())]);
    assert!(queued > 10, "{queued}");
    // The holder finishes, with a reason as long as the queue's longest.
    let change = |lock: &mut ServerLock, _: &Leases, _| {
        lock.update(&uid, generation, |record| record.spec.reason = Some(noise().into()))
    };
    apply(&*store, &key("k"), change).await.unwrap();
    finish(&*store, &key("k"), &uid, generation).await.unwrap();
    assert!(store.view(&key("k")).await.unwrap().lock.slot.is_none());
    assert_eq!(open(&cluster.store(&namespace)).await.contents().await.unwrap().violations(), [""; 0]);
}

/// In a batch, only the changes that exceed the limit are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_is_refused_without_the_others_that_came_with_it() {
    let cluster = shared().await;
    let store = open(&cluster.store(&cluster.namespace())).await;
    let large: String = (0..80_000).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect();
    let asking = (0..12u32).map(|n| {
        let (store, large) = (store.clone(), large.clone());
        tokio::spawn(async move {
            let mut wish = request(&format!("m{n}"), n);
            wish.spec.reason = (n % 4 == 1).then_some(large.into());
            enqueue(&*store, &key("k"), &wish).await.is_ok()
        })
    });
    for (n, asked) in asking.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(asked.await.unwrap(), n % 4 != 1, "{n}");
    }
    assert_eq!(store.view(&key("k")).await.unwrap().lock.active.len(), 9);
}

/// A thousand ended holds slow nothing down and stay findable until pruned.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_finished_holds_cost_nothing() {
    const DONE: u32 = 1000;
    let cluster = shared().await;
    let namespace = cluster.namespace();
    let memory = MemoryStore::new(Arc::new(SystemClock::default()));
    for n in 0..DONE {
        let (uid, generation) = hold(&memory, &key("k"), &request(&format!("m{n}"), n)).await;
        finish(&memory, &key("k"), &uid, generation).await.unwrap();
    }
    let expected = memory.contents().await.unwrap();
    let store = open(&cluster.store(&namespace)).await;
    store.fill(&expected).await.unwrap();
    // Current changes cost the same as on a new lock.
    let proxy = Proxy::to(cluster).await;
    let counted = open(&through(&proxy, cluster, &namespace)).await;
    proxy.take_seen();
    let (uid, generation) = hold(&*counted, &key("k"), &request("now", 1)).await;
    finish(&*counted, &key("k"), &uid, generation).await.unwrap();
    let seen = proxy.take_seen();
    let written: usize = seen.iter().map(|seen| seen.body.len()).sum();
    println!("one hold: {} requests, {written} bytes written", seen.len());
    assert!(seen.len() < 40 && written < 40_000, "{} requests, {written} bytes", seen.len());
    assert!(!seen.iter().any(|seen| seen.method == "GET" && seen.path.contains("journal")), "history is not read");
    let began = Instant::now();
    let last = store.find(&id(&format!("m{}", DONE - 1))).await.unwrap().unwrap();
    assert!(store.find_uid(&last.record().uid).await.unwrap().is_some());
    println!("found twice in {:?}", began.elapsed());
    let found = store.contents().await.unwrap();
    assert_eq!(found.history[..DONE as usize], expected.history[..]);
    // Prunes in batches, like the provider.
    let mut batches = 0;
    while until("an answer", async || store.prune(Duration::ZERO, 200).await.ok()).await > 0 {
        batches += 1;
    }
    assert!(batches >= 5, "{batches}");
    until("the removal of history and audit", async || {
        store.prune(Duration::ZERO, 200).await.unwrap();
        let left = store.contents().await.unwrap();
        (left.history.is_empty() && left.audit.is_empty()).then_some(())
    })
    .await;
    assert_eq!(store.find(&id("m1")).await.unwrap(), None);
    let objects = maps(cluster, &namespace).await.list(&ListParams::default()).await.unwrap().items;
    let names: Vec<_> = objects.iter().filter_map(|map| map.metadata.name.as_deref()).collect();
    assert_eq!(names.len(), 2, "the lock and the store itself: {names:?}");
}

/// A name pointer is written before the lock. A writer delayed in between must not activate the
/// name a second time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_held_up_before_its_commit_does_not_make_a_name_active_twice() {
    for exists in [false, true] {
        let cluster = shared().await;
        let (namespace, proxy) = (cluster.namespace(), Proxy::to(cluster).await);
        let slow = open(&through(&proxy, cluster, &namespace)).await;
        let quick = open(&cluster.store(&namespace)).await;
        if exists {
            enqueue(&*quick, &key("k1"), &request("first", 9)).await.unwrap();
        }
        let (held, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (told, wait) = (held.clone(), go.clone());
        let mut left = 1;
        proxy.rule(move |seen| {
            let makes = seen.method == "POST" && seen.body.contains("\"metal-lock-");
            if (makes || writes_lock(seen)) && left > 0 {
                left -= 1;
                told.notify_one();
                return Deal::Wait(wait.clone());
            }
            Deal::Pass
        });
        let (k1, first) = (key("k1"), request("a", 1));
        let ours = enqueue(&*slow, &k1, &first);
        let theirs = async {
            held.notified().await;
            enqueue(&*quick, &key("k2"), &request("a", 2)).await.unwrap();
            go.notify_one();
        };
        let (refused, ()) = tokio::join!(ours, theirs);
        assert_eq!(refused.unwrap_err(), StoreError::NameTaken { id: id("a"), key: key("k2") });
        assert_eq!(quick.contents().await.unwrap().violations(), [""; 0], "{exists}");
        assert!(
            matches!(quick.find(&id("a")).await.unwrap(), Some(RecordLookup::Active(found)) if found.lock_key == key("k2"))
        );
    }
}

/// All tasks request the same few names on different servers and release them immediately.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_many_ask_for_a_name_it_is_active_for_one_server_only() {
    let cluster = shared().await;
    let url = cluster.store(&cluster.namespace());
    let handles = join_all((0..4).map(|_| open(&url))).await;
    let served = Arc::new(AtomicU32::new(0));
    let tasks = (0..8u32).map(|task| {
        let (store, served) = (handles[task as usize % handles.len()].clone(), served.clone());
        tokio::spawn(async move {
            let k = key(&format!("k{task}"));
            for round in 0..12 {
                let wish = request(&format!("m{}", round % 2), task * 100 + round);
                match join(&*store, &k, &wish).await {
                    Ok((uid, generation)) => {
                        served.fetch_add(1, Ordering::SeqCst);
                        apply(&*store, &k, |lock, _, now| lock.withdraw(&uid, generation, now)).await.unwrap();
                    }
                    Err(StoreError::NameTaken { key, .. }) => assert_ne!(key, k),
                    Err(error) => panic!("{error}"),
                }
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let watcher = open(&url).await;
    let looks = async {
        // `contents` is a consistent snapshot.
        while served.load(Ordering::SeqCst) < 20 {
            assert_eq!(watcher.contents().await.unwrap().violations(), [""; 0]);
        }
    };
    let done = async {
        for task in tasks {
            task.await.unwrap();
        }
    };
    soon("the end of all tasks", async { tokio::join!(tokio::time::timeout(Duration::from_secs(15), looks), done) })
        .await
        .0
        .ok();
    println!("{} of 96 reads returned the name", served.load(Ordering::SeqCst));
    assert!(served.load(Ordering::SeqCst) >= 10);
    let contents = watcher.contents().await.unwrap();
    assert_eq!((contents.violations(), contents.locks.iter().map(|lock| lock.active.len()).sum()), (vec![], 0));
}

/// Blocks every request that creates a server's object, and signals each.
fn hold_up_first_commits(proxy: &Proxy) -> Arc<Notify> {
    let held = Arc::new(Notify::new());
    let told = held.clone();
    proxy.rule(move |seen| {
        if seen.method == "POST" && seen.body.contains("\"metal-lock-") {
            told.notify_one();
            return Deal::Wait(Arc::default());
        }
        Deal::Pass
    });
    held
}

/// Leftovers of a process that died before its commit do not block other processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_left_behind_before_a_commit_stands_for_nothing() {
    let cluster = shared().await;
    let (namespace, proxy) = (cluster.namespace(), Proxy::to(cluster).await);
    let dies = open(&through(&proxy, cluster, &namespace)).await;
    let store = open(&cluster.store(&namespace)).await;
    let held = hold_up_first_commits(&proxy);
    let wish = request("a", 1);
    let (uid, k) = (wish.uid.clone(), key("k1"));
    tokio::select! {
        _ = enqueue(&*dies, &k, &wish) => panic!("the enqueue was not blocked"),
        () = held.notified() => {}
    }
    let all = maps(cluster, &namespace).await;
    let left = all.list(&ListParams::default().labels("terraform-provider-metal/kind in (name,uid)")).await.unwrap();
    assert_eq!(left.items.len(), 2);
    assert_eq!((store.find(&id("a")).await, store.find_uid(&uid).await), (Ok(None), Ok(None)));
    assert_eq!(store.contents().await.unwrap().violations(), [""; 0]);
    enqueue(&*store, &key("k2"), &request("a", 2)).await.unwrap();
    assert!(
        matches!(store.find(&id("a")).await.unwrap(), Some(RecordLookup::Active(found)) if found.lock_key == key("k2"))
    );
    assert_eq!(store.contents().await.unwrap().violations(), [""; 0]);
}

/// Unused pointers are removed after a day; pointers in use stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_processes_left_behind_is_taken_away_after_a_day() {
    const DAY: Duration = Duration::from_secs(86_400);
    let cluster = shared().await;
    let (namespace, proxy) = (cluster.namespace(), Proxy::to(cluster).await);
    let dies = open(&through(&proxy, cluster, &namespace)).await;
    let held = hold_up_first_commits(&proxy);
    let (wish, k) = (request("a", 9), key("k1"));
    tokio::select! {
        _ = enqueue(&*dies, &k, &wish) => panic!("the enqueue was not blocked"),
        () = held.notified() => {}
    }
    let clock = HandClock::new();
    let store = kubernetes(&cluster.store(&namespace), Some(clock.clone())).await.unwrap();
    let (uid, _) = hold(&store, &key("k2"), &request("held", 1)).await;
    store.renew(&runner(5), TTL).await.unwrap();
    let all = maps(cluster, &namespace).await;
    let pointers = async || {
        let selected = ListParams::default().labels("terraform-provider-metal/kind in (name,uid)");
        all.list(&selected).await.unwrap().items.len()
    };
    let leases: Api<Lease> = Api::namespaced(Kubernetes::client(&cluster.kubeconfig()).await, &namespace);
    let runners = async || leases.list(&ListParams::default()).await.unwrap().items.len();
    assert_eq!((pointers().await, runners().await), (4, 2));
    assert_eq!(store.prune(DAY * 365, 100).await.unwrap(), 0);
    // The store's clock passes two days, but the Leases are fresh.
    assert_eq!((pointers().await, runners().await), (2, 2));
    clock.pass(DAY * 2);
    assert_eq!(store.prune(DAY * 365, 100).await.unwrap(), 0);
    assert_eq!((pointers().await, runners().await), (2, 1), "an expired runner is still stored");
    let view = store.view(&key("k2")).await.unwrap();
    assert_eq!(view.leases.0.keys().collect::<Vec<_>>(), [&runner(1).id]);
    assert!(matches!(store.find_uid(&uid).await.unwrap(), Some(RecordLookup::Active(_))));
    assert_eq!(store.contents().await.unwrap().violations(), [""; 0]);
    // The name is free again, including for a new server.
    enqueue(&store, &key("k3"), &request("a", 2)).await.unwrap();
}
