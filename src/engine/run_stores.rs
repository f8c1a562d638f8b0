//! The stores that the provider configurations of one run use.
//!
//! A host starts one process per provider configuration, so each process sees its own store only.
//! Each writes its store into the file of its mark ([`super::liveness`]), together with the host
//! that started it. A configuration with another store for one of the same servers is a mistake
//! that a plan can report. Linux only: elsewhere there are no marks.

use serde::{Deserialize, Serialize};

#[cfg(target_os = "linux")]
use super::liveness::{host_process, living_texts, write_own};

/// The store of one provider configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreUse {
    /// The store's id; empty if it is not open yet.
    pub store: String,
    /// The store's address, without credentials.
    pub address: String,
    /// The addresses of its servers' BMCs; empty if only a cluster lists them.
    pub places: Vec<String>,
}

impl StoreUse {
    /// Returns true if the other configuration has another store and can cover a server of this
    /// one.
    #[must_use]
    pub fn is_apart_from(&self, other: &Self) -> bool {
        let known = !self.store.is_empty() && !other.store.is_empty();
        let same = if known { self.store == other.store } else { self.address == other.address };
        let listed = !self.places.is_empty() && !other.places.is_empty();
        !same && (!listed || self.places.iter().any(|place| other.places.contains(place)))
    }
}

/// The text of a mark's file.
#[cfg(target_os = "linux")]
#[derive(Serialize, Deserialize)]
struct Note {
    host: String,
    used: StoreUse,
}

/// Records the store of this process for the other configurations of the run.
#[cfg(target_os = "linux")]
pub fn use_store(used: &StoreUse) {
    let Some(host) = host_process() else { return };
    if let Ok(text) = serde_json::to_vec(&Note { host, used: used.clone() }) {
        write_own(&text);
    }
}

/// The stores of the other configurations of the run whose processes live.
#[cfg(target_os = "linux")]
#[must_use]
pub fn other_stores() -> Vec<StoreUse> {
    let Some(host) = host_process() else { return Vec::new() };
    let notes = living_texts().into_iter().filter_map(|text| serde_json::from_slice::<Note>(&text).ok());
    notes.filter(|note| note.host == host).map(|note| note.used).collect()
}

/// There are no marks here.
#[cfg(not(target_os = "linux"))]
pub fn use_store(_: &StoreUse) {}

/// There are no marks here.
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
