//! Cached API objects on a real API server: stale data is never reported as current.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, reason = "tests measure real time")]

#[path = "support/mod.rs"]
mod support;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::ApiResource;
use serde_json::json;
use support::{
    kubernetes::Kubernetes,
    kubernetes_proxy::{Deal, Proxy, status},
};
use terraform_provider_metal::{
    clock::SystemClock,
    kubernetes::{Cluster, ClusterError, ClusterSettings, Mirror},
};

/// Longer than the longest retry interval.
const SOON: Duration = Duration::from_secs(20);

async fn namespace() -> (&'static Kubernetes, String) {
    let make = || {
        let cluster = Kubernetes::shared();
        (cluster, cluster.namespace())
    };
    tokio::task::spawn_blocking(make).await.unwrap()
}

/// Returns a mirror of all `ConfigMaps` in a namespace.
fn maps(kubeconfig: PathBuf, namespace: &str) -> Mirror {
    let settings = ClusterSettings { kubeconfig: Some(kubeconfig), ..ClusterSettings::default() };
    let kind = ApiResource::erase::<ConfigMap>(&());
    Mirror::new(Cluster::new(settings, Arc::new(SystemClock::default())), kind, Some(namespace.to_owned()))
}

fn make(cluster: &Kubernetes, namespace: &str, name: &str) {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    tokio::task::block_in_place(|| cluster.apply_in(namespace, &map.to_string()));
}

/// Grants `user` these verbs on `ConfigMaps`.
fn allow(cluster: &Kubernetes, namespace: &str, user: &str, verbs: &[&str]) {
    let group = "rbac.authorization.k8s.io";
    let role = json!({
        "apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": {"name": user},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}],
    });
    let binding = json!({
        "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": {"name": user},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": user},
        "subjects": [{"kind": "User", "apiGroup": group, "name": user}],
    });
    tokio::task::block_in_place(|| cluster.apply_in(namespace, &format!("{role}\n---\n{binding}")));
}

async fn names(mirror: &Mirror) -> Result<Vec<String>, ClusterError> {
    Ok(mirror.all().await?.iter().map(|map| map.metadata.name.clone().unwrap()).collect())
}

/// Reads until an object appears.
async fn until(mirror: &Mirror, wanted: &str) {
    let began = Instant::now();
    loop {
        let read = names(mirror).await;
        if read.as_ref().is_ok_and(|names| names.iter().any(|name| name == wanted)) {
            return;
        }
        assert!(began.elapsed() < SOON, "{wanted} is missing in the mirror: {read:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_list_and_not_watch_is_told_so_each_time() {
    let (cluster, namespace) = namespace().await;
    make(cluster, &namespace, "first");
    let kubeconfig = cluster.user("lister", &[]);
    let mirror = maps(kubeconfig, &namespace);
    // RBAC changes take effect after a short delay.
    allow(cluster, &namespace, "lister", &["get", "list"]);
    let began = Instant::now();
    loop {
        match names(&mirror).await {
            Err(ClusterError::Forbidden { verb: "watch", .. }) => break,
            Err(ClusterError::Forbidden { verb: "list", .. }) => {}
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() < SOON);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    make(cluster, &namespace, "second");
    for _ in 0..5 {
        let read = names(&mirror).await;
        let Err(ClusterError::Forbidden { verb: "watch", resource, .. }) = &read else { panic!("{read:?}") };
        assert!(resource.raw().contains("configmaps"), "{resource}");
    }
    // A permission granted later is used without further changes in the cluster.
    allow(cluster, &namespace, "lister", &["get", "list", "watch"]);
    until(&mirror, "second").await;
    make(cluster, &namespace, "third");
    until(&mirror, "third").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_cannot_be_opened_again_shows_nothing_old() {
    let (cluster, namespace) = namespace().await;
    let proxy = Proxy::to(cluster).await;
    make(cluster, &namespace, "first");
    let mirror = maps(cluster.kubeconfig_at(&proxy.url(), "admin"), &namespace);
    // Lists succeed throughout, but do not prove that a watch works.
    for (code, transient) in [(500, true), (403, false)] {
        proxy.rule(move |seen| if seen.is_watch() { Deal::Answer(code, "", status(code, "No")) } else { Deal::Pass });
        for _ in 0..3 {
            let error = names(&mirror).await.unwrap_err();
            assert_eq!(error.is_transient(), transient, "{error}");
        }
    }
    make(cluster, &namespace, "second");
    proxy.rule(|_| Deal::Pass);
    // The first response afterwards is fresh.
    assert_eq!(names(&mirror).await.unwrap().iter().filter(|name| *name != "kube-root-ca.crt").count(), 2);
    proxy.take_seen();
    for _ in 0..20 {
        names(&mirror).await.unwrap();
    }
    let asked = proxy.take_seen();
    assert!(asked.is_empty(), "{asked:?}");
}
