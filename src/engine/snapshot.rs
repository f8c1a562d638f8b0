//! One cached read of the queue for a whole plan.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::sync::Mutex;

use crate::{
    clock::Clock,
    maintenance::{
        ids::LockKey,
        lock::{Leases, ServerLock},
    },
    store::{LockView, Store},
};

use super::EngineError;

/// How long a read stays fresh. Long enough for a plan with a thousand servers, short enough for a
/// process that lives for hours.
const FRESH: Duration = Duration::from_secs(10);

type LocksByKey = Arc<HashMap<LockKey, LockView>>;

/// The last read, with its time on our monotonic clock.
#[derive(Debug, Default)]
pub(super) struct PlanSnapshot {
    last: Mutex<Option<(Duration, LocksByKey)>>,
}

impl PlanSnapshot {
    /// Returns a lock's view, at most [`FRESH`] old. Concurrent callers share one read.
    pub(super) async fn view(
        &self,
        store: &Arc<dyn Store>,
        clock: &Arc<dyn Clock>,
        key: &LockKey,
    ) -> Result<LockView, EngineError> {
        let views = self.all(store, clock).await?;
        Ok(views
            .get(key)
            .cloned()
            .unwrap_or_else(|| LockView::new(Arc::new(ServerLock::new(key.clone())), Leases::default(), clock.now())))
    }

    /// Returns all locks, at most [`FRESH`] old.
    pub(super) async fn all(&self, store: &Arc<dyn Store>, clock: &Arc<dyn Clock>) -> Result<LocksByKey, EngineError> {
        let mut last = self.last.lock().await;
        let fresh = last.as_ref().filter(|(at, _)| clock.monotonic().saturating_sub(*at) < FRESH);
        if let Some((_, views)) = fresh {
            return Ok(Arc::clone(views));
        }
        let read = store.view_all().await?;
        let views: LocksByKey = Arc::new(read.into_iter().map(|view| (view.lock.key.clone(), view)).collect());
        *last = Some((clock.monotonic(), Arc::clone(&views)));
        Ok(views)
    }
}
