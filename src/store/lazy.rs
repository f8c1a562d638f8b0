//! A store that is not open yet.
//!
//! A provider is configured before it reads anything. A locked or unreachable store at that moment
//! must not fail the refresh of every resource. Each request tries to open the store again and
//! returns the error.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::{OnceCell, watch};

use crate::{
    clock::Clock,
    maintenance::{
        ids::{LockKey, MaintenanceId, Runner, RunnerId, Uid},
        lock::AuditEvent,
    },
};

use super::{AuditLine, AuditStart, Contents, LockView, RecordLookup, Store, StoreError, Transition};

/// Opens a store.
pub type Opener =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Arc<dyn Store>, StoreError>> + Send>> + Send + Sync>;

/// The pause after a failed attempt to open the store.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Opens its store on first use, and retries after failures.
pub struct LazyStore {
    address: String,
    open: Opener,
    opened: OnceCell<Arc<dyn Store>>,
    clock: Arc<dyn Clock>,
    /// The last error and its time. When a hundred resources refresh, only the first request
    /// waits.
    failed: Mutex<Option<(StoreError, Duration)>>,
    /// Watches opened before the store. It never fires, so waiters poll.
    silence: watch::Sender<u64>,
}

impl fmt::Debug for LazyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyStore").field("address", &self.address).finish_non_exhaustive()
    }
}

impl LazyStore {
    /// Returns a store for `address` after a first attempt to open it failed with `failed`.
    #[must_use]
    pub fn new(address: String, clock: Arc<dyn Clock>, open: Opener, failed: StoreError) -> Self {
        let failed = Mutex::new(Some((failed, clock.monotonic())));
        Self { address, open, opened: OnceCell::new(), clock, failed, silence: watch::channel(0).0 }
    }

    async fn get(&self) -> Result<&Arc<dyn Store>, StoreError> {
        let open = || async {
            let last = self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some((error, at)) = last
                && self.clock.monotonic().saturating_sub(at) < AGAIN_AFTER
            {
                return Err(error);
            }
            let opened = (self.open)().await;
            if let Err(error) = &opened {
                let failed = Some((error.clone(), self.clock.monotonic()));
                *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = failed;
            }
            opened
        };
        self.opened.get_or_try_init(open).await
    }
}

#[async_trait]
impl Store for LazyStore {
    fn id(&self) -> &str {
        // Callers read the id after another request, which has opened the store.
        self.opened.get().map_or("", |store| store.id())
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn reach_warning(&self) -> Option<String> {
        self.opened.get().and_then(|store| store.reach_warning())
    }

    fn loss_warning(&self) -> Option<String> {
        self.opened.get().and_then(|store| store.loss_warning())
    }

    fn role_warning(&self) -> Option<String> {
        self.opened.get().and_then(|store| store.role_warning())
    }

    async fn transact(&self, key: &LockKey, transition: &mut Transition<'_>) -> Result<(), StoreError> {
        self.get().await?.transact(key, transition).await
    }

    async fn view(&self, key: &LockKey) -> Result<LockView, StoreError> {
        self.get().await?.view(key).await
    }

    async fn view_all(&self) -> Result<Vec<LockView>, StoreError> {
        self.get().await?.view_all().await
    }

    async fn find(&self, id: &MaintenanceId) -> Result<Option<RecordLookup>, StoreError> {
        self.get().await?.find(id).await
    }

    async fn find_uid(&self, uid: &Uid) -> Result<Option<RecordLookup>, StoreError> {
        self.get().await?.find_uid(uid).await
    }

    async fn renew(&self, runner: &Runner, ttl: Duration) -> Result<(), StoreError> {
        self.get().await?.renew(runner, ttl).await
    }

    async fn resign(&self, runner: &RunnerId) -> Result<(), StoreError> {
        self.get().await?.resign(runner).await
    }

    async fn binding(&self, server: &str) -> Result<Option<LockKey>, StoreError> {
        self.get().await?.binding(server).await
    }

    async fn bindings(&self, servers: &[String]) -> Result<Vec<Option<LockKey>>, StoreError> {
        self.get().await?.bindings(servers).await
    }

    async fn bind(&self, server: &str, key: &LockKey, rebind: bool) -> Result<(), StoreError> {
        self.get().await?.bind(server, key, rebind).await
    }

    async fn bind_all(&self, servers: &[String], key: &LockKey) -> Result<(), StoreError> {
        self.get().await?.bind_all(servers, key).await
    }

    async fn audit(&self, id: &MaintenanceId, limit: usize) -> Result<Vec<AuditEvent>, StoreError> {
        self.get().await?.audit(id, limit).await
    }

    async fn export_audit(&self, start: &AuditStart, most: u32) -> Result<Vec<AuditLine>, StoreError> {
        self.get().await?.export_audit(start, most).await
    }

    async fn contents(&self) -> Result<Contents, StoreError> {
        self.get().await?.contents().await
    }

    async fn fill(&self, contents: &Contents) -> Result<(), StoreError> {
        self.get().await?.fill(contents).await
    }

    async fn claim_sweep(&self, runner: &RunnerId, length: Duration) -> Result<bool, StoreError> {
        self.get().await?.claim_sweep(runner, length).await
    }

    async fn prune(&self, keep: Duration, most: u32) -> Result<u64, StoreError> {
        self.get().await?.prune(keep, most).await
    }

    fn changes(&self, key: &LockKey) -> watch::Receiver<u64> {
        self.opened.get().map_or_else(|| self.silence.subscribe(), |store| store.changes(key))
    }

    async fn close(&self) {
        if let Some(store) = self.opened.get() {
            store.close().await;
        }
    }
}
