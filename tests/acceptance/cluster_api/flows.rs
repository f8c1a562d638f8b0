//! Complete flows on plain Redfish servers, from the plan to the uncordoned Node.

use bmc_simulator::PowerState;
use serde_json::json;

use super::{HELD, configure, place, traces};
use crate::{
    servers::cluster_api::{
        APPROVE_MAINTENANCE, MACHINE_MAINTENANCE, MAINTENANCE,
        world::{Options, World},
    },
    support::{
        simulator::{Fleet, SOON, maintenance},
        workspace::Workspace,
    },
};

/// Returns true if a Node has a maintenance label.
pub fn is_claimed(node: &serde_json::Value) -> bool {
    let labels = &node["metadata"]["labels"];
    !labels[MACHINE_MAINTENANCE].is_null() || !labels[APPROVE_MAINTENANCE].is_null()
}

for_one_host! {
    async fn the_nodes_of_machines_may_be_in_a_cluster_of_their_own(host) {
        let (world, fleet) = (World::with_workload_cluster(Options::default()).await, Fleet::new(1).await);
        world.add("m1").await;
        let mut workspace = Workspace::new(host);
        let off = maintenance("node1", "bios", "server_power = \"Off\"");
        let configured = |workspace: &Workspace, more: &str| {
            let machines = format!("machines = {{ node1 = \"{}/m1\" }}", world.namespace);
            fleet.configure_with(workspace, &format!("cluster_api = {{ {machines}{more} }}"), &off);
        };
        let (management, workload) = (world.kubeconfig().display(), world.workload_kubeconfig().display());
        configured(&workspace, &format!(", kubeconfig = \"{management}\", workload_context = \"elsewhere\""));
        workspace.try_plan().await.says("elsewhere");
        configured(&workspace, &format!(", kubeconfig = \"{management}\", workload_kubeconfig = \"{workload}\""));
        workspace.apply().await.succeeded();
        assert_eq!(world.maintenance("m1").await.as_deref(), Some("approved"));
        assert!(world.node("m1").await["spec"]["unschedulable"] == true, "its Node is drained, in the other cluster");
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown"]);

        // The management cluster does not contain the Machine's Node.
        configured(&workspace, &format!(", kubeconfig = \"{management}\""));
        workspace.destroy().await.failed().says("whose workload cluster is").says("set cluster_api.workload_context");
        configured(&workspace, &format!(", kubeconfig = \"{workload}\", workload_kubeconfig = \"{management}\""));
        workspace.destroy().await.failed().says("whose management cluster is");
        // The server was restored; the Machine waits for a run that reaches it.
        assert_eq!(world.maintenance("m1").await.as_deref(), Some("approved"));
        assert!(world.node("m1").await["spec"]["unschedulable"] == true);

        // Without configuration, the environment applies.
        configured(&workspace, "");
        workspace.set("METAL_CLUSTER_API_KUBECONFIG", management.to_string());
        workspace.set("METAL_WORKLOAD_KUBECONFIG", workload.to_string());
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::On);
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn a_node_is_drained_before_its_server_is_taken(host) {
        let (world, fleet) = place().await;
        let workspace = Workspace::new(host);
        configure(&world, &fleet, &workspace, &maintenance("node1", "bios", "server_power = \"Off\"")).await;
        workspace
            .try_plan()
            .await
            .succeeded()
            .says(&format!("Cluster API: Machine {}/m1, Running", world.namespace))
            .says("drains the Node and approves before the server is locked");

        world.withhold("m1").await;
        let apply = workspace.start_apply();
        apply.until_it_logs("waiting for the maintenance controller to approve", SOON * 2).await;
        assert_eq!(world.maintenance("m1").await.as_deref(), Some("requested"));
        assert_eq!(fleet.system("node1").power, PowerState::On);
        workspace.metal(&["queue"]).await.succeeded().says("the maintenance controller to approve");
        assert!(fleet.changes("node1").is_empty(), "{:?}", fleet.changes("node1"));

        world.allow("m1").await;
        apply.wait(SOON * 4).await.succeeded();
        assert_eq!(workspace.resource(HELD).await.unwrap()["state"], "InMaintenance");
        assert_eq!(fleet.system("node1").power, PowerState::Off);
        assert_eq!(world.maintenance("m1").await.as_deref(), Some("approved"));
        let guards = world.machine("m1").await["metadata"]["annotations"].clone();
        assert!(guards["cluster.x-k8s.io/skip-remediation"].is_string(), "{guards}");
        workspace.plan().await.is_empty();

        workspace.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::On);
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());
        assert!(!is_claimed(&world.node("m1").await));
        let node = world.node_name("m1");
        world
            .always("approved Nodes are cordoned, and Machines with a request skip remediation", |moment| {
                let Some(machine) = moment.get(&("Machine", "m1".to_owned())) else { return true };
                let cordoned = moment.get(&("Node", node.clone())).is_some_and(|node| node.cordoned);
                let guarded = machine.annotations.contains_key("cluster.x-k8s.io/skip-remediation");
                match machine.label(MAINTENANCE) {
                    None => true,
                    Some("approved") => guarded && cordoned,
                    Some(_) => guarded,
                }
            })
            .await;
    }
}

