//! Nodes on the servers: the provider respects and acquires the Leases shared by medik8s
//! operators.

use bmc_simulator::{Fault, HeldQuery, Phase, PowerState};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::DeleteParams};
use serde_json::json;

use crate::{
    metal3::HELD,
    servers::kubernetes::Kubernetes,
    support::{
        host::Host,
        simulator::{Fleet, SOON, maintenance},
        wait::eventually,
        workspace::Workspace,
    },
};

/// A cluster with a store and a Node that runs on `node1`.
struct Place {
    cluster: &'static Kubernetes,
    namespace: String,
    node: String,
    leases: Api<Lease>,
}

impl Place {
    async fn new() -> Self {
        let cluster = Kubernetes::shared();
        let namespace = cluster.namespace();
        let node = format!("worker-{namespace}");
        cluster.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}).to_string());
        let leases = Api::namespaced(Kubernetes::client(&cluster.kubeconfig()).await, &namespace);
        Self { cluster, namespace, node, leases }
    }

    /// Creates a workspace on a separate machine.
    fn machine(&self, host: Host) -> Workspace {
        let mut workspace = Workspace::new(host);
        workspace.set("METAL_COORDINATION_URL", self.cluster.store(&self.namespace));
        workspace
    }

    /// Returns the provider's arguments.
    fn minded(&self, more: &str) -> String {
        let Self { node, namespace, .. } = self;
        format!("node_leases = {{ nodes = {{ node1 = \"{node}\" }}, namespace = \"{namespace}\", {more} }}")
    }

    fn name(&self) -> String {
        format!("node-{}", self.node)
    }

    async fn lease(&self) -> Option<Lease> {
        self.leases.get_opt(&self.name()).await.unwrap()
    }

    /// Returns the Node's Lease holder.
    async fn holder(&self) -> Option<String> {
        self.lease().await?.spec?.holder_identity
    }

    /// Acquires the Lease like a medik8s operator, for one hour.
    fn hold(&self, since: jiff::Timestamp) {
        let spec = json!({
            "holderIdentity": "node-maintenance", "leaseDurationSeconds": 3600, "leaseTransitions": 4,
            "acquireTime": format!("{since:.6}"), "renewTime": format!("{since:.6}"),
        });
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.name()}, "spec": spec,
        });
        self.cluster.apply_in(&self.namespace, &lease.to_string());
    }

    async fn delete(&self) {
        self.leases.delete(&self.name(), &DeleteParams::default()).await.unwrap();
    }
}

for_one_host! {
    async fn somebody_elses_lease_is_waited_for_and_then_taken(host) {
        let (place, fleet) = (Place::new().await, Fleet::new(1).await);
        let (workspace, other) = (place.machine(host), place.machine(host));
        place.hold(jiff::Timestamp::now());
        let held = maintenance("node1", "m", "server_power = \"Off\"");
        fleet.configure_with(&workspace, &place.minded("take = true"), &held);
        let plan = workspace.plan().await;
        plan.run.says(&format!("Node: {}, held by \"node-maintenance\" since", place.node));
        plan.run.says("its Lease is taken for the maintenance");

        let waiting = workspace.start_apply();
        waiting.until_it_logs("waiting for its Node", SOON).await;
        workspace.metal(&["queue"]).await.succeeded().says(&format!("Node {}, held by \"node-maintenance\"", place.node));
        // Other servers do not wait.
        fleet.configure(&other, &maintenance("node1", "other", "server_power = \"Off\""));
        other.apply().await.succeeded();
        other.destroy().await.succeeded();
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On"]);
        assert_eq!(place.holder().await.as_deref(), Some("node-maintenance"));

        place.delete().await;
        waiting.wait(SOON).await.succeeded();
        assert_eq!(fleet.system("node1").power, PowerState::Off);
        let holder = place.holder().await.unwrap();
        assert!(holder.starts_with("metal/tests/m/"), "{holder}");
        let spec = place.lease().await.unwrap().spec.unwrap();
        assert_eq!(spec.lease_duration_seconds, Some(i32::MAX), "the Lease expires although the maintenance outlives its process");
        workspace.plan().await.is_empty().run.is_silent_about("Lease");

        // Without its Lease, other operators can act on the Node: the plan locks the server again.
        place.delete().await;
        workspace.plan().await.only_replaces(HELD).run.says("A maintenance has lost the Lease of its Node").says("it was deleted");
        place.hold(jiff::Timestamp::now());
        workspace.plan().await.only_replaces(HELD).run.says("is held by \"node-maintenance\"");
        workspace.destroy().await.succeeded();
        assert_eq!(place.holder().await.as_deref(), Some("node-maintenance"), "another holder's Lease was changed");
        fleet.until("node1", PowerState::On).await;
    }
}

