//! `data.metal_server`: what a server is now and who holds it.

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
