//! The credentials of BMCs, from the Secrets that hosts name.
//!
//! A get each while they are few. A fleet is read by one list, where the role allows it: `get`
//! alone is enough.

use std::{collections::BTreeMap, time::Duration};

use kube::{api::ListParams, core::DynamicObject};
use secrecy::{ExposeSecret as _, SecretString};

use crate::backend::{BackendError, bulk::BulkReads, cluster};

use super::{
    host::resource,
    hosts::{Hosts, error},
};

/// How long a listed Secret counts as one that was read now.
const RECENT: Duration = Duration::from_secs(20);

/// The label that baremetal-operator puts on every Secret that it uses (`pkg/secretutils/label.go`,
/// v0.11 to v0.14).
const LABEL: &str = "environment.metal3.io=baremetal";

/// User name and password of a BMC.
pub(super) type Account = (String, SecretString);

/// The Secrets of a namespace.
#[derive(Debug)]
pub(super) struct Secrets(BulkReads<Account>);

impl Default for Secrets {
    fn default() -> Self {
        Self(BulkReads::new("Secrets", RECENT))
    }
}

impl Secrets {
    /// The account in a Secret, not older than [`RECENT`].
    pub(super) async fn account(&self, hosts: &Hosts, name: &str) -> Result<Account, BackendError> {
        if let Some(account) = self.0.take(hosts.clock.as_ref(), name, listed(hosts)).await {
            return Ok(account);
        }
        let found = hosts.object("Secret", name).await?;
        account(hosts, name, found.as_ref())
    }

    /// Forgets all of them.
    pub(super) async fn forget(&self) {
        self.0.forget().await;
    }
}

/// The operator reads the values of Secrets without the white space around them.
fn account(hosts: &Hosts, name: &str, found: Option<&DynamicObject>) -> Result<Account, BackendError> {
    let shown = format!("Secret {}/{name}", hosts.namespace);
    let (username, password) = cluster::credentials(found, &hosts.cluster.address(), &shown)?;
    let (username, password) = (username.trim(), password.expose_secret().trim());
    // The operator refuses these too, and a BMC counts failed logins.
    for (part, value) in [("username", username), ("password", password)] {
        if value.is_empty() {
            let (address, what) = (hosts.cluster.address(), format!("{shown} has an empty {part}"));
            return Err(BackendError::Missing { address, what });
        }
    }
    Ok((username.to_owned(), SecretString::from(password.to_owned())))
}

/// All accounts of the namespace; one that cannot be read is left out.
async fn listed(hosts: &Hosts) -> Result<BTreeMap<String, Account>, BackendError> {
    let (kind, labelled) = (resource("Secret"), ListParams::default().labels(LABEL));
    let all = cluster::list_of(&hosts.cluster, &kind, Some(&hosts.namespace), &labelled).await.map_err(error)?;
    let read = |object: &DynamicObject| {
        let name = cluster::name(object);
        Some((name.to_owned(), account(hosts, name, Some(object)).ok()?))
    };
    Ok(all.iter().filter_map(read).collect())
}
