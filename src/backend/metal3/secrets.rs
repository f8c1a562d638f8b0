//! BMC credentials from the Secrets that hosts reference.
//!
//! A few Secrets are read individually, and a fleet's with one list if the role allows it. A role
//! with only `get` is sufficient.

use std::{collections::BTreeMap, time::Duration};

use kube::{api::ListParams, core::DynamicObject};
use secrecy::{ExposeSecret as _, SecretString};

use crate::backend::{BackendError, bulk::BulkReads, cluster};

use super::{
    host::resource,
    hosts::{Hosts, error},
};

/// How long a listed Secret counts as current.
const RECENT: Duration = Duration::from_secs(20);

/// The label on every Secret that baremetal-operator uses (`pkg/secretutils/label.go`, v0.11 to
/// v0.14).
const LABEL: &str = "environment.metal3.io=baremetal";

/// Warns about a Secret that the operator does not use. Its label alone proves nothing, because the
/// operator sets it on every Secret that a host names.
fn warn_without_label(found: &DynamicObject, shown: &str) {
    let label = LABEL.split_once('=').and_then(|(key, value)| Some((found.metadata.labels.as_ref()?.get(key)?, value)));
    if label.is_none_or(|(is, wanted)| is != wanted) {
        tracing::warn!("{shown} lacks the operator's label {LABEL}: check whether it is a BMC's account");
    }
}

pub(super) type Account = (String, SecretString);

#[derive(Debug)]
pub(super) struct Secrets(BulkReads<Account>);

impl Default for Secrets {
    fn default() -> Self {
        Self(BulkReads::new("Secrets", RECENT))
    }
}

impl Secrets {
    /// Returns a Secret's account, at most [`RECENT`] old.
    pub(super) async fn account(&self, hosts: &Hosts, name: &str) -> Result<Account, BackendError> {
        if let Some(account) = self.0.take(hosts.clock.as_ref(), name, listed(hosts)).await {
            return Ok(account);
        }
        let found = hosts.object("Secret", name).await?;
        account(hosts, name, found.as_ref())
    }

    pub(super) async fn forget(&self) {
        self.0.forget().await;
    }
}

/// Extracts a Secret's account. Like the operator, it trims white space around the values.
fn account(hosts: &Hosts, name: &str, found: Option<&DynamicObject>) -> Result<Account, BackendError> {
    let shown = format!("Secret {}/{name}", hosts.namespace);
    let (username, password) = cluster::credentials(found, &hosts.cluster.address(), &shown)?;
    if let Some(found) = found {
        warn_without_label(found, &shown);
    }
    let (username, password) = (username.trim(), password.expose_secret().trim());
    // The operator rejects these too, and each failed login counts at the BMC.
    for (part, value) in [("username", username), ("password", password)] {
        if value.is_empty() {
            let (address, what) = (hosts.cluster.address(), format!("{shown} has an empty {part}"));
            return Err(BackendError::Missing { address: address.into(), what: what.into() });
        }
    }
    Ok((username.to_owned(), SecretString::from(password.to_owned())))
}

/// Lists all accounts in the namespace, without unreadable ones.
async fn listed(hosts: &Hosts) -> Result<BTreeMap<String, Account>, BackendError> {
    let (kind, labelled) = (resource("Secret"), ListParams::default().labels(LABEL));
    let all = cluster::list_of(&hosts.cluster, &kind, Some(&hosts.namespace), &labelled).await.map_err(error)?;
    let read = |object: &DynamicObject| {
        let name = cluster::name(object);
        Some((name.to_owned(), account(hosts, name, Some(object)).ok()?))
    };
    Ok(all.iter().filter_map(read).collect())
}
