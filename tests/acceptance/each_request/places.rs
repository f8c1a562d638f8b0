//! One server of each system, `node1`, and what is to be seen of it.

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

/// A server of a system that is reached through an API server.
pub trait Place {
    fn kubernetes(&self) -> &Kubernetes;

    fn simulator(&self) -> &Simulator;

    /// The provider's arguments that lead to it. `folder` may be written to.
    fn config(&self, kubeconfig: &Path, folder: &Path) -> Value;

    /// What of ours is to be seen.
    async fn traces(&self) -> Vec<String>;

    /// Whether it runs again, or does soon.
    async fn is_back(&self) -> bool {
        self.simulator().wait_power("node1", PowerState::On, SOON).await.is_ok()
    }
}

/// A host of Metal3.
pub struct Metal3 {
    world: metal3::world::World,
    block: Value,
}

impl Metal3 {
    /// `block`: more of the provider's block.
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
        let mut block = json!({"kubeconfig": kubeconfig, "namespace": self.world.namespace});
        block.as_object_mut().unwrap().extend(self.block.as_object().unwrap().clone());
        json!({"metal3": block})
    }

    async fn traces(&self) -> Vec<String> {
        self.world.traces("node1").await
    }
}

/// A host of Metal3 under a Machine of Cluster API.
pub struct Chain {
    hosts: metal3::world::World,
    machines: machines::world::World,
}

impl Chain {
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
            "metal3": {"kubeconfig": kubeconfig, "namespace": self.hosts.namespace},
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

/// A server whose Node is drained, with one Pod.
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

/// A server of metal-operator.
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
        json!({"metal_operator": {"kubeconfig": kubeconfig, "bmc_insecure": true}})
    }

    async fn traces(&self) -> Vec<String> {
        let ours = metal_operator::strangers::ours(&self.world, "node1").await;
        ours.map(|_| "a ServerMaintenance".to_owned()).into_iter().collect()
    }

    /// Its operator switches it off where nobody has claimed it.
    async fn is_back(&self) -> bool {
        self.world.until_state("node1", "Available").await;
        true
    }
}
