//! Batches concurrent reads and writes of different locks into one statement.

use futures_util::future::BoxFuture;

use super::{
    commit::{CommitOutcome, Prepared, commit},
    link::StoreClient,
    rows,
};
use crate::{
    maintenance::ids::LockKey,
    store::{StoreError, optimistic::Loaded, together::Together, views::Stored},
};

/// The most locks per statement.
const MOST: usize = 16;

/// A lock to read, and its cached version.
type Wanted = (LockKey, Option<Stored>);

/// A change's outcome.
pub(super) enum Committed {
    /// The new revision, or `None` if another process was first.
    Revision(Option<i64>),
    /// Another lock has an active record with one of the new names.
    NameTaken,
}

/// Batches of requests about different locks.
#[derive(Debug)]
pub(super) struct Groups {
    link: StoreClient,
    loads: Together<Wanted, Result<Loaded, StoreError>>,
    commits: Together<Prepared, Result<Committed, StoreError>>,
}

impl Groups {
    pub(super) fn new(link: &StoreClient) -> Self {
        let (loads, commits) = (link.clone(), link.clone());
        Self {
            link: link.clone(),
            loads: Together::apart(MOST, move |wanted| carry_loads(loads.clone(), wanted)),
            commits: Together::apart(MOST, move |changes| carry_commits(commits.clone(), changes)),
        }
    }

    pub(super) async fn load(&self, key: &LockKey, known: Option<Stored>) -> Result<Loaded, StoreError> {
        let loaded = self.loads.send(key, (key.clone(), known)).await;
        loaded.unwrap_or_else(|| Err(self.unknown()))
    }

    pub(super) async fn commit(&self, key: &LockKey, change: Prepared) -> Result<Committed, StoreError> {
        let sent = async { self.commits.send(key, change).await.unwrap_or_else(|| Err(self.unknown())) };
        self.link.patience.once(sent).await
    }

    fn unknown(&self) -> StoreError {
        self.link.faults.unavailable("the reply to a request was not awaited")
    }
}

fn carry_loads(link: StoreClient, wanted: Vec<Wanted>) -> BoxFuture<'static, Vec<Result<Loaded, StoreError>>> {
    Box::pin(async move {
        let together = async {
            let mut session = link.session().await?;
            let loaded = rows::load_group(&mut session, &wanted, &link).await?;
            session.end().await?;
            Ok(loaded)
        };
        match link.patience.attempt(together).await {
            Ok(loaded) => loaded,
            Err(error) => wanted.iter().map(|_| Err(error.clone())).collect(),
        }
    })
}

fn carry_commits(link: StoreClient, changes: Vec<Prepared>) -> BoxFuture<'static, Vec<Result<Committed, StoreError>>> {
    Box::pin(async move {
        match write(&link, &changes).await {
            Ok(CommitOutcome::Done(revisions)) => {
                revisions.into_iter().map(|one| Ok(Committed::Revision(one))).collect()
            }
            Err(error) if error.is_transient() => changes.iter().map(|_| Err(error.clone())).collect(),
            Ok(CommitOutcome::NameTaken) if changes.len() == 1 => vec![Ok(Committed::NameTaken)],
            Err(error) if changes.len() == 1 => vec![Err(error)],
            // None was committed, and one of them is the cause. Write each separately.
            Ok(CommitOutcome::NameTaken) | Err(_) => {
                let mut each = Vec::with_capacity(changes.len());
                for change in changes.chunks(1) {
                    each.push(write(&link, change).await.map(|outcome| match outcome {
                        CommitOutcome::Done(revisions) => Committed::Revision(revisions.first().copied().flatten()),
                        CommitOutcome::NameTaken => Committed::NameTaken,
                    }));
                }
                each
            }
        }
    })
}

async fn write(link: &StoreClient, changes: &[Prepared]) -> Result<CommitOutcome, StoreError> {
    let written = async {
        let mut session = link.session().await?;
        let outcome = commit(&mut session, changes, link).await?;
        session.end().await?;
        Ok(outcome)
    };
    link.patience.attempt(written).await
}
