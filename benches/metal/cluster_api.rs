//! Cluster API Machines on plain Redfish servers: API server load of waits and refreshes.
//!
//! The setup has a real API server with the Machine CRDs and simulated BMCs. Instead of the two
//! controllers, the benchmark writes each Machine's labels once, so that only the provider sends
//! requests during a measurement. A proxy counts requests; times are measured without it.
use std::{collections::BTreeMap, path::Path, time::Instant};

use bmc_simulator::{JournalMode, Simulator, SimulatorConfig};
use futures_util::{StreamExt as _, stream};
use kube::api::{Api, DynamicObject, ListParams};
use serde_json::{Value, json};

use crate::{
    api_server,
    measure::{ms, ratio},
    provider::{AT_ONCE, Held, redfish},
    support::{
        cluster_api::{
            ENABLED, MACHINE_MAINTENANCE, MAINTENANCE, STATE,
            objects::{api, resource},
            world::{Options, World, install},
        },
        kubernetes::Kubernetes,
        kubernetes_proxy::Proxy,
    },
    table::Row,
};

/// Path suffixes of the listed resources.
const KINDS: [&str; 2] = ["/machines", "/nodes"];

pub async fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    for machines in [100, 1000] {
        rows.extend(with(machines).await);
    }
    rows
}

async fn with(machines: usize) -> Vec<Row> {
    let kubernetes = tokio::task::spawn_blocking(|| {
        let kubernetes = Kubernetes::shared();
        install(kubernetes);
        kubernetes
    });
    let kubernetes = kubernetes.await.unwrap();
    let namespace = tokio::task::spawn_blocking(|| kubernetes.namespace()).await.unwrap();
    let world = World::bare(kubernetes, kubernetes, &namespace, Options::default()).await;
    let names: Vec<String> = (1..=machines).map(|number| format!("m{number}")).collect();
    let made = stream::iter(&names).map(async |name| {
        world.add_node(name).await;
        world.label_node(name, json!({ STATE: "operational" })).await;
        world.add_machine(name, json!({ ENABLED: "true" })).await;
        world.name_node(name).await;
    });
    made.buffer_unordered(AT_ONCE).collect::<()>().await;

    let mut systems = SimulatorConfig::with_systems(machines).behind_one_bmc();
    systems.journal = JournalMode::CountOnly;
    let simulator = Simulator::start(systems).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::to(kubernetes).await;
    let config = |kubeconfig: &Path| config(&world, &simulator, folder.path(), kubeconfig, machines);
    let counted = config(&kubernetes.kubeconfig_at(&proxy.url(), "admin"));
    let direct = config(world.kubeconfig());
    let (row, held) = waiting(&world, &proxy, &counted, &names).await;
    let rows = vec![row, refresh(&world, kubernetes, &proxy, (&counted, &direct), &held).await];
    simulator.stop().await;
    rows
}

fn config(world: &World, simulator: &Simulator, folder: &Path, kubeconfig: &Path, machines: usize) -> Value {
    let before: BTreeMap<String, String> =
        (1..=machines).map(|number| (format!("node{number}"), format!("{}/m{number}", world.namespace))).collect();
    json!({
        "coordination_url": format!("sqlite://{}", folder.join("metal.db").display()),
        "owner": "bench",
        "redfish": redfish(simulator, folder),
        "cluster_api": { "kubeconfig": kubeconfig, "machines": before },
    })
}

async fn machines(world: &World) -> Vec<Value> {
    let all: Api<DynamicObject> = api(&world.management, "Machine", &world.namespace);
    let all = all.list(&ListParams::default()).await.unwrap();
    all.items.into_iter().map(|one| serde_json::to_value(one).unwrap()).collect()
}

/// Counts the Machines labelled `requested`.
async fn requested(world: &World) -> usize {
    machines(world).await.iter().filter(|one| one["metadata"]["labels"][MAINTENANCE] == "requested").count()
}

/// Writes the controllers' labels for a drained Node.
async fn approve(world: &World, name: &str) {
    world.label_node(name, json!({ STATE: "in-maintenance", MACHINE_MAINTENANCE: "true" })).await;
    world.label_machine(name, json!({ MAINTENANCE: "approved" })).await;
}

/// Starts creates that wait in one process for their Machines, then approves all Machines.
async fn waiting(world: &World, proxy: &Proxy, config: &Value, names: &[String]) -> (Row, Vec<Held>) {
    let servers: Vec<String> = (1..=names.len()).map(|number| format!("node{number}")).collect();
    let grant = async || {
        let approved = stream::iter(names).map(async |name| approve(world, name).await);
        approved.buffer_unordered(AT_ONCE).collect::<()>().await;
    };
    let watches = || api_server::told(&proxy.take_seen(), &KINDS).1.to_string();
    let entered = async || requested(world).await;
    api_server::waiting("Cluster API", config, &servers, entered, watches, || proxy.count(), grant).await
}

/// Refreshes all Machines in a new process, and compares with a client that gets each object.
async fn refresh(
    world: &World,
    kubernetes: &Kubernetes,
    proxy: &Proxy,
    configs: (&Value, &Value),
    held: &[Held],
) -> Row {
    let (time, measured) = api_server::refresh(proxy, &KINDS, configs, held).await;
    let begin = Instant::now();
    let plain = stream::iter(1..=held.len()).map(async |number| {
        let name = format!("m{number}");
        tokio::join!(world.machine(&name), world.node(&name));
    });
    plain.buffer_unordered(AT_ONCE).collect::<()>().await;
    let reference = begin.elapsed();

    let (kind, all) = (resource("Machine"), machines(world).await);
    let manifest = api_server::by_manifest(kubernetes, world.kubeconfig(), &kind, "Machines", &all).await;
    let what = format!("Cluster API: refresh of {} held servers in a new process, one GET of each BMC", held.len());
    let gets = format!("plain gets of each Machine and its Node, {}: {}", 2 * held.len(), ms(reference));
    Row::new(what, measured).against(gets + &manifest, ratio(time, reference))
}
