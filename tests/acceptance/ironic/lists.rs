//! `terraform query` on Ironic nodes: finds a lost state's objects and imports them by identity.

use serde_json::json;

use super::{configure, maintenance};
use crate::{
    lists::{beside_a_maintenance, import_what_is_found},
    servers::ironic::{Ironic, Options},
    support::{host::Host, workspace::Workspace},
};

#[tokio::test]
async fn a_lost_state_of_nodes_is_found_and_imported_again() {
    let ironic = Ironic::start(Options::default()).await;
    ironic.active_node("n1").await;
    let workspace = Workspace::new(Host::Terraform);
    configure(&ironic, &workspace, &(maintenance("server_power = \"Off\"") + &beside_a_maintenance("n1")));
    workspace.apply().await.succeeded();
    let held = ironic.node("n1").await;
    assert_eq!((&held["maintenance"], &held["power_state"]), (&json!(true), &json!("power off")));

    let lost = workspace.beside();
    configure(&ironic, &lost, "");
    let found = [
        "ops/bios: n1, InMaintenance (BIOS 2.19)",
        "ops/bios.boot: n1, Ready",
        "db/primary: n1, of default",
        "n1: everything, InForce",
    ];
    import_what_is_found(&lost, &found, 4).await;
    let node = ironic.node("n1").await;
    for kept in ["maintenance_reason", "power_state"] {
        assert_eq!(node[kept], held[kept], "neither a query nor an import touches a node");
    }
    lost.destroy().await.succeeded();
    let node = ironic.node("n1").await;
    assert_eq!((&node["maintenance"], &node["power_state"]), (&json!(false), &json!("power on")));
}
