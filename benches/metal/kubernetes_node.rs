//! Drained Kubernetes Nodes: API server load of a refresh.
//!
//! The setup has a real API server, simulated BMCs, and Nodes without a kubelet, so that only the
//! provider sends requests. A proxy counts requests; times are measured without it.
use std::{path::Path, time::Instant};

use bmc_simulator::{JournalMode, Simulator, SimulatorConfig};
use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{ApiResource, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    api_server,
    measure::{ms, ratio},
    provider::{AT_ONCE, Held, Provider, redfish},
    support::{kubernetes::Kubernetes, kubernetes_proxy::Proxy},
    table::Row,
};

pub async fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    for servers in [100, 1000] {
        rows.push(with(servers).await);
    }
    rows
}

/// Name of a Node, unique to each measurement.
fn node(servers: usize, number: usize) -> String {
    format!("drained-{servers}-{number}")
}

async fn with(servers: usize) -> Row {
    let kubernetes = tokio::task::spawn_blocking(Kubernetes::shared).await.unwrap();
    let kubeconfig = kubernetes.kubeconfig();
    let nodes: Api<Node> = Api::all(Kubernetes::client(&kubeconfig).await);
    let made = stream::iter(1..=servers).map(async |number| {
        let name = node(servers, number);
        let made = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
        nodes.patch(&name, &PatchParams::apply("bench"), &Patch::Apply(made)).await.unwrap();
    });
    made.buffer_unordered(AT_ONCE).collect::<()>().await;

    let mut systems = SimulatorConfig::with_systems(servers).behind_one_bmc();
    systems.journal = JournalMode::CountOnly;
    let simulator = Simulator::start(systems).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::to(kubernetes).await;
    let config = |kubeconfig: &Path| config(&simulator, folder.path(), kubeconfig, servers);
    let (counted, direct) = (config(&kubernetes.kubeconfig_at(&proxy.url(), "admin")), config(&kubeconfig));

    let provider = Provider::configured(&direct).await;
    let off = json!({ "server_power": "Off" });
    let held = stream::iter(1..=servers).map(async |number| {
        let server = format!("node{number}");
        provider.create(&server, &format!("held-{server}"), &off).await
    });
    let held: Vec<Held> = held.buffer_unordered(AT_ONCE).collect().await;
    provider.end().await;

    let (time, measured) = api_server::refresh(&proxy, &["/nodes"], (&counted, &direct), &held).await;
    let begin = Instant::now();
    let plain = stream::iter(1..=servers).map(async |number| drop(nodes.get(&node(servers, number)).await.unwrap()));
    plain.buffer_unordered(AT_ONCE).collect::<()>().await;
    let reference = begin.elapsed();
    let all = nodes.list(&ListParams::default()).await.unwrap().items;
    let of_now = format!("drained-{servers}-");
    let all: Vec<Value> = all
        .iter()
        .filter(|one| one.metadata.name.as_ref().is_some_and(|name| name.starts_with(&of_now)))
        .map(|one| serde_json::to_value(one).unwrap())
        .collect();
    let kind = ApiResource::erase::<Node>(&());
    let manifest = api_server::by_manifest(kubernetes, &kubeconfig, &kind, "Nodes", &all).await;
    simulator.stop().await;
    let what = format!("drained Nodes: refresh of {servers} held servers in a new process, one GET of each BMC");
    let gets = format!("plain gets of each Node, {servers}: {}", ms(reference));
    Row::new(what, measured).against(gets + &manifest, ratio(time, reference))
}

fn config(simulator: &Simulator, folder: &Path, kubeconfig: &Path, servers: usize) -> Value {
    let nodes: serde_json::Map<_, _> =
        (1..=servers).map(|number| (format!("node{number}"), json!(node(servers, number)))).collect();
    json!({
        "coordination_url": format!("sqlite://{}", folder.join("metal.db").display()),
        "owner": "bench",
        "redfish": redfish(simulator, folder),
        "kubernetes_node": { "kubeconfig": kubeconfig, "nodes": nodes },
    })
}
