//! What the store in a Kubernetes cluster promises beyond what every store does.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use terraform_provider_metal::{
    clock::SystemClock,
    maintenance::{
        ids::{RunnerId, Uid},
        lock::{Leases, Request, ServerLock},
        queue::{Turn, turn},
        spec::Spec,
    },
    store::{Found, KubernetesOptions, KubernetesStore, MemoryStore, Store, StoreError},
};
use tokio::sync::Notify;

use crate::{
    bench::{HandClock, WrongClock, apply, finish, hold, join, kubernetes, soon, try_admit},
    records::{AGING, TTL, id, key, request, runner, spec},
    support::{
        kubernetes::Kubernetes,
        kubernetes_proxy::{Deal, Proxy, Seen, status, too_many},
        toxiproxy::Toxiproxy,
    },
    talk::{enqueue, said, timed, until},
};

/// A definition of a kind and one of that kind.
const THING: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.org}
spec:
  group: example.org
  names: {kind: Thing, plural: things}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
---
apiVersion: example.org/v1
kind: Thing
metadata: {name: thing}
";

#[test]
fn the_test_cluster_keeps_its_data_and_knows_who_asks() {
    let mut cluster = Kubernetes::start();
    let namespace = cluster.namespace();
    cluster.apply_in(&namespace, "{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, data: {a: b}}");
    cluster.apply(THING);
    cluster.kill();
    cluster.start_again();
    let configs = [
        (cluster.kubeconfig(), "admin"),
        (cluster.kubeconfig_of("runner"), "User \"runner\" cannot"),
        (cluster.user("Zoë", &["one", "two"]), "User \"Zoë\" cannot"),
    ];
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        for (config, who) in configs {
            let all: Api<ConfigMap> = Api::namespaced(Kubernetes::client(&config).await, &namespace);
            match all.get("x").await {
                Ok(found) => assert_eq!((who, found.data.unwrap()["a"].as_str()), ("admin", "b")),
                Err(refused) => assert!(refused.to_string().contains(who), "{refused}"),
            }
        }
    });
}

/// A handle that uses the cluster's own clock, as everybody but a test of time does.
async fn open(url: &str) -> Arc<KubernetesStore> {
    Arc::new(kubernetes(url, None).await.unwrap())
}

/// The same with less patience.
async fn impatient(url: &str, patience: Duration) -> Result<KubernetesStore, StoreError> {
    let options = KubernetesOptions { patience, ..KubernetesOptions::default() };
    KubernetesStore::open(url, WrongClock::next(), options).await
}

/// The cluster that the tests share, from inside a runtime.
async fn shared() -> &'static Kubernetes {
    tokio::task::spawn_blocking(Kubernetes::shared).await.unwrap()
}

/// Past the store, as a person with kubectl would.
async fn maps(cluster: &Kubernetes, namespace: &str) -> Api<ConfigMap> {
    Api::namespaced(Kubernetes::client(&cluster.kubeconfig()).await, namespace)
}

fn through(proxy: &Proxy, cluster: &Kubernetes, namespace: &str) -> String {
    Kubernetes::store_of(namespace, &cluster.kubeconfig_at(&proxy.url(), "admin"))
}

