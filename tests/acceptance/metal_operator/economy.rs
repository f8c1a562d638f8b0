//! Many servers in one run: each kind is read with a single request, and nothing without changes.

use std::time::{Duration, Instant};

use bmc_simulator::{Simulator, SimulatorConfig};
use serde_json::json;

use super::configure;
use crate::{
    servers::ironcore::{
        Options,
        api::{Key, Kind, text},
        family::Family,
        world::{Request, World},
    },
    support::{
        host::Host,
        simulator::SOON,
        wait::eventually,
        workspace::{Workspace, maintenances},
    },
};

const MANY: usize = 100;

/// Creates servers in state `Available`. The operators are stopped, so the state never changes.
async fn fleet() -> World {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let simulator = Simulator::start(SimulatorConfig::with_systems(1)).await.unwrap();
    let mut world = World::empty(Family::V0_7, Options::default(), &simulator).await;
    world.operators.stop();
    for number in 1..=MANY {
        let name = format!("node{number}");
        let spec = json!({"systemUUID": uuid::Uuid::new_v4().to_string(), "bmcRef": {"name": "none"}});
        world.cluster.create(Kind::Server, json!({"metadata": {"name": name}, "spec": spec})).await.unwrap();
        let status = json!({"state": "Available", "powerState": "Off"});
        world.cluster.merge_status(Kind::Server, &Key::cluster(&name), status).await.unwrap();
    }
    world
}

/// Grants all requests, like the operator.
async fn grant(world: &World) {
    for request in world.list(Kind::Legacy).await {
        let (key, server) = (Key::of(&request), Key::cluster(text(&request, "/spec/serverRef/name")));
        let reference = json!({"namespace": key.namespace, "name": key.name});
        world.cluster.merge(Kind::Server, &server, json!({"spec": {"serverMaintenanceRef": reference}})).await.unwrap();
        world.cluster.merge_status(Kind::Server, &server, json!({"state": "Maintenance"})).await.unwrap();
        world.cluster.merge_status(Kind::Legacy, &key, json!({"state": "InMaintenance"})).await.unwrap();
    }
}

fn count(requests: &[Request], verb: &str, resource: &str) -> usize {
    requests.iter().filter(|one| one.verb == verb && one.resource.starts_with(resource)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_servers_cost_one_watch_of_each_kind() {
    let world = fleet().await;
    let workspace = Workspace::new(Host::OpenTofu);
    configure(&world, &workspace, &maintenances(MANY));
    let arguments = ["apply", "-auto-approve", "-input=false", "-no-color", "-parallelism=200"];
    let apply = workspace.start(&arguments);
    eventually("all wait", SOON * 2, async || {
        (apply.log().matches("metal-operator to put the Server into maintenance").count() >= MANY).then_some(())
    })
    .await;
    let began = Instant::now();
    let before = world.requests_of("ci");
    eventually("some time passes", SOON, async || (began.elapsed() > Duration::from_secs(8)).then_some(())).await;
    let after = world.requests_of("ci");
    // Watches can have been restarted in the meantime.
    assert!(after.len() - before.len() < 10, "{:?}", &after[before.len()..]);
    // The plan and the apply each use a new process.
    for kind in ["servers.metal", "serverclaims.metal", "servermaintenances.metal"] {
        let (lists, watches) = (count(&after, "list", kind), count(&after, "watch", kind));
        assert!(lists <= 4 && watches <= 6, "{kind}: {lists} lists, {watches} watches");
    }
    let all = after.len();
    assert!(all < 12 * MANY, "{all} requests until all {MANY} wait");
    grant(&world).await;
    let run = apply.wait(SOON * 3).await.succeeded();
    let granted = world.requests_of("ci").len() - all;
    assert!(granted < 15 * MANY, "{granted} requests from the grant to the hold");
    let before = world.requests_of("ci").len();
    workspace.plan().await.is_empty();
    let refresh = world.requests_of("ci")[before..].to_vec();
    assert!(refresh.len() < 30, "{} requests to read {MANY} holds: {refresh:?}", refresh.len());
    eprintln!("{all} to wait, {granted} to hold, {} to read, {:?}", refresh.len(), run.took);
}
