//! Facts of a lock other than its holder, queue and owner.
//!
//! Stores keep all of it as one document (`store/extended.rs`), so a new rule does not change any
//! store. Add a field here whose default means "unknown".

use serde::{Deserialize, Serialize};

use super::{alias_moves::AliasMoves, effects::PendingEffect, inspection::Inspection, restrictions::Restrictions};

/// Further contents of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Extension {
    /// Calls without an observed effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<PendingEffect>,
    /// Restrictions that people set with a release.
    #[serde(skip_serializing_if = "Restrictions::is_empty")]
    pub restrictions: Restrictions,
    /// Maintenances that a person must inspect because the store was restored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inspections: Vec<Inspection>,
    /// Identifiers that this lock gave up.
    #[serde(skip_serializing_if = "AliasMoves::is_empty")]
    pub moved: AliasMoves,
}

impl Extension {
    /// Returns true if every field is empty. Stores then skip the document.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
