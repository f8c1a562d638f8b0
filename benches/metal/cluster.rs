//! A cluster's servers: API server load of waits and refreshes.
//!
//! The setup has a real API server with the CRDs of metal-operator v0.7. Instead of the operator,
//! the benchmark updates each maintenance once, so that only the provider sends requests during a
//! measurement.
use std::time::Instant;

use bmc_simulator::{Simulator, SimulatorConfig};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use crate::{
    api_server, manifest,
    measure::{ms, ratio},
    provider::{AT_ONCE, Held, Provider},
    support::ironcore::{
        Options,
        api::{Key, Kind, text},
        family::Family,
        world::{Request, World},
    },
    table::Row,
};

const USER: &str = "bench";

pub async fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    for servers in [100, 1000] {
        rows.extend(with(servers).await);
    }
    rows
}

async fn with(servers: usize) -> Vec<Row> {
    let simulator = Simulator::start(SimulatorConfig::with_systems(0)).await.unwrap();
    let mut world = World::empty(Family::V0_7, Options::default(), &simulator).await;
    world.operators.stop();
    let made = stream::iter(1..=servers).map(async |number| {
        let name = format!("node{number}");
        let spec = json!({ "systemUUID": uuid::Uuid::new_v4().to_string() });
        world.cluster.create(Kind::Server, json!({ "metadata": { "name": name }, "spec": spec })).await.unwrap();
        let status = json!({ "state": "Available", "powerState": "Off" });
        world.cluster.merge_status(Kind::Server, &Key::cluster(&name), status).await.unwrap();
    });
    made.buffer_unordered(AT_ONCE).collect::<()>().await;
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "coordination_url": format!("sqlite://{}", folder.path().join("metal.db").display()),
        "owner": "bench",
        "metal_operator": { "kubeconfig": world.kubernetes.user(USER, &["system:masters"]) },
    });

    let (row, held) = waiting(&world, &config, servers).await;
    let rows = vec![row, refresh(&world, &config, &held).await];
    simulator.stop().await;
    rows
}

/// Starts creates that wait in one process for their servers, then grants all requests.
async fn waiting(world: &World, config: &Value, servers: usize) -> (Row, Vec<Held>) {
    let servers: Vec<String> = (1..=servers).map(|number| format!("node{number}")).collect();
    let entered = async || world.list(Kind::Legacy).await.len();
    let watches = || watches(&world.requests_of(USER));
    let asked = || world.requests_of(USER).len();
    let grant = async || grant(world).await;
    api_server::waiting("metal-operator", config, &servers, entered, watches, asked, grant).await
}

/// Grants requests without approval, like the operator.
async fn grant(world: &World) {
    let granted = stream::iter(world.list(Kind::Legacy).await).map(async |object| {
        let (key, server) = (Key::of(&object), Key::cluster(text(&object, "/spec/serverRef/name")));
        let reference = json!({ "namespace": key.namespace, "name": key.name });
        let change = json!({ "spec": { "serverMaintenanceRef": reference } });
        world.cluster.merge(Kind::Server, &server, change).await.unwrap();
        world.cluster.merge_status(Kind::Server, &server, json!({ "state": "Maintenance" })).await.unwrap();
        world.cluster.merge_status(Kind::Legacy, &key, json!({ "state": "InMaintenance" })).await.unwrap();
    });
    granted.buffer_unordered(AT_ONCE).collect::<()>().await;
}

fn watches(requests: &[Request]) -> String {
    let mut kinds: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
    for request in requests.iter().filter(|request| request.verb == "watch") {
        *kinds.entry(request.resource.split('.').next().unwrap_or_default()).or_default() += 1;
    }
    let kinds: Vec<String> = kinds.into_iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    kinds.join(", ")
}

/// Refreshes all servers in a new process, and compares with a client that gets each object.
async fn refresh(world: &World, config: &Value, held: &[Held]) -> Row {
    // The first refresh after a create records in the store that the state contains the hold.
    let provider = Provider::configured(config).await;
    let begin = Instant::now();
    provider.refresh_all(held).await;
    let first = begin.elapsed();
    provider.end().await;
    let provider = Provider::configured(config).await;
    let before = world.requests_of(USER).len();
    let begin = Instant::now();
    provider.refresh_all(held).await;
    let time = begin.elapsed();
    let asked = world.requests_of(USER)[before..].to_vec();
    provider.end().await;
    let count = |verb: &str| asked.iter().filter(|request| request.verb == verb).count();
    let (lists, gets, other) = (count("list"), count("get"), asked.len());

    let objects = world.list(Kind::Legacy).await;
    let begin = Instant::now();
    let plain = stream::iter(&objects).map(async |object| {
        assert!(world.find(Kind::Legacy, &Key::of(object)).await.is_some());
        assert!(world.find(Kind::Server, &Key::cluster(text(object, "/spec/serverRef/name"))).await.is_some());
    });
    plain.buffer_unordered(AT_ONCE).collect::<()>().await;
    let reference = begin.elapsed();
    let keys: Vec<Key> = objects.iter().map(Key::of).collect();
    let manifest = manifest::refresh(world, Kind::Legacy, &keys).await;
    let manifest = manifest.map(|asked| format!("; `kubernetes_manifest`, the ServerMaintenances alone: {asked}"));
    let what = format!("metal-operator: refresh of {} held servers in a new process", held.len());
    let gets_of_all =
        format!("plain gets of each ServerMaintenance and its Server, {}: {}", 2 * objects.len(), ms(reference));
    let first = format!("the first one, which notes in the store that the state has them, {}", ms(first));
    Row::new(what, format!("{}, {lists} lists and {gets} gets of {other} requests; {first}", ms(time)))
        .against(gets_of_all + &manifest.unwrap_or_default(), ratio(time, reference))
}
