//! Test fixture: a namespace with the operator's stand-in and hosts behind simulated BMCs.

use std::{collections::HashMap, sync::OnceLock};

use bmc_simulator::{Simulator, SimulatorConfig};
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use super::{
    super::{ironcore::patience, kubernetes::Kubernetes},
    operator::{Options, Running, resource},
};

/// Annotation that detaches a host.
pub const DETACHED: &str = "baremetalhost.metal3.io/detached";

/// A namespace on the shared API server.
pub struct World {
    pub running: Running,
    pub simulator: Simulator,
    pub kubernetes: &'static Kubernetes,
    pub namespace: String,
    options: Options,
}

fn api_server() -> &'static Kubernetes {
    static READY: OnceLock<&'static Kubernetes> = OnceLock::new();
    READY.get_or_init(|| {
        let kubernetes = Kubernetes::shared();
        kubernetes.apply(include_str!("crds.yaml"));
        kubernetes
    })
}

impl World {
    /// Starts with provisioned, powered hosts `node1`, `node2` …
    pub async fn start(hosts: usize, options: Options) -> Self {
        let this = Self::empty(hosts, options).await;
        for name in this.simulator.systems() {
            this.add(&name, json!({"image": {"url": "https://images.example/os.raw"}})).await;
        }
        for name in this.simulator.systems() {
            this.until(&name, "provisioned and on", |host| {
                host["status"]["provisioning"]["state"] == "provisioned" && host["status"]["poweredOn"] == true
            })
            .await;
        }
        this
    }

    /// Starts with machines but without hosts.
    pub async fn empty(machines: usize, options: Options) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let simulator = Simulator::start(SimulatorConfig::with_systems(machines)).await.expect("the simulator starts");
        let kubernetes = tokio::task::spawn_blocking(api_server).await.unwrap();
        let namespace = tokio::task::spawn_blocking(|| kubernetes.namespace()).await.unwrap();
        let client = Kubernetes::client(&kubernetes.kubeconfig()).await;
        let running = Running::start(client, &namespace, options.clone(), HashMap::new());
        Self { running, simulator, kubernetes, namespace, options }
    }

    fn api(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.running.operator.client.clone(), &self.namespace, &resource(kind))
    }

    /// Address of a machine's BMC, as in a host's spec.
    pub fn address(&self, name: &str) -> String {
        let url: url::Url = self.simulator.url(name).unwrap().parse().unwrap();
        let (host, port) = (url.host_str().unwrap(), url.port_or_known_default().unwrap());
        format!("redfish-virtualmedia+{}://{host}:{port}/redfish/v1/Systems/1", url.scheme())
    }

    /// Adds a host for a machine; `more` is merged into its spec.
    pub async fn add(&self, name: &str, more: Value) {
        let account = self.simulator.credentials();
        // With the line break that `echo password | base64` leaves.
        let data = json!({"username": account.username, "password": format!("{}\n", account.password.expose_secret())});
        let secret = format!("{name}-bmc");
        self.create("Secret", &secret, json!({"stringData": data})).await;
        let mut spec = json!({
            "online": true,
            "bmc": {
                "address": self.address(name), "credentialsName": secret, "disableCertificateVerification": true,
            },
        });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        self.create("BareMetalHost", name, json!({"spec": spec})).await;
    }

    /// Creates an object in the namespace.
    pub async fn create(&self, kind: &str, name: &str, mut object: Value) {
        let resource = resource(kind);
        object["apiVersion"] = json!(resource.api_version);
        object["kind"] = json!(kind);
        object["metadata"]["name"] = json!(name);
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        self.api(kind).create(&PostParams::default(), &object).await.unwrap();
    }

    /// Returns a host.
    pub async fn host(&self, name: &str) -> Value {
        self.find(name).await.unwrap_or_else(|| panic!("host {name} is missing"))
    }

    pub async fn find(&self, name: &str) -> Option<Value> {
        let host = self.api("BareMetalHost").get_opt(name).await.unwrap()?;
        Some(serde_json::to_value(host).unwrap())
    }

    /// Waits until a host matches.
    pub async fn until(&self, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        patience::until(&format!("{name}: {what}"), async || self.find(name).await.filter(|host| wanted(host))).await
    }

    /// Merges a change into an object.
    pub async fn merge(&self, kind: &str, name: &str, change: Value) {
        self.api(kind).patch(name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    }

    /// Merges a change into an object's status.
    pub async fn merge_status(&self, kind: &str, name: &str, status: Value) {
        let change = json!({"status": status});
        self.api(kind).patch_status(name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    }

    /// Sets annotations of a host; null removes.
    pub async fn annotate(&self, name: &str, annotations: Value) {
        self.merge("BareMetalHost", name, json!({"metadata": {"annotations": annotations}})).await;
    }

    pub async fn delete(&self, name: &str) {
        self.api("BareMetalHost").delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Restarts the operator, which keeps the nodes in Ironic.
    pub fn restart(&mut self) {
        self.running.stop();
        let nodes = self.running.operator.nodes.lock().unwrap().clone();
        let client = self.running.operator.client.clone();
        self.running = Running::start(client, &self.namespace, self.options.clone(), nodes);
    }

    /// Returns this program's marks on a host: annotations and consumer, sorted.
    pub async fn traces(&self, name: &str) -> Vec<String> {
        let host = self.host(name).await;
        let annotations = host["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
        let mut all: Vec<String> = annotations
            .iter()
            .filter(|(key, _)| {
                key.starts_with("terraform-provider-metal") || *key == DETACHED || key.starts_with("reboot.metal3.io")
            })
            .map(|(key, _)| key.clone())
            .collect();
        if host["spec"]["consumerRef"]["kind"] == "Maintenance" {
            all.push("consumerRef".to_owned());
        }
        all
    }
}