for_one_host! {
    async fn a_lease_is_given_back_with_its_server_whoever_does_that(host) {
        let (place, fleet) = (Place::new().await, Fleet::new(1).await);
        let mut workspace = place.machine(host);
        // An expired Lease of a deleted operator does not block.
        place.hold(jiff::Timestamp::now() - jiff::SignedDuration::from_hours(2));
        fleet.configure_with(&workspace, &place.minded("take = true"), &maintenance("node1", "m", "server_power = \"Off\""));
        let _ = fleet.simulator.inject(Fault::hold(Phase::Before).on_request("POST", "*ComputerSystem.Reset").times(1));
        let run = workspace.start_apply();
        let query = HeldQuery::default();
        eventually("a held reset", SOON, async || fleet.simulator.held(&query).into_iter().next()).await;
        let ours = place.holder().await.unwrap();
        assert!(ours.starts_with("metal/tests/m/"), "{ours}");
        run.kill_everything();
        drop(run);
        eventually("the BMC closes the interrupted request", SOON, async || fleet.simulator.held(&query).is_empty().then_some(())).await;
        assert_eq!(place.holder().await, Some(ours.clone()), "the Lease was released during a reset");
        workspace.apply().await.succeeded();
        assert_eq!(place.holder().await, Some(ours));
        workspace.destroy().await.succeeded();
        assert_eq!(place.holder().await, None);

        workspace.apply().await.succeeded();
        assert!(place.holder().await.is_some());
        // The command line lacks a list of Nodes, so the record supplies them.
        fleet.command_line(&mut workspace);
        let generation = workspace.resource("metal_server_maintenance.held").await.unwrap()["generation"].to_string();
        workspace.metal(&["release", "tests/m", "--force", "--generation", &generation, "--reason", "test"]).await.succeeded();
        assert_eq!(place.holder().await, None);
        workspace.destroy().await.succeeded();
        workspace.metal(&["release", "--allow", "tests/m"]).await.succeeded();

        workspace.apply().await.succeeded();
        assert!(place.holder().await.is_some());
        let generation = workspace.resource("metal_server_maintenance.held").await.unwrap()["generation"].to_string();
        let as_it_is = ["release", "tests/m", "--force", "--generation", &generation, "--reason", "test", "--accept-as-is"];
        workspace.metal(&as_it_is).await.succeeded();
        assert_eq!(place.holder().await, None);
        workspace.destroy().await.succeeded();
        workspace.metal(&["release", "--allow", "tests/m"]).await.succeeded();

        // Without `take` the Lease is read but not written.
        fleet.configure_with(&workspace, &place.minded("take = false"), &maintenance("node1", "m", "server_power = \"Off\""));
        workspace.plan().await.run.says(&format!("Node: {}, not held.", place.node));
        workspace.apply().await.succeeded();
        assert_eq!(place.holder().await, None);
        workspace.destroy().await.succeeded();
    }
}

for_one_host! {
    async fn what_acts_under_a_hold_sends_nothing_without_its_lease(host) {
        let (place, fleet) = (Place::new().await, Fleet::new(1).await);
        let workspace = place.machine(host);
        fleet.configure_with(&workspace, &place.minded("take = true"), &maintenance("node1", "m", ""));
        workspace.apply().await.succeeded();
        let under = |name: &str| {
            format!(
                "resource \"metal_server_operation\" \"op\" {{\n  server = \"node1\"\n  namespace = \"tests\"\n  name = \"{name}\"\n  \
                 operation = \"ForceRestart\"\n  maintenance_id = \"tests/m\"\n}}\n"
            )
        };
        let second = workspace.beside();
        fleet.configure_with(&second, &place.minded("take = true"), &under("first"));
        second.apply().await.succeeded();
        assert_eq!(fleet.resets("node1"), ["ForceRestart"]);
        fleet.configure_with(&second, &place.minded("take = true"), &under("second"));
        place.delete().await;
        second.apply().await.failed().says("is not held: it was deleted").says("Release tests/m first");
        place.hold(jiff::Timestamp::now());
        second.apply().await.failed().says("is held by \"node-maintenance\"");
        assert_eq!(fleet.resets("node1"), ["ForceRestart"]);
        workspace.destroy().await.succeeded();
        assert_eq!(place.holder().await.as_deref(), Some("node-maintenance"));
    }
}

