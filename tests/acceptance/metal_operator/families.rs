//! A complete maintenance in every version family: an unclaimed server and, in parallel, a claimed
//! one that needs approval.

use bmc_simulator::{BootSource, Fault, HeldQuery, JournalQuery, Phase, PowerState};

use super::{cluster, configure};
use crate::{
    servers::ironcore::{
        Options,
        api::{Key, Kind, text},
        family::Family,
        world::World,
    },
    support::{host::Host, simulator::SOON, wait::eventually, workspace::Workspace},
};

const BOTH: &str = r#"
resource "metal_server_maintenance" "free" {
  server       = "node1"
  namespace    = "ops"
  name         = "free"
  policy       = "OwnerApproval"
  server_power = "On"
}
resource "metal_server_maintenance" "owned" {
  server       = "node2"
  namespace    = "ops"
  name         = "owned"
  policy       = "OwnerApproval"
  server_power = "Off"
}
"#;

/// Same as `BOTH`, with a boot image for the claimed server where the operator supports it.
fn booting() -> String {
    BOTH.replace(
        "\"Off\"",
        "\"On\"\n  boot_configuration = { method = \"boot_operator\", image = \"registry.example/bios:2\" }",
    )
}

fn network_boots(world: &World, server: &str) -> usize {
    let boots = world.simulator.boots(server).unwrap();
    boots.iter().filter(|boot| boot.booted_from == BootSource::Pxe).count()
}

/// Returns the approval command shown by the queue.
async fn told(workspace: &Workspace) -> String {
    eventually("the queue shows the approval command", SOON, async || {
        let queue = workspace.metal(&["queue"]).await.succeeded();
        let line = queue.stdout.lines().find(|line| line.contains("kubectl "))?.to_owned();
        Some(line[line.find("kubectl ")?..].split("=true").next()?.to_owned() + "=true")
    })
    .await
}

/// Does the same as this command.
async fn run(world: &World, command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    let [_, verb, "serverclaim", "-n", namespace, claim, mark] = words.as_slice() else { panic!("{command}") };
    let field = if *verb == "label" { "labels" } else { "annotations" };
    let (key, value) = mark.split_once('=').unwrap();
    let change = serde_json::json!({"metadata": {field: {key: value}}});
    world.cluster.merge(Kind::Claim, &Key::within(namespace, claim), change).await.unwrap();
}

/// Adds or removes a finalizer on a request, which the operator can write concurrently.
async fn keep(world: &World, key: &Key, kept: bool) {
    let kind = world.maintenances();
    eventually("the finalizer is written without a conflict", SOON, async || {
        let object = world.object(kind, key).await;
        world.cluster.finalizer(kind, &object, "tests.example/look", kept).await.ok()
    })
    .await;
}

/// Asserts that the provider's last power change is complete before the server is released.
async fn given_back_in_order(world: &World, workspace: &Workspace) {
    let kind = world.maintenances();
    let objects = world.list(kind).await;
    let object = objects.iter().find(|object| text(object, "/spec/serverRef/name") == "node2").expect("ours");
    let key = Key::of(object);
    // A foreign finalizer keeps the request visible after the provider deletes it.
    keep(world, &key, true).await;
    let destroy = workspace.start_destroy();
    world.until(kind, &key, "being deleted", |object| object.metadata.deletion_timestamp.is_some()).await;
    let power = world.simulator.system("node2").unwrap().power;
    assert_eq!(power, PowerState::On, "the server was released before its power was restored");
    keep(world, &key, false).await;
    destroy.wait(SOON * 2).await.succeeded();
}

