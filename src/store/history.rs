//! History: ended records and audit lines, for stores that keep it in the lock at first.
//!
//! A commit writes one object, the lock, so its history is part of the lock. When it has grown, the
//! next commit copies it into an immutable journal object and removes it from the lock. A process
//! that dies in between leaves a duplicate, which readers detect by commit name.

use std::collections::HashSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{AuditLine, AuditPosition, AuditStart, Contents, StoreError, fault::StoreErrors};
use crate::{
    maintenance::{
        ids::LockKey,
        lock::{AuditEvent, ServerLock},
        state::Maintenance,
    },
    shown::OneLine,
};

/// How much history a lock contains before it moves to a journal, in bytes of JSON. Every read of
/// the lock transfers it.
pub(super) const CARRIED: usize = 16 * 1024;

/// Journal size during an import, in bytes of JSON.
const JOURNAL: usize = 8 * CARRIED;

/// A commit's history.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The commit's name.
    pub(super) commit: String,
    /// Orders commits across servers, if it is stored with the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) order: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) finished: Vec<Maintenance>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) events: Vec<AuditEvent>,
}

impl Entry {
    fn times(&self) -> impl Iterator<Item = Timestamp> {
        self.finished.iter().filter_map(|record| record.detached_at).chain(self.events.iter().map(|event| event.at))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.finished.is_empty() && self.events.is_empty()
    }

    /// Removes records and lines from before a given time, up to the limits.
    fn forget(&mut self, limits: &mut Limits) -> u64 {
        let before = limits.before;
        let mut gone = 0;
        let mut goes = |at: Option<Timestamp>, left: &mut u32| {
            let goes = *left > 0 && at.is_some_and(|at| at < before);
            if goes {
                *left -= 1;
                gone += 1;
            }
            goes
        };
        self.finished.retain(|record| !goes(record.detached_at, &mut limits.records));
        self.events.retain(|event| !goes(Some(event.at), &mut limits.lines));
        gone
    }
}

/// Limits for one pruning: the time, and the numbers of records and lines.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) before: Timestamp,
    records: u32,
    lines: u32,
}

impl Limits {
    pub(super) fn new(before: Timestamp, most: u32) -> Self {
        Self { before, records: most, lines: most }
    }

    /// Returns true if the limits are used up.
    pub(super) fn reached(&self) -> bool {
        self.records == 0 && self.lines == 0
    }

    /// Removes old history, oldest first. Returns the number of removals.
    pub(super) fn forget(&mut self, entries: &mut Vec<Entry>) -> u64 {
        let gone = entries.iter_mut().map(|entry| entry.forget(self)).sum();
        entries.retain(|entry| !entry.is_empty());
        gone
    }
}

/// Returns the oldest end time.
pub(super) fn oldest<'a>(entries: impl Iterator<Item = &'a Entry>) -> Option<Timestamp> {
    entries.flat_map(Entry::times).min()
}

/// Sorts entries by commit, and drops duplicates from a process that died while moving them.
pub(super) fn in_order(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort_by_key(|entry| entry.order);
    let mut known = HashSet::new();
    entries.retain(|entry| known.insert(entry.commit.clone()));
    entries
}

/// Returns the audit lines of entries.
pub(super) fn lines(entries: Vec<Entry>) -> Vec<AuditLine> {
    let mut lines = Vec::new();
    for entry in in_order(entries) {
        for (number, event) in (0..).zip(entry.events) {
            let position =
                AuditPosition { order: entry.order.unwrap_or_default(), commit: entry.commit.clone(), number };
            lines.push(AuditLine { id: format!("{}-{number}", entry.commit), position, event: Ok(event), stamp: None });
        }
    }
    lines
}

/// Returns the lines from `start` on, in order. `since` is the earliest time of a start by age.
pub(super) fn from(
    mut lines: Vec<AuditLine>,
    start: &AuditStart,
    since: Timestamp,
    about: &StoreErrors,
) -> Result<Vec<AuditLine>, StoreError> {
    lines.sort_by(|one, other| one.position.cmp(&other.position));
    match start {
        AuditStart::Oldest => {}
        AuditStart::Age(_) => lines.retain(|line| line.event.as_ref().map_or(true, |event| event.at >= since)),
        AuditStart::After(position) => lines.retain(|line| line.position > *position),
        AuditStart::AfterId(id) => {
            let found = lines.iter().position(|line| line.id == *id);
            let found = found.ok_or_else(|| about.no_such_line(id))?;
            lines.drain(..=found);
        }
    }
    Ok(lines)
}

/// Returns a store's contents from its entries in any order.
pub(super) fn contents(
    store_id: String,
    locks: Vec<ServerLock>,
    bindings: Vec<(String, LockKey)>,
    entries: Vec<Entry>,
    oddities: Vec<OneLine>,
) -> Contents {
    let (mut history, mut audit) = (Vec::new(), Vec::new());
    for entry in in_order(entries) {
        history.extend(entry.finished);
        audit.extend(entry.events);
    }
    Contents { store_id, locks, history, bindings, audit, oddities }
}

/// Returns the problem if an active record's name does not point to its server.
pub(super) fn misnamed(record: &Maintenance, pointed: Option<&LockKey>) -> Option<OneLine> {
    match pointed {
        Some(key) if *key == record.lock_key => None,
        Some(key) => Some(format!("{} is active, but its name points to {key}", record.id).into()),
        None => Some(format!("{} is active, but its name is free", record.id).into()),
    }
}

/// Returns imported history in journals, ordered before every future commit.
pub(super) fn imported(contents: &Contents, about: &StoreErrors) -> Result<Vec<Vec<Entry>>, StoreError> {
    let before = |number: usize, all: usize| Some(i64::try_from(number).unwrap_or(0) - i64::try_from(all).unwrap_or(0));
    let entry = |commit: String, order| Entry { commit, order, finished: Vec::new(), events: Vec::new() };
    let mut journals: Vec<Vec<Entry>> = vec![Vec::new()];
    let mut size = 0;
    let history = contents.history.iter().enumerate().map(|(number, record)| Entry {
        finished: vec![record.clone()],
        ..entry(format!("moved-record-{number}"), before(number, contents.history.len()))
    });
    let audit = contents.audit.iter().enumerate().map(|(number, event)| Entry {
        events: vec![event.clone()],
        ..entry(format!("moved-line-{number}"), before(number, contents.audit.len()))
    });
    for entry in history.chain(audit) {
        size += serde_json::to_string(&entry).map_err(|error| about.record("history", error))?.len();
        if size > JOURNAL {
            journals.push(Vec::new());
            size = 0;
        }
        if let Some(last) = journals.last_mut() {
            last.push(entry);
        }
    }
    journals.retain(|entries| !entries.is_empty());
    Ok(journals)
}
