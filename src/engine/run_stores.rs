//! Stores of a run's provider configurations.
//!
//! A host starts one process per provider configuration. Each process writes its store and its host
//! into its mark's file ([`super::liveness`]). A plan then reports configurations that use
//! different stores for the same server. Linux only, because other systems do not have marks.

use serde::{Deserialize, Serialize};

#[cfg(target_os = "linux")]
use super::liveness::{host_process, living_texts, write_own};

/// One provider configuration's store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreUse {
    /// The store's ID; empty before it is opened.
    pub store: String,
    /// The store's address, without credentials.
    pub address: String,
    /// BMC addresses of its servers; empty if only a cluster lists them.
    pub places: Vec<String>,
}

impl StoreUse {
    /// Returns true if the other configuration uses another store and can contain the same server.
    #[must_use]
    pub fn is_apart_from(&self, other: &Self) -> bool {
        let known = !self.store.is_empty() && !other.store.is_empty();
        let same = if known { self.store == other.store } else { self.address == other.address };
        let listed = !self.places.is_empty() && !other.places.is_empty();
        !same && (!listed || self.places.iter().any(|place| other.places.contains(place)))
    }
}

/// Content of a mark's file.
#[cfg(target_os = "linux")]
#[derive(Serialize, Deserialize)]
struct Note {
    host: String,
    used: StoreUse,
}

/// Records this process's store for the run's other configurations.
#[cfg(target_os = "linux")]
pub fn use_store(used: &StoreUse) {
    let Some(host) = host_process() else { return };
    if let Ok(text) = serde_json::to_vec(&Note { host, used: used.clone() }) {
        write_own(&text);
    }
}

/// Returns the stores that the run's other live configurations use.
#[cfg(target_os = "linux")]
#[must_use]
pub fn other_stores() -> Vec<StoreUse> {
    let Some(host) = host_process() else { return Vec::new() };
    let notes = living_texts().into_iter().filter_map(|text| serde_json::from_slice::<Note>(&text).ok());
    notes.filter(|note| note.host == host).map(|note| note.used).collect()
}

/// Does nothing on this system.
#[cfg(not(target_os = "linux"))]
pub fn use_store(_: &StoreUse) {}

/// Returns an empty list on this system.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn other_stores() -> Vec<StoreUse> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_apart_if_they_differ_and_can_cover_one_server() {
        let used = |store: &str, places: &[&str]| StoreUse {
            store: store.into(),
            address: format!("at {store}"),
            places: places.iter().map(ToString::to_string).collect(),
        };
        let ours = used("a", &["bmc1", "bmc2"]);
        for (other, apart) in [
            (used("a", &["bmc1"]), false),
            (used("b", &["bmc2", "bmc3"]), true),
            (used("b", &["bmc3"]), false),
            (used("b", &[]), true),
            (StoreUse { address: "at a".into(), ..used("", &["bmc1"]) }, false),
            (used("", &["bmc1"]), true),
        ] {
            assert_eq!(ours.is_apart_from(&other), apart, "{other:?}");
        }
    }
}
