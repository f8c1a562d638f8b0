//! Shortens store requests once the process is being stopped.
//!
//! A store retries for several seconds, because a fail-over takes that long. Ctrl-C must not wait
//! for it: hosts kill a plugin that does not end.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    clock::Clock,
    maintenance::{
        ids::{LockKey, MaintenanceId, Runner, RunnerId, Uid},
        lock::AuditEvent,
    },
};

use super::{AuditLine, AuditStart, Contents, LockView, RecordLookup, Store, StoreError, Transition};

/// After a stop, all unanswered requests together wait this long.
const GRACE: Duration = Duration::from_secs(2);

/// After that time each request still waits this long, because the store can recover.
const LATER: Duration = Duration::from_millis(100);

/// Forwards requests. After a stop, all unanswered requests share one limit.
#[derive(Debug)]
pub struct StoppableStore {
    inner: Arc<dyn Store>,
    stop: CancellationToken,
    clock: Arc<dyn Clock>,
    /// True after a request was given up: the shared limit is used up.
    given_up: AtomicBool,
}

impl StoppableStore {
    /// Returns a store that gives up requests soon after `stop` is cancelled.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>, stop: CancellationToken, clock: Arc<dyn Clock>) -> Self {
        Self { inner, stop, clock, given_up: AtomicBool::new(false) }
    }

    /// Waits for a request's reply. A request that is given up has an unknown outcome.
    async fn answer<T>(&self, request: impl Future<Output = Result<T, StoreError>> + Send) -> Result<T, StoreError> {
        let over = async {
            self.stop.cancelled().await;
            self.clock.sleep(if self.given_up.load(Ordering::Acquire) { LATER } else { GRACE }).await;
        };
        tokio::select! {
            biased;
            answer = request => answer,
            () = over => {
                self.given_up.store(true, Ordering::Release);
                Err(StoreError::Unavailable {
                    address: self.inner.address().into(),
                    cause: "it did not answer before this process had to stop".into(),
                })
            }
        }
    }
}

#[async_trait]
impl Store for StoppableStore {
    fn id(&self) -> &str {
        self.inner.id()
    }

    fn address(&self) -> String {
        self.inner.address()
    }

    fn reach_warning(&self) -> Option<String> {
        self.inner.reach_warning()
    }

    fn loss_warning(&self) -> Option<String> {
        self.inner.loss_warning()
    }

    fn role_warning(&self) -> Option<String> {
        self.inner.role_warning()
    }

    async fn transact(&self, key: &LockKey, transition: &mut Transition<'_>) -> Result<(), StoreError> {
        self.answer(self.inner.transact(key, transition)).await
    }

    async fn view(&self, key: &LockKey) -> Result<LockView, StoreError> {
        self.answer(self.inner.view(key)).await
    }

    async fn view_all(&self) -> Result<Vec<LockView>, StoreError> {
        self.answer(self.inner.view_all()).await
    }

    async fn find(&self, id: &MaintenanceId) -> Result<Option<RecordLookup>, StoreError> {
        self.answer(self.inner.find(id)).await
    }

    async fn find_uid(&self, uid: &Uid) -> Result<Option<RecordLookup>, StoreError> {
        self.answer(self.inner.find_uid(uid)).await
    }

    async fn renew(&self, runner: &Runner, ttl: Duration) -> Result<(), StoreError> {
        self.answer(self.inner.renew(runner, ttl)).await
    }

    async fn resign(&self, runner: &RunnerId) -> Result<(), StoreError> {
        self.answer(self.inner.resign(runner)).await
    }

    async fn binding(&self, server: &str) -> Result<Option<LockKey>, StoreError> {
        self.answer(self.inner.binding(server)).await
    }

    async fn bindings(&self, servers: &[String]) -> Result<Vec<Option<LockKey>>, StoreError> {
        self.answer(self.inner.bindings(servers)).await
    }

    async fn bind(&self, server: &str, key: &LockKey, rebind: bool) -> Result<(), StoreError> {
        self.answer(self.inner.bind(server, key, rebind)).await
    }

    async fn bind_all(&self, servers: &[String], key: &LockKey) -> Result<(), StoreError> {
        self.answer(self.inner.bind_all(servers, key)).await
    }

    async fn audit(&self, id: &MaintenanceId, limit: usize) -> Result<Vec<AuditEvent>, StoreError> {
        self.answer(self.inner.audit(id, limit)).await
    }

    // No limit for commands on a whole store: their duration depends on its size.
    async fn export_audit(&self, start: &AuditStart, most: u32) -> Result<Vec<AuditLine>, StoreError> {
        self.inner.export_audit(start, most).await
    }

    async fn contents(&self) -> Result<Contents, StoreError> {
        self.inner.contents().await
    }

    async fn fill(&self, contents: &Contents) -> Result<(), StoreError> {
        self.inner.fill(contents).await
    }

    async fn prune(&self, keep: Duration, most: u32) -> Result<u64, StoreError> {
        self.answer(self.inner.prune(keep, most)).await
    }

    async fn claim_sweep(&self, runner: &RunnerId, length: Duration) -> Result<bool, StoreError> {
        self.answer(self.inner.claim_sweep(runner, length)).await
    }

    fn changes(&self, key: &LockKey) -> watch::Receiver<u64> {
        self.inner.changes(key)
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