/// Whether a request writes a lock.
fn writes_lock(seen: &Seen) -> bool {
    seen.method == "PATCH" && seen.path.contains("/metal-lock-")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_who_open_an_empty_namespace_at_once_share_one_store() {
    let cluster = shared().await;
    let namespace = cluster.namespace();
    let url = cluster.store(&namespace);
    let opening = (0..16).map(|_| {
        let url = url.clone();
        tokio::spawn(async move { open(&url).await })
    });
    let stores: Vec<_> = join_all(opening).await.into_iter().map(Result::unwrap).collect();
    let ids: HashSet<&str> = stores.iter().map(|store| store.id()).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    // They are one store in deed, too.
    let asking = stores.iter().zip(0..).map(|(store, n)| {
        let store = store.clone();
        tokio::spawn(async move { enqueue(&*store, &key("k"), &request(&format!("m{n}"), n)).await.unwrap() })
    });
    join_all(asking).await;
    let view = stores[0].view(&key("k")).await.unwrap();
    let mut tickets: Vec<_> = view.lock.active.iter().map(|record| record.ticket_number).collect();
    tickets.sort_unstable();
    assert_eq!(tickets, (1..=16).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_stopped_renewing_is_gone_and_it_is_known_since_when() {
    let cluster = shared().await;
    let url = cluster.store(&cluster.namespace());
    let (one, two) = (open(&url).await, open(&url).await);
    let (uid, generation) = hold(&*one, &key("k"), &request("a", 1)).await;
    let began = two.view(&key("k")).await.unwrap();
    assert!(began.lock.may_act(&uid, generation, &began.leases, began.now));
    one.renew(&runner(1), Duration::from_secs(2)).await.unwrap();
    let renewed = Instant::now();
    let view = until("the end of the lease", async || {
        let view = two.view(&key("k")).await.unwrap();
        (!view.lock.may_act(&uid, generation, &view.leases, view.now)).then_some(view)
    })
    .await;
    // Never sooner than its process counts, whatever the clocks say.
    assert!(renewed.elapsed() >= Duration::from_secs(2), "{:?}", renewed.elapsed());
    let since = view.leases.0[&runner(1).id];
    assert!(since <= view.now, "{since} {}", view.now);
    // Still held: silence is not release.
    assert_eq!(view.lock.slot.as_ref().unwrap().uid, uid);
    // Whoever looks for the first time does not believe a clock: it may be that of another API server.
    let late = open(&url).await;
    let first = late.view(&key("k")).await.unwrap();
    assert!(first.lock.may_act(&uid, generation, &first.leases, first.now));
    until("that it has seen enough", async || {
        let view = late.view(&key("k")).await.unwrap();
        (!view.lock.may_act(&uid, generation, &view.leases, view.now)).then_some(())
    })
    .await;
    // Somebody else may go on now, and the same process may come back.
    one.renew(&runner(1), TTL).await.unwrap();
    let back = two.view(&key("k")).await.unwrap();
    assert!(back.lock.may_act(&uid, generation, &back.leases, back.now));
    // Who says that it ends is gone for everybody at once.
    one.resign(&runner(1).id).await.unwrap();
    for store in [&two, &open(&url).await] {
        let view = store.view(&key("k")).await.unwrap();
        assert!(!view.lock.may_act(&uid, generation, &view.leases, view.now));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_renewed_outlives_its_length_many_times() {
    const LENGTH: Duration = Duration::from_secs(2);
    let cluster = shared().await;
    let url = cluster.store(&cluster.namespace());
    let (one, two) = (open(&url).await, open(&url).await);
    let (uid, generation) = hold(&*one, &key("k"), &request("a", 1)).await;
    one.renew(&runner(1), LENGTH).await.unwrap();
    let began = Instant::now();
    while began.elapsed() < LENGTH * 4 {
        let view = two.view(&key("k")).await.unwrap();
        assert!(view.lock.may_act(&uid, generation, &view.leases, view.now), "after {:?}", began.elapsed());
        tokio::time::sleep(LENGTH / 10).await;
        one.renew(&runner(1), LENGTH).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_whose_clocks_are_years_apart_agree_on_the_time() {
    let cluster = shared().await;
    let url = cluster.store(&cluster.namespace());
    // Each handle's machine has a clock that is wrong in another way.
    let stores = join_all((0..7).map(|_| open(&url))).await;
    join(&*stores[0], &key("k"), &request("here", 1)).await.unwrap();
    let began = Instant::now();
    let mut times = vec![Timestamp::now()];
    for store in &stores {
        let view = store.view(&key("k")).await.unwrap();
        assert!(view.leases.alive(view.lock.active[0].attachment.as_ref().unwrap(), view.now));
        times.push(view.now);
    }
    let apart = times.iter().max().unwrap().duration_since(*times.iter().min().unwrap());
    assert!(apart.unsigned_abs() < Duration::from_secs(2) + began.elapsed(), "{times:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_a_newer_schema_is_refused_and_left_alone() {
    let cluster = shared().await;
    let namespace = cluster.namespace();
    let newer = r#"{"store_id":"theirs","schema":9,"more":true}"#;
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "metal-store"}, "data": {"meta": newer}});
    cluster.apply_in(&namespace, &map.to_string());
    let refused = kubernetes(&cluster.store(&namespace), None).await.unwrap_err();
    assert!(matches!(refused, StoreError::Unreadable { .. }), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("schema 9") && text.contains("up to 1"), "{text}");
    let found = maps(cluster, &namespace).await.get("metal-store").await.unwrap();
    assert_eq!(found.data.unwrap()["meta"], newer);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_is_not_understood_is_named() {
    let cluster = shared().await;
    let namespace = cluster.namespace();
    let store = open(&cluster.store(&namespace)).await;
    for (number, (data, told)) in [
        (json!({"active": "[{\"uid\": 7}]"}), "\"active\""),
        (json!({"head": "no JSON"}), "\"head\""),
        (json!({"head": null}), "\"head\""),
        (json!({"approvals": "[]"}), "\"approvals\""),
        (json!({"outbox": "{}"}), "\"outbox\""),
    ]
    .into_iter()
    .enumerate()
    {
        let k = key(&format!("k{number}"));
        enqueue(&*store, &k, &request(&format!("m{number}"), 1)).await.unwrap();
        let all = maps(cluster, &namespace).await;
        let listed = all.list(&ListParams::default().labels("terraform-provider-metal/kind=lock")).await.unwrap();
        let about = |map: &&ConfigMap| map.data.as_ref().unwrap()["active"].contains(&format!("\"{k}\""));
        let name = listed.items.iter().find(about).unwrap().metadata.name.clone().unwrap();
        all.patch(&name, &PatchParams::default(), &Patch::Merge(json!({"data": data}))).await.unwrap();
        for error in [
            store.view(&k).await.unwrap_err(),
            enqueue(&*store, &k, &request("other", 2)).await.unwrap_err(),
            store.contents().await.unwrap_err(),
        ] {
            assert!(matches!(error, StoreError::Unreadable { .. }), "{error}");
            assert!(error.to_string().contains(&name) && error.to_string().contains(told), "{error}");
        }
        all.delete(&name, &DeleteParams::default()).await.unwrap();
    }
    // What is somebody else's is left alone.
    cluster.apply_in(&namespace, "{apiVersion: v1, kind: ConfigMap, metadata: {name: foreign}, data: {head: '?'}}");
    assert_eq!(store.contents().await.unwrap().locks, []);
}

/// A lock is for one machine, whatever its object is called.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_object_of_another_machine_is_not_taken_for_ones_own() {
    let cluster = shared().await;
    let namespace = cluster.namespace();
    let store = open(&cluster.store(&namespace)).await;
    enqueue(&*store, &key("k1"), &request("a", 1)).await.unwrap();
    let all = maps(cluster, &namespace).await;
    let selected = ListParams::default().labels("terraform-provider-metal/kind=lock");
    let one = all.list(&selected).await.unwrap().items.remove(0);
    enqueue(&*store, &key("k2"), &request("b", 1)).await.unwrap();
    let mut other = all.list(&selected).await.unwrap().items;
    other.retain(|map| map.metadata.name != one.metadata.name);
    let patch = json!({"data": one.data});
    all.patch(&other[0].metadata.name.clone().unwrap(), &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let error = store.view(&key("k2")).await.unwrap_err();
    assert!(error.to_string().contains("it is about \"k1\""), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_waiters_that_went_away_do_not_block_a_server() {
    let cluster = shared().await;
    let store = open(&cluster.store(&cluster.namespace())).await;
    for n in 0..150 {
        let wish = Request { spec: Spec { hold_place_for: Duration::ZERO, ..spec() }, ..request(&format!("m{n}"), n) };
        enqueue(&*store, &key("k"), &wish).await.unwrap();
    }
    let wish = request("next", 1000);
    store.renew(&runner(1000), TTL).await.unwrap();
    apply(&*store, &key("k"), |lock, leases, now| {
        lock.drop_absent(leases, now);
        let uid = lock.enqueue(wish.clone(), leases, now)?.uid().clone();
        lock.attach(&uid, wish.runner.clone(), leases, now)
    })
    .await
    .unwrap();
    let left = until("the end of all places", async || {
        let drop_absent = |lock: &mut ServerLock, leases: &Leases, now| {
            lock.drop_absent(leases, now);
            Ok(lock.active.iter().map(|record| record.id.clone()).collect::<Vec<_>>())
        };
        let left = apply(&*store, &key("k"), drop_absent).await.unwrap();
        (left.len() == 1).then_some(left)
    })
    .await;
    assert_eq!(left, [id("next")]);
    assert_eq!(said(&*store, &id("m149")).await, ["enqueued", "dropped"]);
    let contents = store.contents().await.unwrap();
    assert_eq!((contents.violations(), contents.audit.len()), (vec![], 301));
}

/// Everything of one server is one object, which holds 1 MiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_for_one_server_fit_into_its_object() {
    let cluster = shared().await;
    let namespace = cluster.namespace();
    let store = open(&cluster.store(&namespace)).await;
    let memory = MemoryStore::new(Arc::new(SystemClock::default()));
    for n in 0..1000 {
        let mut wish = request(&format!("maintenance-{n}"), n);
        wish.spec.reason = Some(format!("BIOS 2.19 for order {n}"));
        wish.runner.id = RunnerId(uuid::Uuid::new_v4().to_string());
        wish.runner.url = Some(format!("https://ci.example.org/metal/jobs/{}", 4711 * n));
        wish.runner.commit = Some(uuid::Uuid::new_v4().simple().to_string());
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
    // What cannot be compressed.
    let noise: String = (0..80_000).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect();
    let change = |lock: &mut ServerLock, _: &Leases, _| {
        lock.update(&uid, generation, |record| record.spec.reason = Some(noise.clone()))
    };
    let refused = apply(&*store, &key("k"), change).await.unwrap_err();
    assert!(matches!(refused, StoreError::Forbidden { .. }), "{refused}");
    assert!(refused.to_string().contains("1 MiB"), "{}", &refused.to_string()[..500.min(refused.to_string().len())]);
    assert_eq!(open(&cluster.store(&namespace)).await.view(&key("k")).await.unwrap().lock, before.lock);
}

/// A thousand holds that are over make nothing slower, and are found until they are forgotten.
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
    // What happens to the server now is written and read as if it were new.
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
    // Forgotten in batches, as the provider does.
    let mut batches = 0;
    while until("an answer", async || store.prune(Duration::ZERO, 200).await.ok()).await > 0 {
        batches += 1;
    }
    assert!(batches >= 5, "{batches}");
    until("that all is forgotten", async || {
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

/// The change arrives, its reply does not, and others go on meanwhile.
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
            // The first look after it waits until the others are done.
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
    // More than is remembered: then it says that it does not know.
    let (result, said, tickets) = reply_lost(60).await;
    assert!(matches!(result, Err(StoreError::Unavailable { .. })), "{result:?}");
    assert_eq!((said, tickets), (vec!["enqueued".to_owned()], 62));
}

/// Every reply but those of reads may be lost, again and again.
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

/// A busy API server says when to come back, and it is not asked more often than that.
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
    println!("asked {asked} times, done after {:?}", began.elapsed());
    assert!(asked < 20, "asked {asked} times within {:?}", began.elapsed());
    assert_eq!(said(&*store, &id("a")).await, ["enqueued"]);
}

/// Somebody else is first, again and again: everything is read anew each time, with pauses that grow.
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
    // The longest pause is a tenth of a second, half of it on average.
    assert!((10..130).contains(&calls), "{calls} attempts in {:?}", began.elapsed());
    assert!(asked.len() <= calls * 3 + 5, "{} requests for {calls} attempts", asked.len());
    assert_eq!(store.view(&key("k")).await.unwrap().lock.last_ticket, 2, "it was made once");
}

/// A server that ends every watch at once, or says that all is too old.
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
        // It is told as soon as it can be.
        proxy.rule(|_| Deal::Pass);
        changes.mark_unchanged();
        enqueue(&*direct, &k, &request(&format!("m{round}"), 1)).await.unwrap();
        soon("the change", changes.changed()).await.unwrap();
    }
}

/// Without its cache the API server knows what changed as far as its etcd does; here that is nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_outlives_a_cut_and_the_compaction_of_what_it_missed() {
    let start = || Kubernetes::start_with(&["--watch-cache=false"]);
    let cluster = tokio::task::spawn_blocking(start).await.unwrap();
    let (namespace, way) = (cluster.namespace(), Toxiproxy::to(&cluster.host()));
    let direct = open(&cluster.store(&namespace)).await;
    let cut_off = cluster.kubeconfig_at(&format!("https://{}", way.host()), "admin");
    let watching = open(&Kubernetes::store_of(&namespace, &cut_off)).await;
    let mut etcd = etcd_client::Client::connect([cluster.etcd_host()], None).await.unwrap();
    let mut changes = watching.changes(&key("k"));
    join(&*direct, &key("k"), &request("before", 1)).await.unwrap();
    soon("the first change", changes.changed()).await.unwrap();
    for round in 0..3 {
        way.cut();
        // More than one, so that the one after the last that was seen is compacted away.
        let missed = format!("missed{round}");
        for name in [format!("also{round}"), missed.clone()] {
            enqueue(&*direct, &key("k"), &request(&name, 2)).await.unwrap();
        }
        let revision = etcd.get("nothing", None).await.unwrap().header().unwrap().revision();
        etcd.compact(revision, None).await.unwrap();
        way.mend();
        // As a waiter does: looks, and looks again when it is woken.
        loop {
            changes.mark_unchanged();
            let view = watching.view(&key("k")).await.unwrap();
            if view.lock.active.iter().any(|record| record.id == id(&missed)) {
                break;
            }
            soon("the change that was missed", changes.changed()).await.unwrap();
        }
        // The watch itself is back: sooner than it would look by itself.
        let mut fence = watching.changes(&key("fence"));
        enqueue(&*direct, &key("fence"), &request(&format!("fence{round}"), 3)).await.unwrap();
        tokio::time::timeout(Duration::from_secs(12), fence.changed()).await.expect("the watch is back").unwrap();
    }
    watching.close().await;
}

/// A name is taken before the lock is written: who is held up in between must not make it active a second time.
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
            matches!(quick.find(&id("a")).await.unwrap(), Some(Found::Active(found)) if found.lock_key == key("k2"))
        );
    }
}

/// All want the same few names, for different servers, and give them back at once.
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
        // Contents are of one moment.
        while served.load(Ordering::SeqCst) < 20 {
            assert_eq!(watcher.contents().await.unwrap().violations(), [""; 0]);
        }
    };
    let done = async {
        for task in tasks {
            task.await.unwrap();
        }
    };
    soon("that all are done", async { tokio::join!(tokio::time::timeout(Duration::from_secs(15), looks), done) })
        .await
        .0
        .ok();
    println!("{} of 96 had the name", served.load(Ordering::SeqCst));
    assert!(served.load(Ordering::SeqCst) >= 10);
    let contents = watcher.contents().await.unwrap();
    assert_eq!((contents.violations(), contents.locks.iter().map(|lock| lock.active.len()).sum()), (vec![], 0));
}

