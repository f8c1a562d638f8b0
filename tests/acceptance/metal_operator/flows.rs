//! A complete maintenance in each version family, from the plan to the released server.

use bmc_simulator::PowerState;

use super::{HELD, cluster, configure, maintenance};
use crate::{
    servers::ironcore::{
        Options,
        api::{Kind, text},
        family::Family,
    },
    support::{simulator::SOON, wait::eventually, workspace::Workspace},
};

for_each_host! {
    async fn an_unclaimed_server_is_held_switched_and_given_back(host) {
        let world = cluster(Family::V0_7, 1, Options::default()).await;
        let workspace = Workspace::new(host);
        configure(&world, &workspace, &maintenance("Enforced", "server_power = \"On\""));
        workspace
            .try_plan()
            .await
            .succeeded()
            .says("ServerMaintenance of metal.ironcore.dev (metal-operator v0.7)")
            .says(", unclaimed.");
        workspace.apply().await.succeeded();
        let held = workspace.resource(HELD).await.unwrap();
        assert_eq!((&held["state"], &held["power_state"]), (&"InMaintenance".into(), &"On".into()), "{held}");
        let server = world.server("node1").await;
        assert_eq!(server["status"]["state"], "Maintenance", "{server}");
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
        assert!(workspace.plan().await.changes().is_empty());
        workspace.destroy().await.succeeded();
        assert!(world.list(world.maintenances()).await.is_empty());
        world.until_state("node1", "Available").await;
        world.simulator.wait_power("node1", PowerState::Off, SOON).await.expect("the operator switches it off");
    }
}

for_one_host! {
    async fn a_claimed_server_waits_for_its_owners_label(host) {
        let world = cluster(Family::V0_7, 1, Options::default()).await;
        world.claim("node1", "owners", "claim1").await;
        let workspace = Workspace::new(host);
        let boot = "server_power = \"On\"\n  boot_configuration = { method = \"boot_operator\", image = \"registry.example/bios:2\" }";
        configure(&world, &workspace, &maintenance("OwnerApproval", boot));
        workspace.try_plan().await.succeeded().says("claimed by owners/claim1: no approval yet");
        let apply = workspace.start_apply();
        eventually("the queue shows that the request needs approval", SOON, async || {
            let queue = workspace.metal(&["queue"]).await.succeeded();
            queue.stdout.contains("maintenance-approved=true").then_some(())
        })
        .await;
        world.approve("owners", "claim1").await;
        apply.wait(SOON).await.succeeded();
        let held = workspace.resource(HELD).await.unwrap();
        assert_eq!(held["state"], "InMaintenance", "{held}");
        let boots = world.list(Kind::Boot).await;
        assert!(boots.iter().any(|boot| text(boot, "/spec/image") == "registry.example/bios:2"), "{boots:?}");
        workspace.destroy().await.succeeded();
        world.until_state("node1", "Reserved").await;
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
        assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new());
    }
}
