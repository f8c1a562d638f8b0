//! Operations and boot configurations on a detached host, alone and under a hold.

use bmc_simulator::{JournalQuery, PowerState};
use serde_json::json;

use super::{HELD, configure, maintenance};
use crate::{
    kubernetes_node::Place,
    servers::metal3::{
        operator::Options,
        world::{DETACHED, World},
    },
    support::{
        images::Images,
        simulator::{Fleet, SOON},
        workspace::Workspace,
    },
};

/// Returns the reset types sent by this provider, without Ironic's.
fn our_resets(world: &World) -> Vec<String> {
    let journal = world.simulator.journal(&JournalQuery::system("node1"));
    let resets = journal.iter().filter(|entry| entry.path.contains("ComputerSystem.Reset"));
    let ours = resets.filter(|entry| entry.user_agent.as_deref() != Some("ironic"));
    ours.filter_map(|entry| Some(entry.body.as_ref()?["ResetType"].as_str()?.to_owned())).collect()
}

fn operation(operation: &str, more: &str) -> String {
    format!(
        "resource \"metal_server_operation\" \"once\" {{\n  server = \"node1\"\n  namespace = \"ops\"\n  name = \"{operation}\"\n  \
         policy = \"Enforced\"\n  operation = \"{operation}\"\n  {more}\n}}\n"
    )
}

async fn is_managed(world: &World) {
    world
        .until("node1", "managed and on", |host| {
            host["status"]["operationalStatus"] == "OK" && host["status"]["poweredOn"] == true
        })
        .await;
    assert_eq!(world.traces("node1").await, Vec::<String>::new());
}

for_one_host! {
    async fn an_operation_in_its_own_turn_detaches_the_host_for_as_long_as_it_takes(host) {
        let (world, workspace) = (World::start(1, Options::default()).await, Workspace::new(host));
        configure(&world, &workspace, &operation("ForceRestart", ""));
        workspace.apply().await.succeeded();
        assert_eq!(our_resets(&world), ["ForceRestart"]);
        is_managed(&world).await;
        workspace.plan().await.is_empty();
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");

        // The operator would revert these after re-attachment.
        configure(&world, &workspace, &operation("ForceOff", ""));
        workspace.try_plan().await.says("baremetal-operator would switch").says("on again within a minute");
        workspace.apply().await.failed().says("maintenance_id");
        assert_eq!(our_resets(&world), ["ForceRestart"]);
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
        is_managed(&world).await;
    }
}

for_one_host! {
    async fn an_operation_and_a_boot_configuration_under_a_hold_use_its_detached_host(host) {
        let (world, images) = (World::start(1, Options::default()).await, Images::start().await);
        let (workspace, fleet) = (Workspace::new(host), Fleet { simulator: world.simulator.clone() });
        let held = maintenance("bios", "");
        configure(&world, &workspace, &held);
        workspace.apply().await.succeeded();
        let version = world.host("node1").await["metadata"]["resourceVersion"].clone();

        let under = format!("maintenance_id = {HELD}.id");
        let boot = format!(
            "resource \"metal_server_boot_configuration\" \"rescue\" {{\n  server = \"node1\"\n  {under}\n  method = \"virtual_media\"\n  \
             image = \"{}\"\n  server_power = \"On\"\n}}\n",
            images.url("rescue.iso")
        );
        configure(&world, &workspace, &(held.clone() + &boot));
        workspace.apply().await.succeeded();
        assert!(fleet.runs("node1").contains("rescue.iso"), "{}", fleet.runs("node1"));
        configure(&world, &workspace, &(held.clone() + &boot + &operation("ForceRestart", &under)));
        workspace.apply().await.succeeded();
        assert_eq!(our_resets(&world).last().map(String::as_str), Some("ForceRestart"));
        let host = world.host("node1").await;
        assert_eq!(host["status"]["operationalStatus"], "detached", "{host}");
        assert_eq!(host["metadata"]["resourceVersion"], version, "an operation under a maintenance wrote to the host");

        workspace.destroy().await.succeeded();
        is_managed(&world).await;
        assert!(fleet.runs("node1").contains("Disk"), "{}", fleet.runs("node1"));
    }
}

for_one_host! {
    async fn a_boot_configuration_in_its_own_turn_boots_a_detached_host_and_restores_it(host) {
        let (world, images) = (World::start(1, Options::default()).await, Images::start().await);
        let (workspace, fleet) = (Workspace::new(host), Fleet { simulator: world.simulator.clone() });
        let boot = format!(
            "resource \"metal_server_boot_configuration\" \"rescue\" {{\n  server = \"node1\"\n  method = \"virtual_media\"\n  \
             image = \"{}\"\n  server_power = \"On\"\n}}\n",
            images.url("rescue.iso")
        );
        configure(&world, &workspace, &boot);
        workspace.apply().await.succeeded();
        assert!(fleet.runs("node1").contains("rescue.iso"), "{}", fleet.runs("node1"));
        // The operator would boot its own configured image.
        world.until("node1", "detached", |host| host["status"]["operationalStatus"] == "detached").await;
        workspace.plan().await.is_empty();
        // No other maintenance acquires it during that time.
        let other = workspace.beside();
        configure(&world, &other, &maintenance("bios", "").replace("OwnerApproval", "Enforced"));
        let waits = other.start_apply();
        waits.until_it_logs("which maintenance boot-configuration/", SOON).await;
        workspace.destroy().await.succeeded();
        waits.wait(SOON * 4).await.succeeded();
        other.destroy().await.succeeded();
        is_managed(&world).await;
        assert_eq!(world.host("node1").await["spec"]["online"], json!(true));
        assert!(fleet.runs("node1").contains("Disk"), "{}", fleet.runs("node1"));
    }
}

for_one_host! {
    async fn the_node_of_a_host_is_drained_before_the_host_is_detached(host) {
        let (world, place, workspace) =
            (World::start(1, Options::default()).await, Place::new().await, Workspace::new(host));
        place.pod("db", Some("StatefulSet"), json!({})).await;
        place.budget("db", 0).await;
        let kubeconfig = world.kubernetes.user("ci", &["system:masters"]);
        workspace.configure(&format!(
            "provider \"metal\" {{\n  metal3 = {{ kubeconfig = \"{}\", namespace = \"{}\" }}\n  {}\n}}\n{}",
            kubeconfig.display(),
            world.namespace,
            place.drained_as(&kubeconfig),
            maintenance("bios", "server_power = \"Off\""),
        ));
        let apply = workspace.start_apply();
        apply.until_it_logs("disruption budget", SOON).await;
        assert!(place.cordoned().await);
        assert!(world.host("node1").await["metadata"]["annotations"][DETACHED].is_null(), "its Node is not drained yet");
        place.budget("db", 1).await;
        apply.wait(SOON * 2).await.succeeded();
        assert_eq!(world.host("node1").await["status"]["operationalStatus"], "detached");
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::Off);
        workspace.destroy().await.succeeded();
        is_managed(&world).await;
        assert_eq!((place.cordoned().await, place.marks().await), (false, 0));
    }
}
