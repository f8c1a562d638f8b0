//! Transitions on a store that others write to at the same time, without ever holding a lock in it.
//!
//! A process that is stopped or cut off in the middle of a transaction would keep its locks in the
//! store, and with them everybody else, until the store notices. So nothing is locked: the lock is
//! read, the transition is applied here, and the result is written on the condition that nobody
//! wrote in between; otherwise all of it begins again on fresh data. `group.rs` does that, for all
//! transitions of a process that come together.

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

/// How many commits of a lock are remembered, so that somebody whose reply was lost finds out
/// whether his is among them.
const REMEMBERED: usize = 32;

/// One lock as it was read.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) stored: Stored,
    pub(super) leases: Leases,
    /// The store's time.
    pub(super) now: Timestamp,
}

/// Names of the last commits of one lock, newest first. A store that keeps the words of the owner
/// apart from the rest remembers the commits of both apart, too: each is written without the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Commits([Vec<String>; 2]);

impl Commits {
    pub(super) fn parse(lock: &str, words: &str) -> Self {
        Self([lock, words].map(|text| text.split_whitespace().map(str::to_owned).collect()))
    }

    pub(super) fn contain(&self, names: &[String]) -> bool {
        self.0.iter().flatten().any(|commit| names.contains(commit))
    }

    /// These and a newer one of the lock, of the owner's words, or of both.
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

    /// [`Commits::parse`] reads it back, where the owner's words are not apart.
    pub(super) fn text(&self) -> String {
        self.0[0].join(" ")
    }

    /// The name of the last commit of the lock, if there was one.
    pub(super) fn newest(&self) -> Option<&str> {
        self.0[0].first().map(String::as_str)
    }

    /// Whether what was the newest in `earlier` is among them.
    pub(super) fn go_on_from(&self, earlier: &Self) -> bool {
        earlier.0.iter().filter_map(|names| names.first()).all(|newest| self.contain(std::slice::from_ref(newest)))
    }

    /// Whether what is not among them may be older than what is: they are many, and none of
    /// `earlier` is left.
    pub(super) fn may_have_forgotten(&self, earlier: &Self) -> bool {
        let full = self.0.iter().any(|names| names.len() >= REMEMBERED);
        full && !earlier.0.iter().any(|names| self.contain(names))
    }

    /// Whether each commit since `earlier` is among them.
    pub(super) fn reach(&self, earlier: &Self) -> bool {
        self.0.iter().zip(&earlier.0).all(|(now, before)| match before.first() {
            Some(newest) => now.contains(newest),
            None => now.len() < REMEMBERED,
        })
    }
}

/// Which parts of a lock a commit writes, and names itself in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) lock: bool,
    /// The owner's words, where the store keeps them apart.
    pub(super) words: bool,
}

