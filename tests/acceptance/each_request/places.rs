//! Server `node1` of each system and its observable state.

use std::path::Path;

use bmc_simulator::{PowerState, Simulator};
use serde_json::{Value, json};

use super::provider::redfish;
use crate::{
    cluster_api::{self, chain},
    kubernetes_node, metal_operator,
    servers::{
        cluster_api as machines,
        ironcore::{self, family::Family},
        kubernetes::Kubernetes,
        metal3,
    },
    support::simulator::{Fleet, SOON},
};

/// A server whose system uses an API server.
pub trait Place {
    fn kubernetes(&self) -> &Kubernetes;

    fn simulator(&self) -> &Simulator;

    /// Returns the provider's arguments for it. `folder` is writable.
    fn config(&self, kubeconfig: &Path, folder: &Path) -> Value;

    /// Returns this program's visible marks.
    async fn traces(&self) -> Vec<String>;

    /// Returns true if the server runs again within the time limit.
    async fn is_back(&self) -> bool {
        self.simulator().wait_power("node1", PowerState::On, SOON).await.is_ok()
    }
}

/// A Metal3 host.
pub struct Metal3 {
    world: metal3::world::World,
    block: Value,
}

/// The simulators' networks. No CA certificate is configured for them.
const LOOPBACK: [&str; 1] = ["127.0.0.0/8"];

fn metal3_block(hosts: &metal3::world::World, kubeconfig: &Path) -> Value {
    let namespace = &hosts.namespace;
    json!({"kubeconfig": kubeconfig, "namespace": namespace, "bmc_networks": LOOPBACK, "bmc_insecure": true})
}

impl Metal3 {
    pub fn namespace(&self) -> &str {
        &self.world.namespace
    }

    /// Starts a host. `block` is merged into the provider block.
    pub async fn new(block: Value) -> Self {
        Self { world: metal3::world::World::start(1, metal3::operator::Options::default()).await, block }
    }
}

impl Place for Metal3 {
    fn kubernetes(&self) -> &Kubernetes {
        self.world.kubernetes
    }

    fn simulator(&self) -> &Simulator {
        &self.world.simulator
    }

    fn config(&self, kubeconfig: &Path, _: &Path) -> Value {
        let mut block = metal3_block(&self.world, kubeconfig);
        block.as_object_mut().unwrap().extend(self.block.as_object().unwrap().clone());
        json!({"metal3": block})
    }

    async fn traces(&self) -> Vec<String> {
        self.world.traces("node1").await
    }
}

/// A Metal3 host under a Cluster API Machine.
pub struct Chain {
    hosts: metal3::world::World,
    machines: machines::world::World,
}

impl Chain {
    pub fn namespace(&self) -> &str {
        &self.hosts.namespace
    }

    pub async fn new() -> Self {
        let (hosts, machines) = chain::place(false).await;
        Self { hosts, machines }
    }
}

impl Place for Chain {
    fn kubernetes(&self) -> &Kubernetes {
        self.hosts.kubernetes
    }

    fn simulator(&self) -> &Simulator {
        &self.hosts.simulator
    }

    fn config(&self, kubeconfig: &Path, _: &Path) -> Value {
        json!({
            "cluster_api": {"kubeconfig": kubeconfig},
            "metal3": metal3_block(&self.hosts, kubeconfig),
        })
    }

    async fn traces(&self) -> Vec<String> {
        let mut traces = self.hosts.traces("node1").await;
        traces.extend(cluster_api::traces(&self.machines, "m1").await);
        let node = self.machines.node("m1").await;
        traces.extend(node["spec"]["unschedulable"].as_bool().map(|cordoned| format!("cordoned: {cordoned}")));
        traces
    }
}

/// A server with a drained Node and one Pod.
pub struct Node {
    place: kubernetes_node::Place,
    fleet: Fleet,
}

impl Node {
    pub async fn new() -> Self {
        let (place, fleet) = (kubernetes_node::Place::new().await, Fleet::new(1).await);
        place.pod("web", Some("ReplicaSet"), json!({})).await;
        Self { place, fleet }
    }
}

impl Place for Node {
    fn kubernetes(&self) -> &Kubernetes {
        self.place.cluster
    }

    fn simulator(&self) -> &Simulator {
        &self.fleet.simulator
    }

    fn config(&self, kubeconfig: &Path, folder: &Path) -> Value {
        json!({
            "redfish": redfish(&self.fleet.simulator, folder),
            "kubernetes_node": {"kubeconfig": kubeconfig, "nodes": {"node1": self.place.node}},
        })
    }

    async fn traces(&self) -> Vec<String> {
        let mut traces = Vec::new();
        traces.extend(self.place.cordoned().await.then(|| "cordoned".to_owned()));
        traces.extend((self.place.marks().await > 0).then(|| "annotations".to_owned()));
        traces
    }
}

/// A metal-operator server.
pub struct MetalOperator {
    world: ironcore::world::World,
}

impl MetalOperator {
    pub async fn new() -> Self {
        Self { world: metal_operator::cluster(Family::V0_7, 1, ironcore::Options::default()).await }
    }
}

impl Place for MetalOperator {
    fn kubernetes(&self) -> &Kubernetes {
        &self.world.kubernetes
    }

    fn simulator(&self) -> &Simulator {
        &self.world.simulator
    }

    fn config(&self, kubeconfig: &Path, _: &Path) -> Value {
        json!({"metal_operator": {"kubeconfig": kubeconfig, "bmc_networks": LOOPBACK, "bmc_insecure": true}})
    }

    async fn traces(&self) -> Vec<String> {
        let ours = metal_operator::strangers::ours(&self.world, "node1").await;
        ours.map(|_| "a ServerMaintenance".to_owned()).into_iter().collect()
    }

    /// The operator powers unclaimed servers off.
    async fn is_back(&self) -> bool {
        self.world.until_state("node1", "Available").await;
        true
    }
}
