//! A commit as one conditional write of a lock's object.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, future::join_all, stream};

use super::{
    BucketStore, journal,
    link::WriteResult,
    lock::Row,
    objects::{self, Meta, Place},
};
use crate::{
    maintenance::{ids::LockKey, state::Maintenance},
    store::{
        StoreError, capacity, format,
        history::{CARRIED, Entry},
        optimistic::{CommitDelta, CommittedChange, Conditional, Loaded, Parts},
        views::Stored,
    },
};

/// The most requests about one commit at the same time.
pub(super) const AT_ONCE: usize = 16;

#[async_trait]
impl Conditional for BucketStore {
    async fn load(&self, key: &LockKey, _: Option<Stored>) -> Result<Loaded, StoreError> {
        self.link.patience.repeat(|| self.load_once(key)).await
    }

    async fn recall(&self, own: &Stored) -> Option<Loaded> {
        self.own_processes.loaded(own, self.link.now().await.ok()?)
    }

    async fn commit(&self, change: &CommitDelta<'_>) -> Result<Option<CommittedChange>, StoreError> {
        let key = &change.after.key;
        let row = match self.rows.cached(key) {
            Some(row) if row.revision == change.before.revision && row.commits == change.before.commits => row,
            _ if change.before.revision == 0 => Arc::new(Row::empty(key)),
            // Another process has written since, and our cache has that version.
            _ => return Ok(None),
        };
        self.link.patience.once(self.write(&row, change)).await
    }

    fn went_back(&self, key: &LockKey, cause: String) -> StoreError {
        self.watch.watchers.went_back(key);
        self.link.faults.went_back(cause)
    }

    fn unanswered(&self) -> StoreError {
        self.link.faults.unavailable("the reply to a change was not awaited")
    }
}

impl BucketStore {
    /// Writes a change if the lock is unchanged since the read. Returns `None` if another process
    /// was first.
    ///
    /// A process can die after any of these steps: copy history, take names, write the lock, delete
    /// a withdrawn record's place. Only the third step commits.
    async fn write(&self, row: &Row, change: &CommitDelta<'_>) -> Result<Option<CommittedChange>, StoreError> {
        let (link, key) = (&self.link, &change.after.key);
        if change.adds() {
            capacity::check(&link.faults, key, change.after.active.len(), capacity::RECORDS, "records")?;
        }
        if row.version.is_none() {
            // Each lock contains the format, except a new one.
            let meta = link.read::<Meta>(objects::STORE).await?;
            format::check_open(meta.map_or(format::FORMAT, |(meta, _)| meta.format), &link.faults)?;
        }
        let next = self.next(row, change).await?;
        let new =
            change.written().filter(|record| change.is_new(record)).map(|record| self.prepare(record, change.commit));
        stream::iter(new.collect::<Vec<_>>()).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
        let (name, object) = (objects::lock(key), next.object(&link.faults)?);
        let written = match &row.version {
            None => link.create(&name, &object).await?,
            Some(version) => link.replace(&name, &object, version).await?,
        };
        let revision = next.revision;
        match written {
            WriteResult::Done(version) => drop(self.rows.keep(Row { version: Some(version), ..next })),
            // A request that is repeated on the way fails its own condition.
            WriteResult::Moved if !self.rows.read(key).await?.commits.contain(&[change.commit.to_owned()]) => {
                return Ok(None);
            }
            WriteResult::Moved => {}
        }
        let withdrawn = change.withdrawn().map(|record| objects::record(&record.uid)).collect::<Vec<_>>();
        for deleted in join_all(withdrawn.iter().map(|name| link.delete(name))).await {
            if let Err(error) = deleted {
                tracing::debug!(%error, "a withdrawn record's place was not deleted");
            }
        }
        Ok(Some(CommittedChange::from(revision)))
    }

    /// Takes a new record's name, and writes its place. Both can be repeated.
    async fn prepare(&self, record: &Maintenance, commit: &str) -> Result<(), StoreError> {
        let link = &self.link;
        let place = Place { uid: record.uid.clone(), key: record.lock_key.clone(), journal: None };
        let name = objects::record(&record.uid);
        let (taken, placed) = tokio::join!(
            link.patience.repeat(|| self.names.take(&self.rows, link, record, commit)),
            link.patience.repeat(|| link.put(&name, &place)),
        );
        taken.and(placed)
    }

    /// Returns the lock after the change. History that has grown moves to a journal first.
    async fn next(&self, row: &Row, change: &CommitDelta<'_>) -> Result<Row, StoreError> {
        let (link, key) = (&self.link, &change.after.key);
        let order = self.rows.order(link.now().await?);
        let entry = Entry {
            commit: change.commit.to_owned(),
            order: Some(order),
            finished: change.finished.to_vec(),
            events: change.events.to_vec(),
        };
        let mut outbox = row.outbox.clone();
        let carried = serde_json::to_string(&outbox).map_err(|error| link.faults.record(key, error))?;
        if carried.len() > CARRIED {
            journal::write(link, key, row.revision, &outbox).await?;
            outbox.clear();
        }
        if !entry.is_empty() {
            outbox.push(entry);
        }
        Ok(Row {
            version: None,
            revision: row.revision + 1,
            lock: Arc::new(change.after.clone()),
            commits: Arc::new(row.commits.with(change.commit, Parts { lock: true, words: false })),
            outbox,
            order,
            fence: None,
        })
    }
}
