//! History in journal objects, and the labels by which it is found.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use super::{
    fault::ErrorMapper,
    lock::{Row, data, text},
    objects::{self, KIND, OLDEST},
};
use crate::{
    maintenance::ids::LockKey,
    shown::OneLine,
    store::{
        StoreError,
        history::{Entry, oldest},
    },
};

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
