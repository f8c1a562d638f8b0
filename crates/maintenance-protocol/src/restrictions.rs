//! What a person forbade when releasing a server: that the released maintenance comes back, and
//! that anything takes the server for a while.
//!
//! A forced release is worth nothing when the next run of the same configuration takes the server
//! right back. So the lock remembers the name that was released, until its configuration says that
//! the work is wanted again or a person allows it.

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

/// How many released names a lock remembers; of more, the oldest is forgotten.
const MOST_NAMES: usize = 50;

impl ServerLock {
    /// The block that is in force.
    #[must_use]
    pub fn block(&self, now: Timestamp) -> Option<&Block> {
        self.extension.restrictions.block.as_ref().filter(|block| block.until > now)
    }

    /// The release that refuses a request of this name. `None`: it is not refused.
    #[must_use]
    pub fn released(&self, id: &MaintenanceId, triggers: &BTreeMap<String, String>) -> Option<&ReleasedName> {
        let released = self.extension.restrictions.released.iter();
        released.rev().find(|released| released.id == *id && released.triggers == *triggers)
    }

    /// The release of this name, whatever its `triggers` were.
    #[must_use]
    pub fn release_of(&self, id: &MaintenanceId) -> Option<&ReleasedName> {
        self.extension.restrictions.released.iter().rfind(|released| released.id == *id)
    }

    /// Refuses the name of a record that a person releases.
    pub(super) fn refuse_name(&mut self, record: &Maintenance, by: &str, reason: &str, now: Timestamp) {
        let released = &mut self.extension.restrictions.released;
        released.retain(|other| other.id != record.id);
        released.push(ReleasedName {
            id: record.id.clone(),
            uid: record.uid.clone(),
            triggers: record.spec.triggers.clone(),
            at: now,
            by: by.to_owned(),
            reason: reason.to_owned(),
            generation: record.generation,
        });
        let more = released.len().saturating_sub(MOST_NAMES);
        released.drain(..more);
    }

    /// Keeps every maintenance from the server until a moment. A block that lasts longer stays.
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
            server: record.server().to_owned(),
            by: by.clone(),
            reason: reason.to_owned(),
        });
    }

    /// Lets a name that was released ask again, and ends the block that came with its release. What
    /// was forbidden; nothing when nothing was.
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

    /// A request of this name is accepted, and what is over is forgotten.
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
            by: by.to_owned(),
            what: what.to_owned(),
            detail,
        });
    }
}
