//! Guarantees of the Kubernetes store only: its objects, the liveness of processes and its clock.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use terraform_provider_metal::store::{KubernetesOptions, KubernetesStore, Store, StoreError};

use crate::{
    bench::{WrongClock, hold, join, kubernetes},
    records::{TTL, key, request, runner},
    support::{
        kubernetes::Kubernetes,
        kubernetes_proxy::{Proxy, Seen},
    },
    talk::{enqueue, renewed_in_time, until},
};

/// A custom resource definition and one object of it.
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

/// Opens a handle with the cluster's own clock, as in production.
pub async fn open(url: &str) -> Arc<KubernetesStore> {
    Arc::new(kubernetes(url, None).await.unwrap())
}

/// Opens a handle with a shorter retry limit.
pub async fn impatient(url: &str, patience: Duration) -> Result<KubernetesStore, StoreError> {
    let options = KubernetesOptions { patience, ..KubernetesOptions::default() };
    KubernetesStore::open(url, WrongClock::next(), options).await
}

/// Returns the shared cluster from within a runtime.
pub async fn shared() -> &'static Kubernetes {
    tokio::task::spawn_blocking(Kubernetes::shared).await.unwrap()
}

/// Accesses ConfigMaps directly, like kubectl.
pub async fn maps(cluster: &Kubernetes, namespace: &str) -> Api<ConfigMap> {
    Api::namespaced(Kubernetes::client(&cluster.kubeconfig()).await, namespace)
}

pub fn through(proxy: &Proxy, cluster: &Kubernetes, namespace: &str) -> String {
    Kubernetes::store_of(namespace, &cluster.kubeconfig_at(&proxy.url(), "admin"))
}

/// Returns true if a request writes a lock.
pub fn writes_lock(seen: &Seen) -> bool {
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
    // They also behave as one store.
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
    let view = until("the lease expiry", async || {
        let view = two.view(&key("k")).await.unwrap();
        (!view.lock.may_act(&uid, generation, &view.leases, view.now)).then_some(view)
    })
    .await;
    // It never ends earlier than its own process expects, whatever the clocks show.
    assert!(renewed.elapsed() >= Duration::from_secs(2), "{:?}", renewed.elapsed());
    let since = view.leases.0[&runner(1).id];
    assert!(since <= view.now, "{since} {}", view.now);
    // A disconnect does not release the server.
    assert_eq!(view.lock.slot.as_ref().unwrap().uid, uid);
    // A new handle does not trust the renewal time, which can come from another API server's
    // clock.
    let late = open(&url).await;
    let first = late.view(&key("k")).await.unwrap();
    assert!(first.lock.may_act(&uid, generation, &first.leases, first.now));
    until("the lease expiry for a new handle", async || {
        let view = late.view(&key("k")).await.unwrap();
        (!view.lock.may_act(&uid, generation, &view.leases, view.now)).then_some(())
    })
    .await;
    // Another process could continue now, and the original can reconnect.
    one.renew(&runner(1), TTL).await.unwrap();
    let back = two.view(&key("k")).await.unwrap();
    assert!(back.lock.may_act(&uid, generation, &back.leases, back.now));
    // Every handle treats a resigned process as disconnected immediately.
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
    let alive = async || {
        let view = two.view(&key("k")).await.unwrap();
        view.lock.may_act(&uid, generation, &view.leases, view.now)
    };
    let renew = async || one.renew(&runner(1), LENGTH).await.unwrap();
    until("a lease that is renewed in time", async || renewed_in_time(LENGTH, 4, &alive, &renew).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_whose_clocks_are_years_apart_agree_on_the_time() {
    let cluster = shared().await;
    let url = cluster.store(&cluster.namespace());
    // Each handle's machine has a different clock error.
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
async fn a_store_of_a_newer_format_is_refused_and_left_alone() {
    let cluster = shared().await;
    let namespace = cluster.namespace();
    let newer = r#"{"store_id":"theirs","schema":9,"more":true}"#;
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "metal-store"}, "data": {"meta": newer}});
    cluster.apply_in(&namespace, &map.to_string());
    let refused = kubernetes(&cluster.store(&namespace), None).await.unwrap_err();
    assert!(matches!(refused, StoreError::Unreadable { .. }), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("format 9") && text.contains("supports format 1"), "{text}");
    let found = maps(cluster, &namespace).await.get("metal-store").await.unwrap();
    assert_eq!(found.data.unwrap()["meta"], newer);
}

/// Error for an unreadable record in a readable lock.
const A_RECORD: &str = "invalid type: integer `7`";

/// Error for unreadable approvals.
const WORDS: &str = "\"approvals\"";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_is_not_understood_is_named() {
    let cluster = shared().await;
    let namespace = cluster.namespace();
    let store = open(&cluster.store(&namespace)).await;
    for (number, (data, told)) in [
        (json!({"active": "[{\"uid\": 7}]"}), A_RECORD),
        (json!({"active": "[{\"uid\""}), "\"active\""),
        (json!({"head": "no JSON"}), "\"head\""),
        (json!({"head": null}), "\"head\""),
        (json!({"approvals": "[]"}), WORDS),
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
        // `store check` reports it and reads the rest.
        let wrong = store.contents().await.unwrap().violations();
        assert!(wrong.iter().any(|line| line.raw().contains(told)), "{wrong:?}");
        if told == A_RECORD {
            assert_eq!(store.view(&k).await.unwrap().lock.unreadable.len(), 1);
        } else if told == WORDS {
            // Approvers write this key. An unreadable value counts as empty and never blocks the
            // server.
            assert!(store.view(&k).await.unwrap().lock.ownership.approvals.is_empty());
            enqueue(&*store, &k, &request("other", 2)).await.unwrap();
        } else {
            let view = store.view(&k).await.unwrap_err();
            for error in [view, enqueue(&*store, &k, &request("other", 2)).await.unwrap_err()] {
                assert!(matches!(error, StoreError::Unreadable { .. }), "{error}");
                assert!(error.to_string().contains(&name) && error.to_string().contains(told), "{error}");
            }
        }
        all.delete(&name, &DeleteParams::default()).await.unwrap();
    }
    // Foreign objects stay unchanged.
    cluster.apply_in(&namespace, "{apiVersion: v1, kind: ConfigMap, metadata: {name: foreign}, data: {head: '?'}}");
    assert_eq!(store.contents().await.unwrap().locks, []);
}

/// An object whose lock names another machine is rejected, even under the expected object name.
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
