//! Exports and imports a whole bucket.

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    BucketStore,
    bindings::Bindings,
    commit::AT_ONCE,
    journal,
    link::WriteResult,
    lock::{Listed, Row},
    objects::{self, BINDINGS, Journal, Meta, Place, Pointer, STORE},
};
use crate::{
    maintenance::{ids::LockKey, state::Maintenance},
    shown::OneLine,
    store::{Contents, StoreError, format::FORMAT, history},
};

/// Reads everything. Locks are read first, so an entry that moves to a journal in between is in
/// both.
pub(super) async fn read(store: &BucketStore) -> Result<Contents, StoreError> {
    let link = &store.link;
    let (mut locks, mut entries) = (Vec::new(), Vec::new());
    for lock in store.locks().await? {
        match lock {
            Listed::Row(row) if row.only_fenced() => {}
            Listed::Row(row) => {
                entries.extend(row.outbox.iter().cloned());
                locks.push((*row.lock).clone());
            }
            Listed::Unreadable(lock) => locks.push((*lock).clone()),
        }
    }
    locks.sort_by(|one, other| one.key.cmp(&other.key));
    let (moved, unreadable) = journal::read(link, None).await?;
    entries.extend(moved);
    let mut oddities: Vec<OneLine> =
        unreadable.into_iter().map(|(_, cause)| format!("an object cannot be read: {cause}").into()).collect();
    let active: Vec<&Maintenance> = locks.iter().flat_map(|lock| &lock.active).map(|record| &**record).collect();
    let pointers = active.iter().map(|record| async move {
        let pointer = link.read::<Pointer>(&objects::name(&record.id)).await?;
        Ok::<_, StoreError>((record, pointer.map(|(pointer, _)| pointer)))
    });
    let pointers: Vec<_> = stream::iter(pointers.collect::<Vec<_>>()).buffered(AT_ONCE).try_collect().await?;
    for (record, pointer) in pointers {
        oddities.extend(history::misnamed(record, pointer.as_ref().map(|pointer| &pointer.key)));
    }
    let bindings = link.read::<Bindings>(BINDINGS).await?.map(|(bindings, _)| bindings).unwrap_or_default();
    Ok(history::contents(store.id.clone(), locks, bindings.into_iter().collect(), entries, oddities))
}

/// Fills an unused bucket. Not atomic: the id is written last and marks the import as complete.
pub(super) async fn write(store: &BucketStore, contents: &Contents) -> Result<(), StoreError> {
    let (link, faults) = (&store.link, &store.link.faults);
    if !read(store).await?.is_empty() {
        return Err(faults.in_use());
    }
    for record in contents.locks.iter().flat_map(|lock| &lock.active) {
        let place = Place { uid: record.uid.clone(), key: record.lock_key.clone(), journal: None };
        link.put(&objects::record(&record.uid), &place).await?;
        point(store, record).await?;
    }
    for (number, entries) in (1..).zip(history::imported(contents, faults)?) {
        let key = LockKey::new("moved");
        let name = objects::journal(&key, number, &entries);
        for entry in &entries {
            for record in &entry.finished {
                point(store, record).await?;
                journal::moved(link, entry.order.unwrap_or_default(), record, &record.lock_key, &name).await?;
            }
        }
        created(store, &link.create(&name, &Journal { key, entries }).await?)?;
    }
    let bindings: Bindings = contents.bindings.iter().cloned().collect();
    if !bindings.is_empty() {
        created(store, &link.create(BINDINGS, &bindings).await?)?;
    }
    let locks = contents.locks.iter().map(|lock| async move {
        let row = Row { revision: 1, lock: lock.clone().into(), ..Row::empty(&lock.key) };
        created(store, &link.create(&objects::lock(&lock.key), &row.object(faults)?).await?)
    });
    stream::iter(locks.collect::<Vec<_>>()).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    let meta = Meta { store_id: contents.store_id.clone(), format: FORMAT };
    match link.read::<Meta>(STORE).await? {
        Some((_, version)) if link.replace(STORE, &meta, &version).await? != WriteResult::Moved => Ok(()),
        _ => Err(faults.unavailable("its id was changed while it was filled")),
    }
}

fn created(store: &BucketStore, written: &WriteResult) -> Result<(), StoreError> {
    match written {
        WriteResult::Done(_) => Ok(()),
        WriteResult::Moved => Err(store.link.faults.in_use()),
    }
}

/// Creates a record's name, unless an earlier record created it.
async fn point(store: &BucketStore, record: &Maintenance) -> Result<(), StoreError> {
    let pointer = Pointer {
        id: record.id.clone(),
        uid: record.uid.clone(),
        key: record.lock_key.clone(),
        commit: "moved".to_owned(),
        past: None,
    };
    store.link.create(&objects::name(&record.id), &pointer).await.map(drop)
}
