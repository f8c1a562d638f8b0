//! A store for many machines: the schema `metal` in a PostgreSQL database.
//!
//! Every write calls one database function, so clients never keep a database lock. The functions
//! check the caller's role; roles cannot write tables. The store's clock is the server's.

mod commit;
mod connections;
mod export;
mod fault;
mod group;
mod link;
mod rights;
mod rows;
mod schema;
mod url;
mod watch;
mod whole;

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use secrecy::SecretString;
use sqlx::postgres::PgRow;
use tokio::sync::watch::Receiver;

pub use self::url::PostgresOptions;

use self::{
    commit::{Committed, Prepared},
    fault::ErrorMapper,
    group::Groups,
    link::StoreClient,
    rows::escaped,
    watch::Watch,
};
use super::{
    AuditLine, AuditStart, Contents, LockView, RecordLookup, Store, StoreError, Transition,
    group::transact,
    lease_end,
    optimistic::{CommitDelta, CommittedChange, Conditional, Loaded, look},
    recall::OwnProcesses,
    told::ToldTime,
    views::{CachedLock, LockCache, ReadResult, Stored},
    watchers::{ChangeTask, Watchers},
};
use crate::{
    clock::Clock,
    maintenance::{
        ids::{LockKey, MaintenanceId, Runner, RunnerId, Uid},
        lock::AuditEvent,
    },
};

/// A store in one PostgreSQL database.
#[derive(Debug)]
pub struct PostgresStore {
    id: String,
    /// Why the store can lose confirmed changes, unless the user accepts that.
    loses: Option<&'static str>,
    groups: Groups,
    link: StoreClient,
    time: ToldTime,
    own_processes: OwnProcesses,
    views: LockCache,
    watch: Arc<Watch>,
    lookout: ChangeTask,
}

impl PostgresStore {
    /// Opens a store, and creates its schema if it is missing. Requires a tokio runtime, which also
    /// runs the watch. `clock` only measures waits; the server provides the time.
    pub async fn open(
        url: &SecretString,
        clock: Arc<dyn Clock>,
        options: &PostgresOptions,
    ) -> Result<Self, StoreError> {
        url::check_trust(url, options.trust)?;
        let parsed = url::parse(url)?;
        let faults = ErrorMapper::new(&parsed.address, options.patience);
        let (notifications, accepted) = (parsed.notifications, parsed.accept_lost_commits);
        let link = StoreClient::new(parsed.connect, faults, clock, options.patience, !notifications);
        let opened = link
            .patience
            .repeat(|| async {
                let taken = link.connections.take().await;
                let mut taken = taken.map_err(|error| link.faults.sqlx(&error))?;
                schema::open(&mut taken.connection, link.pooled, &link.faults).await
            })
            .await?;
        let lookout = ChangeTask::new();
        let time = ToldTime::new(options.time.clone(), Arc::clone(&link.clock));
        time.note(opened.now);
        Ok(Self {
            id: opened.id,
            time,
            own_processes: OwnProcesses::default(),
            loses: opened.loses.filter(|_| !accepted),
            views: LockCache::default(),
            watch: Arc::new(Watch {
                link: link.clone(),
                interval: options.watch_interval,
                notifications,
                watchers: Watchers::default(),
                stop: lookout.stop(),
            }),
            groups: Groups::new(&link),
            link,
            lookout,
        })
    }

    /// Returns why a URL's connection could lead to a different server, if it is not verified.
    pub fn unverified(url: &SecretString) -> Result<Option<String>, StoreError> {
        Ok(url::parse(url)?.unverified)
    }

    /// Returns a URL's address without credentials.
    pub fn address_of(url: &SecretString) -> Result<String, StoreError> {
        Ok(url::parse(url)?.address)
    }

    async fn snapshot(&self, key: &LockKey, known: &CachedLock) -> ReadResult {
        let Loaded { stored, leases, now } = look(self, known, key).await?;
        Ok(LockView::new(stored.lock, leases, now))
    }

