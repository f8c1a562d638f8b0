//! Backend for nodes that OpenStack Ironic manages, standalone or in a cloud.
//!
//! A maintenance is a flag on the node, and the flag's reason contains our identity. Power, boot
//! device and virtual media are changed through Ironic, so that its database matches the hardware.
//! Protocol facts come from Ironic 39.0.0 (API 1.1 to 1.115), read and measured; each file names
//! its sources.

mod accepted;
mod answer;
mod boot;
mod client;
mod clouds;
mod flag;
mod fleet;
mod gate;
mod identity;
mod keystone;
mod machine;
mod media;
mod moment;
mod node;
mod plug;
mod reason;
mod service;
mod service_history;
mod settings;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;

use crate::{
    clock::Clock,
    maintenance::location::{ClusterIdentity, Location},
    shown::OneLine,
};

use super::{Backend, BackendError, ExternalRequestRef, Listed, Machine, ServerUse, machines::Machines};

use client::Client;
use fleet::IronicNodes;
use machine::NodeMachine;

pub use plug::Plugin;
pub use settings::{
    IronicAccess, IronicSettings, IronicTrust, KeystoneAccount, KeystoneName, KeystoneScope, KeystoneSettings,
};

/// Nodes of an Ironic service.
#[derive(Debug)]
pub struct IronicBackend {
    fleet: Arc<IronicNodes>,
    machines: Machines<NodeMachine>,
}

impl IronicBackend {
    /// Creates a backend without sending a request. The error names the unusable setting.
    pub fn new(settings: IronicSettings, clock: &Arc<dyn Clock>) -> Result<Self, String> {
        let client = Client::new(&settings, clock)?;
        Ok(Self { fleet: Arc::new(IronicNodes::new(client, settings)), machines: Machines::default() })
    }
}

/// Returns a node's properties as labels for selecting servers. States date from the listing.
fn labels(node: &node::Node) -> BTreeMap<String, String> {
    let text = |name: &str, value: &Option<String>| {
        value.as_ref().filter(|value| !value.is_empty()).map(|value| (name.to_owned(), value.clone()))
    };
    let known = [
        text("driver", &node.driver),
        text("resource_class", &node.resource_class),
        text("conductor_group", &node.conductor_group),
        text("owner", &node.owner),
        text("lessee", &node.lessee),
        text("description", &node.description),
        text("provision_state", &node.provision_state),
        text("power_state", &node.power_state),
        text("boot_interface", &node.boot_interface),
        text("fault", &node.fault),
    ];
    let flags = [("maintenance", node.maintenance), ("protected", node.protected), ("retired", node.retired)];
    let traits = node.traits.iter().flatten().map(|name| (format!("trait/{name}"), "true".to_owned()));
    let flags = flags.into_iter().filter(|(_, set)| *set).map(|(name, _)| (name.to_owned(), "true".to_owned()));
    known.into_iter().flatten().chain(flags).chain(traits).collect()
}

#[async_trait]
impl Backend for IronicBackend {
    /// Ironic, not the configuration, lists the nodes.
    fn servers(&self) -> Vec<String> {
        Vec::new()
    }

    async fn inventory(&self) -> Result<BTreeMap<String, Listed>, BackendError> {
        let nodes = self.fleet.list("").await?;
        Ok(nodes
            .iter()
            .map(|node| {
                let listed = Listed { labels: labels(node), backend: "ironic", ..Listed::default() };
                (node.listed_name(), listed)
            })
            .collect())
    }

    fn machine(&self, server: &str) -> Result<Arc<dyn Machine>, BackendError> {
        Ok(self.machines.get(server, |server| NodeMachine {
            fleet: Arc::clone(&self.fleet),
            server,
            held: None,
            fresh: false,
        }))
    }

    /// A node's UUID is unique, whatever its Ironic's address.
    async fn location(&self, server: &str) -> Result<Location, BackendError> {
        let node = self.fleet.node(server).await?;
        let address = self.fleet.client.address();
        let cluster =
            ClusterIdentity { uid: None, server_uid: Some(node.uuid.clone().into()), address: address.into() };
        Ok(Location { cluster: Some(cluster), ..Location::direct("ironic") })
    }

    fn remember(&self, server: &str, location: &Location) {
        if let Some(uid) = location.cluster.as_ref().and_then(|cluster| cluster.server_uid.as_ref().map(OneLine::raw)) {
            self.fleet.remember(server, uid);
        }
    }

    async fn external_state(&self, server: &str) -> Option<ServerUse> {
        let node = self.fleet.node(server).await.ok()?;
        let state = node.provision_state.clone().unwrap_or_default();
        let state = if node.maintenance { format!("{state} (maintenance)") } else { state };
        Some(ServerUse { state, user: node.instance_uuid.clone() })
    }

    async fn external_requests(&self) -> Option<Result<Vec<ExternalRequestRef>, BackendError>> {
        Some(gate::requests(&self.fleet).await)
    }

    async fn close(&self) {}
}
