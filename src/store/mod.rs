//! Stores: records, locks, leases and the audit log. This layer does not depend on any BMC.
//!
//! A store keeps one [`ServerLock`] per lock key and applies the protocol's pure transitions to it
//! atomically. It adds no rules. Leases are always judged by the store's clock, so no decision
//! compares the clocks of two machines.

mod alive;
mod bucket;
mod capacity;
mod contents;
mod error;
mod export;
mod extended;
mod fault;
mod format;
mod group;
mod history;
mod kubernetes;
mod lazy;
mod memory;
mod optimistic;
mod patience;
mod postgres;
mod recall;
mod records;
mod roles;
mod sqlite;
mod stoppable;
mod table;
mod together;
mod told;
mod views;
mod watchers;

use std::{fmt::Debug, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use crate::maintenance::{
    ids::{LockKey, MaintenanceId, Runner, RunnerId, Uid},
    lock::{AuditEvent, Leases, Refusal, ServerLock},
    queue::Queue,
    state::Maintenance,
};

pub use bucket::{BucketOptions, BucketStore};
pub use contents::Contents;
pub use error::StoreError;
pub use export::{AuditLine, AuditPosition, AuditStart};
pub use kubernetes::{KubernetesOptions, KubernetesStore};
pub use lazy::{LazyStore, Opener};
pub use memory::MemoryStore;
pub use postgres::{PostgresOptions, PostgresStore};
pub use roles::{RoleKind, roles};
pub use sqlite::{SqliteOptions, SqliteStore, cannot_be_created, default_path, path_in};
pub use stoppable::StoppableStore;

/// A consistent snapshot of one lock key. Shared, because hundreds of waiters can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockView {
    /// Records, holder and generation.
    pub lock: Arc<ServerLock>,
    /// The leases of every process attached to a record.
    pub leases: Arc<Leases>,
    /// The store's time.
    pub now: Timestamp,
    /// The queue, computed on first use.
    pub queue: Arc<Queue>,
}

impl LockView {
    /// Returns a snapshot with those of several locks' leases that are this lock's.
    fn of_several(lock: Arc<ServerLock>, leases: &Leases, now: Timestamp) -> Self {
        let attached = lock.active.iter().filter_map(|record| record.attachment.as_ref());
        let own = attached.filter_map(|attachment| Some((attachment.runner.id.clone(), leases.until(attachment)?)));
        let own = Leases(own.collect());
        Self::new(lock, own, now)
    }

    /// Returns a snapshot.
    #[must_use]
    pub fn new(lock: Arc<ServerLock>, leases: Leases, now: Timestamp) -> Self {
        Self { lock, leases: Arc::new(leases), now, queue: Arc::default() }
    }
}

/// A transition: changes the lock or refuses. A store with optimistic concurrency repeats it on
/// fresh data, so it must not carry state from one call to the next.
pub type Transition<'a> = dyn FnMut(&mut ServerLock, &Leases, Timestamp) -> Result<(), Refusal> + Send + 'a;

/// A lookup's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordLookup {
    /// The active record.
    Active(Box<Maintenance>),
    /// The last ended record; no record is active.
    Past(Box<Maintenance>),
}

impl RecordLookup {
    /// Returns the record.
    #[must_use]
    pub fn record(&self) -> &Maintenance {
        match self {
            Self::Active(record) | Self::Past(record) => record,
        }
    }
}

/// A coordination store.
#[async_trait]
pub trait Store: Send + Sync + Debug {
    /// Returns the store's id, which is generated at its first use and never changes.
    fn id(&self) -> &str;

    /// Returns a URL without credentials, for messages.
    fn address(&self) -> String;

    /// Returns a warning if the locks reach fewer processes than users expect, for example in a
    /// file on a network file system.
    fn reach_warning(&self) -> Option<String>;

    /// Returns a warning if the store can lose confirmed changes, for example a server without a
    /// standby.
    fn loss_warning(&self) -> Option<String> {
        None
    }

    /// Returns a warning if the store cannot keep its roles apart.
    fn role_warning(&self) -> Option<String> {
        None
    }

