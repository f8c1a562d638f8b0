//! Identifiers that moved from one lock to another.

use super::aliases::Alias;
use super::ids::LockKey;
use serde::Deserialize;
use serde::Serialize;
use std::collections::BTreeMap;

/// New locations of identifiers that a lock gave up.
pub type AliasMoves = BTreeMap<Alias, AliasMove>;

/// An identifier's new location.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AliasMove {
    /// The current lock. `None`: several servers report the identifier, so it leads to no lock.
    pub to: Option<LockKey>,
    /// Number of moves so far, starting with 1.
    pub version: u64,
}
