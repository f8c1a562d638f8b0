//! Machines of Cluster API before plain Redfish servers: what waiting and refreshing cost the API
//! server.
//!
//! A real API server with the definitions of Machines, simulated BMCs, and no controller: what the
//! two controllers would say of a Machine is written here, once for each, so that nothing but the
//! provider asks while it is measured. Requests are counted by a proxy, and times taken without it.
use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use bmc_simulator::{JournalMode, Simulator, SimulatorConfig};
use futures_util::{StreamExt as _, future::join_all, stream};
use kube::api::{Api, DynamicObject, ListParams};
use serde_json::{Value, json};

use crate::{
    manifest,
    measure::{ms, peak_memory, processor_time, ratio},
    plain_client::AT_ONCE,
    provider::{Held, Provider, redfish},
    support::{
        cluster_api::{
            ENABLED, MACHINE_MAINTENANCE, MAINTENANCE, STATE,
            objects::{api, resource},
            world::{Options, World, install},
        },
        kubernetes::Kubernetes,
        kubernetes_proxy::{Proxy, Seen},
    },
    table::Row,
};

const LOOK: Duration = Duration::from_secs(20);

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

/// How many of these list or watch, and how many there are.
fn told(seen: &[Seen]) -> (usize, usize, usize) {
    let of_all = |one: &Seen| {
        let path = one.path.split('?').next().unwrap_or_default();
        one.method == "GET" && ["/machines", "/nodes"].iter().any(|end| path.ends_with(end))
    };
    let watches = seen.iter().filter(|one| one.is_watch()).count();
    let lists = seen.iter().filter(|one| of_all(one) && !one.is_watch()).count();
    (lists, watches, seen.len())
}

async fn machines(world: &World) -> Vec<Value> {
    let all: Api<DynamicObject> = api(&world.management, "Machine", &world.namespace);
    let all = all.list(&ListParams::default()).await.unwrap();
    all.items.into_iter().map(|one| serde_json::to_value(one).unwrap()).collect()
}

/// How many Machines are labelled `requested`.
async fn requested(world: &World) -> usize {
    machines(world).await.iter().filter(|one| one["metadata"]["labels"][MAINTENANCE] == "requested").count()
}

/// What the controllers would say once a Node is drained.
async fn approve(world: &World, name: &str) {
    world.label_node(name, json!({ STATE: "in-maintenance", MACHINE_MAINTENANCE: "true" })).await;
    world.label_machine(name, json!({ MAINTENANCE: "approved" })).await;
}

/// So many creates wait in one process until their Machines are approved; then all are.
async fn waiting(world: &World, proxy: &Proxy, config: &Value, names: &[String]) -> (Row, Vec<Held>) {
    let provider = Provider::configured(config).await;
    let more = json!({ "timeouts": { "create": "20m", "update": null, "delete": null } });
    let all = (1..=names.len())
        .map(|number| format!("node{number}"))
        .map(async |server| provider.create(&server, &format!("held-{server}"), &more).await);
    let look = async {
        while requested(world).await < names.len() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        // Lets the last ones settle into their wait.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let watches = told(&proxy.take_seen()).1;
        let (used, begin) = (processor_time(provider.pid()), Instant::now());
        tokio::time::sleep(LOOK).await;
        let (asked, took) = (proxy.count(), begin.elapsed().as_secs_f64());
        let share = processor_time(provider.pid()).saturating_sub(used).as_secs_f64() / took * 100.0;
        let peak = peak_memory(provider.pid());
        let approved = stream::iter(names).map(async |name| approve(world, name).await);
        approved.buffer_unordered(AT_ONCE).collect::<()>().await;
        (asked, took, share, peak, watches)
    };
    let (held, (asked, took, share, peak, watches)) = tokio::join!(join_all(all), look);
    provider.end().await;
    #[allow(clippy::cast_precision_loss, reason = "a few thousand")]
    let rate = asked as f64 / took;
    let row = Row::new(
        format!("Cluster API: {} maintenances waiting in one process, over {} s", names.len(), LOOK.as_secs()),
        format!(
            "{rate:.2} requests per second to the API server, watches since the start: {watches}; {share:.1} % of a core, {peak:.0} MiB"
        ),
    );
    (row, held)
}

/// Reads them all again in a new process, beside a client that gets each of their objects.
async fn refresh(
    world: &World,
    kubernetes: &Kubernetes,
    proxy: &Proxy,
    (counted, direct): (&Value, &Value),
    held: &[Held],
) -> Row {
    let provider = Provider::configured(counted).await;
    proxy.take_seen();
    provider.refresh_all(held).await;
    let (lists, _, all) = told(&proxy.take_seen());
    provider.end().await;

    let provider = Provider::configured(direct).await;
    let begin = Instant::now();
    provider.refresh_all(held).await;
    let time = begin.elapsed();
    provider.end().await;

    let begin = Instant::now();
    let plain = stream::iter(1..=held.len()).map(async |number| {
        let name = format!("m{number}");
        tokio::join!(world.machine(&name), world.node(&name));
    });
    plain.buffer_unordered(AT_ONCE).collect::<()>().await;
    let reference = begin.elapsed();

    let kind = resource("Machine");
    let manifests = machines(world).await.into_iter().map(|one| {
        json!({
            "apiVersion": kind.api_version, "kind": kind.kind, "spec": one["spec"],
            "metadata": { "name": one["metadata"]["name"], "namespace": world.namespace },
        })
    });
    // Not through the proxy: that provider sends no token without TLS. Nothing else asks meanwhile.
    let before = kubernetes.requests_about(&["machines"]).await;
    let manifest = manifest::of(world.kubeconfig(), manifests.collect()).await;
    let asked = kubernetes.requests_about(&["machines"]).await - before;
    let manifest = manifest.map(|took| {
        format!("; `kubernetes_manifest`, the Machines alone: {asked} requests about them, {} with its host", ms(took))
    });
    let what = format!("Cluster API: refresh of {} held servers in a new process, one GET of each BMC", held.len());
    let gets = format!("plain gets of each Machine and its Node, {}: {}", 2 * held.len(), ms(reference));
    Row::new(what, format!("{}, {lists} lists of {all} requests to the API server", ms(time)))
        .against(gets + &manifest.unwrap_or_default(), ratio(time, reference))
}
