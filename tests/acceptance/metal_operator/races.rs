//! Competing requests for a server: the operator's queue decides, and other requests stay
//! untouched.

use super::{
    cluster, configure, maintenance,
    strangers::{self, holder, ours, request, until_request, withdraw},
};
use crate::{
    servers::ironcore::{
        Options,
        api::{Key, Kind},
        family::Family,
        world::World,
    },
    support::{host::Host, run::Running, simulator::SOON, wait::eventually, workspace::Workspace},
};

/// Returns all changes sent to a machine, by any client.
fn changes(world: &World, server: &str) -> Vec<String> {
    let journal = world.simulator.journal(&bmc_simulator::JournalQuery::system(server));
    let changes = journal.iter().filter(|entry| entry.method != "GET" && !entry.path.contains("/Sessions"));
    changes.map(|entry| format!("{} {} {:?}", entry.method, entry.path, entry.body)).collect()
}

async fn interrupted(apply: Running) {
    apply.interrupt_from_terminal();
    apply.wait(SOON).await.failed().says("was interrupted");
}

for_one_host! {
    async fn whoever_is_ahead_is_named_and_left_alone(host) {
        let world = cluster(Family::V0_7, 1, Options::default()).await;
        let disk = request(&world, "disk", "node1", "Enforced", 0).await;
        until_request(&world, &disk, "InMaintenance").await;
        let workspace = Workspace::new(host);
        configure(&world, &workspace, &maintenance("Enforced", "priority = 3"));
        workspace.try_plan().await.succeeded().says("Other ServerMaintenances: others/disk (reason \"swap disk 3\")");
        let apply = workspace.start_apply();
        apply.until_it_logs("waiting for others/disk (reason \"swap disk 3\") to release the server", SOON).await;
        // Two more requests arrive; one has a higher priority.
        let first = request(&world, "first", "node1", "Enforced", 5).await;
        let last = request(&world, "last", "node1", "Enforced", 1).await;
        until_request(&world, &first, "Pending").await;
        until_request(&world, &last, "Pending").await;
        withdraw(&world, &disk).await;
        until_request(&world, &first, "InMaintenance").await;
        apply.until_it_logs("others/first (reason \"swap disk 3\") to release the server", SOON).await;
        let version = world.object(world.maintenances(), &first).await.metadata.resource_version;
        interrupted(apply).await;
        assert!(ours(&world, "node1").await.is_none(), "our request was not withdrawn");
        assert_eq!(world.object(world.maintenances(), &first).await.metadata.resource_version, version);
        assert_eq!(holder(&world, "node1").await, Some(first.clone()));
        // Queued again, ahead of the lower priority.
        let apply = workspace.start_apply();
        apply.until_it_logs("others/first (reason \"swap disk 3\") to release the server", SOON).await;
        withdraw(&world, &first).await;
        apply.wait(SOON).await.succeeded();
        assert_eq!(strangers::until_request(&world, &last, "Pending").await.metadata.name, Some(last.name.clone()));
        workspace.destroy().await.succeeded();
        until_request(&world, &last, "InMaintenance").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_only_has_our_name_is_refused_and_left_alone() {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    let workspace = Workspace::new(Host::Terraform);
    configure(&world, &workspace, &maintenance("Enforced", ""));
    workspace.apply().await.succeeded();
    let name = Key::of(&ours(&world, "node1").await.unwrap()).name;
    workspace.destroy().await.succeeded();
    let foreign = strangers::request_in(&world, "default", &name, "node1", "OwnerApproval", 0).await;
    until_request(&world, &foreign, "InMaintenance").await;
    // Its own controller writes it too, so compare the fields' managers.
    let fields = |object: crate::servers::ironcore::api::Object| {
        let managers = object.metadata.managed_fields.unwrap_or_default();
        (object.metadata.annotations, managers.into_iter().filter_map(|one| one.manager).collect::<Vec<_>>())
    };
    let before = fields(world.object(world.maintenances(), &foreign).await);
    workspace.try_plan().await.succeeded().says("A request will be rejected").says("already exists");
    let run = workspace.apply().await.failed();
    run.says("node1 cannot be locked").says("and belongs to another author").says("reason \"swap disk 3\"");
    assert_eq!(fields(world.object(world.maintenances(), &foreign).await), before);
    assert_eq!(holder(&world, "node1").await, Some(foreign));
    workspace.metal(&["queue"]).await.succeeded().says("No server is held");
}

/// The race in which two requests both report `InMaintenance`.
async fn two_in_maintenance(family: Family, host: Host) {
    let options = Options { both_in_maintenance: true, ..Options::default() };
    let world = cluster(family, 1, options).await;
    let disk = request(&world, "disk", "node1", "Enforced", 0).await;
    until_request(&world, &disk, "InMaintenance").await;
    world.until_state("node1", "Maintenance").await;
    let workspace = Workspace::new(host);
    configure(&world, &workspace, &maintenance("Enforced", "server_power = \"On\""));
    let before = changes(&world, "node1");
    let apply = workspace.start_apply();
    apply.until_it_logs("others/disk", SOON).await;
    eventually("the log reports the conflicting InMaintenance", SOON, async || {
        apply.log().contains("is InMaintenance, but the Server's serverMaintenanceRef names others/disk").then_some(())
    })
    .await;
    assert_eq!(changes(&world, "node1"), before);
    assert_eq!(holder(&world, "node1").await, Some(disk.clone()));
    withdraw(&world, &disk).await;
    apply.wait(SOON * 2).await.succeeded();
    let held = ours(&world, "node1").await.unwrap();
    assert_eq!(holder(&world, "node1").await, Some(Key::of(&held)));
    workspace.destroy().await.succeeded();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_that_both_say_in_maintenance_are_told_apart_v0_7() {
    two_in_maintenance(Family::V0_7, Host::OpenTofu).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_that_both_say_in_maintenance_are_told_apart_v0_5() {
    two_in_maintenance(Family::V0_5, Host::Terraform).await;
}

/// Until v0.5 deleting a request removes any holder's lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_stops_waiting_takes_the_server_from_nobody() {
    let world = cluster(Family::V0_5, 1, Options::default()).await;
    let disk = request(&world, "disk", "node1", "Enforced", 0).await;
    until_request(&world, &disk, "InMaintenance").await;
    world.until_state("node1", "Maintenance").await;
    let workspace = Workspace::new(Host::OpenTofu);
    configure(&world, &workspace, &maintenance("Enforced", ""));
    let apply = workspace.start_apply();
    apply.until_it_logs("others/disk (reason \"swap disk 3\") to release the server", SOON).await;
    interrupted(apply).await;
    assert!(ours(&world, "node1").await.is_none());
    // A later request would expose a lost reference.
    let next = request(&world, "next", "node1", "Enforced", 9).await;
    until_request(&world, &next, "Pending").await;
    assert_eq!(holder(&world, "node1").await, Some(disk));
}

/// Two workspaces get the server one after the other, even with separate stores.
async fn one_after_the_other(first: &Workspace, second: &Workspace, third: &Workspace) {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    let body = |name: &str, more: &str| maintenance("Enforced", more).replace("\"bios\"", &format!("{name:?}"));
    configure(&world, first, &body("first", ""));
    configure(&world, second, &body("second", ""));
    configure(&world, third, &body("third", "priority = 7"));
    first.apply().await.succeeded();
    let waiting = second.start_apply();
    waiting.until_it_logs("of ops/first", SOON).await;
    let urgent = third.start_apply();
    urgent.until_it_logs("of ops/first", SOON).await;
    assert_eq!(world.list(world.maintenances()).await.len(), 3);
    first.destroy().await.succeeded();
    urgent.wait(SOON).await.succeeded();
    eventually("the first waiter waits for the request with the higher priority", SOON, async || {
        waiting.log().contains("ops/third").then_some(())
    })
    .await;
    assert!(second.resource(super::HELD).await.is_none());
    third.destroy().await.succeeded();
    waiting.wait(SOON).await.succeeded();
    second.destroy().await.succeeded();
    world.until_state("node1", "Available").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workspaces_with_one_store_take_turns() {
    let first = Workspace::new(Host::OpenTofu);
    one_after_the_other(&first, &first.beside(), &first.beside()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workspaces_with_stores_of_their_own_take_turns() {
    let new = || Workspace::new(Host::Terraform);
    one_after_the_other(&new(), &new(), &new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_owner_takes_back_or_gives_up_counts_until_the_start() {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    world.claim("node1", "owners", "claim1").await;
    let disk = request(&world, "disk", "node1", "Enforced", 0).await;
    until_request(&world, &disk, "InMaintenance").await;
    let workspace = Workspace::new(Host::OpenTofu);
    configure(&world, &workspace, &maintenance("OwnerApproval", ""));
    let apply = workspace.start_apply();
    apply.until_it_logs("others/disk (reason \"swap disk 3\") to release the server", SOON).await;
    world.approve("owners", "claim1").await;
    world.withdraw("owners", "claim1").await;
    withdraw(&world, &disk).await;
    apply.until_it_logs("maintenance-approved=true", SOON).await;
    world.until_state("node1", "Reserved").await;
    assert_eq!(holder(&world, "node1").await, None);
    world.cluster.delete(Kind::Claim, &Key::within("owners", "claim1")).await.unwrap();
    // The server lost its owner, so approval is not required.
    apply.wait(SOON * 2).await.succeeded();
    workspace.destroy().await.succeeded();
    world.until_state("node1", "Available").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_taken_back_leaves_nothing_where_nobody_else_waits() {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    world.claim("node1", "owners", "claim1").await;
    let workspace = Workspace::new(Host::Terraform);
    configure(&world, &workspace, &maintenance("OwnerApproval", ""));
    let marks = async || world.marks("owners", "claim1").await;
    let apply = workspace.start_apply();
    apply.until_it_logs("maintenance-approved=true", SOON).await;
    interrupted(apply).await;
    assert_eq!(marks().await, Vec::<String>::new(), "after Ctrl-C");
    // Another waiting request needs the labels.
    let other = request(&world, "other", "node1", "OwnerApproval", 0).await;
    until_request(&world, &other, "Pending").await;
    configure(&world, &workspace, &maintenance("OwnerApproval", ""));
    let apply = workspace.start_apply();
    apply.until_it_logs("maintenance-approved=true", SOON).await;
    let before = marks().await;
    interrupted(apply).await;
    assert_eq!((marks().await, before.len()), (before.clone(), 1));
    assert!(world.find(world.maintenances(), &other).await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_vanishes_while_it_is_waited_for_ends_the_wait() {
    let world = cluster(Family::V0_7, 1, Options::default()).await;
    world.claim("node1", "owners", "claim1").await;
    let workspace = Workspace::new(Host::OpenTofu);
    configure(&world, &workspace, &maintenance("OwnerApproval", ""));
    let apply = workspace.start_apply();
    apply.until_it_logs("maintenance-approved=true", SOON).await;
    world.simulator.set_availability("bmc1", bmc_simulator::Availability::Refusing).await.ok();
    strangers::tear_out(&world, Kind::Server, &Key::cluster("node1")).await;
    apply.wait(SOON).await.failed().says("node1 cannot be locked").says("Server \"node1\" no longer exists");
    assert!(ours(&world, "node1").await.is_none());
}
