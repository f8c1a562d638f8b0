//! Facts of a lock beyond its holder, its queue and its owner.
//!
//! Stores keep all of it as one document (`store/extended.rs`), so a new rule
//! needs no change of any store: add a field here, with a default that means "nothing is known".

use serde::{Deserialize, Serialize};

use super::{alias_moves::AliasMoves, effects::PendingEffect, inspection::Inspection, restrictions::Restrictions};

/// The further contents of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Extension {
    /// Calls that were made and whose effect was not observed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<PendingEffect>,
    /// What persons forbade when they released the server.
    #[serde(skip_serializing_if = "Restrictions::is_empty")]
    pub restrictions: Restrictions,
    /// Maintenances that wait for a person, because the store was restored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inspections: Vec<Inspection>,
    /// Identifiers of servers that this lock gave up.
    #[serde(skip_serializing_if = "AliasMoves::is_empty")]
    pub moved: AliasMoves,
}

impl Extension {
    /// Whether nothing is known. Then it is not stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
