//! `terraform query` with Machines: finds and imports a lost state's objects while the Machine
//! stays in maintenance.

use super::{configure, place, traces};
use crate::{
    lists::{beside_a_maintenance, import_what_is_found},
    support::{
        host::Host,
        simulator::{SOON, maintenance},
        wait::eventually,
        workspace::Workspace,
    },
};

#[tokio::test]
async fn a_lost_state_of_machines_is_found_and_imported_again() {
    let (world, fleet) = place().await;
    let workspace = Workspace::new(Host::Terraform);
    let body = maintenance("node1", "m", "reason = \"disk swap\"") + &beside_a_maintenance("node1");
    configure(&world, &fleet, &workspace, &body).await;
    workspace.apply().await.succeeded();
    let asked = traces(&world, "m1").await;
    assert_ne!(asked, [""; 0]);
    let requests = fleet.changes("node1").len();

    let lost = workspace.beside();
    configure(&world, &fleet, &lost, "").await;
    let found = [
        "tests/m: node1, InMaintenance (disk swap)",
        "tests/m.boot: node1, Ready",
        "db/primary: node1, of default",
        "node1: everything, InForce",
    ];
    import_what_is_found(&lost, &found, 4).await;
    assert_eq!(traces(&world, "m1").await, asked);
    assert_eq!(fleet.changes("node1").len(), requests, "neither a query nor an import touches a server");
    lost.destroy().await.succeeded();
    eventually("the Machine is free", SOON, async || traces(&world, "m1").await.is_empty().then_some(())).await;
}
