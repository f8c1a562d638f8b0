//! Conversions between a lock's object and a [`ServerLock`], and the cache of read locks.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::{
    fault::ErrorMapper,
    link::{ReadResult, StoreClient, Version},
    objects,
};
use crate::{
    maintenance::{
        ids::{Generation, LockKey},
        lock::ServerLock,
        ownership::Ownership,
    },
    store::{
        StoreError,
        extended::StoredSlot,
        format::{self, FORMAT},
        history::Entry,
        optimistic::Commits,
        records,
        views::Stored,
    },
};

/// Cached rows. Other rows are decoded at each read.
const ROWS: usize = 4096;

/// The contents of `locks/…`.
#[derive(Debug, Serialize, Deserialize)]
struct LockObject {
    format: i64,
    /// Grows by one with each write.
    revision: i64,
    key: LockKey,
    generation: Generation,
    last_ticket: u64,
    slot: Option<StoredSlot>,
    ownership: Ownership,
    active: Box<RawValue>,
    commits: String,
    /// History that is not in a journal yet.
    outbox: Vec<Entry>,
    /// The last commit's order.
    order: i64,
    /// A token that changes the object if no other part does.
    fence: Option<String>,
}

/// A lock as read.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// `None` if the object does not exist.
    pub(super) version: Option<Version>,
    pub(super) revision: i64,
    pub(super) lock: Arc<ServerLock>,
    pub(super) commits: Arc<Commits>,
    pub(super) outbox: Vec<Entry>,
    pub(super) order: i64,
    pub(super) fence: Option<String>,
}

impl Row {
    /// Returns an unused key's row.
    pub(super) fn empty(key: &LockKey) -> Self {
        let lock = Arc::new(ServerLock::new(key.clone()));
        Self { version: None, revision: 0, lock, commits: Arc::default(), outbox: Vec::new(), order: 0, fence: None }
    }

    fn of(bytes: &[u8], version: Version, name: &str, faults: &ErrorMapper) -> Result<Self, StoreError> {
        let raw: Value = serde_json::from_slice(bytes).map_err(|error| faults.record(name, error))?;
        format::check_open(raw["format"].as_i64().unwrap_or_default(), faults)?;
        let key = raw["key"].as_str().unwrap_or(name);
        let read: LockObject =
            serde_json::from_slice(bytes).map_err(|error| faults.record(format!("{name} ({key})"), error))?;
        if objects::lock(&read.key) != name {
            return Err(faults.record(name, format!("it is about {:?}", read.key.raw())));
        }
        let mut lock = ServerLock::new(read.key);
        (lock.generation, lock.last_ticket, lock.ownership) = (read.generation, read.last_ticket, read.ownership);
        StoredSlot::into_lock(read.slot, &mut lock);
        let active = records::parse(read.active.get());
        (lock.active, lock.unreadable) =
            active.map_err(|error| faults.record(format!("{name} ({})", lock.key), error))?;
        let commits = Arc::new(Commits::parse(&read.commits, ""));
        let (outbox, order, fence) = (read.outbox, read.order, read.fence);
        Ok(Self {
            version: Some(version),
            revision: read.revision,
            lock: Arc::new(lock),
            commits,
            outbox,
            order,
            fence,
        })
    }

    pub(super) fn stored(&self) -> Stored {
        let (lock, commits) = (Arc::clone(&self.lock), Arc::clone(&self.commits));
        Stored { revision: self.revision, lock, commits }
    }

    /// Returns true for a lock that was never used: it was written to fail another process's
    /// creation.
    pub(super) fn only_fenced(&self) -> bool {
        self.fence.is_some()
            && *self.commits == Commits::default()
            && *self.lock == ServerLock::new(self.lock.key.clone())
    }

