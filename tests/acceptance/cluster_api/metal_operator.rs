//! Cluster API with metal-operator: the Node is drained before the owner's approval is requested,
//! and uncordoned after the operator has the server again.

use bmc_simulator::PowerState;

use super::{HELD, asks, flows::is_claimed, traces};
use crate::{
    metal_operator::{approvals::claimed, configure_with, maintenance},
    servers::{
        cluster_api::world::{Options, World},
        ironcore::{
            self,
            api::{Key, Object},
            family::Family,
        },
    },
    support::{simulator::SOON, wait::eventually, workspace::Workspace},
};

/// This test's finalizer.
const KEEP: &str = "example.com/keep";

/// Creates a server `node1` that metal-operator manages for an owner, as Machine `m1`, and
/// configures it.
async fn place(workspace: &Workspace) -> (ironcore::world::World, World) {
    let operated = claimed(Family::V0_7).await;
    let machines = World::start(Options::default()).await;
    machines.add("m1").await;
    let asks = asks(&machines, "m1").await;
    configure_with(&operated, workspace, &asks, &maintenance("OwnerApproval", "server_power = \"Off\""));
    (operated, machines)
}

/// Waits for the request to metal-operator.
async fn until_asked(operated: &ironcore::world::World) -> Key {
    eventually("a ServerMaintenance exists", SOON * 4, async || {
        operated.list(operated.maintenances()).await.first().map(Key::of)
    })
    .await
}

for_one_host! {
    async fn the_owner_of_a_server_is_asked_once_its_node_is_drained(host) {
        let workspace = Workspace::new(host);
        let (operated, machines) = place(&workspace).await;
        let plan = workspace.try_plan().await.succeeded();
        plan.says("Cluster API: Machine").says("claimed by owners/claim1: no approval yet");

        machines.withhold("m1").await;
        let apply = workspace.start_apply();
        apply.until_it_logs("waiting for the maintenance controller to approve", SOON * 2).await;
        assert!(operated.list(operated.maintenances()).await.is_empty(), "the Node is not drained yet");
        machines.allow("m1").await;
        until_asked(&operated).await;
        assert_eq!(machines.maintenance("m1").await.as_deref(), Some("approved"));
        operated.approve("owners", "claim1").await;
        apply.wait(SOON * 4).await.succeeded();
        assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
        assert_eq!(operated.simulator.system("node1").unwrap().power, PowerState::Off);
        workspace.plan().await.is_empty();

        // While a finalizer keeps the request, the Node stays drained.
        let requests = operated.maintenances();
        let request = until_asked(&operated).await;
        let found = operated.object(requests, &request).await;
        operated.cluster.finalizer(requests, &found, KEEP, true).await.unwrap();
        let destroy = workspace.start_destroy();
        let left = |object: &Object| {
            object.metadata.deletion_timestamp.is_some() && object.metadata.finalizers.as_deref() == Some(&[KEEP.to_owned()])
        };
        let kept = operated.until(requests, &request, "kept by our finalizer alone", left).await;
        operated.until_state("node1", "Reserved").await;
        assert_eq!(machines.maintenance("m1").await.as_deref(), Some("approved"));
        operated.cluster.finalizer(requests, &kept, KEEP, false).await.unwrap();
        destroy.wait(SOON * 4).await.succeeded();
        assert_eq!(traces(&machines, "m1").await, Vec::<String>::new());
        assert!(!is_claimed(&machines.node("m1").await));
        assert_eq!(operated.marks("owners", "claim1").await, Vec::<String>::new());
        assert_eq!(operated.simulator.system("node1").unwrap().power, PowerState::On);
    }
}

for_one_host! {
    async fn a_run_that_is_killed_while_it_waits_for_the_owner_is_continued(host) {
        let workspace = Workspace::new(host);
        let (operated, machines) = place(&workspace).await;
        let apply = workspace.start_apply();
        let asked = until_asked(&operated).await;
        apply.kill_everything();
        apply.wait(SOON).await;
        assert_eq!(machines.maintenance("m1").await.as_deref(), Some("approved"), "nothing was withdrawn");

        operated.approve("owners", "claim1").await;
        workspace.apply().await.succeeded();
        assert_eq!(until_asked(&operated).await, asked, "the killed run's request is reused");
        workspace.destroy().await.succeeded();
        assert_eq!(traces(&machines, "m1").await, Vec::<String>::new());
        assert!(operated.list(operated.maintenances()).await.is_empty());
        operated.until_state("node1", "Reserved").await;
    }
}
