//! The BMC of a host over Redfish, with address and credentials as the cluster has them.

use std::{collections::BTreeMap, sync::Arc};

use kube::core::DynamicObject;
use tokio::sync::Mutex;

use crate::backend::{
    Backend as _, BackendError, Machine,
    redfish::{MediaSettings, RedfishBackend, ServerSettings, Trust},
};

use super::{address::BmcAddress, host::Host, hosts::Hosts};

/// What of a host says how its BMC is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    address: String,
    secret: String,
    insecure: bool,
}

#[derive(Debug)]
struct Open {
    key: Key,
    /// The Secret with the account, for people.
    account: String,
    machine: Arc<dyn Machine>,
    backend: RedfishBackend,
}

/// The connection to the BMC of one host. Its credentials are read when it is opened and kept
/// nowhere else.
#[derive(Debug, Default)]
pub(super) struct BmcLink(Mutex<Option<Open>>);

impl BmcLink {
    /// The machine behind a host. Opened again when the host names another BMC or Secret.
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
        let unsupported = |what: String| BackendError::Unsupported { address: hosts.cluster.address(), what };
        let (endpoint, system_id) = match BmcAddress::read(&key.address) {
            BmcAddress::Redfish { endpoint, system } => (endpoint, system),
            other => {
                return Err(unsupported(format!("{}: {}", host.shown(), no_redfish(&other))));
            }
        };
        if key.secret.is_empty() {
            let named = format!("{} names no Secret with the account of its BMC", host.shown());
            return Err(unsupported(format!("{named} (spec.bmc.credentialsName)")));
        }
        let (username, password) = hosts.credentials(&key.secret).await?;
        let settings = ServerSettings {
            endpoint,
            system_id,
            lock_key: hosts.settings.lock_keys.get(name).cloned(),
            labels: BTreeMap::new(),
            username,
            password,
            media: MediaSettings::default(),
            trust: if key.insecure { Trust::Anything } else { hosts.trust.clone() },
        };
        let backend = RedfishBackend::of_one(name, settings, &hosts.clients, &hosts.clock).map_err(unsupported)?;
        let machine = backend.machine(name)?;
        let account = format!("Secret {}/{}", hosts.namespace, key.secret);
        *open = Some(Open { key, account, machine: Arc::clone(&machine), backend });
        Ok(machine)
    }

    /// Takes note of an answer: after refused credentials the Secret is read again, which may have
    /// changed since. The error names it.
    pub(super) async fn judged<T>(&self, answer: Result<T, BackendError>) -> Result<T, BackendError> {
        let Err(BackendError::Unauthorized { address, message }) = answer else { return answer };
        let message = match self.end().await {
            Some(account) => format!("{message}; they are those of {account}"),
            None => message,
        };
        Err(BackendError::Unauthorized { address, message })
    }

    /// Ends the session with the BMC.
    pub(super) async fn close(&self) {
        self.end().await;
    }

    /// Ends the session with the BMC, and tells which Secret had its account, where there was one.
    async fn end(&self) -> Option<String> {
        let open = self.0.lock().await.take()?;
        open.backend.close().await;
        Some(open.account)
    }
}

/// Why a BMC is not driven.
pub(super) fn no_redfish(address: &BmcAddress) -> String {
    format!(
        "its BMC is reached by {}, and this provider speaks Redfish only: its power is changed only with hold = \"power_off\", \
         and it boots an image only with hold = \"image\"",
        address.protocol()
    )
}

/// Advice for the plan where the boot configuration of a host cannot be changed.
pub(super) fn instead_of_boot(address: &BmcAddress) -> String {
    match address {
        BmcAddress::Redfish { .. } => {
            "With hold = \"power_off\" a host is only kept off. Use hold = \"detach\", which boots it by Redfish."
                .to_owned()
        }
        other => format!(
            "The BMC is reached by {}, and this provider boots by Redfish only. Use a Redfish address in spec.bmc where the \
             BMC has one. An available host boots an ISO image by its operator with hold = \"image\" and method = \
             \"boot_operator\".",
            other.protocol()
        ),
    }
}
