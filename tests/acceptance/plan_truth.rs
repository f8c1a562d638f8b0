//! A plan lists releases of other maintenance, and reports impossible requests.

use crate::support::{
    simulator::{Fleet, SOON, maintenance},
    wait::eventually,
    workspace::Workspace,
};

const RELEASED: &str = "Another maintenance will be released";

for_each_host! {
    async fn a_plan_lists_the_release_of_an_overdue_maintenance_of_another_team(host) {
        let (fleet, first) = (Fleet::new(1).await, Workspace::new(host));
        let second = first.beside();
        let overdue = maintenance("node1", "od2", "server_power = \"Off\"\n  expires_after = \"6s\"");
        fleet.configure_with(&first, "owner = \"team-a\"", &overdue);
        first.apply().await.succeeded();
        fleet.configure_with(&second, "owner = \"team-b\"", &maintenance("node1", "next", ""));
        let plan = eventually("the maintenance is overdue", SOON, async || {
            let plan = second.plan().await;
            plan.run.words().contains("is overdue since").then_some(plan)
        })
        .await;
        plan.run.says(RELEASED).says("node1: tests/od2 of team-a is overdue since");
        plan.run.says("no process is attached. Apply restores it first (power Off -> On), then locks the server.");
        plan.run.says("Queue: free once tests/od2, which is overdue, is released").is_silent_about("Other maintenance is ahead");
        second.apply_saved(&plan).await.succeeded();
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On"]);
        second.destroy().await.succeeded();
    }
}

for_one_host! {
    async fn the_queue_of_a_plan_counts_only_those_that_apply_waits_for(host) {
        let (fleet, first) = (Fleet::new(1).await, Workspace::new(host));
        let (gone, own) = (first.beside(), first.beside());
        fleet.configure(&first, &maintenance("node1", "first", ""));
        first.apply().await.succeeded();
        // Two disconnected waiters: one stranger, and the planned request itself.
        let hasty = "timeouts = { create = \"1s\" }";
        for (workspace, name) in [(&gone, "gone"), (&own, "own")] {
            fleet.configure(workspace, &maintenance("node1", name, hasty));
            workspace.apply().await.failed().says("1 ahead: tests/first");
        }
        let plan = own.plan().await;
        plan.run.says("Queue: 1 ahead: tests/first").says("Skipped while disconnected: tests/gone");
        plan.run.is_silent_about("2 ahead").is_silent_about(RELEASED);
        first.destroy().await.succeeded();
        own.plan().await.run.says("Queue: free.").is_silent_about("Other maintenance is ahead");
        own.apply().await.succeeded();
        own.destroy().await.succeeded();
    }
}

fn operation(server: &str, more: &str) -> String {
    format!(
        "resource \"metal_server_operation\" \"now\" {{\n  server = \"{server}\"\n  namespace = \"ops\"\n  name = \"restart\"\n  \
         operation = \"ForceRestart\"\n  {more}\n}}\n"
    )
}

for_each_host! {
    async fn requests_that_can_never_be_applied_together_are_errors_of_the_plan(host) {
        let (fleet, workspace) = (Fleet::new(2).await, Workspace::new(host));
        let second = |server: &str, more: &str| maintenance(server, "second", more).replace("\"held\"", "\"second\"");
        let first = maintenance("node1", "first", "");
        fleet.configure(&workspace, &(first.clone() + &second("node1", "")));
        let run = workspace.try_plan().await.failed();
        run.says("node1 is needed twice in this configuration").says("tests/first").says("tests/second");
        // Two names of one machine.
        let inventory = fleet.simulator.inventory();
        let of_first = inventory.split("\"node2\"").next().unwrap().replace("\"node1\"", "\"rack1-node1\"");
        fleet.configure(&workspace, &(first.clone() + &second("rack1-node1", "")));
        workspace.write("servers.yaml", &(inventory + &of_first));
        workspace.try_plan().await.failed().says("needed twice in this configuration").says("are one machine, lock key");
        // An operation without maintenance_id and a lasting maintenance.
        fleet.configure(&workspace, &(first.clone() + &operation("node1", "policy = \"Enforced\"\n  depends_on = [metal_server_maintenance.held]")));
        let run = workspace.try_plan().await.failed();
        run.says("node1 is held in this configuration").says("Set maintenance_id to that metal_server_maintenance's \
                                                              id");
        assert!(fleet.changes("node1").is_empty());

        // Possible: another server, a queue position, an earlier operation, and an operation under
        // the maintenance.
        let ends = "server_power = \"Off\"\n  wait_for = \"Enqueued\"";
        let before = "lifecycle {\n    create_before_destroy = false\n  }\n  depends_on = [metal_server_operation.now]";
        let held = maintenance("node1", "first", before);
        for body in [
            first.clone() + &second("node2", ""),
            first.clone() + &second("node1", ends),
            held + &operation("node1", "policy = \"Enforced\""),
            first.clone() + &operation("node1", "maintenance_id = metal_server_maintenance.held.id"),
        ] {
            fleet.configure(&workspace, &body);
            workspace.plan().await;
        }
        // The same in a new process, with a current holder.
        fleet.configure(&workspace, &first);
        workspace.apply().await.succeeded();
        fleet.configure(&workspace, &(first.clone() + &operation("node1", "policy = \"Enforced\"")));
        workspace.try_plan().await.failed().says("in this configuration");
        fleet.configure(&workspace, &(first + &operation("node1", "maintenance_id = metal_server_maintenance.held.id")));
        workspace.apply().await.succeeded();
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
    }
}
