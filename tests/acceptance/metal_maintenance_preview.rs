//! `data.metal_maintenance_preview`: a plan's report as data.

use bmc_simulator::Availability;
use serde_json::json;

use crate::support::{
    simulator::{Fleet, maintenance},
    workspace::Workspace,
};

for_each_host! {
    async fn it_tells_what_is_in_the_way_and_works_with_a_bmc_down(host) {
        let (fleet, holder) = (Fleet::new(3).await, Workspace::new(host));
        fleet.configure(&holder, &maintenance("node1", "before", "reason = \"disk\"\n  expires_after = \"2h\""));
        holder.apply().await.succeeded();
        let owner = holder.beside();
        let claim = "resource \"metal_server_claim\" \"db\" {\n  server = \"node2\"\n  namespace = \"db\"\n  name = \"a\"\n  contact = \"#db\"\n}\n";
        fleet.configure_with(&owner, "owner = \"team-db\"", claim);
        owner.apply().await.succeeded();
        let bmc = fleet.simulator.bmc_of("node3").unwrap();
        fleet.simulator.set_availability(&bmc, Availability::Refusing).await.unwrap();
        let looker = holder.beside();
        let body = r#"
data "metal_maintenance_preview" "p" {
  servers      = ["node1", "node2", "node3", "node9"]
  policy       = "OwnerApproval"
  server_power = "Off"
}
output "p" {
  value = data.metal_maintenance_preview.p.previews
}
"#;
        fleet.configure(&looker, body);
        looker.apply().await.succeeded();
        let told = looker.json(&["output", "-json", "p"]).await;
        let [held, claimed, down, unknown] = told.as_array().unwrap().as_slice() else { panic!("{told}") };
        assert_eq!((&held["server"], &held["effect"]), (&json!("node1"), &json!("is switched off.")));
        assert_eq!((&held["ahead"][0]["id"], &held["ahead"][0]["reason"]), (&json!("tests/before"), &json!("disk")));
        assert_eq!(held["earliest_start"], held["ahead"][0]["expires_at"]);
        assert_eq!((&claimed["owner"], &claimed["contact"]), (&json!("team-db"), &json!("#db")));
        assert_eq!((&claimed["approval_missing"], &claimed["earliest_start"]), (&json!(true), &json!(null)));
        assert!(claimed["text"].as_str().unwrap().contains("no approval yet"), "{claimed}");
        assert_eq!(down["power_state"], json!(null));
        assert!(down["problems"][0].as_str().unwrap().contains("refused"), "{down}");
        assert!(unknown["problems"][0].as_str().unwrap().contains("node9"), "{unknown}");
        assert!(fleet.resets("node1").is_empty());
        holder.destroy().await.succeeded();
    }
}
