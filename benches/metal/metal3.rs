//! Hosts of Metal3: what waiting and refreshing cost their API server.
//!
//! A real API server with the definitions of the hosts, simulated BMCs, and no operator: what it
//! would do to a host is done here, once for each, so that nothing but the provider asks while it
//! is measured. Requests are counted by a proxy, and times taken without it.
use std::{
    path::Path,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, future::join_all, stream};
use serde_json::{Value, json};

use crate::{
    manifest,
    measure::{ms, peak_memory, processor_time, ratio},
    plain_client::AT_ONCE,
    provider::{Held, Provider},
    support::{
        kubernetes_proxy::{Proxy, Seen},
        metal3::{
            operator::{Options, resource},
            world::{DETACHED, World},
        },
    },
    table::Row,
};

const LOOK: Duration = Duration::from_secs(20);

pub async fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    for hosts in [100, 1000] {
        rows.extend(with(hosts).await);
    }
    rows
}

/// What the operator would have made of a host.
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
        "metal3": { "kubeconfig": kubeconfig, "namespace": world.namespace },
    })
}

/// How many of these list or watch, and how many there are.
fn told(seen: &[Seen]) -> (usize, usize, usize) {
    let of_all = |one: &Seen| {
        let path = one.path.split('?').next().unwrap_or_default();
        one.method == "GET" && ["/baremetalhosts", "/secrets"].iter().any(|end| path.ends_with(end))
    };
    let watches = seen.iter().filter(|one| one.is_watch()).count();
    let lists = seen.iter().filter(|one| of_all(one) && !one.is_watch()).count();
    (lists, watches, seen.len())
}

/// So many creates wait in one process until their hosts are detached; then all are.
async fn waiting(world: &World, proxy: &Proxy, config: &Value, names: &[String]) -> (Row, Vec<Held>) {
    let provider = Provider::configured(config).await;
    let more = json!({ "timeouts": { "create": "20m", "update": null, "delete": null } });
    let all = names.iter().map(async |name| provider.create(name, &format!("held-{name}"), &more).await);
    let look = async {
        while entered(world).await.len() < names.len() {
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
        let detached = json!({"operationalStatus": "detached"});
        let done = stream::iter(entered(world).await)
            .map(|name| world_status(world, name, detached.clone()))
            .buffer_unordered(AT_ONCE);
        done.collect::<()>().await;
        (asked, took, share, peak, watches)
    };
    let (held, (asked, took, share, peak, watches)) = tokio::join!(join_all(all), look);
    provider.end().await;
    #[allow(clippy::cast_precision_loss, reason = "a few thousand")]
    let rate = asked as f64 / took;
    let row = Row::new(
        format!("Metal3: {} maintenances waiting in one process, over {} s", names.len(), LOOK.as_secs()),
        format!(
            "{rate:.2} requests per second to the API server, watches since the start: {watches}; {share:.1} % of a core, {peak:.0} MiB"
        ),
    );
    (row, held)
}

async fn world_status(world: &World, name: String, status: Value) {
    world.merge_status("BareMetalHost", &name, status).await;
}

/// The hosts that are to be detached.
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

/// Reads them all again in a new process, beside a client that gets each of their objects.
async fn refresh(world: &World, proxy: &Proxy, counted: &Value, direct: &Value, held: &[Held]) -> Row {
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

    let names = entered(world).await;
    let begin = Instant::now();
    let plain = stream::iter(&names).map(async |name| {
        assert!(world.find(name).await.is_some());
        let secret = world.running.operator.api("Secret").get_opt(&format!("{name}-bmc")).await;
        assert!(secret.unwrap().is_some());
    });
    plain.buffer_unordered(AT_ONCE).collect::<()>().await;
    let reference = begin.elapsed();

    let kind = resource("BareMetalHost");
    let manifests = hosts(world).await.into_iter().map(|host| {
        let name = host["metadata"]["name"].clone();
        json!({
            "apiVersion": kind.api_version, "kind": kind.kind, "spec": host["spec"],
            "metadata": { "name": name, "namespace": world.namespace },
        })
    });
    // Not through the proxy: that provider sends no token without TLS. Nothing else asks meanwhile.
    let before = world.kubernetes.requests_about(&["baremetalhosts"]).await;
    let manifest = manifest::of(&world.kubernetes.kubeconfig(), manifests.collect()).await;
    let asked = world.kubernetes.requests_about(&["baremetalhosts"]).await - before;
    let manifest = manifest.map(|took| {
        format!("; `kubernetes_manifest`, the hosts alone: {asked} requests about them, {} with its host", ms(took))
    });
    let what = format!("Metal3: refresh of {} held hosts in a new process, one GET of each BMC", held.len());
    let gets = format!("plain gets of each host and its Secret, {}: {}", 2 * names.len(), ms(reference));
    Row::new(what, format!("{}, {lists} lists of {all} requests to the API server", ms(time)))
        .against(gets + &manifest.unwrap_or_default(), ratio(time, reference))
}