    /// Reads at most one row.
    async fn row<R>(&self, query: &'static str, first: &str, second: Option<&str>) -> Result<Option<R>, StoreError>
    where
        R: for<'r> sqlx::FromRow<'r, PgRow> + Send + Unpin,
    {
        self.link
            .patience
            .repeat(|| async {
                let mut session = self.link.session().await?;
                let mut query = sqlx::query_as(query).bind(first);
                if let Some(second) = second {
                    query = query.bind(second);
                }
                let row = query.persistent(!self.link.pooled).fetch_optional(&mut *session).await;
                let row = row.map_err(|error| self.link.faults.sqlx(&error))?;
                session.end().await?;
                Ok(row)
            })
            .await
    }

    fn found(&self, (fate, uid, body): &(String, String, String)) -> Result<RecordLookup, StoreError> {
        let record = Box::new(rows::json(uid, body, &self.link.faults)?);
        Ok(if fate == "active" { RecordLookup::Active(record) } else { RecordLookup::Past(record) })
    }
}

#[async_trait]
impl Conditional for PostgresStore {
    async fn load(&self, key: &LockKey, known: Option<Stored>) -> Result<Loaded, StoreError> {
        let loaded = self.link.patience.repeat(|| self.groups.load(key, known.clone())).await?;
        self.time.note(loaded.now);
        Ok(loaded)
    }

    async fn recall(&self, own: &Stored) -> Option<Loaded> {
        self.own_processes.loaded(own, self.time.carried()?)
    }

    async fn commit(&self, change: &CommitDelta<'_>) -> Result<Option<CommittedChange>, StoreError> {
        let key = &change.after.key;
        let channel = if self.watch.notifications {
            watch::message(key, change.before.revision.saturating_add(1))
        } else {
            String::new()
        };
        let prepared = Prepared::of(change, channel, &self.link.faults)?;
        if let Committed::Revision(revision) = self.groups.commit(key, prepared).await? {
            return Ok(revision.map(CommittedChange::from));
        }
        // Find out which of the new names was taken, if it still is.
        for record in change.written().filter(|record| change.is_new(record)) {
            if let Some(RecordLookup::Active(other)) = self.find(&record.id).await? {
                return Err(StoreError::NameTaken { id: record.id.clone(), key: other.lock_key.clone() });
            }
        }
        Ok(None)
    }

    fn unanswered(&self) -> StoreError {
        self.link.faults.unavailable("the reply to a change was not awaited")
    }

