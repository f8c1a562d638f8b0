//! Reports when runs on the same servers can use another store than this run.
//!
//! The default store is a file below the user's home. A different `HOME`, `sudo`, a container or a
//! second provider configuration leads to another file, and two stores grant two locks of one
//! server.

use std::path::{Path, PathBuf};

use super::{Environment, identity::Account};
use crate::{
    backend::Backend,
    engine::process::{StoreUse, other_stores, use_store},
    store::{Store, default_path, path_in},
};

/// The warning's summary.
pub const SECOND_STORE: &str = "Another coordination store can cover these servers";

/// How this process selected its default store.
#[derive(Clone, Debug, Default)]
struct Facts {
    /// The variable `HOME`.
    home: Option<PathBuf>,
    /// `XDG_STATE_HOME`, which selects the store's folder explicitly.
    state_home: Option<PathBuf>,
    account: Option<Account>,
    /// The user who ran `sudo`.
    sudo: Option<String>,
    container: bool,
    /// True if the account has a default store in its own home.
    other_exists: bool,
}

impl Facts {
    /// Returns `None` if the default store's path is unknown.
    fn of(env: &Environment) -> Option<Self> {
        let path = default_path()?;
        let absolute = |name: &str| env.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let account = Account::of_process();
        let other = account.as_ref().and_then(Account::default_store);
        Some(Self {
            other_exists: other.is_some_and(|other| other != path && other.exists()),
            home: absolute("HOME"),
            state_home: absolute("XDG_STATE_HOME"),
            account,
            sudo: env.get("SUDO_USER").filter(|user| *user != "root").map(str::to_owned),
            container: is_container(env),
        })
    }

    /// Returns reasons why runs on the same servers can use another store.
    fn reasons(&self) -> Vec<String> {
        let account = self.account.as_ref();
        let root = account.is_some_and(|account| account.uid == 0);
        let mut reasons = Vec::new();
        if let Some((account, other)) = account.and_then(|account| Some((account, account.default_store()?))) {
            let (other, name) = (other.display(), &account.name);
            match (&self.state_home, &self.home) {
                (Some(state), _) if self.other_exists || !state.starts_with(&account.home) => {
                    reasons.push(format!("XDG_STATE_HOME is {}. Runs without it use {other}.", state.display()));
                }
                (None, Some(home)) if *home != account.home => reasons.push(format!(
                    "HOME is {}, and the home of {name} is {}. Runs with that HOME use {other}.",
                    home.display(),
                    account.home.display()
                )),
                _ => {}
            }
        }
        if self.state_home.is_none() && root {
            if let Some(user) = &self.sudo {
                reasons
                    .push(format!("This run uses sudo. Runs of {user} without sudo use a file in the home of {user}."));
            }
            if self.container {
                reasons.push(
                    "This process runs as root in a container. Runs outside the container use another file, and this \
                     file can be deleted with the container."
                        .to_owned(),
                );
            }
        }
        reasons
    }
}

impl Account {
    /// Returns the default store after a login to this account.
    fn default_store(&self) -> Option<PathBuf> {
        path_in(None, Some(self.home.clone()))
    }
}

/// Returns true in a container of Docker, Podman, systemd-nspawn, LXC or Kubernetes.
fn is_container(env: &Environment) -> bool {
    let marked = ["/.dockerenv", "/run/.containerenv"].into_iter().any(|file| Path::new(file).exists());
    marked || ["container", "KUBERNETES_SERVICE_HOST"].into_iter().any(|name| env.get(name).is_some())
}

/// Returns reasons why runs on the same servers can use another store than the default; empty if
/// `url` names a store.
#[must_use]
pub fn second_store(url: Option<&str>, env: &Environment) -> Vec<String> {
    let named = url.or_else(|| env.get(super::variables::COORDINATION_URL)).is_some();
    if named { Vec::new() } else { Facts::of(env).map(|facts| facts.reasons()).unwrap_or_default() }
}

/// Returns reasons why other provider configurations in this run can use another store for the same
/// servers, and records this store for them. Linux only.
pub(super) fn of_this_run(store: &dyn Store, backend: &dyn Backend) -> Vec<String> {
    let mut servers = backend.servers();
    let endpoint = |server: &String| {
        let endpoint = backend.listed(server).endpoint?;
        let (_, place) = endpoint.split_once("://")?;
        Some(place.trim_end_matches('/').to_ascii_lowercase())
    };
    servers.retain(|server| endpoint(server).is_some());
    let places = servers.iter().filter_map(endpoint).collect();
    let own = StoreUse { store: store.id().to_owned(), address: store.address(), places };
    use_store(&own);
    let others = other_stores().into_iter().filter(|other| own.is_apart_from(other));
    others
        .map(|other| {
            format!("Another provider configuration in this run uses {} for one of these servers.", other.address)
        })
        .collect()
}

/// Formats the warning.
pub(super) fn detail(address: &str, reasons: &[String]) -> String {
    format!(
        "This run uses the store {address}. {} Each store has its own locks: two runs can change one server at the same time. Set \
         coordination_url (or METAL_COORDINATION_URL) to one store for all runs.",
        reasons.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(home: &str, uid: u32) -> Facts {
        let account = Account { uid, name: "ada".into(), home: "/home/ada".into() };
        let home = PathBuf::from(home);
        Facts { home: Some(home), account: Some(account), ..Facts::default() }
    }

    /// Each way to a second store is a reason; a plain login is not.
    #[test]
    fn each_way_to_a_second_store_is_named() {
        let plain = facts("/home/ada", 1000);
        let state_home = Some(PathBuf::from("/srv/state"));
        let rows = [
            (plain.clone(), 0, ""),
            (facts("/tmp/job", 1000), 1, "/home/ada/.local/state/terraform-provider-metal/coordination.sqlite"),
            (Facts { account: None, ..facts("/tmp/job", 1000) }, 0, ""),
            (Facts { state_home: state_home.clone(), ..facts("/tmp/job", 1000) }, 1, "Runs without it"),
            (Facts { state_home: Some("/home/ada/.state".into()), ..plain.clone() }, 0, ""),
            (
                Facts { state_home: Some("/home/ada/.state".into()), other_exists: true, ..plain.clone() },
                1,
                "Runs without",
            ),
            (Facts { sudo: Some("bob".into()), ..facts("/home/ada", 0) }, 1, "Runs of bob"),
            (Facts { sudo: Some("bob".into()), ..plain.clone() }, 0, ""),
            (Facts { container: true, ..facts("/home/ada", 0) }, 1, "root in a container"),
            (Facts { container: true, ..plain.clone() }, 0, ""),
            (Facts { container: true, state_home, ..facts("/home/ada", 0) }, 1, "XDG_STATE_HOME is /srv/state"),
            (Facts { container: true, sudo: Some("bob".into()), ..facts("/tmp/job", 0) }, 3, "HOME is /tmp/job"),
        ];
        for (facts, count, part) in rows {
            let reasons = facts.reasons();
            assert_eq!(reasons.len(), count, "{facts:?}: {reasons:?}");
            assert!(reasons.join(" ").contains(part), "{reasons:?}");
        }
    }

    #[test]
    fn a_named_store_is_the_one_of_all_runs() {
        let mut named = Environment::default();
        named.variables.insert("METAL_COORDINATION_URL".to_owned(), "sqlite:///srv/x".to_owned());
        assert!(second_store(None, &named).is_empty());
        assert!(second_store(Some("sqlite:///srv/x"), &Environment::default()).is_empty());
    }
}
