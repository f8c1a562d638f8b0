//! Metal3 hosts: API server load of waits and refreshes.
//!
//! The setup has a real API server with the host CRDs and simulated BMCs. Instead of an operator,
//! the benchmark writes each host's status once, so that only the provider sends requests during a
//! measurement. A proxy counts requests; times are measured without it.
use std::{path::Path, time::Instant};

use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use crate::{
    api_server,
    measure::{ms, ratio},
    provider::{AT_ONCE, Held},
    support::{
        kubernetes_proxy::Proxy,
        metal3::{
            operator::{Options, resource},
            world::{DETACHED, World},
        },
    },
    table::Row,
};

/// Path suffixes of the listed resources.
const KINDS: [&str; 2] = ["/baremetalhosts", "/secrets"];

pub async fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    for hosts in [100, 1000] {
        rows.extend(with(hosts).await);
    }
    rows
}

/// Writes a host's status, like the operator.
async fn manage(world: &World, name: &str) {
    world.add(name, json!({"image": {"url": "https://images.example/os.raw"}})).await;
    let label = json!({"metadata": {"labels": {"environment.metal3.io": "baremetal"}}});
    world.merge("Secret", &format!("{name}-bmc"), label).await;
    let status = json!({
        "operationalStatus": "OK", "poweredOn": true,
        "provisioning": {"state": "provisioned", "ID": uuid::Uuid::new_v4().to_string()},
    });
    world.merge_status("BareMetalHost", name, status).await;
}

async fn with(hosts: usize) -> Vec<Row> {
    let world = World::empty(hosts, Options::default()).await;
    world.running.stop();
    let names: Vec<String> = (1..=hosts).map(|number| format!("node{number}")).collect();
    let made = stream::iter(&names).map(async |name| manage(&world, name).await);
    made.buffer_unordered(AT_ONCE).collect::<()>().await;
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::to(world.kubernetes).await;
    let counted = config(&world, folder.path(), &world.kubernetes.kubeconfig_at(&proxy.url(), "admin"));
    let direct = config(&world, folder.path(), &world.kubernetes.kubeconfig());
    let (row, held) = waiting(&world, &proxy, &counted, &names).await;
    vec![row, refresh(&world, &proxy, &counted, &direct, &held).await]
}

fn config(world: &World, folder: &Path, kubeconfig: &Path) -> Value {
    json!({
        "coordination_url": format!("sqlite://{}", folder.join("metal.db").display()),
        "owner": "bench",
        "metal3": {
            "kubeconfig": kubeconfig, "namespace": world.namespace, "bmc_networks": ["127.0.0.0/8"], "bmc_insecure": true,
        },
    })
}

/// Starts creates that wait in one process for their hosts, then detaches all hosts.
async fn waiting(world: &World, proxy: &Proxy, config: &Value, names: &[String]) -> (Row, Vec<Held>) {
    let grant = async || {
        let detached = json!({"operationalStatus": "detached"});
        let done = stream::iter(entered(world).await)
            .map(|name| world_status(world, name, detached.clone()))
            .buffer_unordered(AT_ONCE);
        done.collect::<()>().await;
    };
    let watches = || api_server::told(&proxy.take_seen(), &KINDS).1.to_string();
    let entered = async || entered(world).await.len();
    api_server::waiting("Metal3", config, names, entered, watches, || proxy.count(), grant).await
}

async fn world_status(world: &World, name: String, status: Value) {
    world.merge_status("BareMetalHost", &name, status).await;
}

/// Returns the hosts with a detach request.
async fn entered(world: &World) -> Vec<String> {
    let all = hosts(world).await.into_iter();
    let all = all.filter(|host| !host["metadata"]["annotations"][DETACHED].is_null());
    all.map(|host| host["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

async fn hosts(world: &World) -> Vec<Value> {
    let api = world.running.operator.api("BareMetalHost");
    let all = api.list(&kube::api::ListParams::default()).await.unwrap();
    all.items.into_iter().map(|host| serde_json::to_value(host).unwrap()).collect()
}

/// Refreshes all hosts in a new process, and compares with a client that gets each object.
async fn refresh(world: &World, proxy: &Proxy, counted: &Value, direct: &Value, held: &[Held]) -> Row {
    let (time, measured) = api_server::refresh(proxy, &KINDS, (counted, direct), held).await;
    let names = entered(world).await;
    let begin = Instant::now();
    let plain = stream::iter(&names).map(async |name| {
        assert!(world.find(name).await.is_some());
        let secret = world.running.operator.api("Secret").get_opt(&format!("{name}-bmc")).await;
        assert!(secret.unwrap().is_some());
    });
    plain.buffer_unordered(AT_ONCE).collect::<()>().await;
    let reference = begin.elapsed();

    let (kind, all) = (resource("BareMetalHost"), hosts(world).await);
    let kubeconfig = world.kubernetes.kubeconfig();
    let manifest = api_server::by_manifest(world.kubernetes, &kubeconfig, &kind, "hosts", &all).await;
    let what = format!("Metal3: refresh of {} held hosts in a new process, one GET of each BMC", held.len());
    let gets = format!("plain gets of each host and its Secret, {}: {}", 2 * names.len(), ms(reference));
    Row::new(what, measured).against(gets + &manifest, ratio(time, reference))
}
