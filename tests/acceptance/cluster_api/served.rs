//! Management clusters that serve older Cluster API versions, or none.

use serde_json::{Value, json};

use crate::{
    each_request::{
        places::{Chain, Metal3, Place},
        provider::Provider,
    },
    servers::{
        kubernetes::Kubernetes,
        kubernetes_proxy::{Deal, Proxy, status},
    },
};

/// API groups of Cluster API and its infrastructure providers.
const GROUPS: [&str; 2] = ["cluster.x-k8s.io", "infrastructure.cluster.x-k8s.io"];

/// Starts a proxy to a cluster that serves Cluster API in only one version, or in none.
async fn serving(place: &impl Place, version: Option<&'static str>) -> Proxy {
    let client = Kubernetes::client(&place.kubernetes().kubeconfig()).await;
    let mut groups = serde_json::to_value(client.list_api_groups().await.unwrap()).unwrap();
    let of_group = |group: &Value| GROUPS.iter().any(|name| group["name"] == *name);
    let all = groups["groups"].as_array_mut().unwrap();
    all.retain(|group| version.is_some() || !of_group(group));
    for group in all.iter_mut().filter(|group| of_group(group)) {
        let versions = group["versions"].as_array_mut().unwrap();
        versions.retain(|it| it["version"] == version.unwrap());
        assert_eq!(versions.len(), 1, "{version:?} is served");
        group["preferredVersion"] = versions[0].clone();
    }
    let groups = groups.to_string();
    let proxy = Proxy::to(place.kubernetes()).await;
    proxy.rule(move |seen| {
        let path = seen.path.split('?').next().unwrap_or_default();
        let group = path.strip_prefix("/apis/").and_then(|rest| rest.split_once('/'));
        match group {
            _ if path == "/apis" => Deal::Answer(200, "", groups.clone()),
            Some((name, rest)) if GROUPS.contains(&name) => match version {
                Some(version) if rest.split('/').next() == Some(version) => Deal::Pass,
                _ => Deal::Answer(404, "", status(404, "NotFound")),
            },
            _ => Deal::Pass,
        }
    });
    proxy
}

/// Holds and releases a place's server. Returns the plan's warnings and the marks during the hold.
async fn played(place: &impl Place, proxy: &Proxy) -> (Vec<String>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = place.kubernetes().kubeconfig_at(&proxy.url(), "admin");
    let mut config = place.config(&kubeconfig, folder.path());
    config["coordination_url"] = json!(format!("sqlite://{}", folder.path().join("metal.db").display()));
    config["owner"] = json!("ops");
    let provider = Provider::configured(&config).await;
    assert_eq!(provider.names().await, ["node1"]);
    let warnings = provider.plan("node1", "bios").await;
    let held = provider.create("node1", "bios", &json!({ "server_power": "Off" })).await;
    assert_eq!(held.attribute("state"), "InMaintenance");
    let traces = place.traces().await;
    provider.destroy(held).await;
    provider.end().await;
    assert_eq!(place.traces().await, [""; 0]);
    assert!(place.is_back().await);
    (warnings, traces)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_serves_one_version_is_asked_in_that() {
    for version in ["v1beta1", "v1beta2"] {
        let place = Chain::new().await;
        let proxy = serving(&place, Some(version)).await;
        let (_, traces) = played(&place, &proxy).await;
        let asked = traces.iter().any(|trace| trace.contains("approved") || trace.contains("requested"));
        assert!(asked && traces.iter().any(|trace| trace.starts_with("cordoned")), "{version}: {traces:?}");
        let seen = proxy.take_seen();
        let of = |kind: &str| {
            let part = format!("/{version}/namespaces/");
            seen.iter().filter(|it| it.path.contains(&part) && it.path.contains(kind)).count()
        };
        assert!(of("/machines") > 0 && of("/metal3machines") > 0, "{version}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metal3_needs_no_cluster_api_in_its_cluster() {
    let place = Metal3::new(json!({})).await;
    let proxy = serving(&place, None).await;
    let (warnings, traces) = played(&place, &proxy).await;
    assert!(!traces.is_empty());
    let of_machines = warnings.iter().find(|warning| warning.contains("Machine") || warning.contains("Cluster API"));
    assert_eq!(of_machines, None);
}
