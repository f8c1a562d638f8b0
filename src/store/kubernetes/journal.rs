//! History: ended records and audit lines.
//!
//! A commit writes one object, the lock, so history stays in the lock at first. When it has grown,
//! the next commit copies it into an immutable journal object and removes it from the lock. A
//! process that dies in between leaves a duplicate, which readers detect by commit name.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    fault::ErrorMapper,
    lock::{Row, data, text},
    objects::{self, KIND, OLDEST},
};
use crate::{
    maintenance::{ids::LockKey, lock::AuditEvent, state::Maintenance},
    shown::OneLine,
    store::StoreError,
};

/// A commit's history.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The commit's name.
    pub(super) commit: String,
    /// The commit's revision, which orders commits across servers. In the lock it is stored
    /// separately, because the API server assigns it during the write.
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

    /// Removes records and lines from before a given time, up to the limits.
    fn forget(&mut self, before: Timestamp, records: &mut u32, lines: &mut u32) -> u64 {
        let mut gone = 0;
        let mut goes = |at: Option<Timestamp>, left: &mut u32| {
            let goes = *left > 0 && at.is_some_and(|at| at < before);
            if goes {
                *left -= 1;
                gone += 1;
            }
            goes
        };
        self.finished.retain(|record| !goes(record.detached_at, records));
        self.events.retain(|event| !goes(Some(event.at), lines));
        gone
    }
}

/// Removes history from before a given time, oldest first, up to the limits. Returns the number of
/// removals.
pub(super) fn forget(entries: &mut Vec<Entry>, before: Timestamp, records: &mut u32, lines: &mut u32) -> u64 {
    let gone = entries.iter_mut().map(|entry| entry.forget(before, records, lines)).sum();
    entries.retain(|entry| !entry.finished.is_empty() || !entry.events.is_empty());
    gone
}

/// Returns the labels by which these entries are found.
pub(super) fn labels<'a>(entries: impl Iterator<Item = &'a Entry>) -> BTreeSet<String> {
    let mut labels = BTreeSet::new();
    for entry in entries {
        labels.extend(entry.events.iter().map(|event| objects::about_name(&event.id)));
        for record in &entry.finished {
            labels.insert(objects::about_name(&record.id));
            labels.insert(objects::about_uid(&record.uid));
        }
    }
    labels
}

/// Returns the oldest end time.
pub(super) fn oldest<'a>(entries: impl Iterator<Item = &'a Entry>) -> Option<Timestamp> {
    entries.flat_map(Entry::times).min()
}

/// Builds the journal object for one lock's entries.
pub(super) fn object(name: &str, key: &LockKey, entries: &[Entry], faults: &ErrorMapper) -> Result<Value, StoreError> {
    let mut found: BTreeMap<String, &str> = labels(entries.iter()).into_iter().map(|label| (label, "")).collect();
    found.insert(KIND.to_owned(), "journal");
    Ok(json!({
        "metadata": {
            "name": name,
            "labels": found,
            "annotations": {OLDEST: oldest(entries.iter()).unwrap_or(Timestamp::MIN).to_string()},
        },
        "data": {"key": text(name, key, faults)?, "entries": text(name, &entries, faults)?},
    }))
}

/// A journal that cannot be read, and the reason.
pub(super) type UnreadableJournal<'a> = (&'a ConfigMap, OneLine);

/// Returns the entries of several objects, and the journals that cannot be read, each with the
/// reason. A runner can write such a journal, and it must not hide the others.
pub(super) fn readable<'a>(
    maps: impl IntoIterator<Item = &'a ConfigMap>,
    faults: &ErrorMapper,
) -> Result<(Vec<Entry>, Vec<UnreadableJournal<'a>>), StoreError> {
    let (mut all, mut unreadable) = (Vec::new(), Vec::new());
    for map in maps {
        match entries(map, faults) {
            Ok(found) => all.extend(found),
            Err(StoreError::Unreadable { cause, .. }) => unreadable.push((map, cause)),
            Err(error) => return Err(error),
        }
    }
    Ok((all, unreadable))
}

/// Returns a journal's or lock's entries.
pub(super) fn entries(map: &ConfigMap, faults: &ErrorMapper) -> Result<Vec<Entry>, StoreError> {
    match objects::kind(&map.metadata) {
        Some("journal") => data(map, "entries", faults),
        Some("lock") => {
            let row = Row::of(map, faults)?;
            Ok(row.outbox.into_iter().chain(row.said).collect())
        }
        _ => Ok(Vec::new()),
    }
}

/// Sorts entries by commit, and drops duplicates from a process that died while moving them.
pub(super) fn in_order(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort_by_key(|entry| entry.order);
    let mut known = HashSet::new();
    entries.retain(|entry| known.insert(entry.commit.clone()));
    entries
}
