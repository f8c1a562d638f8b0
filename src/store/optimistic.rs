//! Transitions on a store that others write to at the same time, without ever holding a lock in it.
//!
//! A process that is stopped or cut off in the middle of a transaction would keep its locks in the store, and with them
//! everybody else, until the store notices. So nothing is locked: the lock is read, the transition is applied here, and
//! the result is written on the condition that nobody wrote in between; otherwise all of it begins again on fresh data.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use uuid::Uuid;

use super::{
    StoreError, Transition,
    views::{Known, Stored},
};
use crate::{
    clock::Clock,
    maintenance::{
        ids::{LockKey, Uid},
        lock::{AuditEvent, Leases, ServerLock},
        state::Maintenance,
    },
};

/// How many commits of a lock are remembered, so that somebody whose reply was lost finds out whether his is among them.
const REMEMBERED: usize = 8;

/// The first pause after a lost race; later ones grow to the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// One lock as it was read.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) stored: Stored,
    pub(super) leases: Leases,
    /// The store's time.
    pub(super) now: Timestamp,
    /// The last commits of this lock, newest first.
    pub(super) commits: Commits,
}

/// Names of the last commits of one lock, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Commits(Vec<String>);

impl Commits {
    pub(super) fn parse(text: &str) -> Self {
        Self(text.split_whitespace().map(str::to_owned).collect())
    }

    /// As text, with one more in front.
    fn with(&self, name: &str) -> String {
        let older = self.0.iter().map(String::as_str).take(REMEMBERED - 1);
        std::iter::once(name).chain(older).collect::<Vec<_>>().join(" ")
    }
}

/// What a transition changed.
#[derive(Debug)]
pub(super) struct Change<'a> {
    pub(super) before: &'a Stored,
    pub(super) after: &'a ServerLock,
    pub(super) finished: &'a [Maintenance],
    pub(super) events: &'a [AuditEvent],
    /// What [`Commits::parse`] reads back.
    pub(super) commits: &'a str,
    /// The records of before: looked for one by one, a queue of a thousand would cost a million comparisons.
    known: HashMap<&'a Uid, &'a Maintenance>,
    /// Those that are still known in some way.
    kept: HashSet<&'a Uid>,
}

impl<'a> Change<'a> {
    pub(super) fn new(
        before: &'a Stored,
        after: &'a ServerLock,
        finished: &'a [Maintenance],
        events: &'a [AuditEvent],
        commits: &'a str,
    ) -> Self {
        let known = before.lock.active.iter().map(|record| (&record.uid, record)).collect();
        let kept = after.active.iter().chain(finished).map(|record| &record.uid).collect();
        Self { before, after, finished, events, commits, known, kept }
    }

    /// Records that are new or not as they were.
    pub(super) fn written(&self) -> impl Iterator<Item = &Maintenance> {
        self.after.active.iter().filter(|record| self.known.get(&record.uid) != Some(record))
    }

    /// Whether a record was not there before.
    pub(super) fn is_new(&self, record: &Maintenance) -> bool {
        !self.known.contains_key(&record.uid)
    }

    /// Records that left without a history.
    pub(super) fn withdrawn(&self) -> impl Iterator<Item = &Maintenance> {
        self.before.lock.active.iter().filter(|record| !self.kept.contains(&record.uid))
    }
}

/// A store that writes on conditions.
#[async_trait]
pub(super) trait Conditional: Send + Sync {
    /// Reads one lock. `known` is what is in memory: at the same revision nothing needs to be decoded.
    async fn load(&self, key: &LockKey, known: Option<Stored>) -> Result<Loaded, StoreError>;

    /// Writes a change if the lock still is at the revision it was made from: the new revision, or `None` when somebody
    /// else was first. [`StoreError::Unavailable`] leaves open whether it was written.
    async fn commit(&self, change: &Change<'_>) -> Result<Option<i64>, StoreError>;
}

/// Applies a transition. What is stored then, or `None` when it changed nothing.
pub(super) async fn transact(
    store: &dyn Conditional,
    clock: &dyn Clock,
    known: &Known,
    key: &LockKey,
    transition: &mut Transition<'_>,
) -> Result<Option<Stored>, StoreError> {
    // Those of one process would only race against each other.
    let _turn = known.turn().await;
    let mut tried: Vec<String> = Vec::new();
    let mut pause = PAUSE.0;
    loop {
        let loaded = store.load(key, known.latest()).await?;
        known.remember(&loaded.stored);
        if loaded.commits.0.iter().any(|commit| tried.contains(commit)) {
            // The reply was lost, not the commit.
            return Ok(Some(loaded.stored));
        }
        let mut after = (*loaded.stored.lock).clone();
        transition(&mut after, &loaded.leases, loaded.now)?;
        let finished = std::mem::take(&mut after.finished);
        let events = std::mem::take(&mut after.events);
        if after == *loaded.stored.lock && finished.is_empty() && events.is_empty() {
            return Ok(None);
        }
        let name = Uuid::new_v4().simple().to_string();
        let commits = loaded.commits.with(&name);
        tried.push(name);
        let change = Change::new(&loaded.stored, &after, &finished, &events, &commits);
        let committed = store.commit(&change).await;
        drop(change);
        match committed {
            Ok(Some(revision)) => {
                let stored = Stored { revision, lock: Arc::new(after) };
                known.remember(&stored);
                return Ok(Some(stored));
            }
            Ok(None) => {}
            // Whether it was written is seen in what is read next; a late arrival fails its condition.
            Err(error @ StoreError::Unavailable { .. }) => tracing::debug!(%error, %key, "a commit without a reply"),
            Err(error) => return Err(error),
        }
        clock.sleep(jittered(pause)).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Between nothing and `pause`, so that racers part.
fn jittered(pause: Duration) -> Duration {
    let share = f64::from(Uuid::new_v4().as_fields().0) / f64::from(u32::MAX);
    pause.mul_f64(share)
}