/// What a process left behind that died before its commit is in nobody's way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_left_behind_before_a_commit_stands_for_nothing() {
    let cluster = shared().await;
    let (namespace, proxy) = (cluster.namespace(), Proxy::to(cluster).await);
    let dies = open(&through(&proxy, cluster, &namespace)).await;
    let store = open(&cluster.store(&namespace)).await;
    let held = Arc::new(Notify::new());
    let told = held.clone();
    proxy.rule(move |seen| {
        if seen.method == "POST" && seen.body.contains("\"metal-lock-") {
            told.notify_one();
            return Deal::Wait(Arc::default());
        }
        Deal::Pass
    });
    let wish = request("a", 1);
    let (uid, k) = (wish.uid.clone(), key("k1"));
    tokio::select! {
        _ = enqueue(&*dies, &k, &wish) => panic!("it is held up"),
        () = held.notified() => {}
    }
    let all = maps(cluster, &namespace).await;
    let left = all.list(&ListParams::default().labels("terraform-provider-metal/kind in (name,uid)")).await.unwrap();
    assert_eq!(left.items.len(), 2);
    assert_eq!((store.find(&id("a")).await, store.find_uid(&uid).await), (Ok(None), Ok(None)));
    assert_eq!(store.contents().await.unwrap().violations(), [""; 0]);
    enqueue(&*store, &key("k2"), &request("a", 2)).await.unwrap();
    assert!(matches!(store.find(&id("a")).await.unwrap(), Some(Found::Active(found)) if found.lock_key == key("k2")));
    assert_eq!(store.contents().await.unwrap().violations(), [""; 0]);
}

