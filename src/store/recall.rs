//! Reuses this process's last write instead of reading the lock again.
//!
//! A maintenance changes its lock a dozen times, and usually its process is the only writer. The
//! next change starts from the cached lock and is written under the usual conditions. If another
//! process wrote in between, the condition fails and the change is repeated after a read.
//!
//! This is safe for writes only. Refusals and no-ops are evaluated again after a read, because the
//! cache can be stale. It also requires that every attached process belongs to this handle: only a
//! read shows whether other processes are alive.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;

use super::{optimistic::Loaded, views::Stored};
use crate::maintenance::{ids::RunnerId, lock::Leases};

/// Leases renewed by this handle, with the earliest time at which each can end, on the store's
/// clock.
#[derive(Debug, Default)]
pub(super) struct OwnProcesses(Mutex<HashMap<RunnerId, Timestamp>>);

impl OwnProcesses {
    fn all(&self) -> MutexGuard<'_, HashMap<RunnerId, Timestamp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a confirmed renewal. `until` counts from before the request was sent.
    pub(super) fn renewed(&self, runner: &RunnerId, until: Timestamp) {
        self.all().insert(runner.clone(), until);
    }

    /// Removes a process before its lease ends.
    pub(super) fn ended(&self, runner: &RunnerId) {
        self.all().remove(runner);
    }

    /// Returns the end of an own process's lease, or `None` if a read is required.
    pub(super) fn until(&self, runner: &RunnerId, now: Timestamp) -> Option<Timestamp> {
        self.all().get(runner).copied().filter(|until| *until > now)
    }

    /// Returns the cached lock as if it was just read, or `None` if a read is required.
    pub(super) fn loaded(&self, stored: &Stored, now: Timestamp) -> Option<Loaded> {
        let lock = &stored.lock;
        if stored.revision == 0 || !lock.unreadable.is_empty() {
            return None;
        }
        let mut leases = Leases::default();
        for attachment in lock.active.iter().filter_map(|record| record.attachment.as_ref()) {
            let until = self.until(&attachment.runner.id, now)?;
            leases.0.insert(attachment.runner.id.clone(), until);
        }
        Some(Loaded { stored: stored.clone(), leases, now })
    }
}