    fn went_back(&self, key: &LockKey, cause: String) -> StoreError {
        self.watch.watchers.went_back(key);
        self.link.faults.went_back(cause)
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn id(&self) -> &str {
        &self.id
    }

    fn address(&self) -> String {
        self.link.faults.address().to_owned()
    }

    fn reach_warning(&self) -> Option<String> {
        None
    }

    fn loss_warning(&self) -> Option<String> {
        self.loses.map(|why| {
            format!(
                "{}: {why}, so two runs could hold one server. Add a synchronous standby, or accept this in \
                 coordination_url: accept_lost_commits=yes. See the guide \"After a restore\".",
                self.address()
            )
        })
    }

    async fn transact(&self, key: &LockKey, transition: &mut Transition<'_>) -> Result<(), StoreError> {
        let known = self.views.of(key);
        if let Some(stored) = transact(self, &*self.link.clock, &known, key, transition).await? {
            self.watch.watchers.moved(key, stored.revision);
        }
        Ok(())
    }

    async fn view(&self, key: &LockKey) -> Result<LockView, StoreError> {
        let known = self.views.of(key);
        known.read(self.snapshot(key, &known)).await
    }

    async fn view_all(&self) -> Result<Vec<LockView>, StoreError> {
        self.link
            .patience
            .repeat(|| async {
                let mut session = self.link.session().await?;
                let views = rows::load_all(&mut session, &self.link).await?;
                session.end().await?;
                Ok(views)
            })
            .await
    }

    async fn find(&self, id: &MaintenanceId) -> Result<Option<RecordLookup>, StoreError> {
        // Two index look-ups in one snapshot. A name is active at most once, and its records end in
        // the order in which they began.
        let row = self
            .row(
                "(SELECT fate, uid, body FROM metal.maintenances WHERE fate = 'active' AND namespace = $1 AND name = $2) \
                 UNION ALL \
                 (SELECT fate, uid, body FROM metal.maintenances WHERE fate = 'ended' AND namespace = $1 AND name = $2 \
                 ORDER BY id DESC LIMIT 1) LIMIT 1",
                id.namespace(),
                Some(id.name()),
            )
            .await?;
        row.map(|row| self.found(&row)).transpose()
    }

    async fn find_uid(&self, uid: &Uid) -> Result<Option<RecordLookup>, StoreError> {
        let query = "SELECT fate, uid, body FROM metal.maintenances WHERE uid = $1 AND fate <> 'gone'";
        let row = self.row(query, &escaped(uid.raw()), None).await?;
        row.map(|row| self.found(&row)).transpose()
    }

    async fn renew(&self, runner: &Runner, ttl: Duration) -> Result<(), StoreError> {
        let text = serde_json::to_string(runner).map_err(|error| self.link.faults.record(runner.id.raw(), &error))?;
        let until = self.time.carried().map(|now| lease_end(now, ttl));
        let ttl = i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX);
        self.write("SELECT metal.renew($1, $2, $3)", &runner.id, Some((ttl, text))).await?;
        if let Some(until) = until {
            self.own_processes.renewed(&runner.id, until);
        }
        Ok(())
    }

    async fn resign(&self, runner: &RunnerId) -> Result<(), StoreError> {
        self.own_processes.ended(runner);
        self.write("SELECT metal.resign($1)", runner, None).await
    }

    async fn binding(&self, server: &str) -> Result<Option<LockKey>, StoreError> {
        let row = self.row("SELECT lock_key FROM metal.bindings WHERE server = $1", &escaped(server), None).await?;
        Ok(row.map(|(key,): (String,)| LockKey::new(rows::unescaped(&key))))
    }

    async fn bindings(&self, servers: &[String]) -> Result<Vec<Option<LockKey>>, StoreError> {
        let names: Vec<String> = servers.iter().map(|server| escaped(server).into_owned()).collect();
        let rows: Vec<(String, String)> = self
            .link
            .patience
            .repeat(|| async {
                let mut session = self.link.session().await?;
                let query = "SELECT server, lock_key FROM metal.bindings WHERE server = ANY ($1)";
                let rows = sqlx::query_as(query).bind(&names).persistent(!self.link.pooled).fetch_all(&mut *session);
                let rows = rows.await.map_err(|error| self.link.faults.sqlx(&error))?;
                session.end().await?;
                Ok(rows)
            })
            .await?;
        let bound: HashMap<String, String> = rows.into_iter().collect();
        Ok(names.iter().map(|name| bound.get(name).map(|key| LockKey::new(rows::unescaped(key)))).collect())
    }

    async fn bind(&self, server: &str, key: &LockKey, rebind: bool) -> Result<(), StoreError> {
        self.bind_in_order(&[server.to_owned()], key, rebind).await
    }

    async fn bind_all(&self, servers: &[String], key: &LockKey) -> Result<(), StoreError> {
        self.bind_in_order(servers, key, false).await
    }

    async fn audit(&self, id: &MaintenanceId, limit: usize) -> Result<Vec<AuditEvent>, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut rows: Vec<(String,)> = self
            .link
            .patience
            .repeat(|| async {
                let mut session = self.link.session().await?;
                let query = sqlx::query_as(
                    "SELECT body FROM metal.audit WHERE namespace = $1 AND name = $2 ORDER BY id DESC LIMIT $3",
                );
                let query = query.bind(id.namespace()).bind(id.name()).bind(limit).persistent(!self.link.pooled);
                let rows = query.fetch_all(&mut *session).await.map_err(|error| self.link.faults.sqlx(&error))?;
                session.end().await?;
                Ok(rows)
            })
            .await?;
        rows.reverse();
        // A role can write an unreadable line; `store check` reports it.
        Ok(rows.iter().filter_map(|(body,)| serde_json::from_str(body).ok()).collect())
    }