/// What a transition changed.
#[derive(Debug)]
pub(super) struct CommitDelta<'a> {
    pub(super) before: &'a Stored,
    pub(super) after: &'a ServerLock,
    pub(super) finished: &'a [Maintenance],
    pub(super) events: &'a [AuditEvent],
    /// The name of this commit.
    pub(super) commit: &'a str,
    /// The records of before: looked for one by one, a queue of a thousand would cost a million
    /// comparisons.
    known: HashMap<&'a Uid, &'a Shared<Maintenance>>,
    /// Those that are still known in some way.
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

    /// The last commits of the lock with this one. [`Commits::parse`] reads it back.
    pub(super) fn commits(&self) -> String {
        self.text_with(&self.before.commits.0[0])
    }

    /// That of the approvals, where they are kept apart.
    pub(super) fn commits_of_words(&self) -> String {
        self.text_with(&self.before.commits.0[1])
    }

    fn text_with(&self, older: &[String]) -> String {
        let older = older.iter().map(String::as_str).take(REMEMBERED - 1);
        std::iter::once(self.commit).chain(older).collect::<Vec<_>>().join(" ")
    }

    /// Records that are new or not as they were.
    pub(super) fn written(&self) -> impl Iterator<Item = &Maintenance> {
        self.after.active.iter().filter(|record| self.known.get(&record.uid) != Some(record)).map(Deref::deref)
    }

    /// Whether a record was not there before.
    pub(super) fn is_new(&self, record: &Maintenance) -> bool {
        !self.known.contains_key(&record.uid)
    }

    /// Whether a record is added.
    pub(super) fn adds(&self) -> bool {
        self.written().any(|record| self.is_new(record))
    }

    /// Whether the same claim is in force as before, or none as before.
    pub(super) fn same_claim(&self) -> bool {
        let claim = |lock: &ServerLock| lock.ownership.claim.as_ref().map(|claim| claim.uid.clone());
        claim(&self.before.lock) == claim(self.after)
    }

    /// Whether the owner's words moved.
    pub(super) fn told(&self) -> bool {
        self.before.lock.ownership.words() != self.after.ownership.words()
    }

    /// Whether nothing moved but the owner's words: an owner's role may write nothing else.
    pub(super) fn told_only(&self) -> bool {
        let plain =
            |lock: &ServerLock| (lock.generation, lock.last_ticket, StoredSlot::of(lock), lock.ownership.claim.clone());
        let (before, after) = (&*self.before.lock, self.after);
        let used = before.ownership.uses();
        let newly_used = after.ownership.uses().iter().any(|mark| !used.contains(mark));
        let records = self.written().next().is_some() || self.withdrawn().next().is_some() || !self.finished.is_empty();
        self.told() && self.same_claim() && plain(before) == plain(after) && !records && !newly_used
    }

    /// What is written where the owner's words are kept apart. Those of a claim that is over count
    /// no more by themselves: only an owner's role may write there.
    pub(super) fn parts(&self) -> Parts {
        let words = self.told() && (self.same_claim() || !self.after.ownership.approvals.is_empty());
        Parts { lock: !self.told_only(), words }
    }

    /// Records that left without a history.
    pub(super) fn withdrawn(&self) -> impl Iterator<Item = &Maintenance> {
        self.before.lock.active.iter().filter(|record| !self.kept.contains(&record.uid)).map(Deref::deref)
    }
}

/// A change that was written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CommittedChange {
    /// The new revision of the lock.
    pub(super) revision: i64,
    pub(super) parts: Parts,
}

/// As a store writes it that keeps everything of a lock together.
impl From<i64> for CommittedChange {
    fn from(revision: i64) -> Self {
        Self { revision, parts: Parts { lock: true, words: false } }
    }
}

/// A store that writes on conditions.
#[async_trait]
pub(super) trait Conditional: Send + Sync {
    /// Reads one lock. `known` is what is in memory: at the same revision nothing needs to be
    /// decoded.
    async fn load(&self, key: &LockKey, known: Option<Stored>) -> Result<Loaded, StoreError>;

    /// A lock as it would be read now, from what this process wrote last and without asking the
    /// store; see [`recall`](super::recall). `None` when that takes a read.
    async fn recall(&self, own: &Stored) -> Option<Loaded>;

    /// Writes a change if the lock still is at the revision and the commit it was made from. `None`
    /// when another process was first. [`StoreError::Unavailable`] leaves open whether it was
    /// written.
    async fn commit(&self, change: &CommitDelta<'_>) -> Result<Option<CommittedChange>, StoreError>;

    /// How many transitions one commit may carry. A larger commit of a store with a limit would
    /// only be rejected and made again in halves.
    fn together(&self) -> usize {
        64
    }

    /// The error for a commit whose reply was never awaited, because the task that sent it ended.
    fn unanswered(&self) -> StoreError;

    /// The error of a lock that has lost commits. Whoever watches it has to look again.
    fn went_back(&self, key: &LockKey, cause: String) -> StoreError;
}

/// Reads one lock and compares it with what was known of it.
pub(super) async fn look(store: &dyn Conditional, known: &CachedLock, key: &LockKey) -> Result<Loaded, StoreError> {
    let seen = known.seen();
    let loaded = store.load(key, seen.stored.clone()).await?;
    known.settle(&seen, &loaded.stored).map_err(|cause| store.went_back(key, cause))?;
    Ok(loaded)
}
