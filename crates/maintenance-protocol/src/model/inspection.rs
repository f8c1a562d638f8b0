//! A maintenance that a person has to look at first.

use super::ids::Uid;
use jiff::Timestamp;
use serde::Deserialize;
use serde::Serialize;

/// A maintenance that nobody may act on before a person has inspected its server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    /// The maintenance.
    pub uid: Uid,
    /// Since when, on the store's clock.
    pub since: Timestamp,
    /// The person who restored the store.
    pub by: String,
    /// What that person said.
    pub reason: String,
}
