//! The command line on a cluster's servers: approvals, forced releases and leftovers of dead
//! processes.

use serde_json::{Value, json};

use super::{
    approvals::{claimed, until_asked},
    configure, maintenance,
    strangers::{ours, request, until_request, withdraw},
};
use crate::{
    servers::{
        ironcore::{
            api::{Key, Kind},
            family::Family,
            world::World,
        },
        toxiproxy::Toxiproxy,
    },
    support::{host::Host, simulator::SOON, wait::eventually, workspace::Workspace},
};

/// Configures a user's command line for the cluster at `url`.
fn reaches(workspace: &mut Workspace, world: &World, url: &str) {
    let kubeconfig = world.kubernetes.kubeconfig_at(url, "admin");
    workspace.set("METAL_KUBECONFIG", kubeconfig.display().to_string());
}

/// Runs a command with `--metal-operator`.
async fn metal(workspace: &Workspace, arguments: &[&str]) -> crate::support::run::Run {
    let all: Vec<&str> = ["--metal-operator"].iter().chain(arguments).copied().collect();
    workspace.metal(&all).await
}

for_one_host! {
    async fn an_owner_approves_and_withdraws_on_the_claim(host) {
        for (family, mark, place) in [
            (Family::V0_7, "label maintenance-approved=true", "label metal.ironcore.dev/maintenance-approved"),
            (Family::V0_3, "annotation maintenance-approval=true", "annotation metal.ironcore.dev/maintenance-approval"),
        ] {
            let world = claimed(family).await;
            let mut ours = Workspace::new(host);
            reaches(&mut ours, &world, &world.kubernetes.url());
            configure(&world, &ours, &maintenance("OwnerApproval", ""));
            let apply = ours.start_apply();
            until_asked(&ours).await;
            metal(&ours, &["withdraw", "ops/bios"]).await.failed().says("ops/bios is not approved").says(place);
            metal(&ours, &["approve", "ops/other"]).await.failed().says("ops/other");
            let limited = ["approve", "ops/bios", "--expires", "2099-01-01T00:00:00Z"];
            metal(&ours, &limited).await.failed().says("are not supported with --metal-operator");
            assert!(!world.marks("owners", "claim1").await.contains(&mark.to_owned()));

            let said = metal(&ours, &["approve", "ops/bios"]).await.succeeded();
            said.says(&format!("ops/bios is approved on node1: wrote the {place} of ServerClaim owners/claim1"));
            said.says(&world.kubernetes.url()).says("applies to every request for node1").says("BIOS 2.19");
            assert!(world.marks("owners", "claim1").await.contains(&mark.to_owned()), "{family:?}");
            apply.wait(SOON * 2).await.succeeded();
            metal(&ours, &["approve", "ops/bios"]).await.failed().says("ops/bios has started");
            // A started maintenance continues.
            let said = metal(&ours, &["withdraw", "ops/bios"]).await.succeeded();
            said.says(&format!("removed the {place} of ServerClaim owners/claim1")).says("has started and continues");
            assert!(!world.marks("owners", "claim1").await.contains(&mark.to_owned()), "{family:?}");
            ours.plan().await.is_empty();
            ours.destroy().await.succeeded();
            assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new());
        }
    }
}

