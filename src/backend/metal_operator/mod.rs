//! Backend for servers that IronCore's metal-operator manages, through the Kubernetes API.
//!
//! Features are discovered, because kinds and fields differ between v0.1 and the versions after
//! v0.7. With a `ServerMaintenance` kind, the operator's own queue decides the order, and the
//! operator controls power and boot as far as its version can. Otherwise the server is parked and
//! controlled over Redfish with the cluster's BMC credentials.

mod afterwards;
mod claims;
mod discovery;
mod errors;
mod fleet;
mod gate;
mod link;
mod machine;
mod objects;
mod operation;
mod orphans;
mod owners;
mod park;
mod plug;
mod request;
mod taints;
mod template;
mod withdrawal;
mod word;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use secrecy::SecretString;

use crate::{
    clock::Clock,
    kubernetes::Cluster,
    maintenance::location::{ClusterIdentity, Location},
    outbound::Network,
    shown::OneLine,
};

use super::{
    Backend, BackendError, ExternalOwnership, Listed, Machine,
    machines::{Machines, end_sessions},
    plug::BackendPlugin as _,
    redfish::Trust,
};

use fleet::ClusterObjects;
use machine::OperatorMachine;

pub use plug::Plugin;

/// The backend's validated settings.
#[derive(Debug)]
pub struct MetalOperatorSettings {
    /// The cluster with the servers' objects.
    pub cluster: Cluster,
    /// The namespace for our own objects.
    pub namespace: String,
    /// BMC certificate verification. [`Trust::Anything`] also allows `http`.
    pub trust: Trust,
    /// The networks that can receive BMC credentials.
    pub bmc_networks: Vec<Network>,
    /// The cluster whose Nodes run on the servers, if it is a different cluster.
    pub nodes: Option<Cluster>,
}

/// A cluster's servers.
#[derive(Debug)]
pub struct MetalOperatorBackend {
    fleet: Arc<ClusterObjects>,
    machines: Machines<OperatorMachine>,
}

impl MetalOperatorBackend {
    /// Creates a backend without sending a request.
    #[must_use]
    pub fn new(settings: MetalOperatorSettings, clock: &Arc<dyn Clock>) -> Self {
        let fleet = ClusterObjects::new(settings, Arc::clone(clock));
        Self { fleet: Arc::new(fleet), machines: Machines::default() }
    }
}

#[async_trait]
impl Backend for MetalOperatorBackend {
    /// The cluster, not the configuration, lists the servers.
    fn servers(&self) -> Vec<String> {
        Vec::new()
    }

    async fn inventory(&self) -> Result<BTreeMap<String, Listed>, BackendError> {
        let servers = self.fleet.all_servers().await?;
        Ok(servers
            .into_iter()
            .map(|(name, labels)| (name, Listed { labels, backend: Plugin.name(), ..Listed::default() }))
            .collect())
    }

    fn machine(&self, server: &str) -> Result<Arc<dyn Machine>, BackendError> {
        Ok(self.machines.get(server, |name| OperatorMachine {
            fleet: Arc::clone(&self.fleet),
            name,
            held: None,
            fresh: false,
            link: Arc::default(),
        }))
    }

    async fn location(&self, server: &str) -> Result<Location, BackendError> {
        let uid = self.fleet.uid().await?;
        let server_uid = self.fleet.server(server, false).await?.and_then(|server| server.metadata.uid.clone());
        let cluster = ClusterIdentity {
            uid: uid.map(OneLine::from),
            server_uid: server_uid.map(OneLine::from),
            address: self.fleet.cluster.address().into(),
        };
        let namespace = Some(self.fleet.namespace.clone());
        Ok(Location {
            cluster: Some(cluster),
            namespace: namespace.map(OneLine::from),
            ..Location::direct(Plugin.name())
        })
    }

    fn keep(&self, sha256: String, content: SecretString) {
        self.fleet.shelf.put(sha256, content);
    }

    fn ownership(&self) -> Option<&dyn ExternalOwnership> {
        Some(self)
    }

    async fn close(&self) {
        self.fleet.close();
        let machines = self.machines.all();
        end_sessions(machines.iter().map(|machine| machine.close())).await;
    }
}
