//! Everything that a store holds, as one document: to look it over, and to move it to another
//! store.

use serde::{Deserialize, Serialize};

use crate::maintenance::{
    ids::LockKey,
    invariants::{alias_violations, violations},
    lock::{AuditEvent, ServerLock},
    state::{Maintenance, Phase},
};

/// All of one store at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    /// The store's id: states know it, so it moves along.
    pub store_id: String,
    /// Every machine that was ever asked for, sorted by key: a generation must not start again.
    pub locks: Vec<ServerLock>,
    /// The ended maintenances, in the order in which they ended.
    pub history: Vec<Maintenance>,
    /// Names of servers and the machines behind them, sorted by name.
    pub bindings: Vec<(String, LockKey)>,
    /// What happened, oldest first.
    pub audit: Vec<AuditEvent>,
    /// What the store itself found out of order while it read, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub oddities: Vec<String>,
}

impl Contents {
    /// What is wrong with them, in sentences. Nothing, when all is well.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let mut wrong = self.oddities.clone();
        wrong.extend(violations(&self.locks, &self.history));
        wrong.extend(alias_violations(&self.locks, &self.bindings));
        wrong
    }

    /// What cannot be moved: whoever holds a server or drives a record would go on in the old
    /// store.
    #[must_use]
    pub fn in_use(&self) -> Vec<String> {
        let records = self.locks.iter().flat_map(|lock| &lock.active);
        let busy = records.filter(|record| record.phase != Phase::Pending || record.attachment.is_some());
        let unreadable = self.locks.iter().flat_map(|lock| &lock.unreadable).map(|record| record.why.clone());
        let busy = busy.map(|record| match &record.attachment {
            Some(attachment) => format!("{} ({}, {})", record.id, record.phase.name(), attachment.runner),
            None => format!("{} ({})", record.id, record.phase.name()),
        });
        busy.chain(unreadable).collect()
    }

    /// Whether nobody has ever used the store.
    pub(super) fn is_empty(&self) -> bool {
        self.locks.is_empty() && self.history.is_empty() && self.bindings.is_empty() && self.audit.is_empty()
    }
}
