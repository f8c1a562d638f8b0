//! Pointers from names and uids to servers.
//!
//! A name is active for one server only, but two servers are two objects. Before a commit adds a
//! record, it therefore writes a pointer from the record's name to its server. A process that finds
//! a pointer to another server checks whether the name is active there. If not, it first rewrites
//! that server's lock, so that every commit based on an earlier read fails. Then it redirects the
//! pointer. If two commits add the same name, the first writer of the pointer fails:
//!
//! - It wrote the pointer after reading its lock and before its commit.
//! - The other process read the pointer after that, and rewrote the first server's lock before
//!   redirecting the pointer.
//!
//! A dead process can leave a pointer without a record. It is redirected in the same way.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    fault::ErrorMapper,
    link::{StoreClient, WriteResult},
    lock::{Head, Next, Row, data, text, whole},
    objects::{self, KIND},
};
use crate::{
    clock::within,
    maintenance::{
        ids::{LockKey, MaintenanceId, Uid},
        state::Maintenance,
    },
    store::{StoreError, optimistic::CommitDelta},
};

/// Attempts to take a name while other processes compete for it.
const TRIES: usize = 20;

/// Timeout for deleting stale pointers.
const TIDY: Duration = Duration::from_secs(2);

/// A pointer from a name or uid to a server.
#[derive(Debug)]
pub(super) struct Pointer {
    pub(super) id: MaintenanceId,
    pub(super) uid: Uid,
    pub(super) key: LockKey,
    resource_version: Option<String>,
}

impl Pointer {
    pub(super) fn of(map: &ConfigMap, faults: &ErrorMapper) -> Result<Self, StoreError> {
        let name = map.metadata.name.as_deref().unwrap_or_default();
        if !matches!(objects::kind(&map.metadata), Some("name" | "uid")) {
            return Err(faults.record(name, format!("its label {KIND} does not mark a pointer")));
        }
        let place: Option<(MaintenanceId, Uid, LockKey)> = data(map, "place", faults)?;
        let (id, uid, key) = place.ok_or_else(|| faults.record(name, "its target is missing"))?;
        Ok(Self { id, uid, key, resource_version: map.metadata.resource_version.clone() })
    }
}

/// Builds a pointer's object.
pub(super) fn object(
    name: &str,
    kind: &str,
    record: &Maintenance,
    commit: &str,
    faults: &ErrorMapper,
) -> Result<Value, StoreError> {
    let place = text(name, &(&record.id, &record.uid, &record.lock_key), faults)?;
    Ok(json!({
        "metadata": {"name": name, "labels": {KIND: kind}},
        "data": {"place": place, "commit": commit},
    }))
}

/// A pointer written by this process.
#[derive(Clone, Debug)]
struct OwnNames {
    key: LockKey,
    uid: Uid,
    resource_version: Option<String>,
}

/// Names written by this process.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: Mutex<HashMap<MaintenanceId, OwnNames>>,
    /// Uids with a pointer. A retry after a lost race skips them.
    pointed: Mutex<HashSet<Uid>>,
}

impl Names {
    fn known(&self) -> MutexGuard<'_, HashMap<MaintenanceId, OwnNames>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pointed(&self) -> MutexGuard<'_, HashSet<Uid>> {
        self.pointed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, record: &Maintenance, map: &ConfigMap) {
        let resource_version = map.metadata.resource_version.clone();
        let own = OwnNames { key: record.lock_key.clone(), uid: record.uid.clone(), resource_version };
        self.known().insert(record.id.clone(), own);
    }

    /// Returns the version of our own pointer to this server, if any, without a read.
    fn own(&self, record: &Maintenance, same: impl Fn(&OwnNames) -> bool) -> Option<String> {
        let known = self.known();
        let own = known.get(&record.id).filter(|own| own.key == record.lock_key && same(own))?;
        own.resource_version.clone()
    }

    /// Takes a record's name for its server, after reading and before writing the lock.
    pub(super) async fn take(&self, link: &StoreClient, record: &Maintenance, commit: &str) -> Result<(), StoreError> {
        let name = objects::name(&record.id);
        let wanted = object(&name, "name", record, commit, &link.faults)?;
        // Usually left by an earlier attempt.
        if let Some(version) = self.own(record, |_| true)
            && self.turn(link, record, &wanted, Some(version)).await?
        {
            return Ok(());
        }
        for _ in 0..TRIES {
            if let WriteResult::Done(map) = link.create(&name, wanted.clone()).await? {
                self.remember(record, &map);
                return Ok(());
            }
            let Some(map) = link.get(&name).await? else { continue };
            let found = Pointer::of(&map, &link.faults)?;
            if map.data.as_ref().and_then(|data| data.get("commit")).is_some_and(|made| made == commit) {
                // The pointer was written, but the reply was lost.
                self.remember(record, &map);
                return Ok(());
            }
            if found.key != record.lock_key && !fence(link, &found, &record.id).await? {
                continue;
            }
            if self.turn(link, record, &wanted, found.resource_version).await? {
                return Ok(());
            }
        }
        Err(link.faults.unavailable(format!("too many processes use the name {} at the same time", record.id)))
    }

