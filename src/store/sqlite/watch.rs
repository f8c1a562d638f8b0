//! Detects other processes' commits.
//!
//! `PRAGMA data_version` changes when another connection commits. It reads shared memory only. If
//! it has changed, a query lists the changed locks. Heartbeats change `data_version` but not the
//! locks.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use sqlx::{Connection as _, SqliteConnection};
use tokio_util::sync::CancellationToken;

use super::lane::Source;
use crate::{
    clock::Clock,
    maintenance::ids::LockKey,
    store::{StoreError, watchers::Watchers},
};

/// The pause after a failed read.
const PAUSE_AFTER_FAULT: Duration = Duration::from_secs(1);

/// A store handle's watch.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) source: Source,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) interval: Duration,
    pub(super) watchers: Watchers,
    /// Watchers were woken for every change up to this revision.
    pub(super) seen: AtomicI64,
    pub(super) stop: CancellationToken,
}

impl Watch {
    /// Returns the error for a lock that lost commits, and wakes its watchers.
    pub(super) fn went_back(&self, key: &LockKey, cause: String) -> StoreError {
        self.seen.store(0, Ordering::Release);
        self.watchers.went_back(key);
        self.source.faults.went_back(cause)
    }
}

/// A connection and its last `data_version`, which is only comparable on the same connection.
type Eye = Option<(SqliteConnection, i64)>;

/// Watches until the last watcher or the store is closed.
pub(super) async fn run(watch: Weak<Watch>) {
    let mut eye: Eye = None;
    while let Some(this) = watch.upgrade() {
        if this.watchers.nobody_left() {
            break;
        }
        let pause = match look(&this, &mut eye).await {
            Ok(()) => this.interval,
            Err(error) => {
                tracing::debug!(%error, "the coordination store cannot be watched");
                eye = None;
                this.watchers.wake_all();
                PAUSE_AFTER_FAULT
            }
        };
        let (clock, stop) = (this.clock.clone(), this.stop.clone());
        drop(this);
        if stop.run_until_cancelled(clock.sleep(pause)).await.is_none() {
            break;
        }
    }
    if let Some((connection, _)) = eye {
        let _ = connection.close().await;
    }
}

async fn look(watch: &Watch, eye: &mut Eye) -> Result<(), StoreError> {
    watch.source.same_file()?;
    let fault = |error: sqlx::Error| watch.source.faults.sqlx(&error);
    let (connection, last) = match eye {
        Some((connection, last)) => (connection, Some(last)),
        None => (&mut eye.insert((watch.source.connect().await?, 0)).0, None),
    };
    let version: i64 = sqlx::query_scalar("PRAGMA data_version").fetch_one(&mut *connection).await.map_err(fault)?;
    if last.as_ref().is_some_and(|last| **last == version) {
        return Ok(());
    }
    let seen = watch.seen.load(Ordering::Acquire);
    let moved: Vec<(String, i64)> =
        sqlx::query_as("SELECT lock_key, revision FROM locks WHERE revision > ? ORDER BY revision")
            .bind(seen)
            .fetch_all(&mut *connection)
            .await
            .map_err(fault)?;
    for (key, revision) in moved {
        watch.watchers.moved(&LockKey::new(key), revision);
        watch.seen.fetch_max(revision, Ordering::AcqRel);
    }
    if let Some((_, last)) = eye {
        *last = version;
    }
    Ok(())
}
