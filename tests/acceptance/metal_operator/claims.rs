//! `metal_server_claim` on a cluster: bind, change and delete a ServerClaim, including foreign
//! claims.

use bmc_simulator::PowerState;
use serde_json::json;

use super::{cluster, configure, configure_with, maintenance};
use crate::{
    servers::ironcore::{
        Options,
        api::{Key, Kind, text},
        family::Family,
        world::World,
    },
    support::{
        simulator::{Fleet, SOON},
        wait::eventually,
        workspace::Workspace,
    },
};

const CLAIM: &str = "metal_server_claim.db";
const DESTROY: &[&str] = &["plan", "-destroy", "-input=false", "-no-color"];
const SENTINEL: &str = "sentinel-4d7e-of-the-claim";

fn claim(name: &str, more: &str) -> String {
    format!(
        "resource \"metal_server_claim\" \"db\" {{\n  server = \"node1\"\n  namespace = \"default\"\n  name = \"{name}\"\n  \
         image = \"registry.example/os:1\"\n  server_power = \"On\"\n  {more}\n}}\n"
    )
}

/// Asserts that no written file of this user contains the ignition, whose file is outside the
/// workspace.
fn keeps_silent(workspace: &Workspace) {
    for (file, content) in workspace.everything_written() {
        let found = content.windows(SENTINEL.len()).any(|window| window == SENTINEL.as_bytes());
        assert!(!found, "{} contains the ignition", file.display());
    }
}

async fn secrets(world: &World) -> Vec<String> {
    let all = world.list(Kind::Secret).await;
    let mut ours: Vec<String> = all.into_iter().filter_map(|secret| secret.metadata.name).collect();
    ours.retain(|name| name.starts_with("a-ignition"));
    ours
}

for_one_host! {
    async fn a_server_is_claimed_booted_changed_and_free_again(host) {
        for family in [Family::V0_7, Family::Parked] {
            let world = cluster(family, 1, Options::default()).await;
            let mut workspace = Workspace::new(host);
            workspace.set("TF_LOG", "TRACE");
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("os.ign");
            let write = |more: &str| std::fs::write(&file, format!("{{\"passwd\": \"{SENTINEL}{more}\"}}")).unwrap();
            write("");
            let ignition = format!("ignition = {{ file = \"{}\" }}", file.display());
            configure(&world, &workspace, &claim("a", &format!("contact = \"#db\"\n  {ignition}")));
            workspace.apply().await.succeeded();
            let made = workspace.resource(CLAIM).await.unwrap();
            assert_eq!((&made["id"], &made["phase"], &made["owner"]), (&json!("default/a"), &json!("Bound"), &json!("default")));
            world.until_state("node1", "Reserved").await;
            world.simulator.wait_power("node1", PowerState::On, SOON).await.expect("it boots for its owner");
            workspace.plan().await.is_empty();
            let claimed = world.object(Kind::Claim, &Key::within("default", "a")).await;
            let secret = text(&claimed, "/spec/ignitionSecretRef/name").to_owned();
            assert_eq!(made["ignition_secret"], secret.as_str());
            let owner = world.object(Kind::Secret, &Key::within("default", &secret)).await;
            assert_eq!(owner.metadata.owner_references.unwrap()[0].uid, claimed.metadata.uid.unwrap());

            // Content, image and power change in place.
            write("-two");
            configure(&world, &workspace, &claim("a", &ignition).replace("os:1", "os:2").replace("\"On\"", "\"Off\""));
            let plan = workspace.plan().await;
            assert_eq!(plan.change(CLAIM)["actions"], json!(["update"]));
            workspace.apply().await.succeeded();
            let changed = world.object(Kind::Claim, &Key::within("default", "a")).await;
            assert_eq!((text(&changed, "/spec/image"), text(&changed, "/spec/power")), ("registry.example/os:2", "Off"));
            assert_ne!(text(&changed, "/spec/ignitionSecretRef/name"), secret);
            assert!(!changed.metadata.annotations.unwrap().contains_key("terraform-provider-metal/contact"));
            workspace.plan().await.is_empty();
            assert_eq!(secrets(&world).await.len(), 2);

            let plan = workspace.run(DESTROY).await.succeeded();
            plan.says("Server will be powered off and unbound").says("node1: ServerClaim default/a is deleted");
            plan.says("Then the next claim can bind it").says("wipes no disk");
            let retain = json!({"spec": {"reclaimPolicy": "Retain"}});
            world.cluster.merge(Kind::Server, &Key::cluster("node1"), retain).await.unwrap();
            workspace.run(DESTROY).await.succeeded().says("reclaimPolicy is Retain").is_silent_about("Then the next claim");
            let recycle = json!({"spec": {"reclaimPolicy": "Recycle"}});
            world.cluster.merge(Kind::Server, &Key::cluster("node1"), recycle).await.unwrap();
            workspace.destroy().await.succeeded();
            assert!(world.find(Kind::Claim, &Key::within("default", "a")).await.is_none());
            assert_eq!(world.server("node1").await["spec"].get("serverClaimRef"), None, "destroy waits until it is free");
            keeps_silent(&workspace);
        }
    }
}

