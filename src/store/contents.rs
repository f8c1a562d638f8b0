//! A store's whole contents as one document, for checks and for moves between stores.

use serde::{Deserialize, Serialize};

use crate::{
    maintenance::{
        ids::LockKey,
        invariants::{alias_violations, violations},
        lock::{AuditEvent, ServerLock},
        state::{Maintenance, Phase},
    },
    shown::OneLine,
};

/// A consistent snapshot of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    /// The store's id. Terraform states refer to it, so an import keeps it.
    pub store_id: String,
    /// Every lock ever used, sorted by key. Idle locks are kept so that generations never restart.
    pub locks: Vec<ServerLock>,
    /// Ended maintenances, in the order in which they ended.
    pub history: Vec<Maintenance>,
    /// Server names and their lock keys, sorted by name.
    pub bindings: Vec<(String, LockKey)>,
    /// Audit events, oldest first.
    pub audit: Vec<AuditEvent>,
    /// Problems that the store found while reading, as sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub oddities: Vec<OneLine>,
}

impl Contents {
    /// Returns violated invariants as sentences.
    #[must_use]
    pub fn violations(&self) -> Vec<OneLine> {
        let mut wrong = self.oddities.clone();
        let found = violations(&self.locks, &self.history);
        wrong.extend(found.into_iter().chain(alias_violations(&self.locks, &self.bindings)).map(OneLine::from));
        wrong
    }

    /// Returns records that prevent a move: their processes would continue in the old store.
    #[must_use]
    pub fn in_use(&self) -> Vec<String> {
        let records = self.locks.iter().flat_map(|lock| &lock.active);
        let busy = records.filter(|record| record.phase != Phase::Pending || record.attachment.is_some());
        let unreadable = self.locks.iter().flat_map(|lock| &lock.unreadable).map(|record| record.why.to_string());
        let busy = busy.map(|record| match &record.attachment {
            Some(attachment) => format!("{} ({}, {})", record.id, record.phase.name(), attachment.runner),
            None => format!("{} ({})", record.id, record.phase.name()),
        });
        busy.chain(unreadable).collect()
    }

    /// Returns true if the store was never used.
    pub(super) fn is_empty(&self) -> bool {
        self.locks.is_empty() && self.history.is_empty() && self.bindings.is_empty() && self.audit.is_empty()
    }
}