async fn whole(family: Family, host: Host, name: &str, body: &str) {
    let world = cluster(family, 2, Options::default()).await;
    world.claim("node2", "owners", "claim1").await;
    let workspace = Workspace::new(host);
    configure(&world, &workspace, body);
    // One at a time, because hosts merge warnings with the same summary.
    for (resource, says) in [
        ("free", "Server: Available, unclaimed"),
        ("owned", "Server: Reserved, claimed by owners/claim1: no approval yet"),
    ] {
        let target = format!("-target=metal_server_maintenance.{resource}");
        let plan = workspace.run(&["plan", "-input=false", "-no-color", &target]).await.succeeded();
        plan.says(&format!("Cluster: {name}")).says(says);
    }
    let apply = workspace.start_apply();
    run(&world, &told(&workspace).await).await;
    apply.wait(SOON * 2).await.succeeded();
    let power = |server: &str| world.simulator.system(server).unwrap().power;
    let wanted = if body == BOTH { PowerState::Off } else { PowerState::On };
    assert_eq!((power("node1"), power("node2")), (PowerState::On, wanted));
    let state = if family == Family::Parked { "Parked" } else { "Maintenance" };
    for server in ["node1", "node2"] {
        assert_eq!(world.server(server).await["status"]["state"], state, "{server}");
    }
    if body != BOTH {
        let boots = world.list(Kind::Boot).await;
        assert!(boots.iter().any(|boot| text(boot, "/spec/image") == "registry.example/bios:2"), "{boots:?}");
    }
    workspace.plan().await.is_empty();
    let booted = network_boots(&world, "node2");
    if family == Family::Parked {
        workspace.destroy().await.succeeded();
    } else {
        given_back_in_order(&world, &workspace).await;
        assert!(world.list(world.maintenances()).await.is_empty());
    }
    world.until_state("node2", "Reserved").await;
    world.until_state("node1", "Available").await;
    world.simulator.wait_power("node1", PowerState::Off, SOON).await.expect("the release restores the power");
    assert_eq!(power("node2"), PowerState::On);
    assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new());
    // The operator boots a claimed server from the network if it was released powered off.
    assert_eq!(
        network_boots(&world, "node2"),
        booted,
        "the server was released powered off, so it booted from the network"
    );
    for server in ["node1", "node2"] {
        let server = world.server(server).await;
        let annotations = server["metadata"]["annotations"].to_string();
        assert!(!annotations.contains("terraform-provider-metal"), "{annotations}");
        assert!(server["spec"]["unclaimable"] != true, "{server}");
    }
    workspace.metal(&["queue"]).await.succeeded().says("No server is held");
}

macro_rules! families {
    ($($test:ident: $family:ident on $host:ident, $name:literal, $body:expr;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                whole(Family::$family, Host::$host, $name, $body).await;
            }
        )*
    };
}

families! {
    v0_1: V0_1 on OpenTofu, "ServerMaintenance of metal.ironcore.dev (metal-operator v0.1 to v0.3)", BOTH;
    v0_3: V0_3 on Terraform, "ServerMaintenance of metal.ironcore.dev (metal-operator v0.1 to v0.3)", &booting();
    v0_5: V0_5 on OpenTofu, "ServerMaintenance of metal.ironcore.dev (metal-operator v0.4 or v0.5)", &booting();
    v0_6: V0_6 on Terraform, "ServerMaintenance of metal.ironcore.dev (metal-operator v0.6)", BOTH;
    v0_7: V0_7 on OpenTofu, "ServerMaintenance of metal.ironcore.dev (metal-operator v0.7)", &booting();
    the_maintenance_group: MaintenanceGroup on Terraform, "ServerMaintenance of maintenance.metal.ironcore.dev", BOTH;
    parked: Parked on OpenTofu, "parking (metal-operator after v0.7)", BOTH;
}

/// A maintenance of `node1` for the parking family.
fn parking(more: &str) -> String {
    super::maintenance("Enforced", more)
}