for_one_host! {
    async fn what_cannot_be_bound_is_told_fast_with_who_and_leaves_nothing(host) {
        let world = cluster(Family::V0_7, 1, Options::default()).await;
        let (ours, theirs) = (Workspace::new(host), Workspace::new(host));
        configure(&world, &theirs, &claim("theirs", "contact = \"#storage\""));
        theirs.apply().await.succeeded();
        configure(&world, &ours, &claim("a", ""));
        ours.try_plan().await.succeeded().says("A server cannot be claimed now").says("default/theirs of default (contact: #storage)");
        ours.apply().await.failed().says("node1 cannot be claimed").says("claimed by ServerClaim default/theirs");
        theirs.destroy().await.succeeded();

        world.until_state("node1", "Available").await;
        let node1 = Key::cluster("node1");
        world.cluster.merge(Kind::Server, &node1, json!({"spec": {"unclaimable": true}})).await.unwrap();
        ours.apply().await.failed().says("closed to new claims (unclaimable)");
        world.cluster.merge(Kind::Server, &node1, json!({"spec": {"unclaimable": false}})).await.unwrap();

        configure(&world, &theirs, &maintenance("Enforced", ""));
        theirs.apply().await.succeeded();
        ours.apply().await.failed().says("node1 cannot be claimed").says("in maintenance").says("of ops/bios");
        assert!(ours.resource(CLAIM).await.is_none());
        assert!(world.list(Kind::Claim).await.is_empty());
        theirs.destroy().await.succeeded();

        // The server becomes free shortly, and then it is bound.
        ours.apply().await.succeeded();
        ours.destroy().await.succeeded();
        configure(&world, &ours, &claim("a", "").replace("node1", "node9"));
        ours.apply().await.failed().says("does not contain Server \"node9\"");
    }
}

for_one_host! {
    async fn one_that_somebody_took_meanwhile_is_told_and_the_claim_goes(host) {
        let discovery = Options::default();
        let world = cluster(Family::V0_7, 1, discovery.clone()).await;
        let workspace = Workspace::new(host);
        // Powered on without the operator's knowledge, it cannot be bound yet.
        world.cluster.merge_status(Kind::Server, &Key::cluster("node1"), json!({"state": "Initial"})).await.unwrap();
        discovery.discovery.close();
        configure(&world, &workspace, &claim("a", ""));
        let apply = workspace.start_apply();
        eventually("the pending claim exists", SOON, async || {
            world.find(Kind::Claim, &Key::within("default", "a")).await.map(|_| ())
        })
        .await;
        world.cluster.merge(Kind::Server, &Key::cluster("node1"), json!({"spec": {"unclaimable": true}})).await.unwrap();
        apply.wait(SOON).await.failed().says("unclaimable");
        world.until_gone(Kind::Claim, &Key::within("default", "a")).await;
    }
}

for_one_host! {
    async fn one_of_another_owner_of_this_provider_is_neither_imported_nor_given_up(host) {
        let world = cluster(Family::V0_7, 1, Options::default()).await;
        let ours = Workspace::new(host);
        configure_with(&world, &ours, "owner = \"team-db\"", &claim("a", ""));
        ours.apply().await.succeeded();
        let stranger = ours.beside();
        configure_with(&world, &stranger, "owner = \"others\"", &claim("a", ""));
        stranger.import(CLAIM, "default/a").await.failed().says("is claimed by another owner").says("team-db");
        let copy = ours.beside();
        copy.write("terraform.tfstate", &std::fs::read_to_string(ours.folder().join("terraform.tfstate")).unwrap());
        configure_with(&world, &copy, "owner = \"others\"", "");
        copy.destroy().await.failed().says("team-db");
        assert_eq!(world.list(Kind::Claim).await.len(), 1);
        ours.plan().await.is_empty();
        ours.destroy().await.succeeded();
    }
}

