//! `metal_server_claim` and `metal_maintenance_approval`: request, review and approval by the
//! owner.

use serde_json::json;

use crate::support::{
    host::Host,
    simulator::{Fleet, SOON},
    workspace::Workspace,
};

const CLAIM: &str = "metal_server_claim.db";
const APPROVAL: &str = "metal_maintenance_approval.yes";

/// Configures the owner: a claim and more.
fn owner(fleet: &Fleet, workspace: &Workspace, more: &str) {
    let body = format!(
        r##"
resource "metal_server_claim" "db" {{
  server    = "node1"
  namespace = "db"
  name      = "primary"
  contact   = "#db-oncall"
}}
{more}
"##
    );
    fleet.configure_with(workspace, "owner = \"team-db\"", &body);
}

fn approval(more: &str) -> String {
    format!(
        "resource \"metal_maintenance_approval\" \"yes\" {{\n  server = metal_server_claim.db.server\n  {more}\n}}\n"
    )
}

/// Configures the requester: a maintenance of node1.
fn asker(fleet: &Fleet, workspace: &Workspace, more: &str) {
    let body = format!(
        "resource \"metal_server_maintenance\" \"held\" {{\n  server = \"node1\"\n  namespace = \"ops\"\n  name = \"bios\"\n  \
         policy = \"OwnerApproval\"\n  {more}\n}}\n"
    );
    fleet.configure_with(workspace, "owner = \"team-ops\"", &body);
}

async fn sides(host: Host) -> (Fleet, Workspace, Workspace) {
    let (fleet, ours) = (Fleet::new(1).await, Workspace::new(host));
    let theirs = ours.beside();
    owner(&fleet, &theirs, "");
    theirs.apply().await.succeeded();
    (fleet, ours, theirs)
}

