//! The default store: one SQLite file, shared by all processes on one machine.
//!
//! The store's clock is this machine's clock; leases use a clock that cannot be set ([`leases`]).
//! Do not use this store under a paused tokio clock: SQLite works on its own threads, so timeouts
//! would expire while SQLite is still working.

mod export;
mod fault;
mod file;
mod group;
mod lane;
mod leases;
mod paths;
mod reach;
mod rows;
mod schema;
mod watch;
mod whole;

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicI64},
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::watch::Receiver;

pub use file::{cannot_be_created, default_path, path_in};

use self::{
    fault::ErrorMapper,
    file::FileId,
    group::{Transitions, Writer},
    lane::{Lane, Source, Transaction},
    leases::Moment,
    rows::AuditRow,
    watch::Watch,
};
use super::{
    AuditLine, AuditStart, Contents, LockView, RecordLookup, SWEEPER, Store, StoreError, Transition, forgotten_before,
    lease_end,
    views::{CachedLock, LockCache, ReadResult},
    watchers::{ChangeTask, Watchers},
};
use crate::{
    clock::Clock,
    files::{PathTrust, refuse_writable},
    maintenance::{
        ids::{LockKey, MaintenanceId, Runner, RunnerId, Uid},
        lock::{AuditEvent, Leases},
    },
};

/// Options for a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqliteOptions {
    /// How long to wait for another process's lock before the store counts as unavailable.
    pub patience: Duration,
    /// The poll interval for other processes' commits while a watch is open.
    pub watch_interval: Duration,
    /// True if a file that other users can write is accepted. Each of them can then lock or release
    /// every server in it.
    pub shared: bool,
    /// Whether the path is checked for other writers.
    pub trust: PathTrust,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(10),
            watch_interval: Duration::from_millis(100),
            shared: false,
            trust: PathTrust::Checked,
        }
    }
}

/// A store in one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    id: String,
    reach_warning: Option<String>,
    clock: Arc<dyn Clock>,
    faults: ErrorMapper,
    writer: Arc<Writer>,
    transitions: Transitions,
    reader: Lane,
    views: LockCache,
    watch: Arc<Watch>,
    lookout: ChangeTask,
}

impl SqliteStore {
    /// Opens a store, and creates it if it is missing. File (0600) and folder (0700) are accessible
    /// to this user only. Requires a tokio runtime, which also runs the watch.
    pub async fn open(path: &Path, clock: Arc<dyn Clock>, options: SqliteOptions) -> Result<Self, StoreError> {
        let faults = ErrorMapper::new(&format!("sqlite://{}", path.display()), options.patience);
        let fault =
            |error: &std::io::Error| faults.unavailable(format!("the file cannot be opened or created: {error}"));
        let path = file::prepare(path).map_err(|error| fault(&error))?;
        // A user with write access could lock or release every server.
        if let Err(error) = refuse_writable(&path, options.trust)
            && !options.shared
        {
            let cause = format!("{error}. Where users share it on purpose, add ?shared=true to coordination_url");
            return Err(faults.untrusted(cause));
        }
        if let Some(cause) = paths::second_name(&path) {
            return Err(faults.untrusted(cause));
        }
        let identity = FileId::of(&path).map_err(|error| fault(&error))?;
        let source =
            Source { path, identity, patience: options.patience, faults: faults.clone(), lost: Arc::default() };
        source.refuse_other_logs(clock.as_ref()).await?;
        let mut first = source.connect().await?;
        let opened = schema::open(&mut first, clock.as_ref(), options, &faults).await?;
        let seen = sqlx::query_scalar("SELECT coalesce(max(revision), 0) FROM locks").fetch_one(&mut first).await;
        let seen = seen.map_err(|error| faults.sqlx(&error))?;
        leases::forget(&mut first, clock.as_ref(), &faults).await?;
        let reader = source.connect().await?;
        let no_wal = (!opened.wal).then(|| {
            format!(
                "{} is on a file system where SQLite cannot use its write-ahead log: processes wait longer for each \
                 other, and other machines could miss the locks.",
                source.path.display()
            )
        });
        let lookout = ChangeTask::new();
        let watch = Arc::new(Watch {
            source: source.clone(),
            clock: clock.clone(),
            interval: options.watch_interval,
            watchers: Watchers::default(),
            seen: AtomicI64::new(seen),
            stop: lookout.stop(),
        });
        let writer = Arc::new(Writer {
            lane: Lane::new(source.clone(), first),
            clock: clock.clone(),
            faults: faults.clone(),
            watch: watch.clone(),
        });
        Ok(Self {
            id: opened.id,
            reach_warning: reach::warning(&source.path).or(no_wal),
            transitions: group::transitions(&writer),
            writer,
            reader: Lane::new(source, reader),
            views: LockCache::default(),
            watch,
            clock,
            faults,
            lookout,
        })
    }

