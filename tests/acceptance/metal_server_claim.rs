//! `metal_server_claim` alone; `metal_maintenance_approval.rs` covers it with approvals.

use serde_json::json;

use crate::support::{
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

const ADDRESS: &str = "metal_server_claim.db";

fn claim(more: &str) -> String {
    format!(
        "resource \"metal_server_claim\" \"db\" {{\n  server = \"node1\"\n  namespace = \"db\"\n  name = \"a\"\n  {more}\n}}\n"
    )
}

for_each_host! {
    async fn it_lives_its_life(host) {
        let (fleet, workspace) = (Fleet::new(2).await, Workspace::new(host));
        fleet.configure(&workspace, &claim(""));
        workspace.apply().await.succeeded();
        let made = workspace.resource(ADDRESS).await.unwrap();
        assert_eq!((&made["id"], &made["owner"], &made["contact"]), (&json!("db/a"), &json!("default"), &json!(null)));
        assert!(workspace.plan().await.changes().is_empty());
        fleet.configure(&workspace, &claim("contact = \"#db\""));
        workspace.apply().await.succeeded();
        workspace.metal(&["claims"]).await.succeeded().says("node1  default (contact: #db), as db/a");
        assert_eq!(workspace.resource(ADDRESS).await.unwrap()["claimed_at"], made["claimed_at"]);

        let other = workspace.beside();
        fleet.configure(&other, &claim("contact = \"#db\""));
        other.import(ADDRESS, "db/a").await.succeeded();
        assert!(other.plan().await.changes().is_empty());
        other.import("metal_server_claim.none", "db/b").await.failed();

        // Replacement, including on hosts that pass no configuration to the destroy.
        workspace.run(&["apply", "-auto-approve", "-replace=metal_server_claim.db"]).await.succeeded();
        workspace.run(&["taint", ADDRESS]).await.succeeded();
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
        workspace.metal(&["claims"]).await.succeeded().says("No claims in sqlite://");
        // The other workspace's claim is deleted with it.
        assert_eq!(other.plan().await.change(ADDRESS)["actions"], json!(["create"]));
        assert!(fleet.changes("node1").is_empty(), "a claim touches no server");
    }
}

for_each_host! {
    async fn the_owner_sees_what_needs_no_answer_too_and_is_warned_before_giving_up(host) {
        let (fleet, asker) = (Fleet::new(1).await, Workspace::new(host));
        let owner = asker.beside();
        fleet.configure_with(&owner, "owner = \"team-db\"", &claim(""));
        owner.apply().await.succeeded();
        fleet.configure(&asker, &maintenance("node1", "first", ""));
        asker.apply().await.succeeded();
        // A started maintenance does not need approval anymore; the request behind it does.
        owner.refresh().await.succeeded().is_silent_about("Maintenance pending");
        let second = asker.beside();
        fleet.configure(&second, &maintenance("node1", "second", "wait_for = \"Enqueued\"\n  reason = \"fan\""));
        second.apply().await.succeeded();
        owner.refresh().await.succeeded().says("tests/second (fan)").says("Approval not required (Enforced)");
        let claim = owner.resource(ADDRESS).await.unwrap();
        assert_eq!((&claim["maintenance_needed"], &claim["pending"][0]["approved"]), (&json!(true), &json!(true)));
        let third = asker.beside();
        let asks = maintenance("node1", "third", "wait_for = \"Enqueued\"").replace("Enforced", "OwnerApproval");
        fleet.configure(&third, &asks);
        third.apply().await.succeeded();
        let plan = owner.run(&["plan", "-destroy", "-no-color", "-input=false"]).await.succeeded();
        plan.says("Deleting a claim starts").says("without the claim, tests/third can start without approval");
        for workspace in [&third, &second, &asker] {
            workspace.destroy().await.succeeded();
        }
    }
}