for_one_host! {
    async fn one_of_others_is_refused_read_and_imported(host) {
        let world = cluster(Family::V0_7, 1, Options::default()).await;
        world.claim("node1", "default", "a").await;
        let workspace = Workspace::new(host);
        configure(&world, &workspace, &claim("a", ""));
        workspace.try_plan().await.failed().says("ServerClaim already exists");

        let reader = workspace.beside();
        let look = "data \"metal_server_claim\" \"theirs\" {\n  id = \"default/a\"\n}\noutput \"claim\" {\n  value = data.metal_server_claim.theirs\n}\n";
        configure(&world, &reader, look);
        reader.apply().await.succeeded();
        let said = reader.json(&["output", "-json", "claim"]).await;
        assert_eq!((&said["server"], &said["phase"], &said["owner"]), (&json!("node1"), &json!("Bound"), &json!(null)), "{said}");
        assert_eq!((&said["approved"], &said["maintenance_needed"]), (&json!(true), &json!(false)), "{said}");
        configure(&world, &reader, &look.replace("default/a", "default/b"));
        reader.apply().await.failed().says("No claim is called default/b");

        workspace.import(CLAIM, "default/b").await.failed().says("No claim is called default/b");
        workspace.import(CLAIM, "default/a").await.succeeded();
        configure(&world, &workspace, &claim("a", "ignition = { secret_name = \"a-ignition\" }"));
        workspace.plan().await.is_empty();
        // The provider can change it now, regardless of its creator.
        configure(&world, &workspace, &claim("a", "ignition = { secret_name = \"a-ignition\" }\n  contact = \"#db\"").replace("os:1", "os:2"));
        workspace.apply().await.succeeded();
        assert_eq!(workspace.resource(CLAIM).await.unwrap()["owner"], "default");
        workspace.plan().await.is_empty();
        // The owner's claim shows the request.
        let asker = workspace.beside();
        configure(&world, &asker, &maintenance("OwnerApproval", "timeouts = { create = \"1s\" }"));
        asker.apply().await.failed().says("approval on ServerClaim default/a");
        workspace.refresh().await.succeeded().says("Maintenance pending on claimed servers").says("BIOS 2.19");
        let seen = workspace.resource(CLAIM).await.unwrap();
        let queue = ["claims", "--metal-operator"];
        let mut by_hand = workspace.beside();
        by_hand.set("METAL_KUBECONFIG", world.kubernetes.user("ci", &["system:masters"]).display().to_string());
        by_hand.metal(&queue).await.succeeded().says("node1 default, as default/a, Bound").says("asked ops/bios");
        let server = "data \"metal_server\" \"one\" {\n  name = \"node1\"\n}\noutput \"one\" {\n  value = data.metal_server.one\n}\n";
        configure(&world, &reader, server);
        reader.apply().await.succeeded();
        let one = reader.json(&["output", "-json", "one"]).await;
        assert_eq!((&one["state"], &one["claim"]), (&json!("Reserved"), &json!("default/a")), "{one}");
        assert_eq!((&one["power_state"], &one["reachable"]), (&json!("On"), &json!(true)), "{one}");
        configure(&world, &reader, &server.replace("node1", "node9"));
        reader.apply().await.failed().says("node9 was not found");
        assert_eq!((&seen["maintenance_needed"], &seen["pending"][0]["maintenance"]), (&json!(true), &json!("ops/bios")), "{seen}");
        // Renaming deletes the claim temporarily, and so does a destroy. Both plans warn about the
        // effect.
        let mine = claim("b", "ignition = { secret_name = \"a-ignition\" }");
        configure(&world, &workspace, &mine);
        let plan = workspace.try_plan().await.succeeded();
        plan.says("Server will be powered off and unbound").says("node1: ServerClaim default/a is deleted");
        let plan = workspace.run(DESTROY).await.succeeded();
        plan.says("Deleting a claim starts maintenance that waits for approval");
        plan.says("without the claim, ops/bios can start without approval");
        workspace.destroy().await.succeeded();
        assert!(world.list(Kind::Claim).await.is_empty());
    }
}

for_one_host! {
    async fn each_backend_refuses_what_is_the_others(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        for (more, path) in [
            ("image = \"registry.example/os:1\"", "image ="),
            ("server_power = \"On\"", "server_power ="),
            ("ignition = { secret_name = \"x\" }", "ignition ="),
            ("timeouts = { create = \"1m\" }", "timeouts ="),
        ] {
            fleet.configure(&workspace, &format!("resource \"metal_server_claim\" \"db\" {{\n  server = \"node1\"\n  namespace = \"db\"\n  name = \"a\"\n  {more}\n}}\n"));
            workspace.try_plan().await.failed().says("Not for a claim in the coordination store").says(path);
        }
        let world = cluster(Family::Parked, 1, Options::default()).await;
        configure(&world, &workspace, "resource \"metal_server_claim\" \"db\" {\n  server = \"node1\"\n  namespace = \"db\"\n  name = \"a\"\n}\n");
        workspace.try_plan().await.failed().says("Required for a claim that boots its server");
    }
}
