//! Outages of the cluster, the provider or both during a maintenance: nothing is lost or repeated.

use std::time::Duration;

use bmc_simulator::{Behaviour, PowerState};

use super::{
    HELD, cluster, configure, maintenance,
    strangers::{comes_back, goes_away, holder, ours, request, until_request, withdraw},
};
use crate::{
    servers::ironcore::{Options, api::Key, family::Family, world::World},
    support::{host::Host, simulator::SOON, wait::eventually, workspace::Workspace},
};

/// Longer than an API server's start and a lease together.
const LONG: Duration = Duration::from_secs(90);

fn resets(world: &World, server: &str) -> Vec<String> {
    let journal = world.simulator.journal(&bmc_simulator::JournalQuery::system(server));
    let resets = journal.iter().filter(|entry| entry.path.contains("ComputerSystem.Reset"));
    resets.filter_map(|entry| Some(entry.body.as_ref()?["ResetType"].as_str()?.to_owned())).collect()
}

/// A server with a slow operating system.
async fn slow(family: Family) -> World {
    let world = cluster(family, 1, Options { power_timeout: SOON, ..Options::default() }).await;
    world.claim("node1", "owners", "claim1").await;
    let slow = Behaviour { graceful_shutdown: Duration::from_secs(2), ..Behaviour::default() };
    world.simulator.set_behaviour("node1", slow).unwrap();
    world
}

/// Raises timeouts, because they run during an outage and the operator must restart too.
fn patient(workspace: &Workspace) {
    let text = std::fs::read_to_string(workspace.folder().join("main.tf")).unwrap();
    workspace.write("main.tf", &text.replace("\"4s\"", "\"60s\""));
}

fn away_for_a_moment(world: &mut World) {
    goes_away(world);
    comes_back(world);
}

for_one_host! {
    async fn an_api_server_that_goes_away_in_any_wait_costs_nothing(host) {
        let mut world = slow(Family::V0_7).await;
        let disk = request(&world, "disk", "node1", "Enforced", 0).await;
        until_request(&world, &disk, "InMaintenance").await;
        let workspace = Workspace::new(host);
        configure(&world, &workspace, &maintenance("OwnerApproval", "server_power = \"Off\""));
        patient(&workspace);
        let before = resets(&world, "node1");
        // During the wait for the queue.
        let apply = workspace.start_apply();
        apply.until_it_logs("others/disk (reason \"swap disk 3\") to release the server", SOON).await;
        let uid = ours(&world, "node1").await.unwrap().metadata.uid;
        away_for_a_moment(&mut world);
        withdraw(&world, &disk).await;
        world.until_gone(world.maintenances(), &disk).await;
        // During the wait for the owner.
        apply.until_it_logs("maintenance-approved=true", LONG).await;
        away_for_a_moment(&mut world);
        world.approve("owners", "claim1").await;
        // During the power-off.
        apply.until_it_logs("graceful, forced at", LONG).await;
        away_for_a_moment(&mut world);
        apply.wait(LONG).await.succeeded();
        assert_eq!(ours(&world, "node1").await.unwrap().metadata.uid, uid, "it is another request");
        let between = resets(&world, "node1");
        assert_eq!(between[before.len()..].iter().filter(|reset| *reset == "GracefulShutdown").count(), 1, "{between:?}");
        // During the release.
        let destroy = workspace.start_destroy();
        destroy.until_it_logs("releasing the server", SOON).await;
        away_for_a_moment(&mut world);
        destroy.wait(LONG).await.succeeded();
        world.until_state("node1", "Reserved").await;
        assert_eq!(world.simulator.system("node1").unwrap().power, PowerState::On);
        let after = resets(&world, "node1");
        assert_eq!(after[between.len()..].iter().filter(|reset| *reset == "On").count(), 1, "{after:?}");
        assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn a_killed_run_is_continued_with_the_same_request(host) {
        let world = slow(Family::V0_6).await;
        let workspace = Workspace::new(host);
        configure(&world, &workspace, &maintenance("OwnerApproval", "server_power = \"Off\""));
        let apply = workspace.start_apply();
        apply.until_it_logs("maintenance-approved=true", SOON).await;
        let first = ours(&world, "node1").await.unwrap();
        apply.kill_everything();
        drop(apply);
        // The later request queues after it, because it kept its position.
        let later = request(&world, "later", "node1", "OwnerApproval", 0).await;
        until_request(&world, &later, "Pending").await;
        let apply = workspace.start_apply();
        world.approve("owners", "claim1").await;
        apply.until_it_logs("graceful, forced at", LONG).await;
        let second = ours(&world, "node1").await.unwrap();
        assert_eq!(first.metadata.uid, second.metadata.uid);
        let incarnation = |object: &crate::servers::ironcore::api::Object| {
            object.metadata.annotations.as_ref().unwrap()["terraform-provider-metal/uid"].clone()
        };
        assert_eq!(incarnation(&first), incarnation(&second));
        assert_eq!(holder(&world, "node1").await, Some(Key::of(&second)));
        apply.kill_everything();
        drop(apply);
        workspace.apply().await.succeeded();
        let held = workspace.resource(HELD).await.unwrap();
        assert_eq!((&held["state"], &held["power_state"]), (&"InMaintenance".into(), &"Off".into()));
        assert_eq!(ours(&world, "node1").await.unwrap().metadata.uid, first.metadata.uid);
        let asked = resets(&world, "node1");
        assert!(!asked.contains(&"ForceOff".to_owned()), "{asked:?}");
        workspace.destroy().await.succeeded();
        until_request(&world, &later, "InMaintenance").await;
    }
}

/// The next waiter of the same store deletes a dead waiter's request, which would otherwise hold
/// the server for no process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_nobody_drives_is_taken_back_by_the_next_of_the_same_store() {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    let disk = request(&world, "disk", "node1", "Enforced", 0).await;
    until_request(&world, &disk, "InMaintenance").await;
    let first = Workspace::new(Host::OpenTofu);
    configure(&world, &first, &maintenance("Enforced", "hold_place_for = \"1s\""));
    let lost = first.start_apply();
    lost.until_it_logs("others/disk (reason \"swap disk 3\") to release the server", SOON).await;
    lost.kill_everything();
    drop(lost);
    let orphan = Key::of(&ours(&world, "node1").await.unwrap());
    withdraw(&world, &disk).await;
    until_request(&world, &orphan, "InMaintenance").await;
    let second = first.beside();
    configure(&world, &second, &maintenance("Enforced", "").replace("\"bios\"", "\"next\""));
    eventually("the queue shows the maintenance as disconnected", LONG, async || {
        let queue = first.metal(&["queue", "--json"]).await.succeeded();
        let queue: serde_json::Value = serde_json::from_str(&queue.stdout).unwrap();
        queue["queue"].as_array().unwrap().iter().all(|line| line["attended"] == false).then_some(())
    })
    .await;
    second.apply().await.succeeded();
    assert!(world.find(world.maintenances(), &orphan).await.is_none());
    second.destroy().await.succeeded();
}
