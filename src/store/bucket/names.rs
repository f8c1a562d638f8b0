//! Pointers from names to servers.
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
//! A pointer is never deleted. It stays as the way to the name's last ended record.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use uuid::Uuid;

use super::{
    link::{StoreClient, Version, WriteResult},
    lock::{Row, Rows},
    objects::{self, PastRecord, Pointer},
};
use crate::{
    maintenance::{ids::MaintenanceId, state::Maintenance},
    store::StoreError,
};

/// Attempts to take a name while other processes compete for it.
const TRIES: usize = 20;

/// Pointers written by this process. A retry after a lost race writes them again without a read.
#[derive(Debug, Default)]
pub(super) struct Names(Mutex<HashMap<MaintenanceId, (Pointer, Version)>>);

impl Names {
    fn own(&self) -> MutexGuard<'_, HashMap<MaintenanceId, (Pointer, Version)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a record's name for its server, after reading and before writing the lock.
    pub(super) async fn take(
        &self,
        rows: &Rows,
        link: &StoreClient,
        record: &Maintenance,
        commit: &str,
    ) -> Result<(), StoreError> {
        let name = objects::name(&record.id);
        let mut wanted = Pointer {
            id: record.id.clone(),
            uid: record.uid.clone(),
            key: record.lock_key.clone(),
            commit: commit.to_owned(),
            past: None,
        };
        let own = self.own().remove(&record.id);
        if let Some((own, version)) = own.filter(|(own, _)| own.key == record.lock_key) {
            wanted.past = own.past;
            if let WriteResult::Done(version) = link.replace(&name, &wanted, &version).await? {
                self.own().insert(record.id.clone(), (wanted, version));
                return Ok(());
            }
            wanted.past = None;
        }
        for _ in 0..TRIES {
            let mut written = link.create(&name, &wanted).await?;
            if written == WriteResult::Moved {
                let Some((found, version)) = link.read::<Pointer>(&name).await? else { continue };
                if found.commit == commit {
                    // The pointer was written, but the reply was lost.
                    return Ok(());
                }
                wanted.past = found.past.clone();
                if found.key != record.lock_key {
                    let Some(row) = fence(rows, link, &found).await? else { continue };
                    wanted.past = later(wanted.past, ended(&row, &record.id));
                }
                written = link.replace(&name, &wanted, &version).await?;
            }
            if let WriteResult::Done(version) = written {
                self.own().insert(record.id.clone(), (wanted, version));
                return Ok(());
            }
            wanted.past = None;
        }
        Err(link.faults.unavailable(format!("too many processes use the name {} at the same time", record.id)))
    }
}

fn later(one: Option<PastRecord>, other: Option<PastRecord>) -> Option<PastRecord> {
    one.into_iter().chain(other).max_by_key(|past| past.order)
}

/// Returns the last record of this name that ended and is still part of the lock.
fn ended(row: &Row, id: &MaintenanceId) -> Option<PastRecord> {
    let mut ended = row.outbox.iter().flat_map(|entry| entry.finished.iter().map(move |record| (entry, record)));
    let (entry, record) = ended.rfind(|(_, record)| record.id == *id)?;
    Some(PastRecord { uid: record.uid.clone(), key: row.lock.key.clone(), order: entry.order.unwrap_or_default() })
}

/// Fails all commits that started earlier and could activate this name for the pointer's server.
/// Returns its lock, `None` if the lock changed concurrently, and an error if the name is active
/// there.
async fn fence(rows: &Rows, link: &StoreClient, found: &Pointer) -> Result<Option<Row>, StoreError> {
    let row = rows.read(&found.key).await?;
    if row.lock.active.iter().any(|record| record.id == found.id) {
        return Err(StoreError::NameTaken { id: found.id.clone(), key: found.key.clone() });
    }
    if row.lock.unreadable.iter().any(|record| record.id.as_ref() == Some(&found.id)) {
        return Err(link.faults.unreadable(format!("{} of {} cannot be read", found.id, found.key)));
    }
    let fence = Some(Uuid::new_v4().simple().to_string());
    let next = Row { fence, revision: row.revision + 1, ..(*row).clone() };
    let (name, object) = (objects::lock(&found.key), next.object(&link.faults)?);
    let written = match &row.version {
        None => link.create(&name, &object).await?,
        Some(version) => link.replace(&name, &object, version).await?,
    };
    if let WriteResult::Done(version) = written {
        let next = Row { version: Some(version), ..next };
        rows.keep(next.clone());
        return Ok(Some(next));
    }
    // A request that is repeated on the way fails its own condition.
    let again = rows.read(&found.key).await?;
    Ok((again.fence == next.fence).then(|| (*again).clone()))
}

/// Records an ended record that leaves its lock, unless a later record of its name did.
pub(super) async fn settle(link: &StoreClient, id: &MaintenanceId, past: &PastRecord) -> Result<(), StoreError> {
    let name = objects::name(id);
    for _ in 0..TRIES {
        let Some((found, version)) = link.read::<Pointer>(&name).await? else { return Ok(()) };
        if found.past.as_ref().is_some_and(|known| known.order >= past.order) {
            return Ok(());
        }
        let next = Pointer { past: Some(past.clone()), ..found };
        if let WriteResult::Done(_) = link.replace(&name, &next, &version).await? {
            return Ok(());
        }
    }
    Err(link.faults.unavailable(format!("too many processes use the name {id} at the same time")))
}

/// Returns a name's last ended record.
pub(super) fn last_ended(row: &Row, pointer: &Pointer) -> Option<PastRecord> {
    later(pointer.past.clone(), ended(row, &pointer.id))
}
