//! BMCs that accept a power change and do nothing, report `Paused`, or are not ready yet.

use bmc_simulator::{Fault, FaultAction, FaultBody, PowerState, ResetType, SimulatorConfig, SystemChange};
use serde_json::json;

use crate::support::{
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

fn ignored_on() -> Fault {
    Fault::ignore().on_request("POST", "*ComputerSystem.Reset").with_body("\"On\"").times(1)
}

/// A server whose operating system has halted, as Arm BMCs report it.
async fn paused(change: impl FnOnce(&mut SimulatorConfig)) -> Fleet {
    let mut config = SimulatorConfig::with_systems(1);
    change(&mut config);
    let fleet = Fleet::with(config).await;
    let change = SystemChange { power: Some(PowerState::Paused), ..SystemChange::default() };
    fleet.simulator.change_system("node1", change).unwrap();
    fleet
}

const PXE: &str = "server_power = \"On\"\n  boot_configuration = { method = \"pxe\" }";

for_one_host! {
    async fn an_ignored_on_is_sent_once_more_by_prepare_and_release(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", PXE));
        let _ = fleet.simulator.inject(ignored_on());
        workspace.apply().await.succeeded();
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On", "On"]);
        assert!(fleet.runs("node1").contains("Pxe"), "{}", fleet.runs("node1"));
        let _ = fleet.simulator.inject(ignored_on());
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.resets("node1")[3..], ["GracefulShutdown", "On", "On"]);
        assert_eq!(fleet.system("node1").power, PowerState::On);
    }
}

for_one_host! {
    async fn a_restart_that_is_ignored_is_not_repeated(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        let operation = r#"
resource "metal_server_operation" "o" {
  server    = "node1"
  namespace = "tests"
  name      = "o"
  operation = "ForceRestart"
  policy    = "Enforced"
}
"#;
        fleet.configure(&workspace, operation);
        let _ = fleet.simulator.inject(Fault::ignore().on_request("POST", "*ComputerSystem.Reset"));
        workspace.apply().await.succeeded().says("An operation could not be proven");
        assert_eq!(fleet.resets("node1"), ["ForceRestart"]);
    }
}

for_one_host! {
    async fn a_paused_server_is_started_by_a_restart_and_ends_on(host) {
        let (fleet, workspace) = (paused(|_| {}).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"On\""));
        let planned = workspace.plan().await;
        planned.run.says("Now: Paused. ForceRestart starts it. The release leaves it On");
        workspace.apply().await.succeeded();
        assert_eq!(fleet.resets("node1"), ["ForceRestart"]);
        let held = workspace.resource("metal_server_maintenance.held").await.expect("it is held");
        assert_eq!((&held["power_state"], &held["previous_power_state"]), (&json!("On"), &json!("Paused")));
        workspace.destroy().await.succeeded().says("Servers that were Paused end On");
        assert_eq!(fleet.resets("node1"), ["ForceRestart"], "its power is unchanged");
        assert_eq!(fleet.system("node1").power, PowerState::On);

        // A server that is only locked stays Paused, and counts as restored.
        let (fleet, workspace) = (paused(|_| {}).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", ""));
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::Paused);
        assert!(fleet.resets("node1").is_empty());
    }
}

for_one_host! {
    async fn a_paused_server_without_force_restart_is_rejected_at_plan(host) {
        let fleet = paused(|config| {
            let mut personality = bmc_simulator::Personality::generic();
            personality.power.reset_types.retain(|reset| *reset != ResetType::ForceRestart);
            *config = config.clone().with_personality(personality);
        })
        .await;
        let workspace = Workspace::new(host);
        fleet.configure(&workspace, &maintenance("node1", "m", "server_power = \"On\""));
        workspace
            .try_plan()
            .await
            .failed()
            .says("node1 does not support this request")
            .says("does not accept ForceRestart")
            .says("The power state is Paused");
        assert!(fleet.resets("node1").is_empty());
    }
}

for_one_host! {
    async fn a_time_limit_that_ends_while_a_bmc_is_not_ready_quotes_its_message(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, &maintenance("node1", "m", &format!("{PXE}\n  timeouts = {{ create = \"15s\" }}")));
        let info = json!({
            "MessageId": "IDRAC.2.9.RAC0508",
            "Message": "Unable to complete the operation because the provider is not ready.",
            "Resolution": "Wait for few minutes, refresh the page and retry.",
        });
        let body = json!({ "error": { "code": "Base.1.12.GeneralError", "@Message.ExtendedInfo": [info] } });
        let answer = FaultAction::Answer { status: 500, body: FaultBody::Json(body), headers: Vec::new(), apply: false };
        let _ = fleet.simulator.inject(Fault::new(answer).on_request("PATCH", "/redfish/v1/Systems/1"));
        workspace.apply().await.failed().says("the provider is not ready").says("RAC0508").says("Wait for few minutes");
        assert_eq!(fleet.system("node1").power, PowerState::On);
        fleet.simulator.clear_faults();
        fleet.configure(&workspace, &maintenance("node1", "m", PXE));
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
    }
}
