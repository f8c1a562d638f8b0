//! A lock key's state; `transitions.rs` contains its transitions.
//!
//! Every store applies these functions atomically and adds no rules. They are pure; the caller
//! passes the store's time.

pub use super::model::lock::{
    AskingState, AuditEvent, EnqueueRequest, Enqueued, Leases, LockHolder, Refusal, ServerLock,
};

use std::ops::Deref;

use jiff::{SignedDuration, Timestamp};

use super::{
    extension::Extension,
    ids::{Fence, LockKey, Uid},
    location::Location,
    model::ownership::Ownership,
    state::{Maintenance, Phase},
};

/// Checks that a configuration reaches the record's location. An unknown location passes.
///
/// # Errors
///
/// [`Refusal::Elsewhere`].
pub fn reaches(record: &Maintenance, reached: Option<&Location>) -> Result<(), Refusal> {
    let Some((recorded, reached)) = record.location.as_ref().zip(reached) else { return Ok(()) };
    recorded.compare(reached).map_err(|why| Refusal::Elsewhere {
        id: record.id.clone(),
        recorded: Box::new(recorded.clone()),
        reached: Box::new(reached.clone()),
        why,
    })
}

impl ServerLock {
    /// Creates an unused lock.
    #[must_use]
    pub fn new(key: LockKey) -> Self {
        Self {
            key,
            generation: 0,
            last_ticket: 0,
            slot: None,
            active: Vec::new(),
            ownership: Ownership::default(),
            extension: Extension::default(),
            unreadable: Vec::new(),
            finished: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Returns true if it contains no records, owner or restrictions.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let records = self.active.is_empty() && self.unreadable.is_empty();
        records && self.ownership.is_empty() && self.extension.restrictions.is_empty()
    }

    /// Returns an active record.
    #[must_use]
    pub fn get(&self, uid: &Uid) -> Option<&Maintenance> {
        self.active.iter().find(|record| record.uid == *uid).map(Deref::deref)
    }

    /// Returns the lock's holder.
    #[must_use]
    pub fn holder(&self) -> Option<&Maintenance> {
        self.get(&self.slot.as_ref()?.uid)
    }

    /// Returns true if this record or its parent owns the lock.
    #[must_use]
    pub fn has_slot(&self, record: &Maintenance) -> bool {
        let root = record.spec.parent.as_ref().unwrap_or(&record.uid);
        self.slot.as_ref().is_some_and(|slot| slot.uid == *root)
    }

    /// Returns another connected record that currently acts under the lock.
    #[must_use]
    pub fn other_actor(&self, uid: &Uid, leases: &Leases, now: Timestamp) -> Option<&Maintenance> {
        let slot = self.slot.as_ref()?;
        // Work under the lock finishes first, regardless of the holder's state; the holder waits.
        if slot.acting.as_ref() == Some(uid) {
            return None;
        }
        let alive =
            |record: &&Maintenance| record.attachment.as_ref().is_some_and(|attachment| leases.alive(attachment, now));
        let acting = slot.acting.as_ref().filter(|acting| *acting != uid);
        if let Some(record) = acting.and_then(|acting| self.get(acting)).filter(alive) {
            return Some(record);
        }
        let holder = self.get(&slot.uid).filter(|holder| holder.uid != *uid).filter(alive)?;
        // A holder that only waits for its end does not act.
        matches!(holder.phase, Phase::Preparing(_) | Phase::Releasing { .. }).then_some(holder)
    }

    /// Returns when calls of others can no longer change the server. These are calls of a fenced
    /// process, and calls of an earlier maintenance with a late effect. Returns `None` without such
    /// a call.
    #[must_use]
    pub fn in_flight_until(&self, uid: &Uid, now: Timestamp) -> Option<Timestamp> {
        let fenced = self.active.iter().filter_map(|record| record.calls_until).filter(|until| *until > now);
        fenced.chain(self.foreign_effects(uid, now).map(|effect| effect.until)).max()
    }

    /// Returns true if the process with `fence` is allowed to change the machine now.
    #[must_use]
    pub fn may_act(&self, uid: &Uid, fence: Fence, leases: &Leases, now: Timestamp) -> bool {
        let Some(record) = self.get(uid) else {
            return false;
        };
        let ours =
            record.attachment.as_ref().is_some_and(|attachment| attachment.is(fence) && leases.alive(attachment, now));
        let acting =
            record.spec.parent.is_none() || self.slot.as_ref().is_some_and(|slot| slot.acting.as_ref() == Some(uid));
        let alone = self.other_actor(uid, leases, now).is_none() && self.in_flight_until(uid, now).is_none();
        let alone = alone && !self.unreadable_acts();
        ours && acting && self.has_slot(record) && alone
    }
}

/// Returns when a disconnected waiter loses its queue position; `None` while it is connected, or
/// without a limit.
#[must_use]
pub fn place_kept_until(record: &Maintenance, leases: &Leases, now: Timestamp) -> Option<Timestamp> {
    let absent_since = match &record.attachment {
        Some(attachment) if leases.alive(attachment, now) => return None,
        Some(attachment) => leases.until(attachment).unwrap_or(attachment.since),
        None => record.detached_at.unwrap_or(record.requested_at),
    };
    let (from, kept) = if record.keeps_place {
        (record.requested_at, record.spec.expires_after?)
    } else {
        (absent_since, record.spec.hold_place_for)
    };
    from.checked_add(SignedDuration::try_from(kept).ok()?).ok()
}
