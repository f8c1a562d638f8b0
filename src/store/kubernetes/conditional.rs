//! Conditional writes: a commit requires that the lock's object is unchanged since the read.

use std::sync::Arc;

use async_trait::async_trait;

use super::{KubernetesStore, commit, link, lock::Row, whole};
use crate::{
    maintenance::ids::LockKey,
    store::{
        StoreError, format,
        optimistic::{CommitDelta, CommittedChange, Conditional, Loaded},
        views::Stored,
    },
};

#[async_trait]
impl Conditional for KubernetesStore {
    async fn load(&self, key: &LockKey, _: Option<Stored>) -> Result<Loaded, StoreError> {
        self.link.patience.repeat(|| self.load_once(key)).await
    }

    async fn recall(&self, own: &Stored) -> Option<Loaded> {
        self.own_processes.loaded(own, self.now().await.ok()?)
    }

    async fn commit(&self, change: &CommitDelta<'_>) -> Result<Option<CommittedChange>, StoreError> {
        let key = &change.after.key;
        let row = match self.rows().get(key).cloned() {
            Some(row) if row.revision == change.before.revision && row.commits == change.before.commits => row,
            _ if change.before.revision == 0 => Arc::new(Row::empty(key)),
            // Another process has written since, and our cache has that version.
            _ => return Ok(None),
        };
        let commit = async {
            // Another version can change the format while this process has the store open. This
            // read is not part of the commit. A version that changes the format must therefore
            // write the number first and then each lock, so a prepared commit fails.
            if !row.checked {
                format::check_open(whole::format(&self.link).await?, &self.link.faults)?;
            }
            commit::commit(&self.link, &self.names, &row, change).await
        };
        let Some(map) = self.link.patience.once(commit).await? else { return Ok(None) };
        if let Ok(row) = Row::of(&map, &self.link.faults) {
            self.keep(key, &Arc::new(Row { checked: true, ..row }));
        }
        let revision = link::revision(&map.metadata, &self.link.faults)?;
        Ok(Some(CommittedChange { revision, parts: change.parts() }))
    }

    fn went_back(&self, key: &LockKey, cause: String) -> StoreError {
        self.watch.watchers.went_back(key);
        self.link.faults.went_back(cause)
    }

    fn unanswered(&self) -> StoreError {
        self.link.faults.unavailable("the reply to a change was not awaited")
    }
}
