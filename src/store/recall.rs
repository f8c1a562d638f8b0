//! What a process knows of a lock without a read.
//!
//! A maintenance passes through a dozen changes, and most often its process is alone at the lock:
//! what it wrote last is what is stored. Then its next change needs no read. It is made from what
//! is remembered and written on the same conditions as any other; when another process wrote
//! meanwhile they fail, and the change is made again after a read.
//!
//! That holds for what is written. A refusal, or nothing to change, may rest on what is no longer
//! stored, so it is judged again after a read. And it holds for locks at which only processes of
//! this handle are attached: whether others are alive is only known from a read.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;

use super::{optimistic::Loaded, views::Stored};
use crate::maintenance::{ids::RunnerId, lock::Leases};

/// The leases that this handle has renewed: until when each is in force at least, by the store's
/// time.
#[derive(Debug, Default)]
pub(super) struct OwnProcesses(Mutex<HashMap<RunnerId, Timestamp>>);

impl OwnProcesses {
    fn all(&self) -> MutexGuard<'_, HashMap<RunnerId, Timestamp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a renewal that was confirmed. `until` counts from before it was sent.
    pub(super) fn renewed(&self, runner: &RunnerId, until: Timestamp) {
        self.all().insert(runner.clone(), until);
    }

    /// Forgets a process, before its lease is ended.
    pub(super) fn ended(&self, runner: &RunnerId) {
        self.all().remove(runner);
    }

    /// What is remembered as if it were read now. `None` when that takes a read.
    pub(super) fn loaded(&self, stored: &Stored, now: Timestamp) -> Option<Loaded> {
        let lock = &stored.lock;
        if stored.revision == 0 || !lock.unreadable.is_empty() {
            return None;
        }
        let all = self.all();
        let mut leases = Leases::default();
        for attachment in lock.active.iter().filter_map(|record| record.attachment.as_ref()) {
            let until = all.get(&attachment.runner.id).filter(|until| **until > now)?;
            leases.0.insert(attachment.runner.id.clone(), *until);
        }
        Some(Loaded { stored: stored.clone(), leases, now })
    }
}
