//! Journals: history that left its lock.

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    commit::AT_ONCE,
    link::StoreClient,
    names,
    objects::{self, AUDIT, Journal, PastRecord, Place},
};
use crate::{
    maintenance::{ids::LockKey, state::Maintenance},
    shown::OneLine,
    store::{StoreError, history::Entry},
};

/// Copies a lock's history to a journal, before a commit removes it from the lock. Every process at
/// this revision writes the same journal.
pub(super) async fn write(
    link: &StoreClient,
    key: &LockKey,
    revision: i64,
    entries: &[Entry],
) -> Result<(), StoreError> {
    let name = objects::journal(key, revision, entries);
    let journal = Journal { key: key.clone(), entries: entries.to_vec() };
    link.patience.repeat(|| link.create(&name, &journal)).await?;
    let finished = entries.iter().flat_map(|entry| entry.finished.iter().map(move |record| (entry, record)));
    let moved = finished.map(|(entry, record)| moved(link, entry.order.unwrap_or_default(), record, key, &name));
    stream::iter(moved.collect::<Vec<_>>()).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    Ok(())
}

/// Points an ended record's name and uid to the journal.
pub(super) async fn moved(
    link: &StoreClient,
    order: i64,
    record: &Maintenance,
    key: &LockKey,
    journal: &str,
) -> Result<(), StoreError> {
    let past = PastRecord { uid: record.uid.clone(), key: key.clone(), order };
    let place = Place { uid: record.uid.clone(), key: key.clone(), journal: Some(journal.to_owned()) };
    let name = objects::record(&record.uid);
    let (placed, settled) = tokio::join!(
        link.patience.repeat(|| link.put(&name, &place)),
        link.patience.repeat(|| names::settle(link, &record.id, &past)),
    );
    placed.and(settled)
}

/// The entries of several journals, and the reasons for journals that cannot be read. A runner can
/// write such a journal, and it must not hide the others.
pub(super) type Read = (Vec<Entry>, Vec<(String, OneLine)>);

/// Reads all journals, or those with entries of this order or later.
pub(super) async fn read(link: &StoreClient, from: Option<i64>) -> Result<Read, StoreError> {
    let after = from.map(objects::journals_from);
    let listed = link.list(AUDIT, after.as_deref()).await?;
    let reading = listed.into_iter().map(|(name, _)| async move {
        let read = link.read::<Journal>(&name).await;
        (name, read)
    });
    let mut reading = stream::iter(reading).buffered(AT_ONCE);
    let (mut entries, mut unreadable) = (Vec::new(), Vec::new());
    while let Some((name, read)) = reading.next().await {
        match read {
            Ok(journal) => entries.extend(journal.into_iter().flat_map(|(journal, _)| journal.entries)),
            Err(StoreError::Unreadable { cause, .. }) => unreadable.push((name, cause)),
            Err(error) => return Err(error),
        }
    }
    Ok((entries, unreadable))
}
