//! The credentials of BMCs, from the Secrets that hosts name.
//!
//! A get each while they are few. A fleet is read by one list, where the role allows it: `get`
//! alone is enough.

use std::{collections::BTreeMap, fmt, time::Duration};

use kube::{api::ListParams, core::DynamicObject};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::sync::Mutex;

use crate::{
    backend::{BackendError, cluster},
    kubernetes::ResourceRef,
};

use super::{
    host::resource,
    hosts::{Hosts, error},
};

/// So many Secrets are read one by one before all are listed.
const FEW: usize = 8;

/// How long a listed Secret counts as one that was read now.
const RECENT: Duration = Duration::from_secs(20);

/// The label that baremetal-operator puts on every Secret that it uses (`pkg/secretutils/label.go`,
/// v0.11 to v0.14).
const LABEL: &str = "environment.metal3.io=baremetal";

/// User name and password of a BMC.
pub(super) type Account = (String, SecretString);

/// What was read of Secrets a moment ago.
#[derive(Default)]
pub(super) struct Secrets(Mutex<Recent>);

#[derive(Default)]
struct Recent {
    gets: usize,
    denied: bool,
    listed: BTreeMap<String, Account>,
    at: Duration,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

impl Secrets {
    /// The account in a Secret, not older than [`RECENT`].
    pub(super) async fn account(&self, hosts: &Hosts, name: &str) -> Result<Account, BackendError> {
        {
            // Held while all are listed: the others wait for that instead of asking for one each.
            let mut recent = self.0.lock().await;
            let now = hosts.clock.monotonic();
            if now.saturating_sub(recent.at) > RECENT {
                recent.listed.clear();
            }
            if !recent.listed.contains_key(name) {
                recent.gets += 1;
                if recent.gets > FEW && !recent.denied {
                    match listed(hosts).await {
                        Ok(listed) => *recent = Recent { listed, at: now, ..Recent::default() },
                        Err(BackendError::Denied { message }) => {
                            tracing::debug!("Secrets are read one by one: {message}");
                            recent.denied = true;
                        }
                        // The get tells it better, or works.
                        Err(_) => {}
                    }
                }
            }
            // Given once: a second reader has reason to believe that the Secret changed.
            if let Some(account) = recent.listed.remove(name) {
                return Ok(account);
            }
        }
        let found = hosts.object("Secret", name).await?;
        account(hosts, name, found.as_ref())
    }

    /// Forgets all of them.
    pub(super) async fn forget(&self) {
        self.0.lock().await.listed.clear();
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
    let about = ResourceRef { kind: &resource("Secret"), namespace: Some(&hosts.namespace), name: None };
    let labelled = ListParams::default().labels(LABEL);
    let all = hosts.cluster.ask("list", about, |all| {
        let labelled = labelled.clone();
        async move { all.list(&labelled).await }
    });
    let all = all.await.map_err(error)?.items;
    let read = |object: &DynamicObject| {
        let name = cluster::name(object);
        Some((name.to_owned(), account(hosts, name, Some(object)).ok()?))
    };
    Ok(all.iter().filter_map(read).collect())
}