    /// Starts a write transaction.
    async fn write(&self) -> Result<Transaction<'_>, StoreError> {
        self.writer.begin().await
    }

    /// Starts a transaction, so that all its queries use one snapshot.
    async fn read(&self) -> Result<Transaction<'_>, StoreError> {
        self.reader.begin("BEGIN").await
    }

    /// Returns the time. Call it inside the transaction, after the wait for the file's lock.
    fn now(&self) -> Moment {
        Moment::of(self.clock.as_ref())
    }

    async fn snapshot(&self, key: &LockKey, known: &CachedLock) -> ReadResult {
        let mut db = self.read().await?;
        let seen = known.seen();
        let stored = rows::load(&mut db, key, seen.stored.clone(), &self.faults).await?;
        let now = self.now();
        let leases = if stored.lock.active.is_empty() {
            Leases::default()
        } else {
            leases::of_lock(&mut db, key, &now, &self.faults).await?
        };
        db.end("COMMIT").await?;
        known.settle(&seen, &stored).map_err(|cause| self.watch.went_back(key, cause))?;
        Ok(LockView::new(stored.lock, leases, now.wall))
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn id(&self) -> &str {
        &self.id
    }

    fn address(&self) -> String {
        self.faults.address().to_owned()
    }

    fn reach_warning(&self) -> Option<String> {
        self.reach_warning.clone()
    }

    async fn transact(&self, key: &LockKey, transition: &mut Transition<'_>) -> Result<(), StoreError> {
        group::transact(&self.transitions, self.views.of(key), key, transition, &self.faults).await
    }

    async fn view(&self, key: &LockKey) -> Result<LockView, StoreError> {
        let known = self.views.of(key);
        known.read(self.snapshot(key, &known)).await
    }

    async fn view_all(&self) -> Result<Vec<LockView>, StoreError> {
        let mut db = self.read().await?;
        let now = self.now();
        let found = rows::load_all(&mut db, &now, &self.faults).await?;
        db.end("COMMIT").await?;
        Ok(found.into_iter().map(|(lock, leases)| LockView::new(lock, leases, now.wall)).collect())
    }

    async fn find(&self, id: &MaintenanceId) -> Result<Option<RecordLookup>, StoreError> {
        let mut db = self.read().await?;
        // Two queries, because each has its own index. A name is active at most once, and its
        // records end in the order in which they began.
        let mut row: Option<(bool, String, String)> = sqlx::query_as(
            "SELECT active, uid, body FROM maintenances WHERE active = 1 AND namespace = ? AND name = ?",
        )
        .bind(id.namespace())
        .bind(id.name())
        .fetch_optional(&mut *db)
        .await
        .map_err(|error| self.faults.sqlx(&error))?;
        if row.is_none() {
            row = sqlx::query_as(
                "SELECT active, uid, body FROM maintenances WHERE namespace = ? AND name = ? ORDER BY id DESC LIMIT 1",
            )
            .bind(id.namespace())
            .bind(id.name())
            .fetch_optional(&mut *db)
            .await
            .map_err(|error| self.faults.sqlx(&error))?;
        }
        db.end("COMMIT").await?;
        row.map(|row| found(row, &self.faults)).transpose()
    }

    async fn find_uid(&self, uid: &Uid) -> Result<Option<RecordLookup>, StoreError> {
        let mut db = self.reader.once().await?;
        let row: Option<(bool, String, String)> =
            sqlx::query_as("SELECT active, uid, body FROM maintenances WHERE uid = ?")
                .bind(uid.raw())
                .fetch_optional(&mut *db)
                .await
                .map_err(|error| self.faults.sqlx(&error))?;
        db.give_back();
        row.map(|row| found(row, &self.faults)).transpose()
    }

    async fn renew(&self, runner: &Runner, ttl: Duration) -> Result<(), StoreError> {
        let mut db = self.write().await?;
        leases::renew(&mut db, runner, ttl, &self.now(), &self.faults).await?;
        db.end("COMMIT").await
    }

    async fn resign(&self, runner: &RunnerId) -> Result<(), StoreError> {
        let mut db = self.write().await?;
        leases::resign(&mut db, runner, &self.now(), &self.faults).await?;
        db.end("COMMIT").await
    }

    async fn binding(&self, server: &str) -> Result<Option<LockKey>, StoreError> {
        let mut db = self.reader.once().await?;
        let key = bound(&mut db, server, &self.faults).await?;
        db.give_back();
        Ok(key)
    }

    async fn bind(&self, server: &str, key: &LockKey, rebind: bool) -> Result<(), StoreError> {
        // Usually the binding exists already.
        if self.binding(server).await?.as_ref() == Some(key) {
            return Ok(());
        }
        let mut db = self.write().await?;
        if let Some(bound) = bound(&mut db, server, &self.faults).await?.filter(|bound| bound != key && !rebind) {
            db.end("ROLLBACK").await?;
            return Err(StoreError::OtherIdentity { server: server.into(), bound, found: key.clone() });
        }
        sqlx::query(
            "INSERT INTO bindings (server, lock_key) VALUES (?, ?) \
             ON CONFLICT (server) DO UPDATE SET lock_key = excluded.lock_key",
        )
        .bind(server)
        .bind(key.raw())
        .execute(&mut *db)
        .await
        .map_err(|error| self.faults.sqlx(&error))?;
        db.end("COMMIT").await
    }

    async fn audit(&self, id: &MaintenanceId, limit: usize) -> Result<Vec<AuditEvent>, StoreError> {
        let mut db = self.read().await?;
        let mut rows: Vec<AuditRow> = sqlx::query_as(
            "SELECT at, namespace, name, uid, generation, actor, what, detail FROM audit \
             WHERE namespace = ? AND name = ? ORDER BY id DESC LIMIT ?",
        )
        .bind(id.namespace())
        .bind(id.name())
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(&mut *db)
        .await
        .map_err(|error| self.faults.sqlx(&error))?;
        db.end("COMMIT").await?;
        rows.reverse();
        rows.into_iter().map(|row| rows::event(row, &self.faults)).collect()
    }

    async fn export_audit(&self, start: &AuditStart, most: u32) -> Result<Vec<AuditLine>, StoreError> {
        export::read(self, start, most).await
    }

    async fn contents(&self) -> Result<Contents, StoreError> {
        whole::read(self).await
    }

    async fn fill(&self, contents: &Contents) -> Result<(), StoreError> {
        whole::write(self, contents).await
    }

    async fn prune(&self, keep: Duration, most: u32) -> Result<u64, StoreError> {
        whole::prune(self, forgotten_before(self.clock.now(), keep), most).await
    }

    async fn claim_sweep(&self, runner: &RunnerId, length: Duration) -> Result<bool, StoreError> {
        let mut db = self.write().await?;
        let now = self.clock.now();
        let claimed = sqlx::query(
            "INSERT INTO leases (runner_id, until, runner) VALUES (?, ?, ?) \
             ON CONFLICT (runner_id) DO UPDATE SET until = excluded.until, runner = excluded.runner WHERE leases.until <= ?",
        )
        .bind(SWEEPER)
        .bind(rows::time_text(lease_end(now, length)))
        .bind(runner.raw())
        .bind(rows::time_text(now))
        .execute(&mut *db)
        .await
        .map_err(|error| self.faults.sqlx(&error))?;
        db.end("COMMIT").await?;
        Ok(claimed.rows_affected() > 0)
    }

    fn changes(&self, key: &LockKey) -> Receiver<u64> {
        self.lookout.watch(&self.watch.watchers, key, || Box::pin(watch::run(Arc::downgrade(&self.watch))))
    }

    async fn close(&self) {
        self.lookout.end().await;
        self.reader.close().await;
        self.writer.lane.close().await;
    }
}

fn found((active, uid, body): (bool, String, String), faults: &ErrorMapper) -> Result<RecordLookup, StoreError> {
    let record = Box::new(rows::record((uid, body), faults)?);
    Ok(if active { RecordLookup::Active(record) } else { RecordLookup::Past(record) })
}

async fn bound(
    db: &mut sqlx::SqliteConnection,
    server: &str,
    faults: &ErrorMapper,
) -> Result<Option<LockKey>, StoreError> {
    let key = sqlx::query_scalar("SELECT lock_key FROM bindings WHERE server = ?");
    let key: Option<String> = key.bind(server).fetch_optional(db).await.map_err(|error| faults.sqlx(&error))?;
    Ok(key.map(LockKey::new))
}