/// Everybody goes on when the API server is back, and nothing is lost or done twice.
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
            // Starting again takes the server longer than anybody's patience.
            let patient = async |what: &str| until(what, async || store.renew(&runner(n), TTL * 4).await.ok()).await;
            patient("a lease").await;
            let wish = request(&format!("m{n}"), n);
            let (uid, generation) = until("a place", async || {
                let asked = apply(&*store, &k, |lock, leases, now| {
                    let uid = lock.enqueue(wish.clone(), leases, now)?.uid().clone();
                    let generation = lock.attach(&uid, wish.runner.clone(), leases, now)?;
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
            generation
        }
    });
    let killing = async {
        until("that some are served", async || (served.load(Ordering::SeqCst) >= 4).then_some(())).await;
        let again = move || {
            cluster.kill();
            cluster.start_again();
            cluster
        };
        tokio::task::spawn_blocking(again).await.unwrap()
    };
    let both = async { tokio::join!(join_all(people), killing) };
    let (mut generations, _cluster) =
        tokio::time::timeout(Duration::from_secs(90), both).await.expect("the turn of everybody");
    let mut all: Vec<u64> = (1..=u64::from(PEOPLE / SERVERS)).flat_map(|n| [n; SERVERS as usize]).collect();
    generations.sort_unstable();
    all.sort_unstable();
    assert_eq!(generations, all);
    let contents = open(&url).await.contents().await.unwrap();
    assert_eq!(contents.violations(), [""; 0]);
    assert_eq!((contents.history.len(), contents.audit.len()), (PEOPLE as usize, 3 * PEOPLE as usize));
}

