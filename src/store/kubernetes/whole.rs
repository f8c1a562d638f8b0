//! Exports and imports a whole namespace.

use std::collections::HashMap;

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;

use super::{
    KubernetesStore, Meta,
    commit::AT_ONCE,
    journal,
    link::{StoreClient, WriteResult},
    lock::{self, ApprovalSet, Head, Next, Row, data, text, whole},
    names::{self, Pointer},
    objects::{self, FENCED, KIND},
    rights,
};
use crate::{
    maintenance::{
        ids::{LockKey, MaintenanceId},
        lock::ServerLock,
    },
    shown::OneLine,
    store::{Contents, StoreError, format::FORMAT, history, optimistic::Commits},
};

pub(super) fn kind(map: &ConfigMap) -> &str {
    objects::kind(&map.metadata).unwrap_or_default()
}

/// Returns a binding's server name and lock key.
pub(super) fn bound(map: &ConfigMap, link: &StoreClient) -> Result<(String, LockKey), StoreError> {
    let found: Option<(String, LockKey)> = data(map, "bound", &link.faults)?;
    let name = map.metadata.name.as_deref().unwrap_or_default();
    found.ok_or_else(|| link.faults.record(name, "its binding is missing"))
}

/// Reads a snapshot at one revision.
pub(super) async fn read(store: &KubernetesStore) -> Result<Contents, StoreError> {
    let link = &store.link;
    // All objects with our label.
    let maps = link.patience.repeat(|| link.list(KIND)).await?;
    let (mut locks, mut bindings, mut entries) = (Vec::new(), Vec::new(), Vec::new());
    let mut taken: HashMap<MaintenanceId, Pointer> = HashMap::new();
    let mut oddities = Vec::from_iter(link.patience.repeat(|| rights::disabled(link)).await?);
    // A runner can write an object that cannot be read. It costs only itself.
    let or_oddity = |oddities: &mut Vec<OneLine>, error: StoreError| match error {
        StoreError::Unreadable { cause, .. } => {
            oddities.push(format!("an object cannot be read: {cause}").into());
            Ok(())
        }
        error => Err(error),
    };
    for map in &maps {
        let name = map.metadata.name.as_deref().unwrap_or_default();
        if map.metadata.owner_references.as_ref().is_some_and(|owners| !owners.is_empty()) {
            oddities
                .push(format!("the ConfigMap {name} has owners: the garbage collector deletes it with them").into());
        }
        if map.immutable == Some(true) {
            oddities.push(format!("the ConfigMap {name} is immutable: its changes cannot be stored").into());
        }
        match kind(map) {
            "" => oddities.push(format!("the ConfigMap {name} has an unknown kind label: it is not read").into()),
            "lock" => match Row::of(map, &link.faults) {
                Ok(row) if only_fenced(map, &row) => {}
                Ok(row) => locks.push((*row.lock).clone()),
                Err(StoreError::Unreadable { cause, .. }) => {
                    locks.push(Row::quarantined(map, cause.raw(), &link.faults));
                }
                Err(error) => return Err(error),
            },
            "bound" => match bound(map, link) {
                Ok(found) => bindings.push(found),
                Err(error) => or_oddity(&mut oddities, error)?,
            },
            "name" => match Pointer::of(map, &link.faults) {
                Ok(pointer) => drop(taken.insert(pointer.id.clone(), pointer)),
                Err(error) => or_oddity(&mut oddities, error)?,
            },
            _ => {}
        }
        if kind(map) == "lock" {
            oddities.extend(lock::oddities(map, &link.faults));
        }
        match journal::entries(map, &link.faults) {
            // Unreadable locks are already reported.
            Err(StoreError::Unreadable { .. }) if kind(map) == "lock" => {}
            Ok(found) => entries.extend(found),
            Err(error) => or_oddity(&mut oddities, error)?,
        }
    }
    bindings.sort();
    locks.sort_by(|one, other| one.key.cmp(&other.key));
    for record in locks.iter().flat_map(|lock| &lock.active) {
        oddities.extend(history::misnamed(record, taken.get(&record.id).map(|pointer| &pointer.key)));
    }
    Ok(history::contents(store.id.clone(), locks, bindings, entries, oddities))
}

/// Reads the current format of the store.
pub(super) async fn format(link: &StoreClient) -> Result<i64, StoreError> {
    let meta: Option<Meta> = match link.get(objects::STORE).await? {
        Some(map) => data(&map, "meta", &link.faults)?,
        None => None,
    };
    Ok(meta.map_or(FORMAT, |meta| meta.schema))
}

/// Returns true for a lock that was never used: it was created to fail another process's creation.
fn only_fenced(map: &ConfigMap, row: &Row) -> bool {
    let fenced = map.metadata.annotations.as_ref().is_some_and(|notes| notes.contains_key(FENCED));
    fenced && *row.commits == Commits::default() && *row.lock == ServerLock::new(row.lock.key.clone())
}

/// Fills an unused namespace. Not atomic: the id is written last and marks the import as complete.
pub(super) async fn write(store: &KubernetesStore, contents: &Contents) -> Result<(), StoreError> {
    let (link, faults) = (&store.link, &store.link.faults);
    if !read(store).await?.is_empty() {
        return Err(faults.in_use());
    }
    let mut objects = Vec::new();
    for lock in &contents.locks {
        for record in &lock.active {
            for (kind, name) in [("name", objects::name(&record.id)), ("uid", objects::uid(&record.uid))] {
                objects.push((name.clone(), names::object(&name, kind, record, "moved", faults)?));
            }
        }
        let claim = lock.ownership.claim.as_ref().map(|claim| claim.uid.clone());
        let approvals = lock.ownership.words();
        let next = Next {
            head: Some(Head::of(lock, String::new())),
            used: lock.ownership.uses(),
            active: Some(&lock.active),
            approvals: claim.is_some().then(|| ApprovalSet { claim, approvals, commits: String::new() }),
            busy: Some(!lock.is_idle()),
            ..Next::default()
        };
        objects.push((objects::lock(&lock.key), whole(next.patch(&Row::empty(&lock.key), faults)?)));
    }
    for (number, entries) in history::imported(contents, faults)?.iter().enumerate() {
        let key = LockKey::new("moved");
        let name = format!("{}-moved", objects::journal(&key, i64::try_from(number).unwrap_or(i64::MAX)));
        objects.push((name.clone(), journal::object(&name, &key, entries, faults)?));
    }
    for (server, key) in &contents.bindings {
        let name = objects::bound(server);
        objects.push((name.clone(), binding(&name, server, key, link)?));
    }
    let creating = objects.into_iter().map(|(name, object)| async move { link.create(&name, object).await });
    let mut created = stream::iter(creating).buffer_unordered(AT_ONCE);
    while let Some(done) = created.next().await {
        if let WriteResult::Moved = done? {
            return Err(faults.in_use());
        }
    }
    let meta = Meta { store_id: contents.store_id.clone(), schema: FORMAT };
    let patch = json!({"data": {"meta": text(objects::STORE, &meta, faults)?}});
    match link.patch(objects::STORE, &patch).await? {
        WriteResult::Done(_) => Ok(()),
        WriteResult::Moved => Err(faults.unavailable("its id was removed while it was filled")),
    }
}

/// Builds the object that binds a server's name.
pub(super) fn binding(
    name: &str,
    server: &str,
    key: &LockKey,
    link: &StoreClient,
) -> Result<serde_json::Value, StoreError> {
    let bound = text(name, &(server, key), &link.faults)?;
    Ok(json!({"metadata": {"name": name, "labels": {KIND: "bound"}}, "data": {"bound": bound}}))
}
