//! A Machine keeps its label until its Node is Ready again, because the maintenance-controller
//! uncordons the Node when the label is removed.

use bmc_simulator::PowerState;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

use super::{asks, configure, place, traces};
use crate::{
    servers::cluster_api::world::World,
    support::{
        simulator::{Fleet, SOON, maintenance},
        workspace::Workspace,
    },
};

const OFF: &str = "server_power = \"Off\"";
pub(super) const WAITS: &str = "to be Ready again before the maintenance label of Machine";

/// Sets the Node's Ready condition in the API server.
pub(super) async fn set_ready(world: &World, ready: bool) {
    let status = if ready { "True" } else { "Unknown" };
    let conditions = json!({ "status": { "conditions": [{ "type": "Ready", "status": status }] } });
    let nodes: Api<Node> = Api::all(world.workload.clone());
    nodes.patch_status(&world.node_name("m1"), &PatchParams::default(), &Patch::Merge(conditions)).await.unwrap();
}

/// Renews the Node's Lease, like a kubelet.
pub(super) async fn beat(world: &World) {
    let node = world.node_name("m1");
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": node },
        "spec": { "holderIdentity": node, "renewTime": format!("{:.6}", jiff::Timestamp::now()) },
    });
    let leases: Api<Lease> = Api::namespaced(world.workload.clone(), "kube-node-lease");
    leases.patch(&node, &PatchParams::apply("kubelet").force(), &Patch::Apply(lease)).await.unwrap();
}

/// Returns a server whose Node is Ready.
async fn running() -> (World, Fleet) {
    let (world, fleet) = place().await;
    beat(&world).await;
    set_ready(&world, true).await;
    (world, fleet)
}

for_one_host! {
    async fn a_machine_keeps_its_label_until_its_node_is_ready_again(host) {
        let ((world, fleet), workspace) = (running().await, Workspace::new(host));
        configure(&world, &fleet, &workspace, &maintenance("node1", "bios", OFF)).await;
        workspace.apply().await.succeeded();
        set_ready(&world, false).await;
        let destroy = workspace.start_destroy();
        destroy.until_it_logs(WAITS, SOON).await;
        assert_eq!(fleet.system("node1").power, PowerState::On);
        // A condition from before the restart does not prove that the kubelet runs.
        set_ready(&world, true).await;
        destroy.until_it_logs("waiting for the kubelet of Node", SOON).await;
        assert_eq!(world.maintenance("m1").await.as_deref(), Some("approved"));
        assert!(world.node("m1").await["spec"]["unschedulable"] == true);
        set_ready(&world, false).await;
        // The next run continues this wait after a kill.
        destroy.kill_everything();
        drop(destroy);
        assert_eq!(world.maintenance("m1").await.as_deref(), Some("approved"));
        let destroy = workspace.start_destroy();
        destroy.until_it_logs(WAITS, SOON * 2).await;
        set_ready(&world, true).await;
        beat(&world).await;
        destroy.wait(SOON * 2).await.succeeded();
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On"]);
    }
}

for_one_host! {
    async fn a_node_that_does_not_come_back_is_told_and_keeps_its_label(host) {
        let ((world, fleet), workspace) = (running().await, Workspace::new(host));
        let short = asks(&world, "m1").await.replace("cluster_api = {", "cluster_api = { ready_timeout = \"2s\",");
        fleet.configure_with(&workspace, &short, &maintenance("node1", "bios", OFF));
        workspace.apply().await.succeeded();
        set_ready(&world, false).await;
        workspace.destroy().await.failed().says("was not Ready again within 2 s").says("so the maintenance label of Machine");
        assert_eq!(world.maintenance("m1").await.as_deref(), Some("approved"));
        workspace.metal(&["queue"]).await.succeeded().says("was not Ready again");
        // The next destroy waits for the full time again.
        let destroy = workspace.start_destroy();
        destroy.until_it_logs(WAITS, SOON * 2).await;
        destroy.wait(SOON * 2).await.failed().says("was not Ready again within 2 s");
        assert_eq!(world.maintenance("m1").await.as_deref(), Some("approved"));
        // A Node deleted by a person is not awaited.
        let nodes: Api<Node> = Api::all(world.workload.clone());
        nodes.delete(&world.node_name("m1"), &DeleteParams::default()).await.unwrap();
        workspace.destroy().await.succeeded();
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn a_server_that_stays_off_or_whose_node_was_away_is_not_waited_for(host) {
        let ((world, fleet), workspace) = (running().await, Workspace::new(host));
        set_ready(&world, false).await;
        configure(&world, &fleet, &workspace, &maintenance("node1", "bios", OFF)).await;
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded().is_silent_about(WAITS);
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());

        set_ready(&world, true).await;
        let off = "resource \"metal_server_operation\" \"off\" {\n  server = \"node1\"\n  namespace = \"ops\"\n  name = \"off\"\n  \
                   policy = \"Enforced\"\n  operation = \"ForceOff\"\n}\n";
        configure(&world, &fleet, &workspace, off).await;
        workspace.apply().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::Off);
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn a_release_without_a_restore_frees_the_machine_at_once_and_says_so(host) {
        let ((world, fleet), workspace) = (running().await, Workspace::new(host));
        configure(&world, &fleet, &workspace, &maintenance("node1", "bios", OFF)).await;
        workspace.apply().await.succeeded();
        set_ready(&world, false).await;
        let mut operator = workspace.beside();
        fleet.configure_with(&operator, "", "");
        fleet.command_line(&mut operator);
        operator.set("METAL_CLUSTER_API_KUBECONFIG", world.kubeconfig().display().to_string());
        let generation = operator.generation("tests/bios").await;
        let as_is = ["release", "tests/bios", "--force", "--generation", &generation, "--accept-as-is", "--reason", "scrapped"];
        operator.metal(&as_is).await.succeeded().says("the maintenance controller can uncordon the Node now").says("Taint the Node");
        assert_eq!(fleet.system("node1").power, PowerState::Off);
        assert_eq!(world.maintenance("m1").await, None);
    }
}
