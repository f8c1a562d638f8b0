//! `data.metal_server`: a server's current state and holder.

use bmc_simulator::Availability;
use serde_json::json;

use crate::support::{
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

const LOOK: &str = r#"
data "metal_server" "node" {
  name = "node1"
}
output "node" {
  value = data.metal_server.node
}
"#;

for_each_host! {
    async fn it_tells_what_a_server_is_and_who_holds_it(host) {
        let (fleet, holder) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&holder, &maintenance("node1", "m", "reason = \"swap disk\""));
        holder.apply().await.succeeded();
        let looker = holder.beside();
        fleet.configure(&looker, LOOK);
        looker.apply().await.succeeded();
        let node = looker.json(&["output", "-json", "node"]).await;
        assert_eq!((&node["power_state"], &node["reachable"]), (&json!("On"), &json!(true)));
        assert_eq!((&node["holder"]["id"], &node["holder"]["reason"]), (&json!("tests/m"), &json!("swap disk")));
        assert_eq!(node["queue_length"], 0);
        holder.destroy().await.succeeded();

        let bmc = fleet.simulator.bmc_of("node1").unwrap();
        fleet.simulator.set_availability(&bmc, Availability::Refusing).await.unwrap();
        looker.apply().await.succeeded().says("BMC did not answer");
        let node = looker.json(&["output", "-json", "node"]).await;
        assert_eq!((&node["power_state"], &node["reachable"]), (&json!(null), &json!(false)));
    }
}

const CHECKED: &str = r#"
data "metal_server" "node" {
  name               = "node1"
  check_capabilities = true
}
output "node" {
  value = data.metal_server.node
}
"#;

for_each_host! {
    async fn it_tells_what_check_tells_and_refuses_a_wrong_configuration(host) {
        let (fleet, workspace) = (Fleet::new(1).await, Workspace::new(host));
        fleet.configure(&workspace, CHECKED);
        workspace.apply().await.succeeded();
        let node = workspace.json(&["output", "-json", "node"]).await;
        assert_eq!((&node["check"]["usable"], &node["check"]["lacks"]["http"]), (&json!(true), &json!([])), "{node}");
        assert_eq!(node["check"]["certificate_sha256"].as_str().map(str::len), Some(64), "{node}");
        assert_eq!((&node["check"]["role"], &node["system_id"]), (&json!("Administrator"), &json!("1")), "{node}");
        assert!(node["endpoint"].as_str().unwrap().starts_with("https://127.0.0.1:"), "{node}");

        // The error states that the configuration is wrong, not that the BMC is unreachable.
        let right = std::fs::read_to_string(workspace.folder().join("main.tf")).unwrap();
        workspace.write("main.tf", &right.replace("simulated-password", "wrong"));
        workspace.try_plan().await.failed().says("refused the credentials").is_silent_about("did not answer");
        let inventory = std::fs::read_to_string(workspace.folder().join("servers.yaml")).unwrap();
        workspace.write("main.tf", &right);
        workspace.write("servers.yaml", &inventory.replace("system_id: \"1\"", "system_id: nine"));
        workspace.try_plan().await.failed().says("node1 is not behind its BMC").says("set system_id to one of: 1");
        workspace.write("servers.yaml", &inventory);
        let stranger = Fleet::new(1).await;
        workspace.write("bmc-ca.pem", &stranger.simulator.trust().unwrap().ca_pem);
        workspace.try_plan().await.failed().says("The BMC of node1 is not trusted").says("terraform-provider-metal check");
    }
}
