//! Backend for servers that Metal3's baremetal-operator manages as `BareMetalHost`s, through the
//! Kubernetes API.
//!
//! A host lacks a maintenance owner and a queue. The coordination store provides both, and a host
//! is entered and left under our own lock. In hold mode `detach`, Redfish controls the host with
//! the address and credentials from the cluster. In mode `power_off`, a reboot annotation keeps it
//! off. In mode `image`, the operator boots our image. Other authors' annotations are awaited and
//! never removed. Sources: baremetal-operator v0.11 to v0.14 (metal3.io/v1alpha1).

mod address;
mod change;
mod firmware;
mod gate;
mod health_checks;
mod host;
mod hosts;
mod image;
mod link;
mod machine;
mod plug;
mod reboot;
mod secrets;
mod standing;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;

use crate::{
    clock::Clock,
    kubernetes::Cluster,
    maintenance::location::{ClusterIdentity, Location},
    outbound::Network,
    shown::OneLine,
};

use super::{
    Backend, BackendError, ExternalRequestRef, Listed, Machine, ServerUse,
    machines::{Machines, end_sessions},
    plug::BackendPlugin as _,
    redfish::Trust,
};

use host::Host;
use hosts::Hosts;
use machine::HostMachine;

pub use host::Hold;
pub use plug::Plugin;

/// The backend's validated settings.
#[derive(Clone, Debug)]
pub struct Metal3Settings {
    /// The cluster with the hosts.
    pub cluster: Cluster,
    /// The hosts' namespace.
    pub namespace: String,
    /// The hold mode.
    pub hold: Hold,
    /// BMC certificate verification. [`Trust::Anything`] also allows `http`.
    pub trust: Trust,
    /// The networks that can receive BMC credentials.
    pub bmc_networks: Vec<Network>,
    /// Lock keys by host, for hosts whose BMC is not queried.
    pub lock_keys: BTreeMap<String, String>,
}

/// A namespace's hosts.
#[derive(Debug)]
pub struct Metal3Backend {
    hosts: Arc<Hosts>,
    machines: Machines<HostMachine>,
}

impl Metal3Backend {
    /// Creates a backend without sending a request.
    #[must_use]
    pub fn new(settings: Metal3Settings, clock: &Arc<dyn Clock>) -> Self {
        Self { hosts: Arc::new(Hosts::new(settings, Arc::clone(clock))), machines: Machines::default() }
    }
}

#[async_trait]
impl Backend for Metal3Backend {
    /// The cluster, not the configuration, lists the hosts.
    fn servers(&self) -> Vec<String> {
        Vec::new()
    }

    async fn inventory(&self) -> Result<BTreeMap<String, Listed>, BackendError> {
        let hosts = self.hosts.all().await?;
        let listed = |host: &Arc<kube::core::DynamicObject>| {
            let labels = host.metadata.labels.clone().unwrap_or_default();
            let listed = Listed { labels, backend: Plugin.name(), ..Listed::default() };
            Some((host.metadata.name.clone()?, listed))
        };
        Ok(hosts.iter().filter_map(listed).collect())
    }

    fn machine(&self, server: &str) -> Result<Arc<dyn Machine>, BackendError> {
        Ok(self.machines.get(server, |name| HostMachine {
            hosts: Arc::clone(&self.hosts),
            name,
            held: None,
            fresh: false,
            link: Arc::default(),
        }))
    }

    async fn location(&self, server: &str) -> Result<Location, BackendError> {
        let uid = self.hosts.uid().await?;
        let server_uid = self.hosts.host(server, false).await?.and_then(|host| host.metadata.uid.clone());
        let cluster = ClusterIdentity {
            uid: uid.map(OneLine::from),
            server_uid: server_uid.map(OneLine::from),
            address: self.hosts.cluster.address().into(),
        };
        let namespace = Some(self.hosts.namespace.clone());
        Ok(Location {
            cluster: Some(cluster),
            namespace: namespace.map(OneLine::from),
            ..Location::direct(Plugin.name())
        })
    }

    async fn external_state(&self, server: &str) -> Option<ServerUse> {
        let object = self.hosts.host(server, false).await.ok()??;
        let host = Host(&object);
        let state = match host.status() {
            "" | "OK" => host.state().to_owned(),
            status => format!("{} ({status})", host.state()),
        };
        Some(ServerUse { state, user: host.consumer() })
    }

    async fn external_requests(&self) -> Option<Result<Vec<ExternalRequestRef>, BackendError>> {
        let hosts = self.hosts.all().await;
        Some(hosts.map(|hosts| hosts.iter().filter_map(|host| gate::request(host)).collect()))
    }

    async fn close(&self) {
        self.hosts.mirror.close();
        self.hosts.secrets.forget().await;
        let machines = self.machines.all();
        end_sessions(machines.iter().map(|machine| machine.link.close())).await;
    }
}
