//! Servers that IronCore's metal-operator manages, through the Kubernetes API.
//!
//! What the cluster has is discovered, never assumed: kinds and fields differ between v0.1 and the versions after v0.7. Where
//! there is a `ServerMaintenance`, the operator's own queue orders and it drives power and boot as far as that version does;
//! otherwise the server is parked and driven over Redfish, with the credentials that the cluster has of its BMC.

mod claims;
mod discovery;
mod errors;
mod fleet;
mod link;
mod machine;
mod native;
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

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use secrecy::SecretString;

use crate::{
    clock::{Clock, within},
    kubernetes::Cluster,
    maintenance::location::{BackendKind, ClusterIdentity, Location},
};

use super::{Backend, BackendError, Listed, Machine, NativeOwnership, plug::BackendPlugin as _, redfish::Trust};

use fleet::Fleet;
use machine::OperatorMachine;

pub use plug::Plugin;

/// How long ending all sessions may take.
const GOODBYE: Duration = Duration::from_secs(2);

/// The backend, checked.
#[derive(Debug)]
pub struct MetalOperatorSettings {
    /// Where the servers' objects are.
    pub cluster: Cluster,
    /// The namespace of our own objects.
    pub namespace: String,
    /// How the certificates of BMCs are judged.
    pub trust: Trust,
    /// The cluster whose Nodes run on the servers, where that is another one.
    pub nodes: Option<Cluster>,
}

/// Servers of one cluster.
#[derive(Debug)]
pub struct MetalOperatorBackend {
    fleet: Arc<Fleet>,
    machines: Mutex<BTreeMap<String, Arc<OperatorMachine>>>,
}

impl MetalOperatorBackend {
    /// Makes a backend. Sends no request.
    #[must_use]
    pub fn new(settings: MetalOperatorSettings, clock: &Arc<dyn Clock>) -> Self {
        let fleet = Fleet::new(settings, Arc::clone(clock));
        Self { fleet: Arc::new(fleet), machines: Mutex::default() }
    }
}

#[async_trait]
impl Backend for MetalOperatorBackend {
    /// None is configured: the cluster has them.
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
        let mut machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        let machine = machines.entry(server.to_owned()).or_insert_with(|| {
            Arc::new(OperatorMachine {
                fleet: Arc::clone(&self.fleet),
                name: server.to_owned(),
                held: None,
                fresh: false,
                link: Arc::default(),
            })
        });
        Ok(Arc::clone(machine) as Arc<dyn Machine>)
    }

    async fn location(&self, server: &str) -> Result<Location, BackendError> {
        let uid = self.fleet.uid().await?;
        let server_uid = self.fleet.server(server, false).await?.and_then(|server| server.metadata.uid.clone());
        let cluster = ClusterIdentity { uid, server_uid, address: self.fleet.cluster.address() };
        let namespace = Some(self.fleet.namespace.clone());
        Ok(Location { backend: BackendKind::named(Plugin.name()), cluster: Some(cluster), namespace })
    }

    fn keep(&self, sha256: String, content: SecretString) {
        self.fleet.shelf.put(sha256, content);
    }

    fn ownership(&self) -> Option<&dyn NativeOwnership> {
        Some(self)
    }

    async fn close(&self) {
        self.fleet.close();
        let machines: Vec<_> = {
            let machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
            machines.values().cloned().collect()
        };
        let goodbyes = join_all(machines.iter().map(|machine| machine.close()));
        if within(GOODBYE, goodbyes).await.is_none() {
            tracing::debug!("not every session was ended in time; they end by themselves");
        }
    }
}