    /// Applies a transition to one lock key atomically: the lock, its finished records and its
    /// audit events are stored together or not stored.
    ///
    /// # Errors
    ///
    /// [`StoreError::NameTaken`] if another lock key has an active record of the same name.
    async fn transact(&self, key: &LockKey, transition: &mut Transition<'_>) -> Result<(), StoreError>;

    /// Reads one lock key. An unused key returns an empty lock.
    async fn view(&self, key: &LockKey) -> Result<LockView, StoreError>;

    /// Reads the whole queue in one request: every lock key with an active record, an owner or a
    /// restriction, sorted by key.
    async fn view_all(&self) -> Result<Vec<LockView>, StoreError>;

    /// Finds a maintenance by name: the active record, otherwise the last ended one.
    async fn find(&self, id: &MaintenanceId) -> Result<Option<RecordLookup>, StoreError>;

    /// Finds a record by uid, active or ended.
    async fn find_uid(&self, uid: &Uid) -> Result<Option<RecordLookup>, StoreError>;

    /// Creates or renews a process's lease: `ttl` from now on the store's clock.
    async fn renew(&self, runner: &Runner, ttl: Duration) -> Result<(), StoreError>;

    /// Ends a process's lease immediately.
    async fn resign(&self, runner: &RunnerId) -> Result<(), StoreError>;

    /// Returns the lock key bound to a server's name. Names are scoped to their backend.
    async fn binding(&self, server: &str) -> Result<Option<LockKey>, StoreError>;

    /// Reads several bindings in the given order.
    async fn bindings(&self, servers: &[String]) -> Result<Vec<Option<LockKey>>, StoreError> {
        let mut found = Vec::with_capacity(servers.len());
        for server in servers {
            found.push(self.binding(server).await?);
        }
        Ok(found)
    }

    /// Binds a server's name to a lock key.
    ///
    /// # Errors
    ///
    /// [`StoreError::OtherIdentity`] if the name is bound to a different key and `rebind` is false.
    async fn bind(&self, server: &str, key: &LockKey, rebind: bool) -> Result<(), StoreError>;

    /// Binds several names to a lock key, and the first name before the others.
    ///
    /// # Errors
    ///
    /// [`StoreError::OtherIdentity`] if a name is bound to a different key. If this is the first
    /// name, the others stay unbound.
    async fn bind_all(&self, servers: &[String], key: &LockKey) -> Result<(), StoreError> {
        let (first, others) = servers.split_at(servers.len().min(1));
        for servers in [first, others] {
            let bound = join_all(servers.iter().map(|server| self.bind(server, key, false))).await;
            bound.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(())
    }

    /// Returns the newest `limit` audit lines for one maintenance name, oldest first.
    async fn audit(&self, id: &MaintenanceId, limit: usize) -> Result<Vec<AuditEvent>, StoreError>;

    /// Reads about `most` lines of the audit log in a stable order: a line that appears later has a
    /// higher position.
    async fn export_audit(&self, start: &AuditStart, most: u32) -> Result<Vec<AuditLine>, StoreError>;

    /// Returns a consistent snapshot of the whole store.
    async fn contents(&self) -> Result<Contents, StoreError>;

    /// Fills an unused store and adopts the exported store's id. Handles that are already open
    /// keep the old id, so reopen them.
    ///
    /// # Errors
    ///
    /// [`StoreError::InUse`] if the store is not empty.
    async fn fill(&self, contents: &Contents) -> Result<(), StoreError>;

    /// Deletes ended records and audit lines older than `keep` on the store's clock. Deletes about
    /// `most` of each, so that other requests do not wait long. Returns the number of deletions; 0
    /// when finished.
    async fn prune(&self, keep: Duration, most: u32) -> Result<u64, StoreError>;

    /// Claims the right to prune for `length` on the store's clock. Returns false if another
    /// process's claim still runs. Claims expire and are never released early.
    async fn claim_sweep(&self, runner: &RunnerId, length: Duration) -> Result<bool, StoreError>;

    /// Returns a counter that moves whenever any process changes this lock key. Heartbeats do not
    /// move it. All watchers in a process share one watch on the store.
    fn changes(&self, key: &LockKey) -> watch::Receiver<u64>;

    /// Closes files and connections. The store must not be used afterwards.
    async fn close(&self);
}

/// Returns the first 160 bits of SHA-256 as text, for names of objects about untrusted text.
fn digest(text: &str) -> String {
    Sha256::digest(text)[..20].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The runner id whose lease is the prune claim. Real runner ids are UUIDs, so it cannot collide.
const SWEEPER: &str = "sweeper";

/// Returns when a lease ends that starts now.
fn lease_end(now: Timestamp, ttl: Duration) -> Timestamp {
    let ttl = SignedDuration::try_from(ttl).unwrap_or(SignedDuration::MAX);
    now.checked_add(ttl).unwrap_or(Timestamp::MAX)
}

/// Returns the time before which ended records can be pruned.
fn forgotten_before(now: Timestamp, keep: Duration) -> Timestamp {
    let keep = SignedDuration::try_from(keep).unwrap_or(SignedDuration::MAX);
    now.checked_sub(keep).unwrap_or(Timestamp::MIN)
}
