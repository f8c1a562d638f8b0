//! Capabilities that gate tests rely on: pausing each controller at the right point, and a
//! complete journal.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::support::{
    cluster_api::{
        APPROVE_DELETION, APPROVE_MAINTENANCE, ENABLED, KEEPS, MACHINE_MAINTENANCE, MAINTENANCE, PRE_DRAIN, PROFILE,
        STATE,
        journal::Moment,
        world::{Options, World},
    },
    ironcore::patience,
    metal3,
};

fn labels(object: &Value) -> &Value {
    &object["metadata"]["labels"]
}

/// Returns true if a Node was uncordoned while its Machine was approved.
fn in_service_while_approved(moment: &Moment, world: &World, machine: &str) -> bool {
    let approved =
        moment.get(&("Machine", machine.to_owned())).is_some_and(|m| m.label(MAINTENANCE) == Some("approved"));
    let cordoned = moment.get(&("Node", world.node_name(machine))).is_some_and(|node| node.cordoned);
    approved && !cordoned
}

async fn approved(world: &World, machine: &str) {
    world.until_machine(machine, "approved", |one| labels(one)[MAINTENANCE] == "approved").await;
}

async fn returned(world: &World, machine: &str) {
    let gone = |node: &Value| labels(node)[MACHINE_MAINTENANCE].is_null() && labels(node)[STATE] == "operational";
    world.until_node(machine, "returned", gone).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_is_approved_and_returned() {
    let world = World::start(Options::default()).await;
    world.add("m1").await;
    world.withhold("m1").await;
    world.label_machine("m1", json!({MAINTENANCE: "requested"})).await;
    world.until_node("m1", "required", |node| labels(node)[STATE] == "maintenance-required").await;
    assert_eq!(world.maintenance("m1").await.as_deref(), Some("requested"));
    world.allow("m1").await;
    approved(&world, "m1").await;
    world.always("cordoned while approved", |moment| !in_service_while_approved(moment, &world, "m1")).await;
    world.label_machine("m1", json!({MAINTENANCE: null})).await;
    returned(&world, "m1").await;
    assert_eq!(labels(&world.node("m1").await)[APPROVE_MAINTENANCE], Value::Null);
    assert_ne!(world.node("m1").await["spec"]["unschedulable"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_approval_answers_at_once_and_the_journal_shows_it() {
    let world = World::start(Options::default()).await;
    world.add("m1").await;
    world.label_node("m1", json!({PROFILE: KEEPS})).await;
    world.label_machine("m1", json!({MAINTENANCE: "requested"})).await;
    approved(&world, "m1").await;
    world.label_machine("m1", json!({MAINTENANCE: null})).await;
    returned(&world, "m1").await;
    assert_eq!(labels(&world.node("m1").await)[APPROVE_MAINTENANCE], "true");
    world.withhold("m1").await;
    world.label_machine("m1", json!({MAINTENANCE: "requested"})).await;
    approved(&world, "m1").await;
    let now = [("Machine", serde_json::from_value(world.machine("m1").await).unwrap())];
    world.journal.caught_up(&now).await;
    let against = world.journal.first_against(|moment| !in_service_while_approved(moment, &world, "m1"));
    assert!(against.is_some_and(|said| said.last().unwrap().contains("label maintenance=approved")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_that_was_decided_comes_back_after_the_request_is_gone() {
    let world = World::start(Options::default()).await;
    world.add("m1").await;
    world.options.extension.approves.close();
    world.label_machine("m1", json!({MAINTENANCE: "requested"})).await;
    let held = &world.options.extension.held;
    patience::until("the approval is decided", async || (held.load(Ordering::SeqCst) > 0).then_some(())).await;
    world.label_machine("m1", json!({MAINTENANCE: null})).await;
    returned(&world, "m1").await;
    world.options.extension.approves.open();
    approved(&world, "m1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_controller_does_nothing_until_it_runs_again() {
    let mut world = World::with_workload_cluster(Options::default()).await;
    world.add("m1").await;
    world.stop_maintenance();
    world.label_machine("m1", json!({MAINTENANCE: "requested"})).await;
    world.until_node("m1", "marked", |node| labels(node)[MACHINE_MAINTENANCE] == "true").await;
    world.stop_extension();
    world.start_maintenance();
    world.until_node("m1", "approved there", |node| labels(node)[APPROVE_MAINTENANCE] == "true").await;
    assert_eq!(world.maintenance("m1").await.as_deref(), Some("requested"));
    world.start_extension();
    approved(&world, "m1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_is_not_enabled_is_not_answered() {
    let world = World::start(Options::default()).await;
    world.add("m1").await;
    world.add_node("m2").await;
    world.add_machine("m2", json!({MAINTENANCE: "requested"})).await;
    world.name_node("m2").await;
    world.label_machine("m1", json!({MAINTENANCE: "requested"})).await;
    approved(&world, "m1").await;
    assert_eq!(world.maintenance("m2").await.as_deref(), Some("requested"));
    world.label_machine("m2", json!({ENABLED: "true"})).await;
    approved(&world, "m2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_extension_for_metal3_switches_the_host_off_as_soon_as_it_approves() {
    let hosts = metal3::world::World::start(1, metal3::operator::Options::default()).await;
    let mut options = Options::default();
    options.extension.metal3 = true;
    let world = World::within(&hosts.namespace, options).await;
    world.add("m1").await;
    world.on_host("m1", "node1").await;
    world.label_machine("m1", json!({MAINTENANCE: "requested"})).await;
    approved(&world, "m1").await;
    hosts.until("node1", "off", |host| host["status"]["poweredOn"] == false).await;
    assert_eq!(hosts.host("node1").await["spec"]["online"], true);
    world.label_machine("m1", json!({MAINTENANCE: null})).await;
    hosts.until("node1", "on", |host| host["status"]["poweredOn"] == true).await;
    returned(&world, "m1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_machine_stays_until_every_hook_is_gone() {
    const OURS: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/terraform-provider-metal";
    let world = World::start(Options::default()).await;
    world.add("m1").await;
    world.merge("Machine", "m1", json!({"metadata": {"annotations": {OURS: "m1"}}})).await;
    world.delete_machine("m1").await;
    assert_eq!(world.finish_deletion("m1").await, [PRE_DRAIN, OURS]);
    world.label_node("m1", json!({APPROVE_DELETION: "true"})).await;
    let without = |machine: &Value| machine["metadata"]["annotations"][PRE_DRAIN].is_null();
    world.until_machine("m1", "the extension's hook is removed", without).await;
    assert_eq!(world.finish_deletion("m1").await, [OURS]);
    world.merge("Machine", "m1", json!({"metadata": {"annotations": {OURS: null}}})).await;
    assert!(world.finish_deletion("m1").await.is_empty());
    patience::until("it is gone", async || world.find("Machine", "m1").await.is_none().then_some(())).await;
}
