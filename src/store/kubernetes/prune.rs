//! Prunes history and stale objects.

use std::{collections::HashSet, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Map, Value, json};

use super::{
    journal, lease,
    link::{StoreClient, WriteResult},
    lock::{Next, Row, data, text},
    names,
    objects::{self, KIND, OLDEST, RUNNER, UNTIL},
    whole::kind,
};
use crate::{
    maintenance::ids::RunnerId,
    store::{
        StoreError,
        alive::LEFT_BEHIND,
        history::{self, Entry, Limits},
        lease_end,
    },
};

/// Claims the right to prune, with a Lease that contains its end.
pub(super) async fn claim(
    link: &StoreClient,
    runner: &RunnerId,
    now: Timestamp,
    length: Duration,
) -> Result<bool, StoreError> {
    let found = link.lease(objects::SWEEPER).await?;
    let notes = found.as_ref().and_then(|lease| lease.metadata.annotations.as_ref());
    let until: Option<Timestamp> = notes.and_then(|notes| notes.get(UNTIL)).and_then(|until| until.parse().ok());
    if until.is_some_and(|until| until > now) {
        return Ok(false);
    }
    let wanted = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": objects::SWEEPER,
            "labels": {KIND: "sweeper"},
            "annotations": {RUNNER: runner.raw(), UNTIL: lease_end(now, length).to_string()},
        },
        "spec": {"leaseDurationSeconds": i32::try_from(length.as_secs().max(1)).unwrap_or(i32::MAX)},
    });
    let version = found.as_ref().map(|lease| lease.metadata.resource_version.as_deref().unwrap_or_default());
    link.claim_lease(objects::SWEEPER, &wanted, version).await
}

/// Prunes history from before a given time: about `most` records and lines, oldest first.
pub(super) async fn prune(link: &StoreClient, before: Timestamp, now: Timestamp, most: u32) -> Result<u64, StoreError> {
    let mut old: Vec<(Timestamp, String)> = Vec::new();
    for kind in ["lock", "journal"] {
        for metadata in link.list_metadata(&objects::all(kind)).await? {
            let oldest = metadata.annotations.as_ref().and_then(|notes| notes.get(OLDEST));
            if let (Some(Ok(oldest)), Some(name)) = (oldest.map(|at| at.parse()), metadata.name) {
                old.push((oldest, name));
            }
        }
    }
    old.retain(|(oldest, _)| *oldest < before);
    old.sort();
    let mut limits = Limits::new(before, most);
    let gone = from_all(link, old.iter().map(|(_, name)| name), &mut limits).await?;
    if gone == 0 {
        tidy(link, now).await?;
    }
    Ok(gone)
}

async fn from_all(
    link: &StoreClient,
    names: impl Iterator<Item = &String> + Send,
    limits: &mut Limits,
) -> Result<u64, StoreError> {
    let mut gone = 0;
    for name in names {
        if limits.reached() {
            break;
        }
        // Objects that change concurrently are skipped until the next pruning.
        if let Some(map) = link.get(name).await? {
            gone += match kind(&map) {
                "lock" => from_lock(link, &map, limits).await?,
                _ => from_journal(link, &map, limits).await?,
            };
        }
    }
    Ok(gone)
}

async fn from_lock(link: &StoreClient, map: &ConfigMap, limits: &mut Limits) -> Result<u64, StoreError> {
    let row = Row::of(map, &link.faults)?;
    let (mut outbox, mut said) = (row.outbox.clone(), row.said.clone());
    let from_outbox = limits.forget(&mut outbox);
    let from_said = limits.forget(&mut said);
    let gone = from_outbox + from_said;
    if gone == 0 {
        return Ok(0);
    }
    // Unchanged parts are not written: they can contain unreadable entries, which a rewrite would
    // lose.
    let next =
        Next { outbox: (from_outbox > 0).then_some(outbox), said: (from_said > 0).then_some(said), ..Next::default() };
    let written = link.patch(&objects::lock(&row.lock.key), &next.patch(&row, &link.faults)?).await?;
    Ok(if matches!(written, WriteResult::Done(_)) { gone } else { 0 })
}

async fn from_journal(link: &StoreClient, map: &ConfigMap, limits: &mut Limits) -> Result<u64, StoreError> {
    let name = map.metadata.name.as_deref().unwrap_or_default();
    let version = map.metadata.resource_version.clone();
    let old: Vec<Entry> = data(map, "entries", &link.faults)?;
    let mut entries = old.clone();
    let gone = limits.forget(&mut entries);
    if gone == 0 {
        return Ok(0);
    }
    let done = if entries.is_empty() {
        link.delete(name, version).await?
    } else {
        let (had, has) = (journal::labels(old.iter()), journal::labels(entries.iter()));
        let labels: Map<String, Value> = had.difference(&has).map(|label| (label.clone(), Value::Null)).collect();
        let oldest = history::oldest(entries.iter()).unwrap_or(Timestamp::MAX);
        let patch = json!({
            "metadata": {"resourceVersion": version, "labels": labels, "annotations": {OLDEST: oldest.to_string()}},
            "data": {"entries": text(name, &entries, &link.faults)?},
        });
        matches!(link.patch(name, &patch).await?, WriteResult::Done(_))
    };
    Ok(if done { gone } else { 0 })
}

/// Removes leftovers of dead processes: pointers without a record, and unused Leases.
async fn tidy(link: &StoreClient, now: Timestamp) -> Result<(), StoreError> {
    let long_ago = now.checked_sub(LEFT_BEHIND).unwrap_or(Timestamp::MIN);
    for kind in ["name", "uid"] {
        for metadata in link.list_metadata(&objects::all(kind)).await? {
            let made = metadata.creation_timestamp.map(|at| at.0);
            if let (true, Some(name)) = (made.is_some_and(|at| at < long_ago), metadata.name)
                && let Some(map) = link.get(&name).await?
            {
                names::tidy(link, &map).await?;
            }
        }
    }
    let mut gone = Vec::new();
    for found in link.all_leases(&objects::all("runner")).await? {
        let said = lease::status(&found, &link.faults)?;
        if said.until < long_ago {
            gone.push((said.runner, found.metadata.resource_version));
        }
    }
    if gone.is_empty() {
        return Ok(());
    }
    // Attached processes keep their Leases, which show since when they are disconnected.
    let mut attached: HashSet<RunnerId> = HashSet::new();
    for map in link.list(&objects::all("lock")).await? {
        let row = Row::of(&map, &link.faults)?;
        let attachments = row.lock.active.iter().filter_map(|record| record.attachment.as_ref());
        attached.extend(attachments.map(|attachment| attachment.runner.id.clone()));
    }
    for (runner, version) in gone.into_iter().filter(|(runner, _)| !attached.contains(runner)) {
        link.delete_lease(&objects::runner(&runner), version).await?;
    }
    Ok(())
}