    /// Returns the object to write.
    pub(super) fn object(&self, faults: &ErrorMapper) -> Result<impl Serialize + Sync + use<>, StoreError> {
        let lock = &self.lock;
        let invalid = |error| faults.record(&lock.key, error);
        let active = records::text(&lock.active, &lock.unreadable).map_err(invalid)?;
        Ok(LockObject {
            format: FORMAT,
            revision: self.revision,
            key: lock.key.clone(),
            generation: lock.generation,
            last_ticket: lock.last_ticket,
            slot: StoredSlot::of(lock),
            ownership: lock.ownership.clone(),
            active: RawValue::from_string(active).map_err(invalid)?,
            commits: self.commits.text(),
            outbox: self.outbox.clone(),
            order: self.order,
            fence: self.fence.clone(),
        })
    }
}

/// Returns an unreadable lock for display, [quarantined](ServerLock::quarantined).
pub(super) fn quarantined(bytes: &[u8], name: &str, cause: &str) -> ServerLock {
    let raw: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let key = LockKey::new(raw["key"].as_str().unwrap_or(name).to_owned());
    let (records, unreadable) = records::parse(&raw["active"].to_string()).unwrap_or_default();
    ServerLock::quarantined(key, cause, &records, unreadable)
}

/// A listed lock.
#[derive(Debug)]
pub(super) enum Listed {
    Row(Arc<Row>),
    Unreadable(Arc<ServerLock>),
}

/// The last rows read. A read transfers changed objects only.
#[derive(Debug)]
pub(super) struct Rows {
    link: Arc<StoreClient>,
    known: Mutex<HashMap<String, Arc<Row>>>,
    /// The latest order read or written by this process.
    order: AtomicI64,
}

impl Rows {
    pub(super) fn new(link: Arc<StoreClient>) -> Self {
        Self { link, known: Mutex::default(), order: AtomicI64::new(0) }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Arc<Row>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a commit's order at this time. It is later than each order that this process has
    /// read, because a clock can be coarse.
    pub(super) fn order(&self, now: Timestamp) -> i64 {
        let next = |last: i64| Some(now.as_microsecond().max(last + 1));
        let last = self.order.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).unwrap_or_default();
        next(last).unwrap_or_default()
    }

    /// Returns the cached row.
    pub(super) fn cached(&self, key: &LockKey) -> Option<Arc<Row>> {
        self.known().get(&objects::lock(key)).cloned()
    }

    pub(super) fn keep(&self, row: Row) -> Arc<Row> {
        self.order.fetch_max(row.order, Ordering::SeqCst);
        let row = Arc::new(row);
        let mut known = self.known();
        if known.len() >= ROWS {
            known.clear();
        }
        known.insert(objects::lock(&row.lock.key), Arc::clone(&row));
        row
    }

    /// Reads one lock.
    pub(super) async fn read(&self, key: &LockKey) -> Result<Arc<Row>, StoreError> {
        match self.listed(&objects::lock(key)).await? {
            None => Ok(Arc::new(Row::empty(key))),
            Some(Ok(row)) => Ok(row),
            Some(Err((error, _))) => Err(error),
        }
    }

    /// Reads one lock by its object's name; an unreadable lock is [`Listed::Unreadable`].
    pub(super) async fn shown(&self, name: &str) -> Result<Option<Listed>, StoreError> {
        Ok(match self.listed(name).await? {
            None => None,
            Some(Ok(row)) => Some(Listed::Row(row)),
            Some(Err((StoreError::Unreadable { cause, .. }, bytes))) => {
                Some(Listed::Unreadable(Arc::new(quarantined(&bytes, name, cause.raw()))))
            }
            Some(Err((error, _))) => return Err(error),
        })
    }

    async fn listed(&self, name: &str) -> Result<Option<Result<Arc<Row>, (StoreError, Vec<u8>)>>, StoreError> {
        let known = self.known().get(name).cloned();
        let version = known.as_ref().and_then(|row| row.version.as_ref());
        Ok(match (self.link.look(name, version).await?, known) {
            (ReadResult::Unchanged, Some(row)) => Some(Ok(row)),
            (ReadResult::Unchanged | ReadResult::Missing, _) => None,
            (ReadResult::Found(bytes, version), _) => Some(match Row::of(&bytes, version, name, &self.link.faults) {
                Ok(row) => Ok(self.keep(row)),
                Err(error) => Err((error, bytes)),
            }),
        })
    }
}