/// Counts a machine's resets of one type, by operator or provider.
fn resets(world: &World, server: &str, kind: &str) -> usize {
    let journal = world.simulator.journal(&JournalQuery::system(server).request("POST", "*ComputerSystem.Reset"));
    journal.iter().filter(|entry| entry.body.as_ref().is_some_and(|body| body["ResetType"] == kind)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parking_gives_back_what_was_kept_from_claims_and_leaves_foreign_parking_alone() {
    let world = cluster(Family::Parked, 2, Options::default()).await;
    let workspace = Workspace::new(Host::Terraform);
    let merge = |server: &'static str, change| {
        let key = Key::cluster(server);
        let cluster = world.cluster.clone();
        async move { cluster.merge(Kind::Server, &key, change).await.unwrap() }
    };
    // Another author marked this server as unclaimable and parked the other.
    merge("node1", serde_json::json!({"spec": {"unclaimable": true}})).await;
    let park = serde_json::json!({"metadata": {"annotations": {"metal.ironcore.dev/operation": "park"}}});
    merge("node2", park).await;
    world.until_state("node2", "Parked").await;
    let foreign = parking("").replace("node1", "node2").replace("\"held\"", "\"other\"").replace("bios", "other");
    configure(&world, &workspace, &(parking("") + &foreign));
    let apply = workspace.start_apply();
    eventually("node1 is held, and node2 waits", SOON, async || {
        let queue = workspace.metal(&["queue"]).await.succeeded();
        let waits = queue.stdout.contains("parked by an unnamed author");
        (waits && queue.stdout.contains("InMaintenance")).then_some(())
    })
    .await;
    let before = world.server("node2").await;
    apply.interrupt_from_terminal();
    apply.wait(SOON).await.failed().says("Waiting for node2 was interrupted");
    let after = world.server("node2").await;
    assert_eq!(before["metadata"]["annotations"], after["metadata"]["annotations"]);
    assert_eq!(after["status"]["state"], "Parked");
    workspace.destroy().await.succeeded();
    world.until_state("node1", "Available").await;
    assert_eq!(world.server("node1").await["spec"]["unclaimable"], true, "another author's value was removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_of_parkings_leaves_a_server_open_to_claims() {
    let world = cluster(Family::Parked, 1, Options::default()).await;
    let first = Workspace::new(Host::OpenTofu);
    configure(&world, &first, &parking(""));
    first.apply().await.succeeded();
    assert_eq!(world.server("node1").await["spec"]["unclaimable"], true);
    let second = first.beside();
    configure(&world, &second, &parking("").replace("\"held\"", "\"next\"").replace("bios", "next"));
    let apply = second.start_apply();
    apply.until_it_logs("waiting for", SOON).await;
    first.destroy().await.succeeded();
    apply.wait(SOON * 2).await.succeeded();
    second.destroy().await.succeeded();
    world.until_state("node1", "Available").await;
    assert_ne!(world.server("node1").await["spec"]["unclaimable"], true, "`unclaimable` was not restored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parking_that_the_operating_system_ignores_is_forced() {
    let world = cluster(Family::Parked, 1, Options::default()).await;
    world.claim("node1", "owners", "claim1").await;
    let stuck = bmc_simulator::Behaviour { ignores_shutdown: true, ..bmc_simulator::Behaviour::default() };
    world.simulator.set_behaviour("node1", stuck).unwrap();
    let workspace = Workspace::new(Host::OpenTofu);
    configure(&world, &workspace, &parking("server_power = \"Off\""));
    let apply = workspace.start_apply();
    apply.until_it_logs("it is shutting down", SOON).await;
    assert_eq!(resets(&world, "node1", "ForceOff"), 0);
    apply.wait(SOON).await.succeeded();
    assert_eq!(resets(&world, "node1", "ForceOff"), 1);
    assert_eq!(world.server("node1").await["status"]["state"], "Parked");
    workspace.destroy().await.succeeded();
    world.until_state("node1", "Reserved").await;
    assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_parked_for_a_maintenance_that_never_began_is_not_booted_from_the_network() {
    let world = cluster(Family::Parked, 1, Options::default()).await;
    world.claim("node1", "owners", "claim1").await;
    let workspace = Workspace::new(Host::Terraform);
    configure(&world, &workspace, &parking("server_power = \"Off\""));
    let booted = network_boots(&world, "node1");
    let _ = world.simulator.inject(Fault::hold(Phase::Before).on_request("POST", "*ComputerSystem.Reset").times(1));
    let apply = workspace.start_apply();
    world.simulator.wait_held(&HeldQuery::default(), SOON).await.unwrap();
    apply.interrupt_from_terminal();
    apply.wait(SOON).await.failed();
    world.simulator.release_all();
    world.until_state("node1", "Parked").await;
    workspace.destroy().await.succeeded();
    world.until_state("node1", "Reserved").await;
    world.simulator.wait_power("node1", PowerState::On, SOON).await.expect("the release restores the power");
    assert!(resets(&world, "node1", "GracefulShutdown") > 0, "the maintenance did not switch the server off");
    assert_eq!(
        network_boots(&world, "node1"),
        booted,
        "the server was released powered off, so it booted from the network"
    );
    let annotations = world.server("node1").await["metadata"]["annotations"].to_string();
    assert!(!annotations.contains("terraform-provider-metal"), "{annotations}");
}