for_one_host! {
    async fn a_key_of_somebody_else_is_never_taken_back_by_hand(host) {
        let world = claimed(Family::V0_7).await;
        let approved = "label maintenance-approved=true".to_owned();
        let mut ours = Workspace::new(host);
        reaches(&mut ours, &world, &world.kubernetes.url());
        configure(&world, &ours, &maintenance("OwnerApproval", "timeouts = { create = \"1s\" }"));
        ours.apply().await.failed().says("approval on ServerClaim owners/claim1");

        // With kubectl, as the message suggests.
        world.approve("owners", "claim1").await;
        metal(&ours, &["approve", "ops/bios"]).await.succeeded().says("from another author; nothing was written");
        metal(&ours, &["withdraw", "ops/bios"]).await.failed().says("was not removed");
        assert!(world.marks("owners", "claim1").await.contains(&approved));
        world.withdraw("owners", "claim1").await;

        // Through another configuration of the same owner.
        let theirs = ours.beside();
        configure(&world, &theirs, "resource \"metal_maintenance_approval\" \"yes\" {\n  server = \"node1\"\n  all = true\n}\n");
        theirs.apply().await.succeeded();
        metal(&ours, &["withdraw", "ops/bios"]).await.failed().says("was not removed");
        assert!(world.marks("owners", "claim1").await.contains(&approved));
        theirs.destroy().await.succeeded();
        assert!(!world.marks("owners", "claim1").await.contains(&approved));

        // A manual approval can be withdrawn manually and given again; `--json` reports the same.
        let said = metal(&ours, &["approve", "ops/bios", "--json"]).await.succeeded();
        let said: Value = serde_json::from_str(&said.stdout).unwrap();
        assert_eq!((&said["written"], &said["claim"], &said["server"]), (&json!(true), &json!("owners/claim1"), &json!("node1")));
        metal(&ours, &["approve", "ops/bios"]).await.succeeded().says("from an earlier approve");
        let said = metal(&ours, &["withdraw", "ops/bios"]).await.succeeded();
        said.says("The approval of ops/bios is withdrawn").says("waits for approval");
        assert!(!world.marks("owners", "claim1").await.contains(&approved));

        // Only the owner can approve.
        let owner = json!({"metadata": {"annotations": {"terraform-provider-metal/owner": "team-db"}}});
        world.cluster.merge(Kind::Claim, &Key::within("owners", "claim1"), owner).await.unwrap();
        metal(&ours, &["approve", "ops/bios"]).await.failed().says("only its owner can approve (--owner team-db)");
        assert!(!world.marks("owners", "claim1").await.contains(&approved));
    }
}

/// Arguments of a forced release that accepts `node1` in its current state.
async fn acceptance(workspace: &Workspace) -> Vec<String> {
    let generation = workspace.generation("ops/bios").await;
    let words =
        ["release", "ops/bios", "--force", "--generation", &generation, "--reason", "scrapped", "--accept-as-is"];
    words.map(str::to_owned).to_vec()
}

