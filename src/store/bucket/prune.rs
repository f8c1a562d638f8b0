//! Prunes history and stale objects. Locks, names and bindings stay: a late write could depend on
//! them.

use std::{collections::HashSet, time::Duration};

use futures_util::future::join_all;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    BucketStore,
    link::{StoreClient, WriteResult},
    lock::{Listed, Row},
    objects::{self, AUDIT, Journal, LEASES, SWEEPER, StoredLease},
};
use crate::{
    maintenance::ids::{RunnerId, Uid},
    store::{
        StoreError,
        alive::LEFT_BEHIND,
        history::{Entry, Limits},
        lease_end,
    },
};

/// The contents of `sweeper.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Sweeper {
    runner: RunnerId,
    until: Timestamp,
}

/// Claims the right to prune.
pub(super) async fn claim(
    link: &StoreClient,
    runner: &RunnerId,
    now: Timestamp,
    length: Duration,
) -> Result<bool, StoreError> {
    let wanted = Sweeper { runner: runner.clone(), until: lease_end(now, length) };
    let written = match link.read::<Sweeper>(SWEEPER).await? {
        Some((found, _)) if found.until > now => return Ok(false),
        Some((_, version)) => link.replace(SWEEPER, &wanted, &version).await?,
        None => link.create(SWEEPER, &wanted).await?,
    };
    Ok(matches!(written, WriteResult::Done(_)))
}

/// Prunes history up to the limits, oldest journals first.
pub(super) async fn prune(store: &BucketStore, limits: &mut Limits, now: Timestamp) -> Result<u64, StoreError> {
    let link = &store.link;
    let mut gone = 0;
    let before = limits.before.as_microsecond();
    for (name, _) in link.list(AUDIT, None).await? {
        if !limits.reached() && objects::orders(&name).is_some_and(|(_, oldest)| oldest < before) {
            gone += from_journal(link, &name, limits).await?;
        }
    }
    let locks = store.locks().await?;
    let rows: Vec<&Row> =
        locks.iter().filter_map(|lock| if let Listed::Row(row) = lock { Some(&**row) } else { None }).collect();
    for row in &rows {
        if !limits.reached() {
            gone += from_lock(store, row, limits).await?;
        }
    }
    if gone == 0 && rows.len() == locks.len() {
        tidy(link, &rows, now).await?;
    }
    Ok(gone)
}

async fn from_journal(link: &StoreClient, name: &str, limits: &mut Limits) -> Result<u64, StoreError> {
    // A journal that another process removed, or that cannot be read, is skipped.
    let Ok(Some((mut journal, version))) = link.read::<Journal>(name).await else { return Ok(0) };
    let old = uids(&journal.entries);
    let gone = limits.forget(&mut journal.entries);
    if gone == 0 {
        return Ok(0);
    }
    let removed = if journal.entries.is_empty() {
        link.delete(name).await.map(|()| true)
    } else {
        link.replace(name, &journal, &version).await.map(|written| written != WriteResult::Moved)
    };
    match removed {
        Ok(true) => {}
        // The printed roles keep the audit log; the bucket's lifecycle rules remove it.
        Ok(false) | Err(StoreError::Forbidden { .. }) => return Ok(0),
        Err(error) => return Err(error),
    }
    forget_places(link, &old, &journal.entries).await?;
    Ok(gone)
}

/// Removes history from a lock. A lock that changes concurrently is skipped until the next pruning.
async fn from_lock(store: &BucketStore, row: &Row, limits: &mut Limits) -> Result<u64, StoreError> {
    let mut next = Row { revision: row.revision + 1, fence: Some(row.revision.to_string()), ..row.clone() };
    let gone = limits.forget(&mut next.outbox);
    let (Some(version), true) = (&row.version, gone > 0) else { return Ok(0) };
    let object = next.object(&store.link.faults)?;
    let written = store.link.replace(&objects::lock(&row.lock.key), &object, version).await?;
    let WriteResult::Done(version) = written else { return Ok(0) };
    forget_places(&store.link, &uids(&row.outbox), &next.outbox).await?;
    store.rows.keep(Row { version: Some(version), ..next });
    Ok(gone)
}

fn uids(entries: &[Entry]) -> HashSet<Uid> {
    entries.iter().flat_map(|entry| &entry.finished).map(|record| record.uid.clone()).collect()
}

/// Deletes the places of pruned records.
async fn forget_places(link: &StoreClient, old: &HashSet<Uid>, kept: &[Entry]) -> Result<(), StoreError> {
    let kept = uids(kept);
    let gone: Vec<String> = old.difference(&kept).map(objects::record).collect();
    join_all(gone.iter().map(|name| link.delete(name))).await.into_iter().collect()
}

/// Removes unused leases. Attached processes keep theirs, which show since when they are
/// disconnected.
async fn tidy(link: &StoreClient, rows: &[&Row], now: Timestamp) -> Result<(), StoreError> {
    let long_ago = now.checked_sub(LEFT_BEHIND).unwrap_or(Timestamp::MIN);
    let attached = rows.iter().flat_map(|row| &row.lock.active).filter_map(|record| record.attachment.as_ref());
    let attached: HashSet<String> = attached.map(|attachment| objects::lease(&attachment.runner.id)).collect();
    for (name, meta) in link.list(LEASES, None).await? {
        let old = link.one_clock() || meta.last_modified.timestamp() < long_ago.as_second();
        if !old || attached.contains(&name) {
            continue;
        }
        if let Some((lease, _)) = link.read::<StoredLease>(&name).await?
            && lease.until < long_ago
        {
            link.delete(&name).await?;
        }
    }
    Ok(())
}
