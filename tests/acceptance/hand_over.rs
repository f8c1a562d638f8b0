//! `hand_over`: moves a server from one maintenance to the next without a restore.

use bmc_simulator::PowerState;
use serde_json::{Value, json};

use crate::support::{
    simulator::{Fleet, SOON, maintenance},
    workspace::Workspace,
};

const HELD: &str = "metal_server_maintenance.held";

for_one_host! {
    async fn the_next_one_takes_the_server_as_it_is_and_the_last_one_restores_it(host) {
        let (fleet, first) = (Fleet::new(1).await, Workspace::new(host));
        let second = first.beside();
        fleet.configure(&first, &maintenance("node1", "firmware", "hand_over = \"direct\"\n  server_power = \"Off\""));
        first.apply().await.succeeded();
        fleet.until("node1", PowerState::Off).await;

        fleet.configure(&second, &maintenance("node1", "memory", "hand_over = \"direct\""));
        second.try_plan().await.succeeded().says("takes the server over from tests/firmware without a restore");
        let waiting = second.start_apply();
        waiting.until_it_logs("queued, ", SOON).await;
        first.metal(&["queue"]).await.succeeded().says("from tests/firmware unchanged");
        let lines: Value = serde_json::from_str(&first.metal(&["queue", "--json"]).await.succeeded().stdout).unwrap();
        assert_eq!(lines["queue"][0]["hand_over"], json!("to tests/memory unchanged"), "{lines}");
        let over = first.run(&["plan", "-destroy"]).await.succeeded();
        over.says("node1 is handed over to tests/memory unchanged");
        let over = first.destroy().await.succeeded();
        over.says("A server was handed over unchanged").says("is restored when tests/memory ends");
        waiting.wait(SOON).await.succeeded();
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown"], "the server was restored during the handover");
        let held = second.resource(HELD).await.unwrap();
        assert_eq!((&held["previous_power_state"], &held["state"]), (&json!("On"), &json!("InMaintenance")));
        second.plan().await.is_empty();
        second.refresh().await.succeeded();
        assert_eq!(second.resource(HELD).await.unwrap()["power_state"], json!("Off"));
        first.metal(&["show", "tests/firmware"]).await.succeeded().says("handed over").says("to tests/memory");
        first.metal(&["queue"]).await.succeeded().says("from tests/firmware unchanged");

        second.run(&["plan", "-destroy"]).await.succeeded().says("restored to its state before tests/firmware (power On)");
        second.destroy().await.succeeded().is_silent_about("handed over");
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On"]);
        first.metal(&["store", "check"]).await.succeeded();
    }
}

for_one_host! {
    async fn completed_by_hand_it_is_passed_on_too_and_without_it_it_is_restored(host) {
        let (fleet, first) = (Fleet::new(1).await, Workspace::new(host));
        let second = first.beside();
        fleet.configure(&first, &maintenance("node1", "a", "hand_over = \"direct\"\n  server_power = \"Off\""));
        first.apply().await.succeeded();
        fleet.configure(&second, &maintenance("node1", "b", "hand_over = \"direct\"\n  server_power = \"Off\""));
        let waiting = second.start_apply();
        waiting.until_it_logs("queued, ", SOON).await;
        first.metal(&["release", "tests/a"]).await.succeeded().says("tests/b took over node1 unchanged");
        waiting.wait(SOON).await.succeeded();
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown"]);

        // The next maintenance does not request it.
        fleet.configure(&first, &maintenance("node1", "c", ""));
        let waiting = first.start_apply();
        waiting.until_it_logs("queued, ", SOON).await;
        second.destroy().await.succeeded().is_silent_about("handed over");
        waiting.wait(SOON).await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::On);
        first.destroy().await.succeeded();
        fleet.configure(&first, &maintenance("node1", "d", "hand_over = \"sometimes\""));
        first.run(&["validate", "-no-color"]).await.failed().says("hand_over");
    }
}
