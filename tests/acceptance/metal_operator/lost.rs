//! A server lost during preparation or hold: the former holder stops without touching the
//! hardware.

use std::time::Duration;

use bmc_simulator::{Behaviour, PowerState};
use serde_json::json;

use super::{
    HELD, cluster, configure, maintenance,
    strangers::{hand_to, holder, ours, request, tear_out, until_request, withdraw},
};
use crate::{
    servers::ironcore::{
        Options,
        api::{Key, Kind, text},
        family::Family,
        world::World,
    },
    support::{host::Host, simulator::SOON, workspace::Workspace},
};

/// A resource that works on the locked server.
const DEPENDENT: &str = r#"
resource "terraform_data" "work" {
  depends_on = [metal_server_maintenance.held]
  provisioner "local-exec" {
    command = "touch worked"
  }
}
"#;

/// Returns the resets sent to a machine by the provider and the operator, in order.
fn resets(world: &World, server: &str) -> Vec<String> {
    let journal = world.simulator.journal(&bmc_simulator::JournalQuery::system(server));
    let resets = journal.iter().filter(|entry| entry.path.contains("ComputerSystem.Reset"));
    resets.filter_map(|entry| Some(entry.body.as_ref()?["ResetType"].as_str()?.to_owned())).collect()
}

/// Returns true if the provider requested a forced power-off from the operator.
async fn forced(world: &World, server: &str) -> bool {
    let server = world.server(server).await;
    server["metadata"]["annotations"].to_string().contains("force-off-server")
}

