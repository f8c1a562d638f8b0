//! Restrictions after a person's release: the released name is rejected, and optionally the server
//! is blocked for a period.
//!
//! Without them, the next run of the same configuration would lock the server again. The lock
//! stores the released name until its configuration requests a new run or a person allows it.

use shown_text::OneLine;

pub use super::model::restrictions::{Block, ReleasedName, Restrictions};

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{
    ids::{MaintenanceId, Runner, Uid},
    model::{
        lock::{AuditEvent, ServerLock},
        shown_time::shown_time,
    },
    state::Maintenance,
};

/// Maximum number of stored names; the oldest is dropped first.
const MOST_NAMES: usize = 50;

impl ServerLock {
    /// Returns the current block.
    #[must_use]
    pub fn block(&self, now: Timestamp) -> Option<&Block> {
        self.extension.restrictions.block.as_ref().filter(|block| block.until > now)
    }

    /// Returns the release that rejects a request with this name and these `triggers`; `None` if it
    /// is accepted.
    #[must_use]
    pub fn released(&self, id: &MaintenanceId, triggers: &BTreeMap<OneLine, OneLine>) -> Option<&ReleasedName> {
        let released = self.extension.restrictions.released.iter();
        released.rev().find(|released| released.id == *id && released.triggers == *triggers)
    }

    /// Returns the release with this name, regardless of `triggers`.
    #[must_use]
    pub fn release_of(&self, id: &MaintenanceId) -> Option<&ReleasedName> {
        self.extension.restrictions.released.iter().rfind(|released| released.id == *id)
    }

    /// Stores a released record's name, so that requests are rejected.
    pub(super) fn refuse_name(&mut self, record: &Maintenance, by: &str, reason: &str, now: Timestamp) {
        let released = &mut self.extension.restrictions.released;
        released.retain(|other| other.id != record.id);
        released.push(ReleasedName {
            id: record.id.clone(),
            uid: record.uid.clone(),
            triggers: record.spec.triggers.clone(),
            at: now,
            by: by.into(),
            reason: reason.into(),
            generation: record.generation,
        });
        let more = released.len().saturating_sub(MOST_NAMES);
        released.drain(..more);
    }

    /// Blocks all maintenances until a given time. A longer block stays.
    pub(super) fn block_until(
        &mut self,
        record: &Maintenance,
        until: Timestamp,
        by: &Runner,
        reason: &str,
        now: Timestamp,
    ) {
        if until <= now || self.block(now).is_some_and(|block| block.until >= until) {
            return;
        }
        self.restriction_event(now, &record.id, &record.uid, &by.to_string(), "blocked", {
            format!("until {}: {reason}", shown_time(until))
        });
        self.extension.restrictions.block = Some(Block {
            since: now,
            until,
            id: record.id.clone(),
            uid: record.uid.clone(),
            generation: record.generation,
            owner: record.owner.clone(),
            server: record.spec.server.clone(),
            by: by.clone(),
            reason: reason.into(),
        });
    }

    /// Allows a released name and ends the block that came with its release. Returns the lifted
    /// restrictions.
    pub fn allow(&mut self, id: &MaintenanceId, by: &str, now: Timestamp) -> Restrictions {
        let block = self.extension.restrictions.block.take_if(|block| block.id == *id);
        let names = std::mem::take(&mut self.extension.restrictions.released);
        let (released, kept): (Vec<_>, Vec<_>) = names.into_iter().partition(|released| released.id == *id);
        self.extension.restrictions.released = kept;
        let allowed = Restrictions { block: block.filter(|block| block.until > now), released };
        let uid = allowed.released.first().map(|released| &released.uid);
        if let Some(uid) = uid.or(allowed.block.as_ref().map(|block| &block.uid)).cloned() {
            self.restriction_event(now, id, &uid, by, "allowed", String::new());
        }
        allowed
    }

    /// Accepts a request with this name and drops expired restrictions.
    pub(super) fn accept_name(&mut self, id: &MaintenanceId, now: Timestamp) {
        self.extension.restrictions.released.retain(|released| released.id != *id);
        self.extension.restrictions.block.take_if(|block| block.until <= now);
    }

    fn restriction_event(
        &mut self,
        now: Timestamp,
        id: &MaintenanceId,
        uid: &Uid,
        by: &str,
        what: &str,
        detail: String,
    ) {
        self.events.push(AuditEvent {
            at: now,
            id: id.clone(),
            uid: uid.clone(),
            generation: self.generation,
            by: by.into(),
            what: what.into(),
            detail: detail.into(),
        });
    }
}
