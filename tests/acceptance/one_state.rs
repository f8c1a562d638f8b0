//! One state per hold: another state's user must consent to take it over.

use bmc_simulator::{JournalQuery, PowerState};

use crate::support::{
    simulator::{Fleet, SOON, maintenance},
    workspace::Workspace,
};

const HELD: &str = "metal_server_maintenance.held";

fn off(more: &str) -> String {
    maintenance("node1", "m", &format!("server_power = \"Off\"\n  {more}"))
}

for_each_host! {
    async fn a_hold_that_a_state_knows_is_not_taken_over_without_a_word(host) {
        let (fleet, first) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&first, &off(""));
        first.apply().await.succeeded();
        first.plan().await.is_empty();
        // The same configuration with the same owner, name and specification, but a separate
        // state.
        let copy = first.beside();
        fleet.configure(&copy, &off(""));
        let resets = fleet.resets("node1");
        copy.try_plan().await.succeeded().says("Another state has managed tests/m").says("adopt = true");
        let refused = copy.apply().await.failed();
        refused.says("Another state manages tests/m").says("import block").says("adopt = true");
        assert!(copy.resource(HELD).await.is_none());
        assert_eq!(fleet.resets("node1"), resets);
        first.plan().await.is_empty();
        first.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::On);
        // The name is free now.
        copy.apply().await.succeeded();
        copy.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn a_state_that_adopts_takes_the_hold_from_the_other_one(host) {
        for import in [true, false] {
            let (fleet, first) = (Fleet::new(1).await, Workspace::new(host));
            fleet.configure(&first, &off(""));
            first.apply().await.succeeded();
            first.plan().await.is_empty();
            let second = first.beside();
            if import {
                fleet.configure(&second, &off(""));
                second.import(HELD, "tests/m").await.succeeded();
                second.apply().await.succeeded();
            } else {
                fleet.configure(&second, &off("adopt = true"));
                second.try_plan().await.succeeded().says("Takes over tests/m, requested by").says("another state");
                second.apply().await.succeeded();
            }
            second.plan().await.is_empty();
            let resets = fleet.resets("node1");
            // The former state drops it, and neither its destroy nor its next apply touches the
            // server.
            let stale = first.run(&["destroy", "-refresh=false", "-auto-approve", "-input=false", "-no-color"]).await;
            stale.succeeded().says("Another state manages tests/m");
            first.apply().await.failed().says("Another state manages tests/m");
            assert_eq!(fleet.resets("node1"), resets, "import {import}");
            second.plan().await.is_empty();
            second.destroy().await.succeeded();
            assert_eq!(fleet.system("node1").power, PowerState::On);
        }
    }
}

for_each_host! {
    async fn a_refresh_drops_a_hold_that_another_state_took_over(host) {
        let (fleet, first) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&first, &off(""));
        first.apply().await.succeeded();
        first.plan().await.is_empty();
        let second = first.beside();
        fleet.configure(&second, &off(""));
        second.import(HELD, "tests/m").await.succeeded();
        second.apply().await.succeeded();
        first.refresh().await.succeeded().says("Another state manages tests/m");
        assert!(first.resource(HELD).await.is_none());
        second.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn a_killed_apply_is_still_found_by_the_next_one(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &off(""));
        let run = workspace.start_apply();
        let query = JournalQuery::system("node1").request("POST", "*Reset*");
        fleet.simulator.wait_journal(&query, 1, SOON).await.unwrap();
        run.kill_everything();
        drop(run);
        assert!(workspace.resource(HELD).await.is_none());
        let plan = workspace.try_plan().await.succeeded();
        plan.says("Takes over tests/m, requested by").is_silent_about("Queue: free");
        workspace.apply().await.succeeded();
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown"]);
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::On);
    }
}

for_each_host! {
    async fn a_tainted_hold_is_given_back_by_its_own_state(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        // Tainted by its own create: held, but incomplete at the timeout.
        let never = "wait_for = \"Completed\"\n  complete_when = { power_state = \"On\" }\n  timeouts = { create = \"3s\" }";
        fleet.configure(&workspace, &off(never));
        workspace.apply().await.failed();
        assert!(workspace.resource(HELD).await.is_some());
        workspace.try_plan().await.succeeded();
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::On);
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}
