//! Test fixture: Machines with their Nodes, and the controllers.

use std::{path::PathBuf, sync::OnceLock};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use kube::{
    Client,
    api::{Api, DeleteParams, DynamicObject, PostParams},
};
use serde_json::{Value, json};

use super::{
    super::{ironcore::patience, kubernetes::Kubernetes},
    CLUSTER_NAME, CLUSTER_NAMESPACE, ENABLED, FINALIZER, MACHINE, MAINTENANCE, WITHHELD, WORLD,
    extension::{self, Extension},
    informer::Task,
    journal::{Journal, Moment},
    maintenance::{self, MaintenanceController},
    objects::{api, merge, resource},
};

/// Name of the cluster that owns the Machines.
pub const CLUSTER: &str = "workload";

/// Controller options. Closing `extension.approves` delays the write of decided approvals.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub extension: extension::Options,
    pub maintenance: maintenance::Options,
}

/// A namespace in the management cluster and its Nodes in the workload cluster. Everything is
/// deleted on drop.
pub struct World {
    pub management: Client,
    pub workload: Client,
    pub namespace: String,
    pub journal: Journal,
    pub options: Options,
    kubeconfigs: [PathBuf; 2],
    extension: Option<Extension>,
    maintenance: Option<MaintenanceController>,
    watching: Vec<Task>,
}

fn management() -> &'static Kubernetes {
    static READY: OnceLock<&'static Kubernetes> = OnceLock::new();
    READY.get_or_init(|| {
        let kubernetes = Kubernetes::shared();
        install(kubernetes);
        kubernetes
    })
}

/// The second API server, for a separate workload cluster.
fn second() -> &'static Kubernetes {
    static SECOND: OnceLock<Kubernetes> = OnceLock::new();
    SECOND.get_or_init(Kubernetes::start)
}

/// Returns the API server of [`World::with_workload_cluster`]. It lacks the Cluster API resources.
pub async fn workload_cluster() -> &'static Kubernetes {
    tokio::task::spawn_blocking(second).await.unwrap()
}

/// Installs a management cluster's custom resources.
pub fn install(kubernetes: &Kubernetes) {
    kubernetes.apply(include_str!("crds.yaml"));
    kubernetes.apply(include_str!("../metal3/crds.yaml"));
}

impl World {
    /// Starts both controllers, with one API server for both clusters.
    pub async fn start(options: Options) -> Self {
        let namespace = tokio::task::spawn_blocking(|| management().namespace()).await.unwrap();
        Self::within(&namespace, options).await
    }

    /// Starts in an existing namespace, for example that of Metal3's stand-in.
    pub async fn within(namespace: &str, options: Options) -> Self {
        let kubernetes = tokio::task::spawn_blocking(management).await.unwrap();
        let mut this = Self::bare(kubernetes, kubernetes, namespace, options).await;
        this.start_extension();
        this.start_maintenance();
        this
    }

    /// Starts with a separate API server for the workload cluster ([`workload_cluster`]).
    pub async fn with_workload_cluster(options: Options) -> Self {
        let (kubernetes, workload) = tokio::task::spawn_blocking(|| (management(), second())).await.unwrap();
        let namespace = tokio::task::spawn_blocking(|| kubernetes.namespace()).await.unwrap();
        let mut this = Self::bare(kubernetes, workload, &namespace, options).await;
        this.start_extension();
        this.start_maintenance();
        this
    }

