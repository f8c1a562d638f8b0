//! Behaviour that backend tests rely on besides the tables: boot operator, races and API requests.

use std::time::Duration;

use bmc_simulator::{BootSource, PowerState, Simulator, SimulatorConfig};
use serde_json::{Value, json};

use crate::support::ironcore::{
    Options,
    api::{Key, Kind, Object, text},
    family::Family,
    patience,
    world::World,
};

const LONG: Duration = Duration::from_mins(1);

async fn world(family: Family, options: Options) -> (World, Simulator) {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let simulator = Simulator::start(SimulatorConfig::with_systems(1)).await.unwrap();
    (World::start(family, options, &simulator).await, simulator)
}

fn is_ready(configuration: &Object) -> bool {
    text(configuration, "/status/state") == "Ready"
}

/// Returns a boot configuration's condition: status and reason.
fn condition(configuration: &Object, kind: &str) -> Option<(String, String)> {
    let all = configuration.data.pointer("/status/conditions")?.as_array()?.clone();
    let found = all.into_iter().find(|one| one["type"] == kind)?;
    Some((found["status"].as_str()?.to_owned(), found["reason"].as_str()?.to_owned()))
}

fn request(name: &str, spec: Value) -> Value {
    let mut spec = spec;
    spec["serverRef"] = json!({"name": "node1"});
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boot_operator_judges_images_and_tells_what_was_fetched() {
    let (world, simulator) = world(Family::V0_7, Options::default()).await;
    let template = |image: &str| {
        json!({
            "name": "ignored",
            "spec": {"serverRef": {"name": "node1"}, "image": image, "ignitionSecretRef": {"name": "tool"}},
        })
    };
    let spec = json!({
        "policy": "Enforced", "serverPower": "On", "serverBootConfigurationTemplate": template("tool:1"),
    });
    world.cluster.create(Kind::Legacy, request("m", spec)).await.unwrap();
    let key = Key::within("default", "m");
    // Without the ignition the boot configuration is in error. The ignition follows after the
    // controller has failed the request.
    let failed = |one: &Object| text(one, "/status/state") == "Failed";
    world.until(Kind::Boot, &key, "an error", |one| text(one, "/status/state") == "Error").await;
    world.until(Kind::Legacy, &key, "failed", failed).await;
    let secret = json!({"metadata": {"name": "tool", "namespace": "default"}, "stringData": {"ignition": "{}"}});
    world.cluster.create(Kind::Secret, secret).await.unwrap();
    world.until(Kind::Boot, &key, "ready", is_ready).await;
    // The configuration is ready, but the request stays failed.
    assert!(failed(&world.object(Kind::Legacy, &key).await));
    world.cluster.delete(Kind::Legacy, &key).await.unwrap();
    world.until_gone(Kind::Legacy, &key).await;
    world.until_state("node1", "Available").await;
    assert!(world.find(Kind::Boot, &key).await.is_none());

    world.claim("node1", "owners", "claim").await;
    let claims = Key::within("owners", "claim");
    let fetched =
        |one: &Object| condition(one, "IgnitionDataFetched").is_some() && condition(one, "IPXEScriptFetched").is_some();
    world.until(Kind::Boot, &claims, "fetched", fetched).await;
    assert_eq!(simulator.boots("node1").unwrap().last().unwrap().booted_from, BootSource::Pxe);

    // While the boot operator is stopped, the previous image's state stays.
    world.operators.context.options.boot.close();
    let change = json!({"spec": {"image": "No Image"}});
    world.cluster.merge(Kind::Boot, &claims, change).await.unwrap();
    assert!(is_ready(&world.object(Kind::Boot, &claims).await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_image_is_an_error_with_a_reason_and_not_for_ever() {
    let (world, _simulator) = world(Family::Parked, Options::default()).await;
    let key = Key::within("default", "own");
    let spec = json!({"serverRef": {"name": "node1"}, "image": "Not An Image"});
    let metadata = json!({"name": "own", "namespace": "default"});
    world.cluster.create(Kind::Boot, json!({"metadata": metadata, "spec": spec})).await.unwrap();
    let failed = |one: &Object| text(one, "/status/state") == "Error";
    let seen = world.until(Kind::Boot, &key, "an error", failed).await;
    assert_eq!(condition(&seen, "ImageValidation"), Some(("False".to_owned(), "ValidationFailed".to_owned())));
    world.cluster.merge(Kind::Boot, &key, json!({"spec": {"image": "registry.example/os@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}})).await.unwrap();
    let seen = world.until(Kind::Boot, &key, "ready", is_ready).await;
    assert_eq!(condition(&seen, "ImageValidation"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn power_goes_as_the_request_says_and_back_as_the_claim_does() {
    let (world, simulator) = world(Family::V0_6, Options::default()).await;
    world.claim("node1", "owners", "claim").await;
    let spec = json!({"policy": "OwnerApproval", "serverPower": "Off", "locatorLED": "Lit"});
    world.cluster.create(Kind::Legacy, request("m", spec)).await.unwrap();
    let marked = ["label maintenance-needed=true"];
    patience::until("the claim is marked", async || (world.marks("owners", "claim").await == marked).then_some(()))
        .await;
    assert_eq!(simulator.system("node1").unwrap().power, PowerState::On);
    world.approve("owners", "claim").await;
    simulator.wait_power("node1", PowerState::Off, LONG).await.unwrap();
    world.cluster.delete(Kind::Legacy, &Key::within("default", "m")).await.unwrap();
    world.until_state("node1", "Reserved").await;
    simulator.wait_power("node1", PowerState::On, LONG).await.unwrap();
    // Released powered off, the server boots from the network.
    assert_eq!(simulator.boots("node1").unwrap().last().unwrap().booted_from, BootSource::Pxe);
    assert!(world.marks("owners", "claim").await.is_empty());
    assert!(world.requests().iter().any(|one| one.verb == "delete" && one.resource.starts_with("servermaint")));
    let strangers: Vec<_> = world.requests().into_iter().filter(|one| one.user != "admin").collect();
    assert_eq!(strangers, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_that_is_not_obeyed_is_asked_for_again_and_never_forced_while_parking() {
    let (world, simulator) = world(Family::V0_7, Options::default()).await;
    world.claim("node1", "owners", "claim").await;
    let deaf = bmc_simulator::Behaviour { ignores_shutdown: true, ..bmc_simulator::Behaviour::default() };
    simulator.set_behaviour("node1", deaf).unwrap();
    let change = json!({"metadata": {"annotations": {"metal.ironcore.dev/operation": "park"}}});
    world.cluster.merge(Kind::Server, &Key::cluster("node1"), change).await.unwrap();
    let shutdowns = || {
        let all = simulator.journal(&bmc_simulator::JournalQuery::system("node1"));
        let resets = all.into_iter().filter_map(|entry| Some(entry.body?["ResetType"].as_str()?.to_owned()));
        resets.collect::<Vec<_>>()
    };
    patience::until("asked twice", async || {
        let asked = shutdowns().iter().filter(|kind| *kind == "GracefulShutdown").count();
        (asked >= 3).then_some(())
    })
    .await;
    assert!(!shutdowns().iter().any(|kind| kind == "ForceOff"));
    world.until_state("node1", "Reserved").await;
    simulator.set_power("node1", PowerState::Off).unwrap();
    world.until_state("node1", "Parked").await;
    // The operator ignores a parked server's power.
    simulator.set_power("node1", PowerState::On).unwrap();
    assert_eq!(world.server("node1").await["status"]["powerState"], "Off");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_say_in_maintenance_when_they_race() {
    let options = Options { both_in_maintenance: true, ..Options::default() };
    let (world, _simulator) = world(Family::V0_5, options).await;
    world.cluster.create(Kind::Legacy, request("a", json!({"policy": "Enforced"}))).await.unwrap();
    world.until_state("node1", "Maintenance").await;
    world.cluster.create(Kind::Legacy, request("b", json!({"policy": "Enforced"}))).await.unwrap();
    let says = |one: &Object| text(one, "/status/state") == "InMaintenance";
    world.until(Kind::Legacy, &Key::within("default", "b"), "says so", says).await;
    world.until(Kind::Legacy, &Key::within("default", "a"), "says so", says).await;
    assert_eq!(world.server("node1").await["spec"]["serverMaintenanceRef"]["name"], "a");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v0_7_takes_the_lock_of_the_maintenance_operator_away() {
    let options = Options { maintenance_operator: true, ..Options::default() };
    let (world, _simulator) = world(Family::V0_7, options).await;
    world.cluster.create(Kind::Maintenance, request("m", json!({"policy": "Enforced"}))).await.unwrap();
    let key = Key::within("default", "m");
    let says = |one: &Object| text(one, "/status/state") == "InMaintenance";
    world.until(Kind::Maintenance, &key, "says so", says).await;
    let lost = |one: &Object| Key::referred(one, "/spec/serverMaintenanceRef").is_none();
    world.until(Kind::Server, &Key::cluster("node1"), "the lock is removed", lost).await;
    world.until_state("node1", "Available").await;
    assert!(says(&world.object(Kind::Maintenance, &key).await), "the request must still show InMaintenance");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_name_its_bmc_itself() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let simulator = Simulator::start(SimulatorConfig::with_systems(2).behind_one_bmc()).await.unwrap();
    let world = World::empty(Family::Parked, Options::default(), &simulator).await;
    world.add_server("node1").await;
    world.add_server_with_inline_bmc("node2").await;
    world.until_state("node1", "Available").await;
    world.until_state("node2", "Available").await;
}