    async fn turn(
        &self,
        link: &StoreClient,
        record: &Maintenance,
        wanted: &Value,
        version: Option<String>,
    ) -> Result<bool, StoreError> {
        let mut patch = wanted.clone();
        patch["metadata"]["resourceVersion"] = json!(version);
        self.known().remove(&record.id);
        match link.patch(&objects::name(&record.id), &patch).await? {
            WriteResult::Done(map) => {
                self.remember(record, &map);
                Ok(true)
            }
            WriteResult::Moved => Ok(false),
        }
    }

    /// Writes a uid's pointer before its record exists. A uid never moves to another server.
    pub(super) async fn point(&self, link: &StoreClient, record: &Maintenance) -> Result<(), StoreError> {
        if self.pointed().contains(&record.uid) {
            return Ok(());
        }
        let name = objects::uid(&record.uid);
        link.create(&name, object(&name, "uid", record, "", &link.faults)?).await?;
        self.pointed().insert(record.uid.clone());
        Ok(())
    }

    /// Deletes the pointers of inactive records. Failures leave a stale pointer, which is harmless.
    pub(super) async fn give_back(&self, link: &StoreClient, change: &CommitDelta<'_>) {
        let gone: Vec<&Maintenance> = change.withdrawn().chain(change.finished).collect();
        if gone.is_empty() {
            return;
        }
        for record in &gone {
            self.pointed().remove(&record.uid);
        }
        let tidy = futures_util::future::join_all(gone.iter().map(|record| async {
            let (uid, name) = tokio::join!(
                async { link.delete(&objects::uid(&record.uid), None).await.map(drop) },
                self.give_up(link, record)
            );
            if let Err(error) = uid.and(name) {
                tracing::debug!(%error, id = %record.id, "a pointer was not deleted");
            }
        }));
        // The change is committed, so do not delay it for long.
        let _ = within(TIDY, Box::pin(tidy)).await;
    }

    /// Frees an inactive record's name, unless another record has taken it.
    async fn give_up(&self, link: &StoreClient, record: &Maintenance) -> Result<(), StoreError> {
        let name = objects::name(&record.id);
        let own = self.own(record, |own| own.uid == record.uid);
        self.known().remove(&record.id);
        if own.is_some() && link.delete(&name, own).await? {
            return Ok(());
        }
        let Some(map) = link.get(&name).await? else { return Ok(()) };
        let found = Pointer::of(&map, &link.faults)?;
        if found.uid == record.uid && found.key == record.lock_key {
            link.delete(&name, found.resource_version).await?;
        }
        Ok(())
    }
}

/// Fails all commits that started earlier and could activate this name for the pointer's server.
/// Returns false if the lock changed concurrently, and an error if the name is active there.
async fn fence(link: &StoreClient, found: &Pointer, id: &MaintenanceId) -> Result<bool, StoreError> {
    let row = read(link, &found.key).await?;
    if row.lock.active.iter().any(|record| record.id == *id) {
        return Err(StoreError::NameTaken { id: id.clone(), key: found.key.clone() });
    }
    write_fence(link, &row).await
}

/// Rewrites a lock without changing it.
async fn write_fence(link: &StoreClient, row: &Row) -> Result<bool, StoreError> {
    let name = objects::lock(&row.lock.key);
    let token = Uuid::new_v4().simple().to_string();
    let mut next = Next { fence: Some(&token), ..Next::default() };
    let written = if row.revision == 0 {
        // A concurrent creation of this lock fails.
        next.head = Some(Head::of(&row.lock, String::new()));
        next.active = Some(&[]);
        link.create(&name, whole(next.patch(row, &link.faults)?)).await?
    } else {
        link.patch(&name, &next.patch(row, &link.faults)?).await?
    };
    Ok(matches!(written, WriteResult::Done(_)))
}

/// Removes a dead process's pointer if its record is not active.
pub(super) async fn tidy(link: &StoreClient, map: &ConfigMap) -> Result<(), StoreError> {
    let found = Pointer::of(map, &link.faults)?;
    let row = read(link, &found.key).await?;
    if row.lock.active.iter().any(|record| record.uid == found.uid) {
        return Ok(());
    }
    // A uid belongs to one server only, so no other commit competes for its pointer.
    let of_name = map.metadata.labels.as_ref().and_then(|labels| labels.get(KIND)).is_some_and(|kind| kind == "name");
    if !of_name || write_fence(link, &row).await? {
        let name = map.metadata.name.as_deref().unwrap_or_default();
        link.delete(name, found.resource_version).await?;
    }
    Ok(())
}

/// Reads one whole lock.
pub(super) async fn read(link: &StoreClient, key: &LockKey) -> Result<Row, StoreError> {
    let found = link.get(&objects::lock(key)).await?;
    found.map_or_else(|| Ok(Row::empty(key)), |map| Row::of(&map, &link.faults))
}
