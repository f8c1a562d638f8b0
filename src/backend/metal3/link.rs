//! Redfish access to a host's BMC, with the address and credentials from the cluster.

use std::{collections::BTreeMap, sync::Arc};

use kube::core::DynamicObject;
use tokio::sync::Mutex;

use crate::backend::{
    Backend as _, BackendError, Machine,
    redfish::{MediaSettings, RedfishBackend, ServerSettings, Trust},
};

use super::{address::BmcAddress, host::Host, hosts::Hosts};

/// The host fields that determine the connection to its BMC.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    address: String,
    secret: String,
    insecure: bool,
}

#[derive(Debug)]
struct Open {
    key: Key,
    /// The Secret with the account, for display.
    account: String,
    machine: Arc<dyn Machine>,
    backend: RedfishBackend,
}

/// The connection to a host's BMC. Credentials are read when it opens and are not stored elsewhere.
#[derive(Debug, Default)]
pub(super) struct BmcLink(Mutex<Option<Open>>);

impl BmcLink {
    /// Returns the host's Redfish machine. Reconnects if the host names another BMC or Secret.
    pub(super) async fn machine(
        &self,
        hosts: &Hosts,
        object: &DynamicObject,
        name: &str,
    ) -> Result<Arc<dyn Machine>, BackendError> {
        let host = Host(object);
        let key = Key {
            address: host.bmc_address().to_owned(),
            secret: host.credentials().to_owned(),
            insecure: host.is_insecure(),
        };
        let mut open = self.0.lock().await;
        if let Some(open) = open.as_ref().filter(|open| open.key == key) {
            return Ok(Arc::clone(&open.machine));
        }
        if let Some(old) = open.take() {
            old.backend.close().await;
        }
        let unsupported =
            |what: String| BackendError::Unsupported { address: hosts.cluster.address().into(), what: what.into() };
        let (endpoint, system_id) = match BmcAddress::read(&key.address) {
            BmcAddress::Redfish { endpoint, system } => (endpoint, system),
            other => {
                return Err(unsupported(format!("{}: {}", host.shown(), no_redfish(&other))));
            }
        };
        if key.secret.is_empty() {
            let named = format!("{} does not name a Secret with its BMC's account", host.shown());
            return Err(unsupported(format!("{named} (spec.bmc.credentialsName)")));
        }
        let withheld = |cause| BackendError::Withheld { address: host.shown().into(), cause };
        // `disableCertificateVerification` is not the provider's configuration.
        if key.insecure && hosts.trust == Trust::System {
            return Err(withheld(
                "no credentials were sent, because the host disables certificate verification: set \
                 metal3.bmc_ca_certificate_file, or metal3.bmc_insecure = true to trust any certificate"
                    .into(),
            ));
        }
        hosts.route.check(&endpoint).await.map_err(|refused| withheld(refused.to_string().into()))?;
        let (username, password) = hosts.credentials(&key.secret).await?;
        let settings = ServerSettings {
            endpoint,
            system_id,
            lock_key: hosts.settings.lock_keys.get(name).cloned(),
            labels: BTreeMap::new(),
            username,
            password,
            media: MediaSettings::default(),
            trust: hosts.trust.clone(),
        };
        let backend = RedfishBackend::of_one(name, settings, &hosts.route, &hosts.clients, &hosts.clock);
        let backend = backend.map_err(unsupported)?;
        let machine = backend.machine(name)?;
        let account = format!("Secret {}/{}", hosts.namespace, key.secret);
        *open = Some(Open { key, account, machine: Arc::clone(&machine), backend });
        Ok(machine)
    }

    /// Inspects an answer. After rejected credentials, the connection closes so that the Secret is
    /// read again, because it could have changed. The error names the Secret.
    pub(super) async fn judged<T>(&self, answer: Result<T, BackendError>) -> Result<T, BackendError> {
        let Err(BackendError::Unauthorized { address, message }) = answer else { return answer };
        let message = match self.end().await {
            Some(account) => format!("{message}; they are those of {account}"),
            None => message.to_string(),
        };
        Err(BackendError::Unauthorized { address, message: message.into() })
    }

    pub(super) async fn close(&self) {
        self.end().await;
    }

    /// Ends the BMC session, if there is one, and returns the Secret with its account.
    async fn end(&self) -> Option<String> {
        let open = self.0.lock().await.take()?;
        open.backend.close().await;
        Some(open.account)
    }
}

/// Explains why the provider does not control this BMC.
pub(super) fn no_redfish(address: &BmcAddress) -> String {
    format!(
        "its BMC uses {}, but this provider supports Redfish only: it changes power only with hold = \"power_off\" and \
         boots an image only with hold = \"image\"",
        address.protocol()
    )
}

/// Returns advice for the plan if a host's boot configuration cannot be changed.
pub(super) fn instead_of_boot(address: &BmcAddress) -> String {
    match address {
        BmcAddress::Redfish { .. } => {
            "hold = \"power_off\" only keeps the host off. Use hold = \"detach\", which boots it through Redfish."
                .to_owned()
        }
        other => format!(
            "The BMC uses {}, but this provider boots through Redfish only. Use a Redfish address in spec.bmc if the \
             BMC has one. The operator boots an available host from an ISO image with hold = \"image\" and method = \
             \"boot_operator\".",
            other.protocol()
        ),
    }
}
