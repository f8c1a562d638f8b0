//! Vendor-neutral Redfish backend: the BMC's listed features decide, never its vendor or
//! generation.
//!
//! Protocol: DMTF DSP0266 (Redfish) and the schemas in DSP0268. Each BMC has one client and at most
//! one session, shared by its systems.

mod answer;
mod attributes;
mod bmc;
mod boot;
mod configured;
mod inspection;
mod inventory;
mod lenient;
mod machine;
mod media;
mod message;
mod outcome;
mod passwords;
mod plug;
mod redirect;
mod settings;
mod siblings;
mod signature;
mod system;
mod task;
mod trust;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use secrecy::{ExposeSecret as _, SecretString};

use crate::shown::OneLine;
use crate::{clock::Clock, maintenance::location::Location, outbound::Route};

use super::{Backend, BackendError, Listed, Machine, machines::end_sessions, plug::BackendPlugin as _};

use bmc::Bmc;
use machine::RedfishMachine;

pub(super) use configured::{certificate_trust, in_clear, several_trusts};
pub use inventory::{InventoryServer, parse_inventory};
pub use plug::Plugin;
pub use settings::{Authentication, MediaSettings, Patience, RedfishSettings, ServerSettings, Trust};
pub(super) use trust::Clients;
pub use trust::parse_fingerprint;

/// The advice for a server that the configuration does not list.
const ADD_SERVER: &str = "Add it to redfish.servers or to the inventory file of the provider.";

/// Servers behind Redfish BMCs.
#[derive(Debug)]
pub struct RedfishBackend {
    machines: BTreeMap<String, Arc<RedfishMachine>>,
    listed: BTreeMap<String, Listed>,
    /// The entries for an inventory file.
    inventory: BTreeMap<String, InventoryServer>,
    bmcs: Vec<Arc<Bmc>>,
}

impl RedfishBackend {
    /// Creates a backend for one server, with settings, `route` and `clients` from another backend.
    /// The error names the unusable setting.
    pub(super) fn of_one(
        name: &str,
        server: ServerSettings,
        route: &Route,
        clients: &Clients,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, String> {
        let settings = RedfishSettings {
            servers: BTreeMap::from([(name.to_owned(), server)]),
            authentication: Authentication::Session,
            ..RedfishSettings::default()
        };
        Self::with(settings, Some(route), clients, clock)
    }

    /// Creates a backend without sending a request. The error names the server with unusable
    /// settings.
    pub fn new(settings: RedfishSettings, clock: &Arc<dyn Clock>) -> Result<Self, String> {
        Self::with(settings, None, &Clients::default(), clock)
    }

    fn with(
        settings: RedfishSettings,
        route: Option<&Route>,
        clients: &Clients,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, String> {
        // Grouped by address, account and trust. BMCs that differ only by password share a list.
        let mut bmcs: HashMap<String, Vec<(SecretString, Arc<Bmc>)>> = HashMap::new();
        let (mut machines, mut listed) = (BTreeMap::new(), BTreeMap::new());
        for (name, server) in settings.servers {
            let entry = Listed {
                endpoint: Some(server.endpoint.as_str().trim_end_matches('/').to_owned()),
                system_id: server.system_id.clone(),
                labels: server.labels,
                backend: Plugin.name(),
            };
            listed.insert(name.clone(), entry);
            let configured = || Route::new(server.trust == Trust::Anything, "insecure = true");
            let (route, secure) = (route.cloned().unwrap_or_else(configured), server.endpoint.scheme() == "https");
            let trusting = clients.of(&server.trust, route, secure, settings.request_timeout);
            let trusting = trusting.map_err(|problem| format!("server {name:?}: {problem}"))?;
            // Address, account and trust identify a BMC.
            let identity = format!("{}|{}|{:?}", server.endpoint, server.username, server.trust);
            let same = bmcs.entry(identity).or_default();
            let known = same.iter().find(|(known, _)| known.expose_secret() == server.password.expose_secret());
            let bmc = if let Some((_, bmc)) = known {
                Arc::clone(bmc)
            } else {
                let bmc = Arc::new(Bmc::new(
                    server.endpoint,
                    server.username,
                    server.password.clone(),
                    trusting,
                    bmc::Limits {
                        change: settings.request_timeout,
                        read: settings.read_timeout,
                        patience: settings.patience,
                    },
                    settings.authentication,
                    Arc::clone(clock),
                ));
                same.push((server.password, Arc::clone(&bmc)));
                bmc
            };
            bmc.add_system();
            machines.insert(name, Arc::new(RedfishMachine::new(bmc, server.system_id, server.lock_key, server.media)));
        }
        Ok(Self {
            machines,
            listed,
            inventory: settings.inventory,
            bmcs: bmcs.into_values().flatten().map(|(_, bmc)| bmc).collect(),
        })
    }
}

#[async_trait]
impl Backend for RedfishBackend {
    fn servers(&self) -> Vec<String> {
        self.machines.keys().cloned().collect()
    }

    fn listed(&self, server: &str) -> Listed {
        self.listed.get(server).cloned().unwrap_or_default()
    }

    fn inventory_file(&self, servers: &BTreeSet<String>) -> String {
        let entries = self.inventory.iter().filter(|(name, _)| servers.contains(*name));
        serde_json::to_string_pretty(&entries.collect::<BTreeMap<_, _>>()).unwrap_or_default()
    }

    fn machine(&self, server: &str) -> Result<Arc<dyn Machine>, BackendError> {
        if let Some(machine) = self.machines.get(server) {
            return Ok(Arc::clone(machine) as Arc<dyn Machine>);
        }
        let names: Vec<&str> = self.machines.keys().take(10).map(String::as_str).collect();
        let more = self.machines.len().saturating_sub(names.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let known = if names.is_empty() { "none".to_owned() } else { format!("{}{more}", names.join(", ")) };
        Err(BackendError::UnknownServer { server: server.into(), known: known.into(), advice: ADD_SERVER })
    }

    async fn location(&self, server: &str) -> Result<Location, BackendError> {
        let system = self.machines.get(server).and_then(|machine| machine.path.get().cloned());
        Ok(Location { system: system.map(OneLine::from), ..Location::direct(Plugin.name()) })
    }

    fn remember(&self, server: &str, location: &Location) {
        if let (Some(machine), Some(path)) = (self.machines.get(server), &location.system) {
            machine.remember(path.raw());
        }
    }

    async fn close(&self) {
        end_sessions(self.bmcs.iter().map(|bmc| bmc.log_out())).await;
    }
}
