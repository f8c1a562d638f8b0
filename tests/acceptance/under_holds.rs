//! Operations and boot configurations under a hold: allowed for its owner and the owners it names.

use crate::support::{
    simulator::{Fleet, SOON, maintenance},
    workspace::Workspace,
};

fn under(more: &str) -> String {
    format!(
        "resource \"metal_server_operation\" \"op\" {{\n  server = \"node1\"\n  namespace = \"others\"\n  name = \"restart\"\n  operation = \"ForceRestart\"\n  maintenance_id = \"tests/m\"\n  {more}\n}}\n"
    )
}

for_one_host! {
    async fn a_hold_of_another_owner_is_entered_only_when_it_says_so(host) {
        let (fleet, holder) = (Fleet::new(1).await, Workspace::new(host));
        let other = holder.beside();
        fleet.configure_with(&holder, "owner = \"team-a\"", &maintenance("node1", "m", ""));
        holder.apply().await.succeeded();
        let boot = "resource \"metal_server_boot_configuration\" \"boot\" {\n  server = \"node1\"\n  method = \"pxe\"\n  maintenance_id = \"tests/m\"\n}\n";
        for body in [under(""), boot.to_owned()] {
            fleet.configure_with(&other, "owner = \"team-b\"", &body);
            let refused = other.apply().await.failed();
            refused.says("tests/m belongs to another owner").says("allow_under").says("team-b");
            other.try_plan().await.failed().says("tests/m belongs to another owner");
        }
        assert!(fleet.changes("node1").is_empty(), "{:?}", fleet.changes("node1"));
        // The hold allows it in place, without releasing the server.
        fleet.configure_with(&holder, "owner = \"team-a\"", &maintenance("node1", "m", "allow_under = [\"team-b\"]"));
        let plan = holder.plan().await;
        assert_eq!(plan.changes()[0].1, ["update"]);
        holder.apply().await.succeeded();
        holder.plan().await.is_empty();
        fleet.configure_with(&other, "owner = \"team-b\"", &under(""));
        other.apply().await.succeeded();
        assert_eq!(fleet.resets("node1"), ["ForceRestart"]);
        fleet.configure_with(&other, "owner = \"team-c\"", &under("").replace("restart", "again"));
        other.apply().await.failed();
        holder.destroy().await.succeeded();
        assert_eq!(fleet.resets("node1"), ["ForceRestart"]);
    }
}

for_one_host! {
    async fn an_operation_under_a_hold_keeps_its_own_policy(host) {
        let (fleet, holder) = (Fleet::new(1).await, Workspace::new(host));
        let (db, other) = (holder.beside(), holder.beside());
        let claim = "resource \"metal_server_claim\" \"db\" {\n  server = \"node1\"\n  namespace = \"db\"\n  name = \"primary\"\n}\n";
        fleet.configure_with(&db, "owner = \"team-db\"", claim);
        db.apply().await.succeeded();
        fleet.configure_with(&holder, "owner = \"team-a\"", &maintenance("node1", "m", "allow_under = [\"team-b\"]"));
        holder.apply().await.succeeded();
        fleet.configure_with(&other, "owner = \"team-b\"", &under("policy = \"OwnerApproval\""));
        let waiting = other.start_apply();
        waiting.until_it_logs("waiting for approval by team-db", SOON).await;
        assert!(fleet.resets("node1").is_empty());
        let yes = "resource \"metal_maintenance_approval\" \"yes\" {\n  server = \"node1\"\n  maintenance = \"others/restart\"\n}\n";
        fleet.configure_with(&db, "owner = \"team-db\"", &format!("{claim}{yes}"));
        db.apply().await.succeeded();
        waiting.wait(SOON).await.succeeded();
        assert_eq!(fleet.resets("node1"), ["ForceRestart"]);
        holder.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn a_hold_that_is_replaced_takes_along_what_acts_under_it(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let body = |firmware: &str| {
            let id = "maintenance_id = metal_server_maintenance.held.id";
            maintenance("node1", "m", &format!("triggers = {{ firmware = \"{firmware}\" }}"))
                + &format!("resource \"metal_server_boot_configuration\" \"boot\" {{\n  server = \"node1\"\n  method = \"pxe\"\n  {id}\n}}\n")
                + &under("depends_on = [metal_server_boot_configuration.boot]").replace("maintenance_id = \"tests/m\"", id)
        };
        fleet.configure(&workspace, &body("1"));
        workspace.apply().await.succeeded();
        assert_eq!(fleet.resets("node1"), ["ForceRestart"]);
        let again = ["apply", "-auto-approve", "-input=false", "-no-color", "-replace=metal_server_maintenance.held"];
        for (number, arguments) in [&again[..4], &again[..]].into_iter().enumerate() {
            fleet.configure(&workspace, &body("2"));
            let run = workspace.run(arguments).await.succeeded();
            run.says("3 added, 0 changed, 3 destroyed");
            // One run is enough to restore the settings under the hold.
            workspace.plan().await.is_empty();
            let boot = workspace.resource("metal_server_boot_configuration.boot").await.unwrap();
            assert_eq!(boot["state"], "Ready");
            // Each release reboots the server into its prior system, because the operation had
            // booted PXE.
            let all = fleet.resets("node1");
            assert_eq!(all.iter().filter(|reset| *reset == "ForceRestart").count(), number + 2, "{all:?}");
            assert_eq!(all.iter().filter(|reset| *reset == "On").count(), number + 1, "{all:?}");
            assert_eq!(all.last().unwrap(), "ForceRestart");
        }
        workspace.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn the_plan_of_an_operation_under_a_hold_that_is_not_made_yet_names_the_hold(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let body = |firmware: &str| {
            maintenance("node1", "m", &format!("triggers = {{ firmware = \"{firmware}\" }}"))
                + &under("").replace("\"tests/m\"", "metal_server_maintenance.held.id")
        };
        let again = ["apply", "-auto-approve", "-input=false", "-no-color", "-replace=metal_server_maintenance.held"];
        for (firmware, arguments) in [("1", &again[..4]), ("2", &again[..4]), ("2", &again[..])] {
            fleet.configure(&workspace, &body(firmware));
            let run = workspace.run(arguments).await.succeeded();
            run.says("It happens under").is_silent_about("Server is held by the same owner");
        }
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.resets("node1").len(), 3);
    }
}