fn words(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// Returns true if the server carries any of this program's marks.
async fn is_marked(world: &World) -> bool {
    let server = world.server("node1").await;
    let annotations = server["metadata"]["annotations"].to_string();
    annotations.contains("terraform-provider-metal/") || annotations.contains("metal.ironcore.dev/parked")
}

for_one_host! {
    async fn accepting_a_server_as_it_is_takes_the_request_back(host) {
        for family in [Family::V0_7, Family::V0_5, Family::Parked] {
            let world = claimed(family).await;
            let mut workspace = Workspace::new(host);
            reaches(&mut workspace, &world, &world.kubernetes.url());
            configure(&world, &workspace, &maintenance("Enforced", ""));
            workspace.apply().await.succeeded();
            let release = acceptance(&workspace).await;
            let said = metal(&workspace, &words(&release)).await.succeeded();
            said.says("ops/bios has ended; node1 was not changed").says("External request deleted");
            if family != Family::Parked {
                assert!(ours(&world, "node1").await.is_none(), "{family:?}");
            }
            assert!(!is_marked(&world).await, "{family:?}: {}", world.server("node1").await);
            world.until_state("node1", "Reserved").await;
            assert_eq!(world.marks("owners", "claim1").await, Vec::<String>::new(), "{family:?}");
            workspace.metal(&["queue"]).await.succeeded().says("No server is held");
            workspace.destroy().await.succeeded();
        }
    }
}

/// A forced release during a cluster outage reports the leftovers, and `prune` deletes them.
async fn is_left_and_pruned(family: Family, host: Host, by_hand: &str) {
    let world = claimed(family).await;
    let proxy = Toxiproxy::to(&world.kubernetes.host());
    let mut workspace = Workspace::new(host);
    reaches(&mut workspace, &world, &format!("https://{}", proxy.host()));
    configure(&world, &workspace, &maintenance("Enforced", ""));
    workspace.apply().await.succeeded();
    let release = acceptance(&workspace).await;
    proxy.cut();
    let said = metal(&workspace, &words(&release)).await.succeeded();
    said.says("ops/bios has ended; node1 was not changed").says("External request NOT deleted").says(by_hand);
    metal(&workspace, &["queue"]).await.succeeded().says("No server is held");
    metal(&workspace, &["prune"]).await.failed().says("no external system was searched");
    proxy.mend();
    let other = Key::within("others", "later");
    if family != Family::Parked {
        assert!(ours(&world, "node1").await.is_some());
        assert_eq!(request(&world, "later", "node1", "Enforced", 0).await, other);
    }
    assert_eq!(
        world.server("node1").await["metadata"]["annotations"].to_string().contains("ops/bios"),
        family == Family::Parked
    );
    // Another user's store lacks the maintenance, so it cannot judge the request.
    let mut stranger = Workspace::new(host);
    reaches(&mut stranger, &world, &format!("https://{}", proxy.host()));
    metal(&stranger, &["prune"]).await.succeeded().says("No orphaned requests.");
    // `queue` is read-only.
    metal(&workspace, &["queue"]).await.succeeded().is_silent_about("deleting");
    let pruned = metal(&workspace, &["prune"]).await.succeeded();
    pruned.says("deleting").says("whose maintenance has ended").says("Orphaned requests deleted: 1.");
    if family == Family::Parked {
        eventually("the Server is unparked", SOON, async || (!is_marked(&world).await).then_some(())).await;
        world.until_state("node1", "Reserved").await;
    } else {
        eventually("our request is deleted", SOON, async || ours(&world, "node1").await.is_none().then_some(())).await;
        until_request(&world, &other, "InMaintenance").await;
    }
    metal(&workspace, &["prune"]).await.succeeded().says("No orphaned requests.");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_could_not_be_taken_back_is_told_and_taken_back_by_prune() {
    is_left_and_pruned(Family::V0_7, Host::OpenTofu, "kubectl delete servermaintenance -n default node1-").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parking_that_could_not_be_ended_is_told_and_ended_by_prune() {
    let by_hand = "kubectl annotate server node1 --overwrite metal.ironcore.dev/operation=unpark";
    is_left_and_pruned(Family::Parked, Host::Terraform, by_hand).await;
}

/// A forced release without access to the cluster works, with a warning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_reach_the_cluster_is_told_what_is_left_there() {
    let world = claimed(Family::V0_6).await;
    let workspace = Workspace::new(Host::Terraform);
    configure(&world, &workspace, &maintenance("Enforced", ""));
    workspace.apply().await.succeeded();
    let release = acceptance(&workspace).await;
    let said = workspace.metal(&words(&release)).await.succeeded();
    said.says("External request NOT deleted").says("--metal-operator").says("kubectl get servermaintenances -A -l");
    assert!(ours(&world, "node1").await.is_some());
}

/// A waiter died, and its server is not requested again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prune_takes_back_what_nobody_drives_any_more() {
    let world = claimed(Family::V0_7).await;
    let disk = request(&world, "disk", "node1", "Enforced", 0).await;
    until_request(&world, &disk, "InMaintenance").await;
    let mut workspace = Workspace::new(Host::OpenTofu);
    reaches(&mut workspace, &world, &world.kubernetes.url());
    configure(&world, &workspace, &maintenance("Enforced", "hold_place_for = \"1s\""));
    let lost = workspace.start_apply();
    lost.until_it_logs("others/disk (reason \"swap disk 3\") to release the server", SOON).await;
    // While a process runs for it, nothing is deleted.
    metal(&workspace, &["prune"]).await.succeeded().says("ops/bios on node1").says("unless the process renews it");
    assert!(ours(&world, "node1").await.is_some());
    lost.kill_everything();
    drop(lost);
    eventually("prune deletes the request", SOON * 3, async || {
        metal(&workspace, &["prune"]).await.succeeded();
        ours(&world, "node1").await.is_none().then_some(())
    })
    .await;
    withdraw(&world, &disk).await;
    world.until_state("node1", "Reserved").await;
}
