//! Batches concurrent reads and writes of different locks into one statement.

use futures_util::future::BoxFuture;

use super::{
    commit::{Committed, Prepared, commit},
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
        let together = async {
            let mut session = link.session().await?;
            let outcomes = commit(&mut session, &changes, &link).await?;
            session.end().await?;
            Ok(outcomes)
        };
        match link.patience.attempt(together).await {
            Ok(outcomes) => outcomes,
            Err(error) => changes.iter().map(|_| Err(error.clone())).collect(),
        }
    })
}
