//! One owner cannot continue, change, take over or end another owner's maintenance.

use crate::support::{
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

const HELD: &str = "metal_server_maintenance.held";
const OTHERS: &str = "owner = \"others\"";

fn claim() -> String {
    "resource \"metal_server_claim\" \"db\" {\n  server = \"node1\"\n  namespace = \"db\"\n  name = \"a\"\n  contact = \"#db\"\n}\n".to_owned()
}

for_one_host! {
    async fn a_maintenance_of_another_owner_is_neither_imported_changed_nor_destroyed(host) {
        let (fleet, ours) = (Fleet::new(1).await, Workspace::new(host));
        let body = |more: &str| maintenance("node1", "m", more);
        fleet.configure_with(&ours, "owner = \"team-a\"", &body("server_power = \"Off\""));
        ours.apply().await.succeeded();
        let resets = fleet.resets("node1");
        // By import.
        let stranger = ours.beside();
        fleet.configure_with(&stranger, OTHERS, &body("server_power = \"Off\""));
        stranger.import(HELD, "tests/m").await.failed().says("tests/m belongs to another owner").says("Its owner is \"team-a\"");
        assert!(stranger.resource(HELD).await.is_none());
        // With a copied state.
        let copy = ours.beside();
        copy.write("terraform.tfstate", &std::fs::read_to_string(ours.folder().join("terraform.tfstate")).unwrap());
        fleet.configure_with(&copy, OTHERS, &body("server_power = \"On\""));
        copy.try_plan().await.says("Maintenance belongs to another owner");
        copy.apply().await.failed().says("tests/m belongs to another owner");
        fleet.configure_with(&copy, OTHERS, "");
        copy.destroy().await.failed().says("tests/m belongs to another owner");
        assert_eq!(fleet.resets("node1"), resets);
        ours.plan().await.is_empty();
        ours.destroy().await.succeeded();
    }
}

for_one_host! {
    async fn a_claim_and_an_approval_of_another_owner_stay(host) {
        let (fleet, owner) = (Fleet::new(1).await, Workspace::new(host));
        let approves = format!(
            "{}resource \"metal_maintenance_approval\" \"all\" {{\n  server = metal_server_claim.db.server\n  all = true\n}}\n",
            claim()
        );
        fleet.configure_with(&owner, "owner = \"team-db\"", &approves);
        owner.apply().await.succeeded();
        let id = owner.resource("metal_maintenance_approval.all").await.unwrap()["id"].as_str().unwrap().to_owned();
        let stranger = owner.beside();
        fleet.configure_with(&stranger, OTHERS, &approves);
        stranger.import("metal_server_claim.db", "db/a").await.failed().says("node1 is claimed by").says("team-db");
        stranger.import("metal_maintenance_approval.all", &id).await.failed().says("team-db");
        let copy = owner.beside();
        copy.write("terraform.tfstate", &std::fs::read_to_string(owner.folder().join("terraform.tfstate")).unwrap());
        fleet.configure_with(&copy, OTHERS, "");
        copy.destroy().await.failed().says("Only its owner can approve, or change or delete the claim");
        owner.plan().await.is_empty();
        owner.metal(&["claims"]).await.succeeded().says("team-db").says("everything");
    }
}

for_one_host! {
    async fn the_command_line_acts_for_another_owner_only_with_a_reason(host) {
        let (fleet, mut ours) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure_with(&ours, "owner = \"team-a\"", &maintenance("node1", "m", "server_power = \"Off\""));
        ours.apply().await.succeeded();
        let generation = ours.resource(HELD).await.unwrap()["generation"].to_string();
        fleet.command_line(&mut ours);
        ours.metal(&["release", "tests/m"]).await.failed().says("belongs to owner \"team-a\"").says("--as-owner \"team-a\"");
        let release = ["release", "tests/m", "--force", "--generation", &generation, "--reason", "node needed"];
        ours.metal(&release).await.failed().says("belongs to owner \"team-a\"");
        ours.metal(&[release.as_slice(), &["--accept-as-is"]].concat()).await.failed().says("belongs to owner \"team-a\"");
        ours.metal(&["release", "tests/m", "--as-owner", "team-a"]).await.failed().says("--reason");
        ours.metal(&["release", "tests/m", "--as-owner", "team-b", "--reason", "x"]).await.failed().says("acts for \"team-b\"");
        ours.plan().await.is_empty();
        let ends = ["release", "tests/m", "--as-owner", "team-a", "--reason", "agreed with ada"];
        ours.metal(&ends).await.succeeded().says("is in its prior state (On)");
        ours.metal(&["show", "tests/m"]).await.succeeded().says("as owner \"team-a\" (\"agreed with ada\")");
    }
}
