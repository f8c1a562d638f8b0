//! Records, slots, leases and audit. This room knows no BMC.
//!
//! A store keeps one [`ServerLock`] per lock key and applies the protocol's own pure transitions to
//! it atomically; it has no rule of its own. Whatever judges leases uses the store's clock, so that
//! no decision compares the clocks of two machines.

mod capacity;
mod contents;
mod error;
mod export;
mod extended;
mod fault;
mod format;
mod group;
mod kubernetes;
mod lazy;
mod memory;
mod optimistic;
mod patience;
mod postgres;
mod recall;
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
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use crate::maintenance::{
    ids::{LockKey, MaintenanceId, Runner, RunnerId, Uid},
    lock::{AuditEvent, Leases, Refusal, ServerLock},
    queue::Queue,
    state::Maintenance,
};

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

/// Everything about one lock key at one moment. Shared: hundreds of waiters look at the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockView {
    /// Records, slot and generation.
    pub lock: Arc<ServerLock>,
    /// The leases of every process that is attached to one of the records.
    pub leases: Arc<Leases>,
    /// The store's time.
    pub now: Timestamp,
    /// The queue that follows from these, worked out by the first who asks.
    pub queue: Arc<Queue>,
}

impl LockView {
    /// What was read at one moment.
    #[must_use]
    pub fn new(lock: Arc<ServerLock>, leases: Leases, now: Timestamp) -> Self {
        Self { lock, leases: Arc::new(leases), now, queue: Arc::default() }
    }
}

/// A transition: changes the lock or refuses. It may be called more than once (a store with
/// optimistic concurrency repeats it on fresh data), so it must not remember anything from an
/// earlier call.
pub type Transition<'a> = dyn FnMut(&mut ServerLock, &Leases, Timestamp) -> Result<(), Refusal> + Send + 'a;

/// What a store answers about a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordLookup {
    /// The record that is not over.
    Active(Box<Maintenance>),
    /// None is active; this is the last one of that name in the history.
    Past(Box<Maintenance>),
}

impl RecordLookup {
    /// The record.
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
    /// The store's id, made at its first use. Two stores with different ids are different truths.
    fn id(&self) -> &str;

    /// How a person would name it: a URL without credentials.
    fn address(&self) -> String;

    /// A warning about a lock that does not reach as far as its user may think, if there is one:
    /// for example a file on a network file system.
    fn reach_warning(&self) -> Option<String>;

    /// A warning about changes that the store confirms and may lose all the same, if there is one:
    /// a server that nobody stands by for, for example.
    fn loss_warning(&self) -> Option<String> {
        None
    }

    /// Applies a transition to one lock key atomically: everything it did is stored, with its
    /// finished records and audit events, or nothing. The name of an active record is unique in the
    /// whole store: a transition that would add a second one is refused with
    /// [`StoreError::NameTaken`].
    async fn transact(&self, key: &LockKey, transition: &mut Transition<'_>) -> Result<(), StoreError>;

    /// Reads one lock key. A key nobody asked for yet is an empty lock.
    async fn view(&self, key: &LockKey) -> Result<LockView, StoreError>;

    /// Reads every lock key that has an active record, an owner, or something that a person
    /// forbade, sorted by key: the whole queue in one read.
    async fn view_all(&self) -> Result<Vec<LockView>, StoreError>;

    /// Finds a maintenance by name: the active one, else the one that ended last.
    async fn find(&self, id: &MaintenanceId) -> Result<Option<RecordLookup>, StoreError>;

    /// Finds one incarnation, active or ended.
    async fn find_uid(&self, uid: &Uid) -> Result<Option<RecordLookup>, StoreError>;

    /// Makes or renews the lease of a process: `ttl` from now, on the store's clock.
    async fn renew(&self, runner: &Runner, ttl: Duration) -> Result<(), StoreError>;

    /// Ends the lease of a process at once.
    async fn resign(&self, runner: &RunnerId) -> Result<(), StoreError>;

    /// The lock key that a server's name was bound to in the scope of an owner of names (a
    /// backend), if any.
    async fn binding(&self, server: &str) -> Result<Option<LockKey>, StoreError>;

    /// Reads several bindings, in the order of the names.
    async fn bindings(&self, servers: &[String]) -> Result<Vec<Option<LockKey>>, StoreError> {
        let mut found = Vec::with_capacity(servers.len());
        for server in servers {
            found.push(self.binding(server).await?);
        }
        Ok(found)
    }

    /// Binds a server's name to a lock key. The first binding stays: a different key for a bound
    /// name is refused with [`StoreError::OtherIdentity`] unless `rebind` says so.
    async fn bind(&self, server: &str, key: &LockKey, rebind: bool) -> Result<(), StoreError>;

    /// The audit of one maintenance name, oldest first, at most `limit` newest lines.
    async fn audit(&self, id: &MaintenanceId, limit: usize) -> Result<Vec<AuditEvent>, StoreError>;

    /// Reads at most about `most` lines of the audit log in a stable order: a line that becomes
    /// visible later has a higher position.
    async fn export_audit(&self, start: &AuditStart, most: u32) -> Result<Vec<AuditLine>, StoreError>;

    /// Everything it holds, of one moment.
    async fn contents(&self) -> Result<Contents, StoreError>;

    /// Fills a store that nobody has used yet, and takes over the id of the store that it came
    /// from; refused with [`StoreError::InUse`] when there is anything in it. Open handles keep the
    /// old id: open it again.
    async fn fill(&self, contents: &Contents) -> Result<(), StoreError>;

    /// Forgets what became history longer ago than `keep`, on the store's clock: records that are
    /// over, and audit lines; at most about `most` of each, so that nobody waits for it. How much
    /// was forgotten; nothing when all is done.
    async fn prune(&self, keep: Duration, most: u32) -> Result<u64, StoreError>;

    /// Claims the right to forget history for `length` from now, on the store's clock. `false`:
    /// another process has claimed it and its claim has not run out. A claim is never given back: a
    /// process that dies costs one length.
    async fn claim_sweep(&self, runner: &RunnerId, length: Duration) -> Result<bool, StoreError>;

    /// A counter that moves whenever somebody, also another process, changed this lock key
    /// (heartbeats do not count). All watchers of one process share one watch on the store.
    fn changes(&self, key: &LockKey) -> watch::Receiver<u64>;

    /// Releases files and connections. Nothing is called afterwards.
    async fn close(&self);
}

/// Whose lease stands for the right to forget history, where the stores keep leases. No process is
/// called so: theirs are UUIDs.
const SWEEPER: &str = "sweeper";

/// When a lease ends that begins now.
fn lease_end(now: Timestamp, ttl: Duration) -> Timestamp {
    let ttl = SignedDuration::try_from(ttl).unwrap_or(SignedDuration::MAX);
    now.checked_add(ttl).unwrap_or(Timestamp::MAX)
}

/// When something ended that may be forgotten by now.
fn forgotten_before(now: Timestamp, keep: Duration) -> Timestamp {
    let keep = SignedDuration::try_from(keep).unwrap_or(SignedDuration::MAX);
    now.checked_sub(keep).unwrap_or(Timestamp::MIN)
}