    async fn export_audit(&self, start: &AuditStart, most: u32) -> Result<Vec<AuditLine>, StoreError> {
        self.link.patience.repeat(|| export::read(&self.link, start, most)).await
    }

    async fn contents(&self) -> Result<Contents, StoreError> {
        whole::read(self).await
    }

    async fn fill(&self, contents: &Contents) -> Result<(), StoreError> {
        whole::write(self, contents).await
    }

    async fn prune(&self, keep: Duration, most: u32) -> Result<u64, StoreError> {
        self.link.patience.once(whole::prune(self, keep, most)).await
    }

    async fn claim_sweep(&self, runner: &RunnerId, length: Duration) -> Result<bool, StoreError> {
        let length = i64::try_from(length.as_micros()).unwrap_or(i64::MAX);
        self.link
            .patience
            .once(async {
                let mut session = self.link.session().await?;
                let claimed = sqlx::query_scalar("SELECT metal.claim_sweep($1, $2)");
                let claimed = claimed.bind(escaped(runner.raw()).into_owned()).bind(length);
                let claimed = claimed.persistent(!self.link.pooled).fetch_one(&mut *session).await;
                let claimed: bool = claimed.map_err(|error| self.link.faults.sqlx(&error))?;
                session.end().await?;
                Ok(claimed)
            })
            .await
    }

    fn changes(&self, key: &LockKey) -> Receiver<u64> {
        self.lookout.watch(&self.watch.watchers, key, || Box::pin(watch::run(Arc::downgrade(&self.watch))))
    }

    async fn close(&self) {
        self.lookout.end().await;
        self.link.close().await;
    }
}

impl PostgresStore {
    /// Binds names in one statement, which stops at the first name with another lock.
    async fn bind_in_order(&self, servers: &[String], key: &LockKey, rebind: bool) -> Result<(), StoreError> {
        let names: Vec<String> = servers.iter().map(|server| escaped(server).into_owned()).collect();
        let wanted = escaped(key.raw());
        let bound: Vec<(String, String)> = self
            .link
            .patience
            .repeat(|| async {
                let mut session = self.link.session().await?;
                let query = sqlx::query_as("SELECT server, lock_key FROM metal.bind($1, $2, $3)");
                let query = query.bind(&names).bind(wanted.as_ref()).bind(rebind).persistent(!self.link.pooled);
                let bound = query.fetch_all(&mut *session).await.map_err(|error| self.link.faults.sqlx(&error))?;
                session.end().await?;
                Ok(bound)
            })
            .await?;
        let bound = bound.iter().map(|(server, bound)| (rows::unescaped(server), LockKey::new(rows::unescaped(bound))));
        for (server, bound) in bound {
            if bound != *key {
                return Err(StoreError::OtherIdentity { server: server.into(), bound, found: key.clone() });
            }
        }
        Ok(())
    }

    /// Runs an idempotent statement about one process.
    async fn write(
        &self,
        query: &'static str,
        runner: &RunnerId,
        more: Option<(i64, String)>,
    ) -> Result<(), StoreError> {
        self.link
            .patience
            .repeat(|| async {
                let mut session = self.link.session().await?;
                let mut query =
                    sqlx::query(query).bind(escaped(runner.raw()).into_owned()).persistent(!self.link.pooled);
                if let Some((ttl, text)) = &more {
                    query = query.bind(ttl).bind(text);
                }
                query.execute(&mut *session).await.map_err(|error| self.link.faults.sqlx(&error))?;
                session.end().await
            })
            .await
    }
}
