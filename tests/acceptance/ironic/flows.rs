//! A complete maintenance of an Ironic node, from the plan to the release.

use bmc_simulator::PowerState;
use reqwest::Method;
use serde_json::json;

use super::{HELD, configure, drive_is_filled, maintenance, rescue, simulated};
use crate::{
    servers::ironic::{Ironic, Options},
    support::{images::Images, simulator::SOON, workspace::Workspace},
};

for_one_host! {
    async fn a_node_of_ironic_is_held_switched_off_and_released(host) {
        let ironic = Ironic::start(Options::default()).await;
        ironic.active_node("n1").await;
        let workspace = Workspace::new(host);
        configure(&ironic, &workspace, &maintenance("server_power = \"Off\""));
        workspace.try_plan().await.succeeded().says("provision state active");
        workspace.apply().await.succeeded();
        let held = workspace.resource(HELD).await.unwrap();
        assert_eq!((&held["state"], &held["power_state"]), (&"InMaintenance".into(), &"Off".into()), "{held}");
        let node = ironic.node("n1").await;
        assert_eq!((&node["maintenance"], &node["power_state"]), (&json!(true), &json!("power off")));
        assert!(node["maintenance_reason"].as_str().unwrap().contains("maintenance ops/bios"), "{node}");
        assert!(workspace.plan().await.changes().is_empty());
        workspace.destroy().await.succeeded();
        let node = ironic.node("n1").await;
        assert_eq!((&node["maintenance"], &node["power_state"]), (&json!(false), &json!("power on")));
        assert_eq!(node["maintenance_reason"], json!(null));
    }
}

for_one_host! {
    async fn a_node_of_ironic_boots_an_image_from_a_virtual_drive(host) {
        let ironic = Ironic::start(Options::default()).await;
        let (simulator, system) = simulated(&ironic).await;
        let images = Images::start().await;
        let workspace = Workspace::new(host);
        configure(&ironic, &workspace, &rescue(&images.url("rescue.iso")));
        workspace.apply().await.succeeded();
        let held = workspace.resource(HELD).await.unwrap();
        assert_eq!(held["state"], "InMaintenance", "{held}");
        assert!(drive_is_filled(&ironic).await);
        let boots = simulator.boots(&system).unwrap();
        assert!(format!("{:?}", boots.last()).contains("/cdrom-"), "{boots:?}");
        workspace.destroy().await.succeeded();
        assert!(!drive_is_filled(&ironic).await);
        simulator.wait_power(&system, PowerState::On, SOON).await.expect("as it was");
        let node = ironic.node("n1").await;
        assert_eq!((&node["maintenance"], &node["power_state"]), (&json!(false), &json!("power on")));
    }
}

for_one_host! {
    async fn an_operation_and_the_data_sources_reach_a_node_of_ironic(host) {
        let ironic = Ironic::start(Options::default()).await;
        ironic.active_node("n1").await;
        let workspace = Workspace::new(host);
        configure(&ironic, &workspace, r#"
resource "metal_server_operation" "restart" {
  server    = "n1"
  namespace = "ops"
  name      = "off"
  policy    = "Enforced"
  operation = "ForceOff"
}
data "metal_servers" "all" {}
output "servers" { value = data.metal_servers.all }
"#);
        workspace.apply().await.succeeded().says("provision_state");
        let node = ironic.node("n1").await;
        assert_eq!((&node["power_state"], &node["maintenance"]), (&json!("power off"), &json!(false)));
    }
}

for_one_host! {
    async fn a_node_without_a_lock_key_fails_in_the_plan(host) {
        let ironic = Ironic::start(Options::default()).await;
        ironic.active_node("n2").await;
        let workspace = Workspace::new(host);
        configure(&ironic, &workspace, &maintenance("").replace("\"n1\"", "\"n2\""));
        let plan = workspace.try_plan().await.failed();
        plan.says("The lock key of n2 is missing").says("lock_keys = {").is_silent_about("The coordination store");
    }
}

for_one_host! {
    async fn a_flag_of_another_author_is_a_warning_of_its_own(host) {
        let ironic = Ironic::start(Options::default()).await;
        ironic.active_node("n1").await;
        let reason = json!({"reason": "disk swap by carol"});
        ironic.call(Method::PUT, "/v1/nodes/n1/maintenance", Some(reason)).await;
        let workspace = Workspace::new(host);
        configure(&ironic, &workspace, &maintenance(""));
        let plan = workspace.try_plan().await.succeeded();
        plan.says("A request will be rejected").says("disk swap by carol");
        workspace.apply().await.failed().says("disk swap by carol");
    }
}
