//! Nodes on the servers are drained before maintenance, and uncordoned after they are Ready again.
//!
//! A real API server applies disruption budgets to evictions. A stand-in replaces the controllers
//! and the kubelet: it removes terminating Pods, and renews the Node's Lease and condition while
//! the server runs.

mod again;
mod economy;
mod ending;
mod meanwhile;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bmc_simulator::PowerState;
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    metal3::HELD,
    servers::kubernetes::Kubernetes,
    support::{
        simulator::{Fleet, SOON, maintenance},
        wait::eventually,
        workspace::Workspace,
    },
};

/// A kubelet that works while its server runs and `up` is true.
struct Kubelet {
    up: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn set_ready(client: &Client, node: &str, ready: bool) {
    let status = if ready { "True" } else { "False" };
    let conditions = json!({ "status": { "conditions": [{ "type": "Ready", "status": status }] } });
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.patch_status(node, &PatchParams::default(), &Patch::Merge(conditions)).await.unwrap();
}

/// One kubelet sync.
async fn work(client: &Client, node: &str, namespace: &str) {
    set_ready(client, node, true).await;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": node },
        "spec": { "holderIdentity": node, "renewTime": format!("{:.6}", jiff::Timestamp::now()) },
    });
    let leases: Api<k8s_openapi::api::coordination::v1::Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    leases.patch(node, &PatchParams::apply("kubelet").force(), &Patch::Apply(lease)).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    for pod in pods.list(&ListParams::default()).await.unwrap() {
        if pod.metadata.deletion_timestamp.is_some() {
            let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
            let _ = pods.delete(&pod.metadata.name.unwrap(), &now).await;
        }
    }
}

/// A cluster with a Node that runs on `node1`.
pub struct Place {
    pub cluster: &'static Kubernetes,
    client: Client,
    namespace: String,
    pub node: String,
    kubelet: Kubelet,
}

impl Place {
    pub async fn new() -> Self {
        let cluster = Kubernetes::shared();
        let namespace = cluster.namespace();
        let node = format!("drained-{namespace}");
        cluster.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}).to_string());
        let client = Kubernetes::client(&cluster.kubeconfig()).await;
        // The API server records a field manager for named clients, and kubelets have a name.
        let node_now =
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": {"app": "node"}}});
        let nodes: Api<Node> = Api::all(client.clone());
        nodes.patch(&node, &PatchParams::apply("kubelet"), &Patch::Apply(node_now)).await.unwrap();
        work(&client, &node, &namespace).await;
        let up = Arc::new(AtomicBool::new(true));
        let task = {
            let (up, client, node, namespace) = (Arc::clone(&up), client.clone(), node.clone(), namespace.clone());
            tokio::spawn(async move {
                loop {
                    if up.load(Ordering::SeqCst) {
                        work(&client, &node, &namespace).await;
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                }
            })
        };
        Self { cluster, client, namespace, node, kubelet: Kubelet { up, task } }
    }

    /// Returns the provider's arguments.
    fn drained(&self, more: &str) -> String {
        // Uses only the matching role file's permissions.
        let roles =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/roles/kubernetes-node.yaml")).unwrap();
        self.cluster.apply(&roles);
        let (node, kubeconfig) = (&self.node, self.cluster.user("drainer", &["metal-runners"]));
        format!(
            "kubernetes_node = {{ nodes = {{ node1 = \"{node}\" }}, kubeconfig = \"{}\", {more} }}",
            kubeconfig.display()
        )
    }

    /// Creates a running Pod on the Node.
    pub async fn pod(&self, name: &str, controller: Option<&str>, more: Value) {
        let owners = controller.map(
            |kind| json!([{ "apiVersion": "apps/v1", "kind": kind, "name": "app", "uid": "u-1", "controller": true }]),
        );
        let mut spec = json!({
            "nodeName": self.node, "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "app", "image": "registry.example/app" }],
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "labels": { "app": name }, "ownerReferences": owners.unwrap_or(json!([])) },
            "spec": spec,
        });
        self.cluster.apply_in(&self.namespace, &pod.to_string());
        let running = json!({ "status": {
            "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }],
        } });
        self.pods().patch_status(name, &PatchParams::default(), &Patch::Merge(running)).await.unwrap();
    }

    /// Creates a disruption budget for this name's Pods, with the status that its controller would
    /// set.
    pub async fn budget(&self, name: &str, allowed: i32) {
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": name },
            "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": name } } },
        });
        self.cluster.apply_in(&self.namespace, &budget.to_string());
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &self.namespace);
        let status = json!({ "status": {
            "disruptionsAllowed": allowed, "currentHealthy": 1 + allowed, "desiredHealthy": 1, "expectedPods": 1,
            "observedGeneration": 1,
        } });
        budgets.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn names(&self) -> Vec<String> {
        let listed = self.pods().list(&ListParams::default()).await.unwrap();
        listed.into_iter().filter_map(|pod| pod.metadata.name).collect()
    }

    pub async fn cordoned(&self) -> bool {
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.get(&self.node).await.unwrap().spec.unwrap_or_default().unschedulable == Some(true)
    }

    /// Counts this program's annotations on the Node.
    pub async fn marks(&self) -> usize {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let annotations = nodes.get(&self.node).await.unwrap().metadata.annotations.unwrap_or_default();
        annotations.keys().filter(|key| key.starts_with("terraform-provider-metal/")).count()
    }

    /// Changes an annotation and returns its previous value.
    async fn mark(&self, key: &str, value: &str) -> String {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let before = nodes.get(&self.node).await.unwrap().metadata.annotations.unwrap_or_default().remove(key).unwrap();
        let change = json!({ "metadata": { "annotations": { key: value } } });
        nodes.patch(&self.node, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
        before
    }

    async fn cordon(&self, cordoned: bool) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let change = json!({ "spec": { "unschedulable": cordoned } });
        nodes
            .patch(
                &self.node,
                &PatchParams { field_manager: Some("kubectl-cordon".to_owned()), ..PatchParams::default() },
                &Patch::Merge(change),
            )
            .await
            .unwrap();
    }

    async fn went_down(&self) {
        self.kubelet.up.store(false, Ordering::SeqCst);
        // Its last sync can still be running.
        eventually("the Node is not Ready", SOON, async || {
            set_ready(&self.client, &self.node, false).await;
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            let nodes: Api<Node> = Api::all(self.client.clone());
            let status = nodes.get(&self.node).await.unwrap().status.unwrap();
            (status.conditions.unwrap()[0].status == "False").then_some(())
        })
        .await;
    }
}

