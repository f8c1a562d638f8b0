//! Optimistic transitions on a store with concurrent writers; they never lock the database.
//!
//! A process that stops inside a database transaction would block all others until the store
//! notices. So a transition reads the lock, applies the change locally, and writes it on condition
//! that nothing changed since the read. A failed condition repeats it on fresh data. `group.rs`
//! does this for all concurrent transitions in a process.

use std::{
    collections::{HashMap, HashSet},
    ops::Deref,
};

use async_trait::async_trait;
use jiff::Timestamp;

use super::{
    StoreError,
    extended::StoredSlot,
    views::{CachedLock, Stored},
};
use crate::maintenance::{
    ids::{LockKey, Uid},
    lock::{AuditEvent, Leases, ServerLock},
    shared::Shared,
    state::Maintenance,
};

/// Commit names kept per lock. A process that lost a reply looks for its commit among them.
const REMEMBERED: usize = 32;

/// A lock that was just read.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) stored: Stored,
    pub(super) leases: Leases,
    /// The store's time.
    pub(super) now: Timestamp,
}

/// Names of a lock's last commits, newest first. A store that keeps approvals separate writes them
/// separately, so it has a second list for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Commits([Vec<String>; 2]);

impl Commits {
    pub(super) fn parse(lock: &str, words: &str) -> Self {
        Self([lock, words].map(|text| text.split_whitespace().map(str::to_owned).collect()))
    }

    pub(super) fn contain(&self, names: &[String]) -> bool {
        self.0.iter().flatten().any(|commit| names.contains(commit))
    }

    /// Adds a commit's name to each written part's list.
    pub(super) fn with(&self, commit: &str, parts: Parts) -> Self {
        let more = |names: &[String], written: bool| -> Vec<String> {
            if !written {
                return names.to_vec();
            }
            std::iter::once(commit.to_owned()).chain(names.iter().take(REMEMBERED - 1).cloned()).collect()
        };
        let [lock, words] = &self.0;
        Self([more(lock, parts.lock), more(words, parts.words)])
    }

    /// Formats the lock's list for [`Commits::parse`], for stores that keep approvals in the lock.
    pub(super) fn text(&self) -> String {
        self.0[0].join(" ")
    }

    /// Returns the lock's last commit name.
    pub(super) fn newest(&self) -> Option<&str> {
        self.0[0].first().map(String::as_str)
    }

    /// Returns true if the newest names in `earlier` are among these.
    pub(super) fn go_on_from(&self, earlier: &Self) -> bool {
        earlier.0.iter().filter_map(|names| names.first()).all(|newest| self.contain(std::slice::from_ref(newest)))
    }

    /// Returns true if the lists are full and contain none of `earlier`: older names could have
    /// been dropped.
    pub(super) fn may_have_forgotten(&self, earlier: &Self) -> bool {
        let full = self.0.iter().any(|names| names.len() >= REMEMBERED);
        full && !earlier.0.iter().any(|names| self.contain(names))
    }

    /// Returns true if these contain every commit since `earlier`.
    pub(super) fn reach(&self, earlier: &Self) -> bool {
        self.0.iter().zip(&earlier.0).all(|(now, before)| match before.first() {
            Some(newest) => now.contains(newest),
            None => now.len() < REMEMBERED,
        })
    }
}

/// Lock parts that a commit writes and adds its name to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) lock: bool,
    /// The approvals, if the store keeps them separate.
    pub(super) words: bool,
}

/// A transition's changes.
#[derive(Debug)]
pub(super) struct CommitDelta<'a> {
    pub(super) before: &'a Stored,
    pub(super) after: &'a ServerLock,
    pub(super) finished: &'a [Maintenance],
    pub(super) events: &'a [AuditEvent],
    /// This commit's name.
    pub(super) commit: &'a str,
    /// Records by uid before the change. With linear searches, a thousand queued records would cost
    /// a million comparisons.
    known: HashMap<&'a Uid, &'a Shared<Maintenance>>,
    /// Uids that are still active or in the history.
    kept: HashSet<&'a Uid>,
}

impl<'a> CommitDelta<'a> {
    pub(super) fn new(
        before: &'a Stored,
        after: &'a ServerLock,
        finished: &'a [Maintenance],
        events: &'a [AuditEvent],
        commit: &'a str,
    ) -> Self {
        let known = before.lock.active.iter().map(|record| (&record.uid, record)).collect();
        let kept = after.active.iter().map(Deref::deref).chain(finished).map(|record| &record.uid).collect();
        Self { before, after, finished, events, commit, known, kept }
    }

    /// Returns the lock's last commits with this commit, for [`Commits::parse`].
    pub(super) fn commits(&self) -> String {
        self.text_with(&self.before.commits.0[0])
    }

