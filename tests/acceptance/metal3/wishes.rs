//! Changes by the host's owner during a hold: different power, or deletion. Includes the release
//! plan's warnings.

use bmc_simulator::{JournalQuery, PowerState};
use serde_json::json;

use super::{configure, configure_with, maintenance};
use crate::{
    servers::metal3::{
        operator::Options,
        world::{DETACHED, World},
    },
    support::{images::Images, simulator::SOON, wait::eventually, workspace::Workspace},
};

const DESTROY: &[&str] = &["plan", "-destroy", "-input=false", "-no-color"];

/// Returns the reset types sent by this provider, without Ironic's.
fn our_resets(world: &World) -> Vec<String> {
    let journal = world.simulator.journal(&JournalQuery::system("node1"));
    let resets = journal.iter().filter(|entry| entry.path.contains("ComputerSystem.Reset"));
    let ours = resets.filter(|entry| entry.user_agent.as_deref() != Some("ironic"));
    ours.filter_map(|entry| Some(entry.body.as_ref()?["ResetType"].as_str()?.to_owned())).collect()
}

async fn online(world: &World, online: bool) {
    world.merge("BareMetalHost", "node1", json!({"spec": {"online": online}})).await;
}

/// Returns a destroy plan's warnings, without line breaks.
async fn told_of_destroy(workspace: &Workspace) -> String {
    workspace.run(DESTROY).await.succeeded().words()
}

for_one_host! {
    async fn a_release_restores_the_power_that_the_owner_wants_by_then(host) {
        let (world, mut workspace) = (World::start(1, Options::default()).await, Workspace::new(host));
        let kubeconfig = world.kubernetes.user("admin", &["system:masters"]).display().to_string();
        workspace.set("METAL_KUBECONFIG", kubeconfig).set("METAL_KUBE_NAMESPACE", &world.namespace);
        configure(&world, &workspace, &maintenance("bios", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        let told = told_of_destroy(&workspace).await;
        assert!(told.contains("node1 is switched on."), "{told}");

        // The owner now wants it off.
        online(&world, false).await;
        let told = told_of_destroy(&workspace).await;
        assert!(!told.contains("switched on"), "{told}");
        let generation = workspace.generation("ops/bios").await;
        let release = ["--backend", "metal3", "release", "ops/bios", "--force", "--generation", &generation, "--reason", "needed"];
        let said = workspace.metal(&release).await.succeeded().words();
        assert!(said.contains("its power, which stays Off") && !said.contains("prior state (On)"), "{said}");
        assert!(!our_resets(&world).contains(&"On".to_owned()), "{:?}", our_resets(&world));
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::Off);
        assert_eq!(world.traces("node1").await, Vec::<String>::new());

        // Now on, after it was off before.
        workspace.metal(&["release", "--allow", "ops/bios"]).await.succeeded();
        workspace.apply().await.succeeded();
        online(&world, true).await;
        let told = told_of_destroy(&workspace).await;
        assert!(told.contains("node1 is switched on."), "{told}");
        workspace.destroy().await.succeeded();
        assert_eq!(our_resets(&world).last().map(String::as_str), Some("On"));
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
        assert_eq!(world.traces("node1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn a_host_that_is_being_deleted_is_told_of_and_not_switched_on(host) {
        let (world, workspace) = (World::start(1, Options::default()).await, Workspace::new(host));
        configure(&world, &workspace, &maintenance("bios", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        world.delete("node1").await;
        workspace.try_plan().await.succeeded().says("A held server is being deleted").says("after the release");
        let told = told_of_destroy(&workspace).await;
        assert!(told.contains("is being deleted") && !told.contains("is switched on"), "{told}");
        workspace.destroy().await.succeeded();
        eventually("the operator deletes it", SOON * 2, async || world.find("node1").await.is_none().then_some(())).await;
        assert!(!our_resets(&world).contains(&"On".to_owned()), "{:?}", our_resets(&world));
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::Off);
    }
}

for_one_host! {
    async fn a_plan_to_destroy_tells_that_a_host_was_revoked_and_is_not_restored(host) {
        let (world, workspace) = (World::start(1, Options::default()).await, Workspace::new(host));
        configure(&world, &workspace, &maintenance("bios", "server_power = \"Off\""));
        workspace.apply().await.succeeded();
        world.annotate("node1", json!({ DETACHED: null })).await;
        let without_refresh = ["plan", "-destroy", "-refresh=false", "-input=false", "-no-color"];
        let told = workspace.run(&without_refresh).await.succeeded().words();
        assert!(told.contains("External maintenance system revoked the server"), "{told}");
        assert!(!told.contains("is switched on"), "{told}");
        workspace.destroy().await.succeeded().says("revoked the server");
    }
}

for_one_host! {
    async fn a_plan_to_destroy_tells_that_the_operator_switches_a_host_on(host) {
        let (world, workspace) = (World::start(1, Options::default()).await, Workspace::new(host));
        let held = maintenance("psu", "server_power = \"Off\"");
        configure_with(&world, &workspace, "hold = \"power_off\"", &held);
        workspace.apply().await.succeeded();
        let told = told_of_destroy(&workspace).await;
        assert!(told.contains("node1 is switched on by Metal3 (BareMetalHost)."), "{told}");
        workspace.destroy().await.succeeded();
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
    }
}

for_one_host! {
    async fn no_boot_is_judged_of_a_host_that_is_left_off(host) {
        let (world, images) = (World::start(1, Options::default()).await, Images::start().await);
        let workspace = Workspace::new(host);
        let boot = |power: &str| {
            let image = images.url("rescue.iso");
            let boot = format!("boot_configuration = {{ method = \"virtual_media\", image = \"{image}\" }}");
            maintenance("bios", &format!("server_power = \"{power}\"\n  {boot}"))
        };
        configure(&world, &workspace, &boot("Off"));
        let said = workspace.apply().await.succeeded().words();
        assert!(!said.contains("is not proven"), "{said}");
        workspace.destroy().await.succeeded();
    }
}
