//! Ctrl-C and SIGTERM: a waiter leaves the queue; a server in preparation stays held and in the
//! state.

use std::time::Duration;

use bmc_simulator::SimulatorConfig;

use crate::support::{
    simulator::{Fleet, SOON, maintenance},
    workspace::Workspace,
};

async fn slow() -> Fleet {
    let mut config = SimulatorConfig::with_systems(1);
    config.behaviour.graceful_shutdown = Duration::from_secs(2);
    Fleet::with(config).await
}

const DEPENDENT: &str = r#"
resource "terraform_data" "dependent" {
  input = metal_server_maintenance.held.state
}
"#;

for_each_host! {
    async fn an_interrupted_waiter_leaves_the_queue(host) {
        let (fleet, first) = (Fleet::new(1).await, Workspace::new(host));
        let second = first.beside();
        fleet.configure(&first, &maintenance("node1", "first", ""));
        fleet.configure(&second, &maintenance("node1", "second", ""));
        first.apply().await.succeeded();
        let waiting = second.start_apply();
        waiting.until_it_logs("queued, ", SOON).await;
        waiting.interrupt_from_terminal();
        // The server stays held: nothing but the interrupt ends the wait.
        let run = waiting.wait(SOON).await.failed();
        run.says("Waiting for node1 was interrupted");
        assert!(second.resource("metal_server_maintenance.held").await.is_none());
        let queue = first.metal(&["queue", "--json"]).await.succeeded();
        let queue: serde_json::Value = serde_json::from_str(&queue.stdout).unwrap();
        assert_eq!(queue["queue"].as_array().unwrap().len(), 1, "{queue}");
        first.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn an_interrupted_preparation_is_continued_by_the_next_apply(host) {
        let (fleet, workspace) = (slow().await, Workspace::new(host));
        let body = maintenance("node1", "m", "server_power = \"Off\"") + DEPENDENT;
        fleet.configure(&workspace, &body);
        let run = workspace.start_apply();
        run.until_it_logs("GracefulShutdown", SOON).await;
        fleet.simulator.wait_journal(&bmc_simulator::JournalQuery::system("node1").request("POST", "*Reset*"), 1, SOON).await.unwrap();
        run.interrupt();
        let run = run.wait(SOON).await;
        run.says("Preparing a server was interrupted");
        assert!(workspace.resource("terraform_data.dependent").await.is_none(), "a dependent ran");
        let held = workspace.resource("metal_server_maintenance.held").await.unwrap();
        assert_eq!(held["state"], "Preparing");
        let plan = workspace.plan().await;
        assert_eq!(plan.change("metal_server_maintenance.held")["actions"], serde_json::json!(["update"]));
        workspace.apply().await.succeeded();
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown"]);
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
    }
}

for_each_host! {
    async fn an_interrupted_preparation_is_undone_by_destroy(host) {
        let (fleet, workspace) = (slow().await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"Off\""));
        let run = workspace.start_apply();
        run.until_it_logs("GracefulShutdown", SOON).await;
        run.terminate();
        run.wait(SOON).await;
        assert!(workspace.resource("metal_server_maintenance.held").await.is_some());
        workspace.destroy().await.succeeded();
        fleet.until("node1", bmc_simulator::PowerState::On).await;
        workspace.metal(&["queue"]).await.succeeded().says("No server is held");
    }
}