/// The server is lost during preparation, while the operating system ignores the shutdown.
async fn taken_while_preparing(world: &World, host: Host, to: Option<&Key>) {
    let workspace = Workspace::new(host);
    let body = maintenance("Enforced", "server_power = \"Off\"");
    configure(world, &workspace, &body);
    let apply = workspace.start_apply();
    apply.until_it_logs("graceful, forced at", SOON).await;
    hand_to(world, "node1", to).await;
    let run = apply.wait(SOON).await.failed();
    run.says("node1").says("serverMaintenanceRef");
    assert!(!resets(world, "node1").contains(&"ForceOff".to_owned()), "{:?}", resets(world, "node1"));
    assert!(!forced(world, "node1").await);
    assert!(workspace.resource(HELD).await.is_none(), "{}", run.output);
    assert!(ours(world, "node1").await.is_none(), "our request is still there");
    assert_eq!(holder(world, "node1").await.as_ref(), to);
    workspace.metal(&["queue"]).await.succeeded().says("No server is held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_lost_in_the_middle_of_preparing_is_not_touched_again() {
    for (family, host) in [(Family::V0_6, Host::OpenTofu), (Family::V0_5, Host::Terraform)] {
        let world = cluster(family, 1, Options { power_timeout: Duration::from_secs(3), ..Options::default() }).await;
        world.claim("node1", "owners", "claim1").await;
        let hangs = Behaviour { ignores_shutdown: true, ..Behaviour::default() };
        world.simulator.set_behaviour("node1", hangs).unwrap();
        if family == Family::V0_6 {
            taken_while_preparing(&world, host, None).await;
        } else {
            // A waiting request acquires it.
            let other = request(&world, "other", "node1", "OwnerApproval", -1).await;
            taken_while_preparing(&world, host, Some(&other)).await;
        }
    }
}

for_one_host! {
    async fn a_hold_that_was_evicted_is_told_and_leaves_the_other_alone(host) {
        let world = cluster(Family::V0_5, 1, Options::default()).await;
        world.claim("node1", "owners", "claim1").await;
        let workspace = Workspace::new(host);
        configure(&world, &workspace, &maintenance("Enforced", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        let other = request(&world, "other", "node1", "Enforced", 9).await;
        until_request(&world, &other, "Pending").await;
        hand_to(&world, "node1", Some(&other)).await;
        let before = resets(&world, "node1");
        workspace.refresh().await.succeeded().says("External maintenance system revoked the server").says("others/other");
        assert!(workspace.resource(HELD).await.is_some());
        workspace.destroy().await.succeeded().says("power and boot were not changed");
        assert_eq!(resets(&world, "node1"), before);
        assert_eq!(holder(&world, "node1").await, Some(other));
        assert!(ours(&world, "node1").await.is_none());
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::Off);
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_a_person_deletes_ends_the_hold_and_nothing_is_switched() {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    world.claim("node1", "owners", "claim1").await;
    let workspace = Workspace::new(Host::Terraform);
    configure(&world, &workspace, &maintenance("Enforced", "server_power = \"Off\""));
    workspace.apply().await.succeeded();
    withdraw(&world, &Key::of(&ours(&world, "node1").await.unwrap())).await;
    world.until_state("node1", "Reserved").await;
    world.simulator.wait_power("node1", PowerState::On, SOON).await.expect("the operator switches it on again");
    workspace.refresh().await.succeeded().says("External maintenance system revoked the server");
    let before = resets(&world, "node1");
    workspace.destroy().await.succeeded();
    assert_eq!(resets(&world, "node1"), before);
    assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reference_to_a_request_that_was_torn_out_is_removed() {
    let world = cluster(Family::V0_6, 1, Options::default()).await;
    world.claim("node1", "owners", "claim1").await;
    let workspace = Workspace::new(Host::OpenTofu);
    configure(&world, &workspace, &maintenance("Enforced", ""));
    workspace.apply().await.succeeded();
    let key = Key::of(&ours(&world, "node1").await.unwrap());
    // The maintenance controller is stopped, so it does not clean up.
    let gate = &world.operators.context.options.maintenance;
    gate.close();
    tear_out(&world, world.maintenances(), &key).await;
    gate.open();
    assert_eq!(holder(&world, "node1").await, Some(key));
    workspace.refresh().await.succeeded().says("External maintenance system revoked the server");
    workspace.destroy().await.succeeded();
    assert_eq!(holder(&world, "node1").await, None);
    world.until_state("node1", "Reserved").await;
    assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_restored_although_a_person_edited_its_request() {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    world.claim("node1", "owners", "claim1").await;
    let workspace = Workspace::new(Host::Terraform);
    configure(&world, &workspace, &maintenance("Enforced", "server_power = \"Off\""));
    workspace.apply().await.succeeded();
    let key = Key::of(&ours(&world, "node1").await.unwrap());
    let edit = json!({"metadata": {"annotations": {"metal.ironcore.dev/reason": "edited"}}, "spec": {"priority": 7}});
    world.cluster.merge(world.maintenances(), &key, edit).await.unwrap();
    workspace.destroy().await.succeeded();
    world.until_state("node1", "Reserved").await;
    world.simulator.wait_power("node1", PowerState::On, SOON).await.expect("the release restores the power");
}

for_one_host! {
    async fn a_deleted_request_of_a_server_is_made_again(host) {
        let world = cluster(Family::V0_7, 1, Options::default()).await;
        let workspace = Workspace::new(host);
        let held = maintenance("Enforced", "");
        configure(&world, &workspace, &held);
        workspace.apply().await.succeeded();
        withdraw(&world, &Key::of(&ours(&world, "node1").await.unwrap())).await;
        workspace.plan().await.only_replaces(HELD).run.says("revoked the server");
        configure(&world, &workspace, &(held + DEPENDENT));
        workspace.apply().await.succeeded();
        assert!(workspace.folder().join("worked").exists(), "the dependent did not run");
        assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
        workspace.destroy().await.succeeded();
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_server_that_vanishes_can_be_let_go() {
    let world = cluster(Family::Parked, 1, Options::default()).await;
    let workspace = Workspace::new(Host::OpenTofu);
    configure(&world, &workspace, &maintenance("Enforced", ""));
    workspace.apply().await.succeeded();
    tear_out(&world, Kind::Server, &Key::cluster("node1")).await;
    workspace.destroy().await.succeeded();
    workspace.metal(&["queue"]).await.succeeded().says("No server is held");
}

for_one_host! {
    async fn a_server_that_vanishes_while_it_is_held_runs_no_dependent_and_can_be_let_go(host) {
        for kept in [false, true] {
            let world = cluster(Family::V0_7, 1, Options::default()).await;
            let workspace = Workspace::new(host);
            let on_end = if kept { "on_end = \"keep\"" } else { "timeouts = { create = \"8s\" }" };
            let held = maintenance("Enforced", &format!("server_power = \"On\"\n  {on_end}"));
            configure(&world, &workspace, &held);
            workspace.apply().await.succeeded();
            let before = resets(&world, "node1");
            tear_out(&world, Kind::Server, &Key::cluster("node1")).await;
            let plan = workspace.plan().await;
            plan.run.says("Server \"node1\" no longer exists");
            if kept {
                assert_eq!(plan.change(HELD)["actions"], json!(["update"]));
                workspace.apply().await.succeeded();
                assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "Completed");
                workspace.plan().await.is_empty();
            } else {
                plan.only_replaces(HELD);
                configure(&world, &workspace, &(held + DEPENDENT));
                workspace.apply().await.failed();
                assert!(!workspace.folder().join("worked").exists(), "the dependent ran without a server");
            }
            workspace.destroy().await.succeeded();
            assert!(world.list(world.maintenances()).await.is_empty());
            assert_eq!(resets(&world, "node1"), before);
            workspace.metal(&["queue"]).await.succeeded().says("No server is held");
        }
    }
}

for_one_host! {
    async fn an_image_that_cannot_be_booted_fails_at_once_and_the_server_is_given_back(host) {
        let world = cluster(Family::V0_7, 1, Options::default()).await;
        world.claim("node1", "owners", "claim1").await;
        let workspace = Workspace::new(host);
        let boot = "server_power = \"On\"\n  boot_configuration = { method = \"boot_operator\", image = \"registry.example/missing:2\" }";
        configure(&world, &workspace, &maintenance("Enforced", boot));
        let run = workspace.apply().await.failed();
        run.says("no registry has it").says("ServerBootConfiguration");
        assert!(workspace.resource(HELD).await.is_none(), "{}", run.output);
        world.until_state("node1", "Reserved").await;
        world.simulator.wait_power("node1", PowerState::On, SOON).await.expect("the release restores the power");
        let boots = world.simulator.boots("node1").unwrap();
        let network = boots.iter().filter(|boot| boot.booted_from == bmc_simulator::BootSource::Pxe).count();
        // One boot for discovery, one for the claim.
        assert!(network <= 2, "{boots:?}");
        assert!(world.list(world.maintenances()).await.is_empty());
        assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ready_of_before_does_not_start_the_server() {
    let options = Options::default();
    let gate = options.boot.clone();
    let world = cluster(Family::V0_7, 1, options).await;
    let workspace = Workspace::new(Host::OpenTofu);
    let body = |image: &str| {
        maintenance("Enforced", "server_power = \"Off\"")
            + &format!(
                r#"
resource "metal_server_boot_configuration" "image" {{
  server         = "node1"
  maintenance_id = metal_server_maintenance.held.id
  method         = "boot_operator"
  image          = "{image}"
  server_power   = "On"
}}
"#
            )
    };
    configure(&world, &workspace, &body("registry.example/one:1"));
    workspace.apply().await.succeeded();
    let switched_on = || resets(&world, "node1").iter().filter(|reset| *reset == "On").count();
    let before = switched_on();
    gate.close();
    configure(&world, &workspace, &body("registry.example/two:1"));
    let apply = workspace.start_apply();
    let key = Key::of(&ours(&world, "node1").await.unwrap());
    world
        .until(Kind::Boot, &key, "of the second image", |boot| text(boot, "/spec/image") == "registry.example/two:1")
        .await;
    // A reader would now rely on a state that belongs to the first image.
    let ready = json!({"state": "Pending"});
    world.cluster.merge_status(Kind::Boot, &key, ready).await.unwrap();
    apply.until_it_logs("is Pending", SOON).await;
    assert_eq!(switched_on(), before, "{:?}", resets(&world, "node1"));
    gate.open();
    apply.wait(SOON).await.succeeded();
    assert_eq!(switched_on(), before + 1);
    workspace.destroy().await.succeeded();
}