    /// Returns the approvals' last commits with this commit, if they are kept separate.
    pub(super) fn commits_of_words(&self) -> String {
        self.text_with(&self.before.commits.0[1])
    }

    fn text_with(&self, older: &[String]) -> String {
        let older = older.iter().map(String::as_str).take(REMEMBERED - 1);
        std::iter::once(self.commit).chain(older).collect::<Vec<_>>().join(" ")
    }

    /// Returns new and changed records.
    pub(super) fn written(&self) -> impl Iterator<Item = &Maintenance> {
        self.after.active.iter().filter(|record| self.known.get(&record.uid) != Some(record)).map(Deref::deref)
    }

    /// Returns true if a record is new.
    pub(super) fn is_new(&self, record: &Maintenance) -> bool {
        !self.known.contains_key(&record.uid)
    }

    /// Returns true if the change adds a record.
    pub(super) fn adds(&self) -> bool {
        self.written().any(|record| self.is_new(record))
    }

    /// Returns true if the claim is unchanged.
    pub(super) fn same_claim(&self) -> bool {
        let claim = |lock: &ServerLock| lock.ownership.claim.as_ref().map(|claim| claim.uid.clone());
        claim(&self.before.lock) == claim(self.after)
    }

    /// Returns true if approvals changed, not counting their uses.
    pub(super) fn told(&self) -> bool {
        self.before.lock.ownership.words() != self.after.ownership.words()
    }

    /// Returns true if only approvals changed. An owner's role can write nothing else.
    pub(super) fn told_only(&self) -> bool {
        let plain =
            |lock: &ServerLock| (lock.generation, lock.last_ticket, StoredSlot::of(lock), lock.ownership.claim.clone());
        let (before, after) = (&*self.before.lock, self.after);
        let used = before.ownership.uses();
        let newly_used = after.ownership.uses().iter().any(|mark| !used.contains(mark));
        let records = self.written().next().is_some() || self.withdrawn().next().is_some() || !self.finished.is_empty();
        self.told() && self.same_claim() && plain(before) == plain(after) && !records && !newly_used
    }

    /// Returns the written parts if approvals are kept separate. Approvals for an ended claim
    /// expire without a write, because only an owner's role can write there.
    pub(super) fn parts(&self) -> Parts {
        let words = self.told() && (self.same_claim() || !self.after.ownership.approvals.is_empty());
        Parts { lock: !self.told_only(), words }
    }

    /// Returns records that were removed without history.
    pub(super) fn withdrawn(&self) -> impl Iterator<Item = &Maintenance> {
        self.before.lock.active.iter().filter(|record| !self.kept.contains(&record.uid)).map(Deref::deref)
    }
}

/// A committed change.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CommittedChange {
    /// The lock's new revision.
    pub(super) revision: i64,
    pub(super) parts: Parts,
}

/// For stores that keep everything in the lock.
impl From<i64> for CommittedChange {
    fn from(revision: i64) -> Self {
        Self { revision, parts: Parts { lock: true, words: false } }
    }
}

/// A store with conditional writes.
#[async_trait]
pub(super) trait Conditional: Send + Sync {
    /// Reads one lock. A `known` lock with the same revision is not decoded again.
    async fn load(&self, key: &LockKey, known: Option<Stored>) -> Result<Loaded, StoreError>;

    /// Returns the current lock without a read, from this process's last write, or `None` if a read
    /// is required; see [`recall`](super::recall).
    async fn recall(&self, own: &Stored) -> Option<Loaded>;

    /// Writes a change if the lock is still at the revision and commit that it is based on. Returns
    /// `None` if another process was first. [`StoreError::Unavailable`] means unknown outcome.
    async fn commit(&self, change: &CommitDelta<'_>) -> Result<Option<CommittedChange>, StoreError>;

    /// Returns the most transitions per commit. Stores with a size limit return less, because they
    /// would reject a larger commit and the leader would split it.
    fn together(&self) -> usize {
        64
    }

    /// Returns the error for a commit whose task ended before the reply.
    fn unanswered(&self) -> StoreError;

    /// Returns the error for a lock that lost commits, and wakes its watchers.
    fn went_back(&self, key: &LockKey, cause: String) -> StoreError;
}

/// Reads one lock and compares it with the cache.
pub(super) async fn look(store: &dyn Conditional, known: &CachedLock, key: &LockKey) -> Result<Loaded, StoreError> {
    let seen = known.seen();
    let loaded = store.load(key, seen.stored.clone()).await?;
    known.settle(&seen, &loaded.stored).map_err(|cause| store.went_back(key, cause))?;
    Ok(loaded)
}
