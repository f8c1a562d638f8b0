//! A Node that an ended maintenance left cordoned, that a person uncordoned before the release, or
//! that is not Ready again in time.

use std::sync::atomic::Ordering;

use bmc_simulator::PowerState;
use serde_json::json;

use super::{OFF, Place};
use crate::support::{
    simulator::{Fleet, SOON, maintenance},
    workspace::Workspace,
};

const ON: &str = "server_power = \"On\"";

for_one_host! {
    async fn a_node_that_an_ended_hold_left_cordoned_is_the_next_ones_to_uncordon(host) {
        let (place, fleet, mut workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        fleet.configure_with(&workspace, &place.drained(""), &maintenance("node1", "first", ON));
        workspace.apply().await.succeeded();
        fleet.command_line(&mut workspace);
        workspace.set("METAL_NODE_KUBECONFIG", place.cluster.user("drainer", &["metal-runners"]).display().to_string());
        let generation = workspace.resource("metal_server_maintenance.held").await.unwrap()["generation"].to_string();
        let as_is = ["release", "tests/first", "--force", "--generation", &generation, "--accept-as-is", "--reason", "test"];
        workspace.metal(&as_is).await.succeeded();
        assert!(place.cordoned().await);

        let next = workspace.beside();
        fleet.configure_with(&next, &place.drained(""), &maintenance("node1", "next", OFF));
        next.apply().await.succeeded();
        let nothing = "No Node is cordoned for a maintenance that has ended";
        workspace.metal(&["prune", "--nodes"]).await.succeeded().says(nothing);
        assert!(place.cordoned().await, "its server is held");
        next.destroy().await.succeeded();
        assert_eq!((place.cordoned().await, place.marks().await), (false, 0));
    }
}

for_one_host! {
    async fn a_node_that_a_person_opened_is_drained_again_before_a_release_stops_its_server(host) {
        // A Node cordoned by another author is drained and uncordoned as well.
        for before in [false, true] {
            let (place, fleet, workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
            if before {
                place.cordon(true).await;
            }
            let boots = format!("{ON}\n  boot_configuration = {{ method = \"pxe\" }}");
            fleet.configure_with(&workspace, &place.drained(""), &maintenance("node1", "m", &boots));
            workspace.apply().await.succeeded();
            let resets = fleet.resets("node1");
            place.cordon(false).await;
            place.pod("db", Some("StatefulSet"), json!({})).await;
            place.budget("db", 0).await;
            let destroy = workspace.start(&["destroy", "-auto-approve", "-input=false", "-no-color"]);
            destroy.until_it_logs("disruption budget", SOON).await;
            assert_eq!((place.cordoned().await, fleet.resets("node1")), (true, resets), "the server was reset before the second drain ended");
            place.budget("db", 1).await;
            destroy.wait(SOON * 2).await.succeeded();
            assert_eq!((fleet.system("node1").power, place.names().await), (PowerState::On, vec![]));
            assert_eq!((place.cordoned().await, place.marks().await), (false, 0));
        }
    }
}

for_one_host! {
    async fn a_node_that_is_not_ready_in_time_stays_cordoned_until_the_next_destroy(host) {
        let (place, fleet, workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        fleet.configure_with(&workspace, &place.drained("ready_timeout = \"2s\""), &maintenance("node1", "m", OFF));
        workspace.apply().await.succeeded();
        place.went_down().await;
        workspace.destroy().await.failed().says("was not Ready again within 2 s");
        assert!(place.cordoned().await && place.marks().await > 0);
        assert_eq!(fleet.system("node1").power, PowerState::On, "its server is restored");
        workspace.metal(&["queue"]).await.succeeded().says("was not Ready again");

        // The next destroy waits for the full time again, and continues if the kubelet reports.
        workspace.destroy().await.failed().says("was not Ready again within 2 s");
        place.kubelet.up.store(true, Ordering::SeqCst);
        workspace.destroy().await.succeeded();
        assert_eq!((place.cordoned().await, place.marks().await), (false, 0));
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On"]);
    }
}