for_one_host! {
    async fn any_store_keeps_servers_whose_nodes_are_in_a_cluster(host) {
        let (place, fleet, mut workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        let off = maintenance("node1", "m", "server_power = \"Off\"");
        let reach = format!("take = true, kubeconfig = \"{}\"", place.cluster.kubeconfig().display());
        fleet.configure_with(&workspace, &place.minded(&reach), &off);
        place.hold(jiff::Timestamp::now());
        workspace.plan().await.run.says("held by \"node-maintenance\" since");
        let waiting = workspace.start_apply();
        waiting.until_it_logs("waiting for its Node", SOON).await;
        place.delete().await;
        waiting.wait(SOON).await.succeeded();
        assert!(place.holder().await.unwrap().starts_with("metal/tests/m/"));
        place.delete().await;
        workspace.plan().await.only_replaces(HELD).run.says("A maintenance has lost the Lease of its Node").says("it was deleted");
        workspace.destroy().await.succeeded();
        workspace.apply().await.succeeded();
        assert!(place.holder().await.is_some());

        // The record contains the cluster. A Node of the same name in another cluster does not
        // count.
        let other = Kubernetes::start();
        let elsewhere = format!("take = true, kubeconfig = \"{}\"", other.kubeconfig().display());
        fleet.configure_with(&workspace, &place.minded(&elsewhere), &off);
        workspace.plan().await.is_empty().run.is_silent_about("has lost the Lease");
        workspace.destroy().await.failed().says("is in another cluster (kube-system");
        assert!(place.holder().await.is_some());
        fleet.until("node1", PowerState::On).await;

        fleet.command_line(&mut workspace);
        workspace.set("METAL_NODE_KUBECONFIG", place.cluster.kubeconfig().display().to_string());
        let generation = workspace.generation("tests/m").await;
        workspace.metal(&["release", "tests/m", "--force", "--generation", &generation, "--reason", "test"]).await.succeeded();
        assert_eq!(place.holder().await, None);
    }
}

for_one_host! {
    async fn an_operation_waits_for_the_node_too(host) {
        let (place, fleet) = (Place::new().await, Fleet::new(1).await);
        let workspace = place.machine(host);
        place.hold(jiff::Timestamp::now());
        let operation = "resource \"metal_server_operation\" \"now\" {\n  server = \"node1\"\n  namespace = \"tests\"\n  name = \"o\"\n  operation = \"ForceRestart\"\n  policy = \"Enforced\"\n}\n";
        fleet.configure_with(&workspace, &place.minded("take = true"), operation);
        let run = workspace.start_apply();
        run.until_it_logs("waiting for its Node", SOON).await;
        assert_eq!(fleet.resets("node1"), [""; 0]);
        place.delete().await;
        run.wait(SOON).await.succeeded();
        assert_eq!(fleet.resets("node1"), ["ForceRestart"]);
        assert_eq!(place.holder().await, None, "the operation did not release the Lease");
    }
}

for_one_host! {
    async fn what_cannot_be_honoured_is_told_with_what_to_do(host) {
        let (place, fleet, mut workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        let held = maintenance("node1", "m", "");
        fleet.configure_with(&workspace, &place.minded(""), &held);
        let nowhere = "does not exist; and this process does not";
        workspace.plan().await.run.says("its holder was not checked").says(nowhere);
        workspace.apply().await.failed().says(nowhere);

        workspace.set("METAL_COORDINATION_URL", place.cluster.store(&place.namespace));
        fleet.configure_with(&workspace, "node_leases = { nodes = { node1 = \"\" } }", &held);
        workspace.try_plan().await.failed().says("A Node's name must not be empty").says("node1");
        fleet.configure_with(&workspace, "node_leases = { nodes = { node1 = \"nowhere\" }, take = true }", &held);
        let run = workspace.apply().await.failed();
        run.says("nodes nowhere").says("check that the Node \"nowhere\"");
        assert_eq!(fleet.changes("node1"), [""; 0]);
        workspace.metal(&["queue"]).await.succeeded().is_silent_about("tests/m");

        // A runner whose role lacks permissions for these Leases.
        let elsewhere = Place::new().await;
        let role = json!([
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "runner"}, "rules": [
                {"apiGroups": ["", "coordination.k8s.io"], "resources": ["configmaps", "leases"], "verbs": ["*"]}]},
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "runner"},
             "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "runner"},
             "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "runner"}]},
        ]);
        for document in role.as_array().unwrap() {
            place.cluster.apply_in(&place.namespace, &document.to_string());
        }
        let runner = place.cluster.kubeconfig_of("runner");
        workspace.set("METAL_COORDINATION_URL", Kubernetes::store_of(&place.namespace, &runner));
        fleet.configure_with(&workspace, &elsewhere.minded("take = true"), &held);
        let missing = "the verb \"get\" on \"leases.coordination.k8s.io\"";
        workspace.plan().await.run.says("its holder was not checked").says(missing);
        workspace.apply().await.failed().says(missing);
        workspace.metal(&["queue"]).await.succeeded().is_silent_about("tests/m");

        // The guide's role is sufficient.
        let guide = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guides/many-runners.md")).unwrap();
        let role = guide.split("```yaml\n").filter_map(|rest| rest.split("```").next());
        let role = role.into_iter().find(|block| block.contains("name: metal-node-leases")).unwrap();
        let role = role.replace("medik8s-leases", &elsewhere.namespace).replace("metal-runners", "runners");
        let role = role.replace("metal-node-leases", &format!("leases-{}", elsewhere.namespace));
        place.cluster.apply(&role);
        workspace.apply().await.succeeded();
        assert!(elsewhere.holder().await.is_some());
        workspace.destroy().await.succeeded();
        assert!(elsewhere.holder().await.is_none());
    }
}
