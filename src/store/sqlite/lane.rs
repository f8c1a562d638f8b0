//! Connections and their exclusive use.
//!
//! One lane writes and one reads. SQLite has a single writer, so a second writing connection in
//! this process would only poll for the first connection's lock. After an error or a cancelled
//! request, the connection is closed with its transaction and not repaired.

use std::{
    ops::{Deref, DerefMut},
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use sqlx::{
    ConnectOptions as _, Connection as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteSynchronous},
};
use tokio::sync::{Mutex, MutexGuard};

use super::{
    fault::ErrorMapper,
    file::FileId,
    paths::{self, LogId},
};
use crate::{
    clock::{Clock, within},
    store::StoreError,
};

/// Opens connections.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) identity: FileId,
    pub(super) patience: Duration,
    pub(super) faults: ErrorMapper,
    /// Set after a connection lost its log: no later request reads or writes.
    pub(super) lost: Arc<OnceLock<StoreError>>,
}

/// How often a file in use without its log is checked again, and the pause between checks. Opening
/// and closing a file leaves it in that state for a moment.
const LOG_LOOKS: u32 = 20;
const LOG_PAUSE: Duration = Duration::from_millis(50);

impl Source {
    /// Fails if another process uses the file with a log that is no longer in the folder, or if the
    /// folder's log belongs to another store.
    pub(super) async fn refuse_other_logs(&self, clock: &dyn Clock) -> Result<(), StoreError> {
        let fault = |error: std::io::Error| self.faults.unavailable(format!("its log cannot be checked: {error}"));
        let mut looks = 0;
        while paths::lacks_log(&self.path).map_err(fault)? {
            if looks == LOG_LOOKS {
                return Err(self.faults.untrusted(
                    "another process uses the file, and its log (-wal, -shm) was deleted: that process's locks are not \
                     visible. Wait until all runs on this machine have ended; the last run writes its log back",
                ));
            }
            looks += 1;
            clock.sleep(LOG_PAUSE).await;
        }
        if paths::has_foreign_log(&self.path).map_err(fault)? {
            return Err(self.faults.untrusted(
                "the log next to the file (-wal) was written for another store. Move the log away if this file is \
                 correct",
            ));
        }
        Ok(())
    }

    /// Records that the log was deleted or replaced: all later requests fail.
    fn lost_log(&self) -> StoreError {
        let error = self.faults.untrusted(
            "its log (-wal, -shm) was deleted or replaced while this process used it: other processes do not see its \
             changes. End all runs, then run again",
        );
        self.lost.get_or_init(|| error).clone()
    }

    /// Opens a connection. Does not create the file.
    pub(super) async fn connect(&self) -> Result<SqliteConnection, StoreError> {
        SqliteConnectOptions::new()
            .filename(&self.path)
            .create_if_missing(false)
            .busy_timeout(self.patience)
            // An intent must be on disk before its side effect. NORMAL could lose the last commits
            // in a power failure. `fullfsync` is the equivalent on macOS.
            .synchronous(SqliteSynchronous::Full)
            .pragma("fullfsync", "1")
            .disable_statement_logging()
            .connect()
            .await
            .map_err(|error| self.faults.sqlx(&error))
    }

    /// Fails if the path no longer leads to the opened file, or the file has a second link.
    pub(super) fn same_file(&self) -> Result<(), StoreError> {
        if let Some(error) = self.lost.get() {
            return Err(error.clone());
        }
        match FileId::of(&self.path) {
            Ok(found) if found == self.identity => match paths::second_link(&self.path) {
                Some(cause) => Err(self.faults.untrusted(cause)),
                None => Ok(()),
            },
            Ok(_) => Err(self.faults.unavailable("another file replaced it while it was in use")),
            Err(error) => Err(self.faults.unavailable(format!("the file no longer exists ({error})"))),
        }
    }
}

#[derive(Debug)]
enum ConnectionState {
    Idle(SqliteConnection, LogId),
    Empty,
    Closed,
}

/// A connection for exclusive use, in request order.
#[derive(Debug)]
pub(super) struct Lane {
    source: Source,
    slot: Mutex<ConnectionState>,
}

impl Lane {
    pub(super) fn new(source: Source, connection: SqliteConnection) -> Self {
        Self { source, slot: Mutex::new(ConnectionState::Idle(connection, LogId::default())) }
    }

    /// Starts a transaction. Waits for other users, here and in other processes, up to the store's
    /// time limit.
    pub(super) async fn begin(&self, how: &'static str) -> Result<Transaction<'_>, StoreError> {
        self.take(Some(how)).await
    }

    /// Takes the connection for one statement, which is its own transaction. That saves two
    /// messages to SQLite's thread. Return it with [`Transaction::give_back`].
    pub(super) async fn once(&self) -> Result<Transaction<'_>, StoreError> {
        self.take(None).await
    }

    async fn take(&self, transaction: Option<&'static str>) -> Result<Transaction<'_>, StoreError> {
        let begun = async {
            let mut slot = self.slot.lock().await;
            self.source.same_file()?;
            let (connection, log) = match std::mem::replace(&mut *slot, ConnectionState::Empty) {
                ConnectionState::Idle(connection, log) if log.is_current(&self.source.path) => (connection, log),
                ConnectionState::Idle(..) => return Err(self.source.lost_log()),
                ConnectionState::Empty => (self.source.connect().await?, LogId::default()),
                ConnectionState::Closed => {
                    *slot = ConnectionState::Closed;
                    return Err(self.source.faults.unavailable("it was closed"));
                }
            };
            let (source, faults) = (&self.source, &self.source.faults);
            let mut held = Transaction { slot, connection, log, source, faults };
            if let Some(how) = transaction {
                held.run(how).await?;
            }
            Ok(held)
        };
        within(self.source.patience, begun).await.unwrap_or_else(|| Err(self.source.faults.locked()))
    }

    pub(super) async fn close(&self) {
        if let ConnectionState::Idle(connection, _) =
            std::mem::replace(&mut *self.slot.lock().await, ConnectionState::Closed)
        {
            let _ = connection.close().await;
        }
    }
}

/// A connection inside a transaction. Dropping it without [`Transaction::end`] closes the
/// connection, and SQLite rolls back.
pub(super) struct Transaction<'a> {
    slot: MutexGuard<'a, ConnectionState>,
    connection: SqliteConnection,
    log: LogId,
    source: &'a Source,
    pub(super) faults: &'a ErrorMapper,
}

impl Transaction<'_> {
    async fn run(&mut self, sql: &'static str) -> Result<(), StoreError> {
        sqlx::query(sql).execute(&mut self.connection).await.map_err(|error| self.faults.sqlx(&error))?;
        Ok(())
    }

    /// Ends the transaction with `COMMIT` or `ROLLBACK` and returns the connection.
    pub(super) async fn end(mut self, how: &'static str) -> Result<(), StoreError> {
        self.run(how).await?;
        // Other processes do not see a commit into a deleted log.
        if !self.log.is_current(&self.source.path) {
            return Err(self.source.lost_log());
        }
        self.give_back();
        Ok(())
    }

    /// Returns the connection outside a transaction.
    pub(super) fn give_back(self) {
        let Self { mut slot, connection, log, source, .. } = self;
        *slot = ConnectionState::Idle(connection, log.or_now(&source.path));
    }
}

impl Deref for Transaction<'_> {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.connection
    }
}

impl DerefMut for Transaction<'_> {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }
}
