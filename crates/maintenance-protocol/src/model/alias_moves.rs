//! Where identifiers went that a lock gave up.

use super::aliases::Alias;
use super::ids::LockKey;
use serde::Deserialize;
use serde::Serialize;
use std::collections::BTreeMap;

/// Where the identifiers went that a lock gave up.
pub type AliasMoves = BTreeMap<Alias, AliasMove>;

/// Where an identifier went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AliasMove {
    /// The lock that has it now; `None`: several servers show it, and it leads nowhere.
    pub to: Option<LockKey>,
    /// How often it was moved by then. Starts with 1.
    pub version: u64,
}
