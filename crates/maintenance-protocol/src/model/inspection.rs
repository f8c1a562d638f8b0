//! Maintenances that a person must inspect.

use super::ids::Uid;
use jiff::Timestamp;
use serde::Deserialize;
use serde::Serialize;
use shown_text::OneLine;

/// A maintenance that is blocked until a person has inspected its server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    /// The maintenance.
    pub uid: Uid,
    /// Start of the block, on the store's clock.
    pub since: Timestamp,
    /// The person who restored the store.
    pub by: OneLine,
    /// The reason that this person gave.
    pub reason: OneLine,
}