for_one_host! {
    async fn an_operation_asks_too_and_frees_the_node_before_its_server(host) {
        let (world, fleet) = place().await;
        let workspace = Workspace::new(host);
        let operation = |operation: &str| {
            format!(
                "resource \"metal_server_operation\" \"once\" {{\n  server = \"node1\"\n  namespace = \"ops\"\n  name = \
                 \"{operation}\"\n  policy = \"Enforced\"\n  operation = \"{operation}\"\n}}\n"
            )
        };
        configure(&world, &fleet, &workspace, &operation("PowerCycle")).await;
        workspace.apply().await.succeeded();
        assert_eq!(fleet.resets("node1").len(), 1, "{:?}", fleet.resets("node1"));
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());
        let asked = || world.journal.changes().iter().filter(|it| it.words.iter().any(|it| it.contains("requested"))).count();
        assert_eq!(asked(), 1);
        // Powering on stops nothing.
        configure(&world, &fleet, &workspace, &operation("On")).await;
        workspace.apply().await.succeeded();
        assert_eq!(asked(), 1);
    }
}

for_one_host! {
    async fn a_boot_configuration_that_restarts_keeps_its_machine_in_maintenance(host) {
        let (world, fleet) = place().await;
        let workspace = Workspace::new(host);
        let boot = |more: &str| {
            format!(
                "resource \"metal_server_boot_configuration\" \"rescue\" {{\n  server = \"node1\"\n  policy = \"Enforced\"\n  method = \"pxe\"\n  once = true\n  {more}\n}}\n"
            )
        };
        configure(&world, &fleet, &workspace, &boot("")).await;
        workspace.apply().await.succeeded();
        assert!(world.maintenance("m1").await.is_none(), "only the next boot is changed");
        configure(&world, &fleet, &workspace, &boot("server_power = \"On\"")).await;
        workspace.apply().await.failed().says("Replace the resource");
        assert!(fleet.resets("node1").is_empty(), "{:?}", fleet.resets("node1"));
        workspace.destroy().await.succeeded();

        workspace.try_plan().await.succeeded().says("the server is locked as long as this resource exists");
        workspace.apply().await.succeeded();
        assert_eq!(world.maintenance("m1").await.as_deref(), Some("approved"));
        assert!(!fleet.resets("node1").is_empty());
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());
        assert_eq!(fleet.system("node1").power, PowerState::On);
    }
}