/// Annotation that names the cordoning maintenance's store.
const STORE: &str = "terraform-provider-metal/store";
const OFF: &str = "server_power = \"Off\"";

for_one_host! {
    async fn a_node_is_drained_before_and_uncordoned_once_it_is_ready_again(host) {
        let (place, fleet, mut workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        fleet.command_line(&mut workspace);
        place.pod("web", Some("ReplicaSet"), json!({})).await;
        place.pod("db", Some("StatefulSet"), json!({})).await;
        place.pod("agent", Some("DaemonSet"), json!({})).await;
        place.budget("db", 0).await;
        fleet.configure_with(&workspace, &place.drained(""), &maintenance("node1", "m", OFF));
        workspace.plan().await.run.says(&format!("Node: {} is cordoned and drained first (Pods to evict: 2).", place.node));

        let apply = workspace.start_apply();
        apply.until_it_logs("disruption budget", SOON).await;
        assert!(place.cordoned().await);
        eventually("web is evicted, and db's disruption budget blocks db", SOON, async || {
            (place.names().await == ["agent", "db"]).then_some(())
        })
        .await;
        assert_eq!(fleet.resets("node1"), [""; 0], "a server was switched off before its Node was drained");
        for told in [vec!["queue"], vec!["show", "tests/m"]] {
            eventually("queue and show report what blocks the eviction", SOON * 2, async || {
                let told = workspace.metal(&told).await.succeeded().words();
                (told.contains("/db (") && told.contains("disruption budget")).then_some(())
            })
            .await;
        }
        place.budget("db", 1).await;
        apply.wait(SOON * 2).await.succeeded();
        assert_eq!((fleet.system("node1").power, place.names().await), (PowerState::Off, vec!["agent".to_owned()]));
        place.went_down().await;
        workspace.plan().await.is_empty();

        let destroy = workspace.start_destroy();
        fleet.until("node1", PowerState::On).await;
        destroy.until_it_logs("is uncordoned once it is Ready again", SOON).await;
        assert!(place.cordoned().await, "its server starts");
        // The next run continues this wait after a kill.
        destroy.kill_everything();
        let _ = destroy.wait(SOON).await;
        assert!(place.cordoned().await && place.marks().await > 0);
        let destroy = workspace.start_destroy();
        destroy.until_it_logs("is uncordoned once it is Ready again", SOON * 2).await;
        place.kubelet.up.store(true, Ordering::SeqCst);
        destroy.wait(SOON * 2).await.succeeded();
        assert_eq!((place.cordoned().await, place.marks().await), (false, 0));
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On"]);
    }
}

for_one_host! {
    async fn a_node_that_another_author_opens_is_told_and_the_cordon_of_that_author_stays(host) {
        let (place, fleet, workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        fleet.configure_with(&workspace, &place.drained(""), &maintenance("node1", "m", ""));
        workspace.apply().await.succeeded();
        assert!(place.cordoned().await);
        place.cordon(false).await;
        workspace.plan().await.only_replaces(HELD).run.says("A drained Node accepts Pods again").says(&place.node);
        // Its workloads can run again, because this hold does not stop them.
        let second = workspace.beside();
        let restart = "resource \"metal_server_operation\" \"op\" {\n  server = \"node1\"\n  namespace = \"tests\"\n  name = \"restart\"\n  \
                       operation = \"ForceRestart\"\n  maintenance_id = \"tests/m\"\n}\n";
        fleet.configure_with(&second, &place.drained(""), restart);
        second.apply().await.failed().says("was uncordoned by another author").says("Release tests/m first");
        assert_eq!(fleet.resets("node1"), [""; 0]);
        place.cordon(true).await;
        workspace.destroy().await.succeeded();
        assert_eq!((place.cordoned().await, place.marks().await), (true, 0), "another author's cordon was removed");
    }
}

for_one_host! {
    async fn a_node_that_cannot_be_drained_stays_as_it_is(host) {
        let (place, fleet, workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        place.pod("scratch", Some("ReplicaSet"), json!({ "volumes": [{ "name": "tmp", "emptyDir": {} }] })).await;
        place.pod("alone", None, json!({})).await;
        fleet.configure_with(&workspace, &place.drained(""), &maintenance("node1", "m", OFF));
        let why = "its emptyDir data would be lost; kubernetes_node.delete_emptydir_data allows that";
        workspace.plan().await.run.says("It would fail").says(why).says("no controller would start it again");
        workspace.apply().await.failed().says(why);
        assert_eq!((place.cordoned().await, place.marks().await, fleet.resets("node1").len()), (false, 0, 0));
        assert_eq!(place.names().await, ["alone", "scratch"]);

        // The budget never allows the eviction, so the timeout ends it and the Node is uncordoned.
        place.budget("scratch", 0).await;
        let allowed = "delete_emptydir_data = true, force = true, drain_timeout = \"7s\"";
        fleet.configure_with(&workspace, &place.drained(allowed), &maintenance("node1", "m", OFF));
        workspace.apply().await.failed().says("was not drained within 7 s").says("disruption budget");
        assert_eq!((place.cordoned().await, place.marks().await, fleet.resets("node1").len()), (false, 0, 0));
        eventually("only the Pod with a disruption budget remains", SOON, async || (place.names().await == ["scratch"]).then_some(())).await;

        fleet.configure_with(&workspace, &place.drained("drain_timeout = \"soon\""), &maintenance("node1", "m", OFF));
        workspace.try_plan().await.failed().says("kubernetes_node");
    }
}

for_one_host! {
    async fn a_node_that_was_cordoned_before_stays_so_and_a_restart_drains_too(host) {
        let (place, fleet, workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        place.cordon(true).await;
        place.pod("web", Some("ReplicaSet"), json!({})).await;
        fleet.configure_with(&workspace, &place.drained(""), &maintenance("node1", "m", OFF));
        workspace.plan().await.run.says("stays cordoned and is drained first (Pods to evict: 1)");
        workspace.apply().await.succeeded();
        assert_eq!(place.names().await, [""; 0]);
        workspace.destroy().await.succeeded();
        assert_eq!((place.cordoned().await, place.marks().await), (true, 0), "another author's cordon was removed");

        place.cordon(false).await;
        place.pod("web", Some("ReplicaSet"), json!({})).await;
        let operation = "resource \"metal_server_operation\" \"now\" {\n  server = \"node1\"\n  namespace = \"tests\"\n  name = \"o\"\n  operation = \"ForceRestart\"\n  policy = \"Enforced\"\n}\n";
        fleet.configure_with(&workspace, &place.drained(""), operation);
        workspace.apply().await.succeeded();
        assert_eq!((place.names().await.len(), place.cordoned().await, place.marks().await), (0, false, 0));
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On", "ForceRestart"]);
    }
}

for_one_host! {
    async fn a_boot_configuration_that_restarts_a_server_drains_its_node_for_as_long_as_it_is_there(host) {
        let (place, fleet, workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        place.pod("web", Some("ReplicaSet"), json!({})).await;
        let boots = |power: &str| {
            format!(
                "resource \"metal_server_boot_configuration\" \"pxe\" {{\n  server = \"node1\"\n  method = \"pxe\"\n  {power}\n}}\n"
            )
        };
        // Only the next start boots differently; the running system continues.
        fleet.configure_with(&workspace, &place.drained(""), &boots(""));
        workspace.apply().await.succeeded();
        assert_eq!((place.names().await.len(), place.cordoned().await), (1, false));
        workspace.destroy().await.succeeded();

        fleet.configure_with(&workspace, &place.drained(""), &boots("server_power = \"On\""));
        workspace.apply().await.succeeded();
        assert_eq!((place.names().await.len(), place.cordoned().await), (0, true));
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On"]);
        workspace.plan().await.is_empty();
        workspace.destroy().await.succeeded();
        assert_eq!((place.cordoned().await, place.marks().await), (false, 0));
        assert_eq!(fleet.system("node1").power, PowerState::On);
    }
}

for_one_host! {
    async fn a_run_that_is_killed_while_draining_leaves_no_node_cordoned(host) {
        let (place, fleet, mut workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        place.pod("db", Some("StatefulSet"), json!({})).await;
        place.budget("db", 0).await;
        fleet.configure_with(&workspace, &place.drained(""), &maintenance("node1", "m", OFF));
        let apply = workspace.start_apply();
        apply.until_it_logs("disruption budget", SOON).await;
        apply.kill_everything();
        let _ = apply.wait(SOON).await;
        assert!(place.cordoned().await);
        place.budget("db", 1).await;
        workspace.apply().await.succeeded();
        assert_eq!((place.cordoned().await, fleet.system("node1").power), (true, PowerState::Off));

        // Without `kubernetes_node` on the command line, the record supplies the Node and the
        // environment the cluster.
        fleet.command_line(&mut workspace);
        workspace.set("METAL_NODE_KUBECONFIG", place.cluster.kubeconfig().display().to_string());
        let generation = workspace.resource("metal_server_maintenance.held").await.unwrap()["generation"].to_string();
        workspace.metal(&["release", "tests/m", "--force", "--generation", &generation, "--reason", "test"]).await.succeeded();
        assert_eq!((place.cordoned().await, place.marks().await), (false, 0));
        assert_eq!(fleet.resets("node1"), ["GracefulShutdown", "On"]);
    }
}

for_one_host! {
    async fn a_node_that_an_ended_hold_left_cordoned_is_uncordoned_by_prune_once_it_is_heard(host) {
        let (place, fleet, mut workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
        let drained = place.drained("");
        fleet.configure_with(&workspace, &drained, &maintenance("node1", "m", OFF));
        workspace.apply().await.succeeded();
        place.went_down().await;
        fleet.command_line(&mut workspace);
        workspace.set("METAL_NODE_KUBECONFIG", place.cluster.user("drainer", &["metal-runners"]).display().to_string());
        let prune = ["prune", "--nodes"];
        workspace.metal(&prune).await.succeeded().says("No Node is cordoned for a maintenance that has ended");
        let generation = workspace.resource("metal_server_maintenance.held").await.unwrap()["generation"].to_string();
        let as_is = ["release", "tests/m", "--force", "--generation", &generation, "--accept-as-is", "--reason", "test"];
        workspace.metal(&as_is).await.succeeded();
        assert!(place.cordoned().await, "a Node was uncordoned although its server was not restored");

        workspace.metal(&prune).await.failed().says("stays cordoned for tests/m, which has ended: it is not Ready");
        // A `Ready` condition that outlives its kubelet does not count.
        set_ready(&place.client, &place.node, true).await;
        workspace.metal(&prune).await.failed().says("its kubelet did not renew its Lease");
        assert!(place.cordoned().await);
        let uid = place.mark(STORE, "another store").await;
        workspace.metal(&prune).await.succeeded().says("No Node is cordoned for a maintenance that has ended");
        place.mark(STORE, &uid).await;

        place.kubelet.up.store(true, Ordering::SeqCst);
        workspace.metal(&prune).await.succeeded().says(&format!("Node {}: uncordoned", place.node));
        assert_eq!((place.cordoned().await, place.marks().await), (false, 0));
    }
}

for_one_host! {
    async fn prune_tells_where_it_removed_only_annotations(host) {
        for (cordoned, says) in [
            (true, "annotations removed; it stays cordoned by another author"),
            (false, "annotations removed; another author had uncordoned it"),
        ] {
            let (place, fleet, mut workspace) = (Place::new().await, Fleet::new(1).await, Workspace::new(host));
            fleet.configure_with(&workspace, &place.drained(""), &maintenance("node1", "m", ""));
            workspace.apply().await.succeeded();
            fleet.command_line(&mut workspace);
            workspace.set("METAL_NODE_KUBECONFIG", place.cluster.user("drainer", &["metal-runners"]).display().to_string());
            let generation = workspace.resource("metal_server_maintenance.held").await.unwrap()["generation"].to_string();
            let as_is = ["release", "tests/m", "--force", "--generation", &generation, "--accept-as-is", "--reason", "test"];
            workspace.metal(&as_is).await.succeeded();
            place.cordon(false).await;
            place.cordon(cordoned).await;
            let told = workspace.metal(&["prune", "--nodes"]).await.succeeded();
            told.says(&format!("Node {}: {says}", place.node)).is_silent_about(": uncordoned");
            assert_eq!((place.cordoned().await, place.marks().await), (cordoned, 0));
        }
    }
}