for_each_host! {
    async fn asked_seen_approved_and_started(host) {
        let (fleet, ours, theirs) = sides(host).await;
        asker(&fleet, &ours, "reason = \"BIOS 2.19\"\n  server_power = \"Off\"");
        let waiting = ours.start_apply();
        let line = waiting.until_it_logs("waiting for approval", SOON).await;
        assert!(line.contains("by team-db (contact: #db-oncall)"), "{line}");
        assert!(line.contains("terraform-provider-metal approve ops/bios"), "{line}");
        ours.metal(&["queue"]).await.succeeded().says("approval by team-db");

        let plan = theirs.try_plan().await.succeeded();
        plan.says("Maintenance pending on claimed servers").says("BIOS 2.19").says("is switched off");
        owner(&fleet, &theirs, &approval("maintenance = \"ops/bios\""));
        theirs.try_plan().await.succeeded().says("Maintenance will be approved").says("BIOS 2.19");
        theirs.apply().await.succeeded();
        waiting.wait(SOON).await.succeeded();
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown"]);

        theirs.refresh().await.succeeded();
        let claim = theirs.resource(CLAIM).await.unwrap();
        assert_eq!((&claim["maintenance_needed"], &claim["pending"]), (&json!(false), &json!([])));
        assert_eq!(theirs.resource(APPROVAL).await.unwrap()["state"], "Used");
        assert!(theirs.plan().await.changes().is_empty(), "a used approval is shown as drift");

        // A started maintenance continues without the approval.
        owner(&fleet, &theirs, "");
        theirs.apply().await.succeeded();
        assert!(ours.plan().await.changes().is_empty());
        assert_eq!(ours.resource("metal_server_maintenance.held").await.unwrap()["state"], "InMaintenance");
        ours.metal(&["show", "ops/bios"]).await.succeeded().says("approved by team-db");
        ours.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn an_approval_of_everything_counts_before_anybody_asks(host) {
        let (fleet, ours, theirs) = sides(host).await;
        owner(&fleet, &theirs, &approval("all = true"));
        theirs.apply().await.succeeded().says("All maintenance of a claim will be approved");
        asker(&fleet, &ours, "");
        ours.apply().await.succeeded();
        ours.destroy().await.succeeded();
        // The next maintenance is approved too.
        ours.apply().await.succeeded();
        ours.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn one_maintenance_is_approved_beforehand_by_the_digest_of_its_plan(host) {
        let (fleet, ours, theirs) = sides(host).await;
        asker(&fleet, &ours, "timeouts = { create = \"1s\" }");
        // The first run times out and keeps its queue position; the owner's claim shows its
        // digest.
        ours.apply().await.failed().says("waiting for approval by team-db");
        theirs.refresh().await.succeeded();
        let digest = theirs.resource(CLAIM).await.unwrap()["pending"][0]["digest"].as_str().unwrap().to_owned();
        let wrong = approval(&format!("maintenance = \"ops/bios\"\n  digest = \"{}\"", "0".repeat(32)));
        owner(&fleet, &theirs, &wrong);
        theirs.try_plan().await.failed().says("Digest does not match").says(&digest);
        owner(&fleet, &theirs, &approval(&format!("maintenance = \"ops/bios\"\n  digest = \"{digest}\"")));
        theirs.apply().await.succeeded();
        asker(&fleet, &ours, "timeouts = { create = \"5m\" }");
        ours.apply().await.succeeded();
        ours.destroy().await.succeeded();
        // The approval covered one run. The next run needs a new approval.
        asker(&fleet, &ours, "timeouts = { create = \"1s\" }");
        ours.apply().await.failed().says("was for an earlier run");
    }
}

for_each_host! {
    async fn a_change_of_what_is_asked_voids_the_approval(host) {
        let (fleet, ours, theirs) = sides(host).await;
        asker(&fleet, &ours, "wait_for = \"Enqueued\"");
        ours.apply().await.succeeded();
        owner(&fleet, &theirs, &approval("maintenance = \"ops/bios\""));
        theirs.apply().await.succeeded();
        asker(&fleet, &ours, "server_power = \"Off\"\n  timeouts = { update = \"1s\" }");
        ours.apply().await.failed().says("the request changed after the approval");
        assert!(fleet.resets("node1").is_empty());
        theirs.try_plan().await.succeeded().says("An approval is void").says("-replace");
        theirs.run(&["apply", "-auto-approve", "-replace=metal_maintenance_approval.yes"]).await.succeeded();
        asker(&fleet, &ours, "server_power = \"Off\"");
        ours.apply().await.succeeded();
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown"]);
        ours.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn withdrawn_before_the_start_it_does_not_start(host) {
        let (fleet, ours, theirs) = sides(host).await;
        let mut theirs = theirs;
        fleet.command_line(&mut theirs);
        // The server is held, so the approval can be given and withdrawn before the start.
        let holder = ours.beside();
        fleet.configure(&holder, &crate::support::simulator::maintenance("node1", "before", ""));
        holder.apply().await.succeeded();
        asker(&fleet, &ours, "");
        let waiting = ours.start_apply();
        waiting.until_it_logs("waiting for approval", SOON).await;
        theirs.metal(&["approve", "ops/bios"]).await.failed().says("claimed by team-db").says("--owner team-db");
        theirs.metal(&["approve", "ops/bios", "--owner", "team-db"]).await.succeeded().says("ops/bios is approved");
        waiting.until_it_logs("queued, 1 ahead: tests/before", SOON).await;
        theirs.metal(&["claims"]).await.succeeded().says("approved  ops/bios");
        let claims = theirs.metal(&["claims", "--json"]).await.succeeded();
        let claims: serde_json::Value = serde_json::from_str(&claims.stdout).unwrap();
        let claims = &claims["claims"];
        assert_eq!((&claims[0]["claim"]["id"], &claims[0]["pending"][0]["id"]), (&json!("db/primary"), &json!("ops/bios")));
        assert_eq!(claims[0]["pending"][0]["allowed"], json!(true));
        theirs.metal(&["withdraw", "ops/bios", "--owner", "team-db"]).await.succeeded().says("is withdrawn");
        holder.destroy().await.succeeded();
        let queue = theirs.metal(&["queue", "--json"]).await.succeeded();
        let queue: serde_json::Value = serde_json::from_str(&queue.stdout).unwrap();
        let queue = &queue["queue"];
        assert_eq!((&queue[0]["id"], &queue[0]["state"]), (&json!("ops/bios"), &json!("Pending")));
        assert!(queue[0]["waiting_for"].as_str().unwrap().contains("approval by team-db"), "{queue}");
        let again = theirs.metal(&["approve", "ops/bios", "--owner", "team-db", "--json"]).await.succeeded();
        let again: serde_json::Value = serde_json::from_str(&again.stdout).unwrap();
        assert_eq!(again["scope"]["maintenance"]["id"], json!("ops/bios"));
        waiting.wait(SOON).await.succeeded();
        let late = theirs.metal(&["withdraw", "ops/bios", "--owner", "team-db", "--json"]).await.succeeded();
        assert!(late.stdout.contains("\"had_started\": true"), "{}", late.stdout);
        ours.destroy().await.succeeded();
    }
}

for_one_host! {
    async fn an_expired_approval_is_none_and_an_unanswered_request_escalates(host) {
        let (fleet, ours, theirs) = sides(host).await;
        // The server is held, so the approval expires before the start.
        let holder = ours.beside();
        fleet.configure(&holder, &crate::support::simulator::maintenance("node1", "before", ""));
        holder.apply().await.succeeded();
        asker(&fleet, &ours, "escalate_after = \"30s\"");
        let waiting = ours.start_apply();
        let line = waiting.until_it_logs("waiting for approval", SOON).await;
        assert!(line.contains("starts without approval at"), "{line}");
        theirs.try_plan().await.succeeded().says("Starts without approval at");
        let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(8);
        let approve = ["approve", "ops/bios", "--owner", "team-db", "--expires", &soon.to_string()];
        theirs.metal(&approve).await.succeeded();
        waiting.until_it_logs("queued, 1 ahead: tests/before", SOON).await;
        waiting.until_it_logs("an approval expired", SOON).await;
        holder.destroy().await.succeeded();
        waiting.wait(SOON).await.succeeded();
        ours.metal(&["show", "ops/bios"]).await.succeeded().says("without the owner's answer, as announced");
        ours.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn an_unclaimed_server_needs_no_approval_unless_a_claim_is_required(host) {
        let (fleet, ours) = (Fleet::new(1).await, Workspace::new(host));
        asker(&fleet, &ours, "");
        ours.try_plan().await.succeeded().says("Unclaimed: approval not required");
        ours.apply().await.succeeded();
        ours.destroy().await.succeeded();
        asker(&fleet, &ours, "require_claim = true\n  timeouts = { create = \"1s\" }");
        ours.apply().await.failed().says("waiting for a claim and an approval of ops/bios");
    }
}

for_each_host! {
    async fn owners_are_not_asked_where_the_provider_always_performs(host) {
        let (fleet, ours, _theirs) = sides(host).await;
        let body = "resource \"metal_server_maintenance\" \"held\" {\n  server = \"node1\"\n  namespace = \"ops\"\n  name = \
                    \"bios\"\n  policy = \"OwnerApproval\"\n}\n";
        fleet.configure_with(&ours, "always_perform_maintenance = true", body);
        ours.try_plan().await.succeeded().says("always_perform_maintenance");
        ours.apply().await.succeeded();
        ours.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn what_cannot_be_approved_is_refused_at_plan(host) {
        let (fleet, ours, theirs) = sides(host).await;
        for (more, says) in [
            ("maintenance = \"ops/unknown\"", "ops/unknown is not pending"),
            ("maintenance = \"ops\"", "must have the form NAMESPACE/NAME"),
            ("", "Exactly one of maintenance and all"),
            ("maintenance = \"ops/bios\"\n  all = true", "Exactly one of maintenance and all"),
            ("all = true\n  expires = \"2020-01-01T00:00:00Z\"", "Approval has already expired"),
            ("all = true\n  expires = \"tomorrow\"", "is not a valid RFC 3339 timestamp"),
            ("all = true\n  not_before = \"2090-01-02T00:00:00Z\"\n  expires = \"2090-01-01T00:00:00Z\"", "Approval would never take effect"),
        ] {
            owner(&fleet, &theirs, &approval(more));
            theirs.try_plan().await.failed().says(says).says("with metal_maintenance_approval.yes");
        }
        // One ended maintenance and one started maintenance.
        let enforced = |ours: &Workspace| fleet.configure(ours, &crate::support::simulator::maintenance("node1", "m", ""));
        enforced(&ours);
        ours.apply().await.succeeded();
        owner(&fleet, &theirs, &approval("maintenance = \"tests/m\""));
        theirs.try_plan().await.failed().says("Maintenance has already started");
        ours.destroy().await.succeeded();
        theirs.try_plan().await.failed().says("tests/m has ended (Completed)");
        // Only the owner can approve, and a server has one owner.
        let stranger = ours.beside();
        let body = "resource \"metal_maintenance_approval\" \"yes\" {\n  server = \"node1\"\n  all = true\n}\n";
        fleet.configure_with(&stranger, "owner = \"somebody\"", body);
        stranger.try_plan().await.failed().says("node1 is claimed by another owner").says("team-db");
        let body = "resource \"metal_server_claim\" \"mine\" {\n  server = \"node1\"\n  namespace = \"a\"\n  name = \"b\"\n}\n";
        fleet.configure_with(&stranger, "owner = \"somebody\"", body);
        stranger.apply().await.failed().says("node1 is claimed already").says("#db-oncall");
    }
}

for_each_host! {
    async fn an_approval_of_a_lock_does_not_cover_a_later_boot(host) {
        let (fleet, ours, theirs) = sides(host).await;
        asker(&fleet, &ours, "");
        let locks = ours.start_apply();
        locks.until_it_logs("waiting for approval", SOON).await;
        let mut theirs = theirs;
        fleet.command_line(&mut theirs);
        let approve = ["approve", "ops/bios", "--owner", "team-db"];
        theirs.metal(&approve).await.succeeded();
        locks.wait(SOON).await.succeeded();

        let boots = "server_power = \"On\"\n  boot_configuration = { method = \"pxe\" }";
        asker(&fleet, &ours, &format!("{boots}\n  timeouts = {{ update = \"2s\" }}"));
        let plan = ours.plan().await;
        assert_eq!(plan.changes()[0].1, ["update"]);
        plan.run.says("node1 is switched off and boots by pxe.");
        plan.run.says("Owner: team-db (contact: #db-oncall), no approval yet for ops/bios").says("An approval is missing");
        let refused = ours.apply_saved(&plan).await.failed();
        refused.says("Update of the maintenance of node1 was refused").says("waiting for approval by team-db");
        refused.says("The server was not changed and stays held by ops/bios");
        assert!(fleet.changes("node1").is_empty(), "{:?}", fleet.changes("node1"));
        assert!(ours.resource("metal_server_maintenance.held").await.unwrap()["boot_configuration"].is_null());

        // A new run waits; the owner reviews and approves the boot.
        asker(&fleet, &ours, boots);
        let waiting = ours.start_apply();
        waiting.until_it_logs("waiting for approval by team-db", SOON).await;
        theirs.try_plan().await.succeeded().says("Maintenance pending on claimed servers").says("boots by pxe");
        assert!(fleet.changes("node1").is_empty(), "{:?}", fleet.changes("node1"));
        theirs.metal(&approve).await.succeeded().says("boot pxe");
        waiting.wait(SOON).await.succeeded();
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On"]);
        // Changing only the reason does not need another approval.
        asker(&fleet, &ours, &format!("{boots}\n  reason = \"BIOS 2.19\""));
        ours.apply().await.succeeded();
        ours.destroy().await.succeeded();
    }
}