for_one_host! {
    async fn a_boot_configuration_stops_no_machine_that_came_after_it(host) {
        let (world, fleet) = place().await;
        let workspace = Workspace::new(host);
        let boot = |once: bool| {
            format!(
                "resource \"metal_server_boot_configuration\" \"rescue\" {{\n  server = \"node1\"\n  policy = \"Enforced\"\n  method = \"pxe\"\n  once = {once}\n  server_power = \"On\"\n}}\n"
            )
        };
        // The server runs no workload yet, and the lock is released after the boot.
        fleet.configure(&workspace, &boot(true));
        workspace.apply().await.succeeded();
        let before = fleet.resets("node1");
        configure(&world, &fleet, &workspace, &boot(false)).await;
        workspace.apply().await.failed().says("Cluster API").says("did not receive a request");
        workspace.destroy().await.failed().says("Cluster API").says("did not receive a request");
        assert_eq!(fleet.resets("node1"), before, "its Node is not drained");
        assert!(world.maintenance("m1").await.is_none());
        fleet.configure(&workspace, &boot(true));
        workspace.destroy().await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::On);
    }
}

for_one_host! {
    async fn what_never_answers_is_refused_and_what_may_answer_is_waited_for(host) {
        let (world, fleet) = place().await;
        let workspace = Workspace::new(host);
        let short = "server_power = \"Off\"\n  timeouts = { create = \"5s\" }";
        configure(&world, &fleet, &workspace, &maintenance("node1", "bios", short)).await;
        let enabled = "runtime-extension-maintenance-controller.cloud.sap/enabled";
        world.label_machine("m1", json!({ enabled: null })).await;
        workspace.try_plan().await.succeeded().says("A request will be rejected").says(enabled);
        workspace.apply().await.failed().says(enabled);
        world.label_machine("m1", json!({ enabled: "true" })).await;

        // A leftover approval would approve this maintenance immediately.
        world.label_node("m1", json!({ APPROVE_MAINTENANCE: "true" })).await;
        workspace.try_plan().await.succeeded().says("approve-maintenance of an earlier maintenance");
        workspace.apply().await.failed().says("timeouts.create").says("approve-maintenance of an earlier maintenance");
        assert!(world.maintenance("m1").await.is_none());
        world.label_node("m1", json!({ APPROVE_MAINTENANCE: null })).await;

        // Another author's request.
        world.withhold("m1").await;
        world.label_machine("m1", json!({ MAINTENANCE: "requested" })).await;
        workspace.apply().await.failed().says("another author requested maintenance");
        assert_eq!(world.maintenance("m1").await.as_deref(), Some("requested"), "another author's label was removed");
        world.label_machine("m1", json!({ MAINTENANCE: null })).await;
        world.until_node("m1", "the Machine is free", |node| !is_claimed(node)).await;

        // Not approved in time: the queue position and the request are kept for the next run.
        workspace.apply().await.failed().says("the maintenance controller to approve");
        assert_eq!(world.maintenance("m1").await.as_deref(), Some("requested"));
        assert!(fleet.changes("node1").is_empty(), "{:?}", fleet.changes("node1"));
        world.allow("m1").await;
        workspace.apply().await.succeeded();
        workspace.destroy().await.succeeded();
        assert_eq!(traces(&world, "m1").await, Vec::<String>::new());
    }
}

for_one_host! {
    async fn a_wrong_block_is_refused_where_it_is_wrong(host) {
        let (world, fleet) = place().await;
        let workspace = Workspace::new(host);
        let body = maintenance("node1", "bios", "");
        for (block, problem) in [
            ("cluster_api = { machines = { node1 = \"m1\" } }", "is not the namespace/name of a Machine"),
            ("cluster_api = { machines = { node1 = \"ns/m1\" }, context = \"\" }", "context"),
            (
                "cluster_api = { machines = { node1 = \"ns/m1\" } }\n  kubernetes_node = { nodes = { node1 = \"n1\" } }",
                "remove the server from one",
            ),
        ] {
            fleet.configure_with(&workspace, block, &body);
            workspace.run(&["validate", "-no-color"]).await.failed().says(problem);
        }
        fleet.configure_with(&workspace, &crate::cluster_api::asks(&world, "m9").await, &body);
        workspace.apply().await.failed().says(&format!("Machine {}/m9 does not exist", world.namespace));
    }
}