    /// Starts without controllers.
    pub async fn bare(kubernetes: &Kubernetes, workload: &Kubernetes, namespace: &str, options: Options) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let kubeconfigs = [kubernetes.kubeconfig(), workload.kubeconfig()];
        let clients = [Kubernetes::client(&kubeconfigs[0]).await, Kubernetes::client(&kubeconfigs[1]).await];
        let [management, on_nodes] = clients;
        let journal = Journal::new(kubernetes.url() == workload.url());
        let own = format!("{WORLD}={namespace}");
        let watching = vec![
            journal.follow("Machine", api(&management, "Machine", namespace), ""),
            journal.follow("BareMetalHost", api(&management, "BareMetalHost", namespace), ""),
            journal.follow("Node", api(&on_nodes, "Node", ""), &own),
        ];
        let this = Self {
            management,
            workload: on_nodes,
            namespace: namespace.to_owned(),
            journal,
            options,
            kubeconfigs,
            extension: None,
            maintenance: None,
            watching,
        };
        let kubeconfig = whole_kubeconfig(workload, &this.kubeconfigs[1]);
        let data = json!({"value": BASE64_STANDARD.encode(kubeconfig)});
        this.create("Secret", &format!("{CLUSTER}-kubeconfig"), json!({"data": data})).await;
        this
    }

    /// Path of an administrator's kubeconfig for the management cluster.
    pub fn kubeconfig(&self) -> &PathBuf {
        &self.kubeconfigs[0]
    }

    /// Path of an administrator's kubeconfig for the workload cluster.
    pub fn workload_kubeconfig(&self) -> &PathBuf {
        &self.kubeconfigs[1]
    }

    /// Starts the runtime extension with the current options.
    pub fn start_extension(&mut self) {
        self.stop_extension();
        self.extension =
            Some(Extension::start(self.management.clone(), &self.namespace, self.options.extension.clone()));
    }

    /// Aborts the runtime extension.
    pub fn stop_extension(&mut self) {
        self.extension = None;
    }

    /// Starts the maintenance-controller.
    pub fn start_maintenance(&mut self) {
        self.stop_maintenance();
        let started = MaintenanceController::start(self.workload.clone(), &self.namespace, self.options.maintenance);
        self.maintenance = Some(started);
    }

    pub fn stop_maintenance(&mut self) {
        self.maintenance = None;
    }

    /// Waits until every running controller has processed each Node again, including periodic
    /// work.
    pub async fn settled(&self) {
        if let Some(running) = &self.maintenance {
            running.settled().await;
        }
        if let Some(running) = &self.extension {
            running.settled().await;
        }
    }

    fn api(&self, kind: &str) -> Api<DynamicObject> {
        api(if matches!(kind, "Node" | "Pod") { &self.workload } else { &self.management }, kind, &self.namespace)
    }

    /// Name of a Machine's Node.
    pub fn node_name(&self, machine: &str) -> String {
        format!("{}-{machine}", self.namespace)
    }

    /// Adds an enabled Machine and its Node. Returns after the extension has seen both.
    pub async fn add(&self, machine: &str) {
        self.add_node(machine).await;
        self.add_machine(machine, json!({ENABLED: "true"})).await;
        self.name_node(machine).await;
        self.until_node(machine, "it has a state", |node| node["metadata"]["labels"][super::STATE] == "operational")
            .await;
        let hook = |machine: &Value| !machine["metadata"]["annotations"][super::PRE_DRAIN].is_null();
        self.until_machine(machine, "the extension acts on it", hook).await;
    }

    /// Adds a Machine with these labels, still without a Node.
    pub async fn add_machine(&self, name: &str, labels: Value) {
        let mut labels = labels;
        labels[CLUSTER_NAME] = json!(CLUSTER);
        let object = json!({
            "metadata": {"labels": labels, "finalizers": [FINALIZER]},
            "spec": {
                "clusterName": CLUSTER,
                "providerID": format!("example:///{name}"),
                "bootstrap": {"dataSecretName": format!("{name}-bootstrap")},
                "infrastructureRef": {"apiGroup": "example.org", "kind": "ExampleMachine", "name": name},
            },
        });
        self.create("Machine", name, object).await;
        self.merge_status(name, json!({"phase": "Provisioned"})).await;
    }

    /// Adds a Machine's Node with the annotations that Cluster API sets.
    pub async fn add_node(&self, machine: &str) {
        let annotations = json!({MACHINE: machine, CLUSTER_NAMESPACE: self.namespace});
        let object = json!({
            "metadata": {"labels": {WORLD: self.namespace}, "annotations": annotations},
            "spec": {"providerID": format!("example:///{machine}")},
        });
        self.create("Node", &self.node_name(machine), object).await;
    }

    /// Sets the Node in the Machine's status, like Cluster API after the Node has joined.
    pub async fn name_node(&self, machine: &str) {
        self.merge_status(machine, json!({"phase": "Running", "nodeRef": {"name": self.node_name(machine)}})).await;
    }

    /// Adds a host without an operator, where Metal3's stand-in does not run.
    pub async fn add_host(&self, name: &str) {
        let bmc = json!({"address": "redfish://127.0.0.1/redfish/v1/Systems/1", "credentialsName": "none"});
        self.create("BareMetalHost", name, json!({"spec": {"online": true, "bmc": bmc}})).await;
    }

    /// Binds a Machine to a Metal3 host: adds a Metal3Machine and sets the host's consumer.
    pub async fn on_host(&self, machine: &str, host: &str) {
        let owner: Value = self.machine(machine).await;
        let provider_id = format!("metal3://{}/{host}/{machine}", self.namespace);
        let object = json!({
            "metadata": {
                "annotations": {"metal3.io/BareMetalHost": format!("{}/{host}", self.namespace)},
                "ownerReferences": [{
                    "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": machine,
                    "uid": owner["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": {"providerID": provider_id},
        });
        self.create("Metal3Machine", machine, object).await;
        let infrastructure =
            json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "Metal3Machine", "name": machine});
        let spec = json!({"providerID": provider_id, "infrastructureRef": infrastructure});
        self.merge("Machine", machine, json!({"spec": spec})).await;
        let consumer = json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "Metal3Machine",
            "name": machine, "namespace": self.namespace,
        });
        self.merge("BareMetalHost", host, json!({"spec": {"consumerRef": consumer}})).await;
    }

    /// Creates an object.
    pub async fn create(&self, kind: &str, name: &str, mut object: Value) {
        object["apiVersion"] = json!(resource(kind).api_version);
        object["kind"] = json!(kind);
        object["metadata"]["name"] = json!(name);
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        self.api(kind).create(&PostParams::default(), &object).await.unwrap();
    }

    pub async fn find(&self, kind: &str, name: &str) -> Option<Value> {
        Some(serde_json::to_value(self.api(kind).get_opt(name).await.unwrap()?).unwrap())
    }

    /// Returns a Machine.
    pub async fn machine(&self, name: &str) -> Value {
        self.find("Machine", name).await.unwrap_or_else(|| panic!("machine {name} is missing"))
    }

    /// Returns a Machine's Node.
    pub async fn node(&self, machine: &str) -> Value {
        let name = self.node_name(machine);
        self.find("Node", &name).await.unwrap_or_else(|| panic!("node {name} is missing"))
    }

    /// Waits until a Machine matches.
    pub async fn until_machine(&self, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        patience::until(&format!("{name}: {what}"), async || self.find("Machine", name).await.filter(&wanted)).await
    }

    /// Waits until a Machine's Node matches.
    pub async fn until_node(&self, machine: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let name = self.node_name(machine);
        patience::until(&format!("{name}: {what}"), async || self.find("Node", &name).await.filter(&wanted)).await
    }

    /// Merges a change into an object, regardless of concurrent writes.
    pub async fn merge(&self, kind: &str, name: &str, change: Value) {
        merge(&self.api(kind), name, change).await.unwrap();
    }

    /// Merges a change into a Machine's status.
    pub async fn merge_status(&self, machine: &str, status: Value) {
        let change = kube::api::Patch::Merge(json!({"status": status}));
        self.api("Machine").patch_status(machine, &kube::api::PatchParams::default(), &change).await.unwrap();
    }

    /// Sets labels of a Machine; null removes.
    pub async fn label_machine(&self, name: &str, labels: Value) {
        self.merge("Machine", name, json!({"metadata": {"labels": labels}})).await;
    }

    /// Sets labels of a Machine's Node; null removes.
    pub async fn label_node(&self, machine: &str, labels: Value) {
        self.merge("Node", &self.node_name(machine), json!({"metadata": {"labels": labels}})).await;
    }

    /// Value of a Machine's maintenance label.
    pub async fn maintenance(&self, name: &str) -> Option<String> {
        self.machine(name).await["metadata"]["labels"][MAINTENANCE].as_str().map(str::to_owned)
    }

    /// Withholds the Node owner's approvals until [`World::allow`]. Existing approvals stay.
    pub async fn withhold(&self, machine: &str) {
        self.label_node(machine, json!({WITHHELD: "true"})).await;
    }

    pub async fn allow(&self, machine: &str) {
        self.label_node(machine, json!({WITHHELD: null})).await;
    }

    /// Adds a Pod on a Machine's Node. After eviction it terminates until [`World::end_pod`], as
    /// with a slow kubelet.
    pub async fn add_pod(&self, machine: &str, name: &str) {
        let spec = json!({
            "nodeName": self.node_name(machine),
            "containers": [{"name": "main", "image": "images.example/main"}],
        });
        let pods = api(&self.workload, "Pod", "default");
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.pod(name)}, "spec": spec});
        pods.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }

    fn pod(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    /// Removes a Pod, like its kubelet.
    pub async fn end_pod(&self, name: &str) {
        let pods = api(&self.workload, "Pod", "default");
        pods.delete(&self.pod(name), &DeleteParams::default().grace_period(0)).await.unwrap();
    }

    /// Requests the deletion of a Machine.
    pub async fn delete_machine(&self, name: &str) {
        self.api("Machine").delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Completes a deletion if no hooks remain, like Cluster API. Returns the remaining hooks.
    pub async fn finish_deletion(&self, name: &str) -> Vec<String> {
        let machine = self.machine(name).await;
        assert!(!machine["metadata"]["deletionTimestamp"].is_null(), "{name} is not being deleted");
        let annotations = machine["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
        let hook = |key: &&String| {
            let hooks = [
                "pre-drain.delete.hook.machine.cluster.x-k8s.io",
                "pre-terminate.delete.hook.machine.cluster.x-k8s.io",
            ];
            hooks.iter().any(|one| key.starts_with(one))
        };
        let left: Vec<String> = annotations.keys().filter(hook).cloned().collect();
        if left.is_empty() {
            self.merge("Machine", name, json!({"metadata": {"finalizers": null}})).await;
        }
        left
    }

    /// Checks a condition at every moment up to the current state of the objects.
    ///
    /// # Panics
    /// If the condition fails. The message lists all changes up to then.
    pub async fn always(&self, what: &str, holds: impl Fn(&Moment) -> bool) {
        let mut now = Vec::new();
        for kind in ["Machine", "BareMetalHost"] {
            let all = self.api(kind).list(&kube::api::ListParams::default()).await.unwrap();
            now.extend(all.items.into_iter().map(|one| (kind, one)));
        }
        let own = kube::api::ListParams::default().labels(&format!("{WORLD}={}", self.namespace));
        now.extend(self.api("Node").list(&own).await.unwrap().items.into_iter().map(|one| ("Node", one)));
        self.journal.caught_up(&now).await;
        if let Some(said) = self.journal.first_against(holds) {
            panic!("not always: {what}\n{}", said.join("\n"));
        }
    }
}

/// Returns a kubeconfig with embedded certificates, as in Cluster API's Secret.
fn whole_kubeconfig(kubernetes: &Kubernetes, path: &PathBuf) -> String {
    let mut config: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let cluster = &mut config["clusters"][0]["cluster"];
    let ca = std::fs::read(kubernetes.ca_file()).unwrap();
    *cluster = json!({"server": cluster["server"], "certificate-authority-data": BASE64_STANDARD.encode(ca)});
    config.to_string()
}
