//! Changes on the condition that the keys of a lock are as they were read.

use std::sync::Arc;

use async_trait::async_trait;

use super::{
    EtcdStore, Meta, SUPPORTED, chain,
    commit::{self, Prepared},
    group::Reply,
    rows::{Reads, RecordPointer, json},
    seals,
};
use crate::{
    maintenance::ids::LockKey,
    store::{
        StoreError,
        optimistic::{CommitDelta, CommittedChange, Conditional, Loaded},
        views::Stored,
    },
};

#[async_trait]
impl Conditional for EtcdStore {
    async fn load(&self, key: &LockKey, known: Option<Stored>) -> Result<Loaded, StoreError> {
        self.link.patience.repeat(|| self.load_once(key, known.clone())).await
    }

    async fn recall(&self, own: &Stored) -> Option<Loaded> {
        // Without it a cluster that was restored from a backup would pass for the one that was
        // written to.
        own.raw.as_ref()?;
        self.own_processes.loaded(own, self.time.now().await.ok()?)
    }

    async fn commit(&self, change: &CommitDelta<'_>) -> Result<Option<CommittedChange>, StoreError> {
        let faults = &self.link.faults;
        let now = self.time.now().await?;
        let meta = self.meta().clone();
        let ends = chain::ends(change, &meta, faults)?;
        let prepared = commit::transaction(&self.link.keys, change, ends, now, &meta, faults)?;
        let Prepared { transaction, names, head, ends, seals } = prepared;
        let Reply { revision, response: reply, .. } = self.groups.write(&change.after.key, transaction).await?;
        if reply.succeeded() {
            let revision = revision.ok_or_else(|| faults.unreadable("a transaction without a revision"))?;
            let seals = match seals {
                Some(seals) => seals::written_at(revision, seals),
                None => Arc::clone(&change.before.seals),
            };
            return Ok(Some(CommittedChange { revision, parts: change.parts(), raw: head, ends, seals }));
        }
        let mut found = Reads::of(reply.op_responses());
        let (lock, words) = (found.next(faults)?, found.next(faults)?);
        if lock.kvs().iter().chain(words.kvs()).any(|pair| pair.mod_revision() > change.before.revision) {
            return Ok(None);
        }
        for id in names {
            if let Some(pair) = found.next(faults)?.kvs().first() {
                let place: RecordPointer = json(pair, faults)?;
                return Err(StoreError::NameTaken { id, key: place.lock_key });
            }
        }
        if let Some(pair) = found.next(faults)?.kvs().first() {
            // A newer version may have migrated the store since this process opened it.
            SUPPORTED.check_open(json::<Meta>(pair, faults)?.schema, faults)?;
            *self.meta() = pair.value().to_vec();
        }
        Ok(None)
    }

    fn went_back(&self, key: &LockKey, cause: String) -> StoreError {
        self.watch.watchers.went_back(key);
        self.link.faults.went_back(cause)
    }

    fn together(&self) -> usize {
        commit::TOGETHER
    }

    fn unanswered(&self) -> StoreError {
        self.link.faults.unavailable("the reply to a change was not awaited")
    }
}
