//! One look at the whole queue for everything that a plan asks about it.

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

/// How long a look counts. A plan of a thousand servers takes less; a process that lives for hours
/// sees what is new.
const FRESH: Duration = Duration::from_secs(10);

type LocksByKey = Arc<HashMap<LockKey, LockView>>;

/// What was read last, and when, on our own clock.
#[derive(Debug, Default)]
pub(super) struct PlanSnapshot {
    last: Mutex<Option<(Duration, LocksByKey)>>,
}

impl PlanSnapshot {
    /// What is known of a machine, at most [`FRESH`] old. Whoever comes while it is being read
    /// waits for that reading.
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

    /// The state of every machine, at most [`FRESH`] old.
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
