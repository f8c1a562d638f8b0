//! Kills the provider at each step into and out of both systems. The next run continues, nothing
//! is repeated, and no marks remain.

use bmc_simulator::PowerState;

use super::{
    HELD,
    chain::{configure, place},
    traces,
};
use crate::{
    servers::{
        cluster_api::{MAINTENANCE, world::World},
        kubernetes::Kubernetes,
        metal3,
    },
    support::{
        simulator::{Fleet, SOON, maintenance},
        wait::eventually,
        workspace::Workspace,
    },
};

/// Log messages at which a run is killed.
const ON_THE_WAY_IN: [&str; 5] = [
    "request it from Cluster API",
    "granted by Cluster API",
    "lock acquired",
    "entering its external system",
    "setting the power",
];
const ON_THE_WAY_OUT: [&str; 3] = ["restoring the power", "leaving its external system", "delete the external request"];

/// Asserts the order: approval before detaching, and drain before power-off.
async fn kept_order(hosts: &metal3::world::World, machines: &World) {
    machines
        .always("a detached host is approved", |moment| {
            let mut hosts = moment.iter().filter(|((kind, _), _)| *kind == "BareMetalHost");
            let detached = hosts.any(|(_, marks)| marks.annotations.contains_key(metal3::world::DETACHED));
            let machine = moment.get(&("Machine", "m1".to_owned()));
            !detached || machine.and_then(|it| it.label(MAINTENANCE)) == Some("approved")
        })
        .await;
    assert_eq!(traces(machines, "m1").await, Vec::<String>::new());
    assert_eq!(hosts.traces("node1").await, Vec::<String>::new());
}

for_one_host! {
    async fn a_run_that_is_killed_anywhere_in_the_chain_is_continued(host) {
        let (hosts, machines) = place(false).await;
        let fleet = Fleet { simulator: hosts.simulator.clone() };
        let workspace = Workspace::new(host);
        configure(&hosts, &workspace, &maintenance("node1", "bios", "server_power = \"Off\""));
        // On a busy machine the killed run can reach a later message first, but never the end.
        for from in 0..ON_THE_WAY_IN.len() {
            let apply = workspace.start_apply();
            apply.until_it_logs_one_of_or_ends(&ON_THE_WAY_IN[from..], SOON * 2).await;
            apply.kill_everything();
        }
        workspace.apply().await.succeeded();
        assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
        assert_eq!(fleet.system("node1").power, PowerState::Off);
        let offs = fleet.resets("node1").into_iter().filter(|kind| kind.contains("Shutdown") || kind == "ForceOff");
        assert_eq!(offs.count(), 1, "{:?}", fleet.resets("node1"));
        for from in 0..ON_THE_WAY_OUT.len() {
            let destroy = workspace.start_destroy();
            destroy.until_it_logs_one_of_or_ends(&ON_THE_WAY_OUT[from..], SOON * 2).await;
            destroy.kill_everything();
        }
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::On);
        kept_order(&hosts, &machines).await;
    }
}

for_one_host! {
    async fn a_request_whose_run_is_gone_is_withdrawn_by_prune(host) {
        let (world, fleet) = crate::cluster_api::place().await;
        let workspace = Workspace::new(host);
        let short = "server_power = \"Off\"\n  hold_place_for = \"1s\"";
        crate::cluster_api::configure(&world, &fleet, &workspace, &maintenance("node1", "bios", short)).await;
        world.withhold("m1").await;
        let apply = workspace.start_apply();
        apply.until_it_logs("waiting for the maintenance controller to approve", SOON * 2).await;
        apply.kill_everything();
        drop(apply);
        assert_eq!(world.maintenance("m1").await.as_deref(), Some("requested"));
        let mut operator = workspace.beside();
        fleet.command_line(&mut operator);
        // With the matching role, which covers one namespace.
        let runner = Kubernetes::shared().user("ci", &["metal-runners"]);
        operator.set("METAL_CLUSTER_API_KUBECONFIG", runner.display().to_string());
        operator.metal(&["prune"]).await.failed().says("Set METAL_CLUSTER_API_NAMESPACE");
        operator.set("METAL_CLUSTER_API_NAMESPACE", &world.namespace);
        eventually("all of our annotations and labels are removed", SOON * 4, async || {
            operator.metal(&["prune"]).await.succeeded();
            traces(&world, "m1").await.is_empty().then_some(())
        })
        .await;
        assert!(fleet.changes("node1").is_empty(), "{:?}", fleet.changes("node1"));
    }
}

for_one_host! {
    async fn a_person_completes_or_releases_a_hold_and_its_machine_is_free(host) {
        for completes in [true, false] {
            let (world, fleet) = crate::cluster_api::place().await;
            let workspace = Workspace::new(host);
            let body = maintenance("node1", "bios", "server_power = \"Off\"");
            crate::cluster_api::configure(&world, &fleet, &workspace, &body).await;
            workspace.apply().await.succeeded();
            let mut operator = workspace.beside();
            fleet.configure_with(&operator, "", "");
            fleet.command_line(&mut operator);
            operator.set("METAL_CLUSTER_API_KUBECONFIG", world.kubeconfig().display().to_string());
            if completes {
                operator.metal(&["release", "tests/bios"]).await.succeeded();
            } else {
                let generation = operator.generation("tests/bios").await;
                let forced = ["release", "tests/bios", "--force", "--generation", &generation, "--reason", "node needed"];
                operator.metal(&forced).await.succeeded().says("is in its prior state");
            }
            assert_eq!(fleet.system("node1").power, PowerState::On);
            assert_eq!(traces(&world, "m1").await, Vec::<String>::new());
        }
    }
}
