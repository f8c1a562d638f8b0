//! Plans look up the maintenance's name, and a successor follows its predecessor.

use crate::support::{
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

const HELD: &str = "metal_server_maintenance.held";

for_each_host! {
    async fn a_plan_tells_what_its_name_stands_for(host) {
        let (fleet, mut holder) = (Fleet::new(2).await, Workspace::new(host));
        let body = |server: &str, more: &str| maintenance(server, "m", more);
        fleet.configure(&holder, &body("node1", "reason = \"disk\""));
        holder.apply().await.succeeded();
        holder.plan().await.is_empty();
        let other = holder.beside();
        // Conflicts that create would always refuse.
        fleet.configure(&other, &body("node2", "reason = \"disk\""));
        other.try_plan().await.failed().says("A name is in use for node2").says("tests/m is already used for another server");
        other.apply().await.failed().says("tests/m is already used for another server");
        fleet.configure(&other, &body("node1", "reason = \"memory\""));
        other.try_plan().await.failed().says("A name is in use for node1").says("exists with another specification").says("\"memory\"");
        fleet.configure_with(&other, "owner = \"others\"", &body("node1", "reason = \"disk\""));
        other.try_plan().await.failed().says("tests/m belongs to another owner");
        // Conflicts that a person can resolve before the apply.
        fleet.configure(&other, &body("node1", "reason = \"disk\""));
        other.plan().await.run.says("Another state manages a maintenance");
        fleet.configure(&other, &body("node1", "reason = \"disk\"\n  adopt = true"));
        other.plan().await.run.says("A maintenance is taken over from another state");
        let generation = holder.resource(HELD).await.unwrap()["generation"].to_string();
        fleet.command_line(&mut holder);
        let release = ["release", "tests/m", "--force", "--generation", &generation, "--reason", "node needed"];
        holder.metal(&release).await.succeeded();
        // Hosts plan creations before a destroy, so this state's own plan only warns.
        holder.try_plan().await.succeeded().says("A released name is refused").says("--allow tests/m");
        holder.destroy().await.succeeded();
        holder.apply().await.failed().says("--allow tests/m");
        fleet.configure(&other, &body("node1", "reason = \"disk\""));
        other.try_plan().await.failed().says("A released name is refused for node1").says("--allow tests/m");
    }
}

for_each_host! {
    async fn a_replacement_is_no_conflict_with_itself(host) {
        let (fleet, workspace) = (Fleet::new(2).await, Workspace::new(host));
        let operation = |run: &str| format!(
            "resource \"metal_server_operation\" \"now\" {{\n  server = \"node2\"\n  namespace = \"ops\"\n  name = \"restart\"\n  operation = \"PowerCycle\"\n  policy = \"Enforced\"\n  triggers = {{ run = \"{run}\" }}\n}}\n"
        );
        fleet.configure(&workspace, &(maintenance("node1", "m", "reason = \"one\"") + &operation("1")));
        workspace.apply().await.succeeded();
        // A changed server, specification and name, each on the resource with the old one.
        for (server, name, run) in [("node1", "m", "2"), ("node2", "m", "3"), ("node2", "n", "4")] {
            let body = maintenance(server, name, &format!("reason = \"run {run}\"\n  triggers = {{ run = \"{run}\" }}"));
            let operation = if server == "node1" { operation(run) } else { String::new() };
            fleet.configure(&workspace, &(body + &operation));
            let plan = workspace.plan().await;
            plan.run.is_silent_about("is ahead");
            workspace.apply_saved(&plan).await.succeeded();
            workspace.plan().await.is_empty();
        }
        workspace.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn a_successor_that_is_created_first_is_refused_at_once(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let before = "lifecycle {\n    create_before_destroy = true\n  }";
        fleet.configure(&workspace, &maintenance("node1", "first", ""));
        workspace.apply().await.succeeded();
        fleet.configure(&workspace, &maintenance("node1", "second", before));
        let plan = workspace.plan().await;
        plan.run.says("A renamed maintenance follows its predecessor").says("remove create_before_destroy");
        for run in [workspace.apply_saved(&plan).await, workspace.apply().await] {
            run.failed().says("node1 is held by the predecessor of tests/second");
        }
        fleet.configure(&workspace, &maintenance("node1", "first", &format!("triggers = {{ run = \"2\" }}\n  {before}")));
        workspace.apply().await.failed().says("exists with another specification");
        assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
        // Hosts keep create_before_destroy in the state until an apply without it.
        fleet.configure(&workspace, &maintenance("node1", "first", ""));
        workspace.apply().await.succeeded();
        fleet.configure(&workspace, &maintenance("node1", "second", ""));
        workspace.apply().await.succeeded();
        assert_eq!(workspace.resource(HELD).await.unwrap()["name"], "second");
        workspace.destroy().await.succeeded();
    }
}

for_one_host! {
    async fn another_configuration_of_the_owner_waits_for_its_turn(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "first", ""));
        workspace.apply().await.succeeded();
        // A discarded plan does not leave a lasting effect.
        fleet.configure(&workspace, &maintenance("node1", "second", ""));
        workspace.plan().await.run.says("A renamed maintenance follows its predecessor");
        fleet.configure(&workspace, &maintenance("node1", "first", ""));
        workspace.plan().await.is_empty();
        let other = workspace.beside();
        fleet.configure(&other, &maintenance("node1", "second", "timeouts = { create = \"1s\" }"));
        other.apply().await.failed().says("node1 was not available in time");
        workspace.destroy().await.succeeded();
    }
}
