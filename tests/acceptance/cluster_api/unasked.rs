//! A host used by a Machine, with a configuration that does not request the Machine.

use serde_json::json;

use super::chain::{configure, place};
use crate::{
    metal3,
    servers::cluster_api::world::CLUSTER,
    support::{run::Run, simulator::maintenance, workspace::Workspace},
};

const NOT_DRAINED: &str = "A Node of Cluster API is not drained";
const REMEDIATED: &str = "A health check may replace the Machine";

fn warns(run: &Run, drained: bool, remediated: bool) {
    let words = run.words();
    assert_eq!((!words.contains(NOT_DRAINED), words.contains(REMEDIATED)), (drained, remediated), "{words}");
}

for_one_host! {
    async fn a_plan_warns_where_the_machine_of_a_host_is_not_asked(host) {
        let (hosts, machines) = place(false).await;
        let workspace = Workspace::new(host);
        let held = maintenance("node1", "bios", "");
        let plan = async |body: &str| {
            metal3::configure(&hosts, &workspace, body);
            workspace.try_plan().await.succeeded()
        };
        let without = plan(&held).await;
        warns(&without, false, false);
        without.says(&format!("Metal3Machine {}/m1 uses the host", machines.namespace)).says("Set cluster_api");

        // Another cluster's check does not count; CAPM3 labels the host with its own.
        let check = |of: &str| json!({"spec": {"clusterName": of, "selector": {}}});
        let label = json!({"metadata": {"labels": {"cluster.x-k8s.io/cluster-name": CLUSTER}}});
        hosts.merge("BareMetalHost", "node1", label).await;
        machines.create("MachineHealthCheck", "other", check("another")).await;
        warns(&plan(&held).await, false, false);
        machines.create("MachineHealthCheck", "nodes", check(CLUSTER)).await;
        let checked = plan(&held).await;
        warns(&checked, false, true);
        checked.says(&format!("MachineHealthCheck {}/nodes may remediate", machines.namespace));

        // All operations that stop the host warn, others do not.
        let operation = |what: &str| {
            format!(
                "resource \"metal_server_operation\" \"once\" {{\n  server = \"node1\"\n  namespace = \"ops\"\n  name = \
                 \"once\"\n  policy = \"Enforced\"\n  operation = \"{what}\"\n}}\n"
            )
        };
        warns(&plan(&operation("PowerCycle")).await, false, true);
        warns(&plan(&operation("On")).await, true, false);
        let boot = |more: &str| {
            format!(
                "resource \"metal_server_boot_configuration\" \"rescue\" {{\n  server = \"node1\"\n  policy = \"Enforced\"\n  \
                 method = \"pxe\"\n  once = true\n  {more}\n}}\n"
            )
        };
        warns(&plan(&boot("server_power = \"On\"")).await, false, true);
        warns(&plan(&boot("")).await, true, false);

        // A HostClaim leads to no Machine, so cluster_api does not drain its Node.
        let consumer = hosts.host("node1").await["spec"]["consumerRef"].clone();
        let claim = json!({"kind": "HostClaim", "apiVersion": "metal3.io/v1alpha1", "name": "c1", "namespace": hosts.namespace});
        hosts.merge("BareMetalHost", "node1", json!({"spec": {"consumerRef": claim}})).await;
        configure(&hosts, &workspace, &held);
        let claimed = workspace.try_plan().await.succeeded();
        claimed.says("A Node of a HostClaim is not drained").says("It does not lead to a Machine");
        hosts.merge("BareMetalHost", "node1", json!({"spec": {"consumerRef": consumer}})).await;

        // With the Machine asked there is nothing to warn of.
        configure(&hosts, &workspace, &held);
        warns(&workspace.try_plan().await.succeeded(), true, false);
    }
}