/// While it is away, everybody is told within the time that was agreed on.
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

/// What stands for nothing goes after a day; what is in use stays, however old it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_processes_left_behind_is_taken_away_after_a_day() {
    const DAY: Duration = Duration::from_secs(86_400);
    let cluster = shared().await;
    let (namespace, proxy) = (cluster.namespace(), Proxy::to(cluster).await);
    let dies = open(&through(&proxy, cluster, &namespace)).await;
    let held = Arc::new(Notify::new());
    let told = held.clone();
    proxy.rule(move |seen| {
        if seen.method == "POST" && seen.body.contains("\"metal-lock-") {
            told.notify_one();
            return Deal::Wait(Arc::default());
        }
        Deal::Pass
    });
    let (wish, k) = (request("a", 9), key("k1"));
    tokio::select! {
        _ = enqueue(&*dies, &k, &wish) => panic!("it is held up"),
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
    // By the time of the store the objects are old, the Leases are not.
    assert_eq!((pointers().await, runners().await), (2, 2));
    clock.pass(DAY * 2);
    assert_eq!(store.prune(DAY * 365, 100).await.unwrap(), 0);
    assert_eq!((pointers().await, runners().await), (2, 1), "who is attached is asked about");
    let view = store.view(&key("k2")).await.unwrap();
    assert_eq!(view.leases.0.keys().collect::<Vec<_>>(), [&runner(1).id]);
    assert!(matches!(store.find_uid(&uid).await.unwrap(), Some(Found::Active(_))));
    assert_eq!(store.contents().await.unwrap().violations(), [""; 0]);
    // The name is free for anybody, also for a server that nobody ever asked for.
    enqueue(&store, &key("k3"), &request("a", 2)).await.unwrap();
}
