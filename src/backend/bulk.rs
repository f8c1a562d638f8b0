//! Reads cluster objects one at a time while they are few, and with a single list otherwise.
//!
//! Refreshing one server must not list a large cluster, and refreshing hundreds must not send a
//! request for each. A role with only the `get` permission is sufficient.

use std::{collections::BTreeMap, fmt, time::Duration};

use tokio::sync::Mutex;

use crate::clock::Clock;

use super::BackendError;

/// Number of single reads before all objects are listed.
const FEW: usize = 8;

/// Recently listed objects, by name.
pub(super) struct BulkReads<T> {
    /// The object kind, for the log.
    kind: &'static str,
    /// How long a listed object counts as current.
    recent: Duration,
    state: Mutex<State<T>>,
}

struct State<T> {
    gets: usize,
    denied: bool,
    listed: BTreeMap<String, T>,
    at: Duration,
}

impl<T> Default for State<T> {
    fn default() -> Self {
        Self { gets: 0, denied: false, listed: BTreeMap::new(), at: Duration::ZERO }
    }
}

impl<T> fmt::Debug for BulkReads<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkReads").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl<T> BulkReads<T> {
    /// Returns an empty cache without sending a request.
    pub(super) fn new(kind: &'static str, recent: Duration) -> Self {
        Self { kind, recent, state: Mutex::new(State::default()) }
    }

    /// Returns the listed object with this name; `None` means that the caller must read it. `list`
    /// is polled only if all objects should be listed.
    pub(super) async fn take(
        &self,
        clock: &dyn Clock,
        name: &str,
        list: impl Future<Output = Result<BTreeMap<String, T>, BackendError>> + Send,
    ) -> Option<T> {
        // The lock is held during the list, so that other tasks wait for it instead of reading one
        // object each.
        let mut state = self.state.lock().await;
        let now = clock.monotonic();
        if now.saturating_sub(state.at) > self.recent {
            state.listed.clear();
        }
        if !state.listed.contains_key(name) {
            state.gets += 1;
            if state.gets > FEW && !state.denied {
                match list.await {
                    Ok(listed) => *state = State { listed, at: now, ..State::default() },
                    Err(BackendError::Denied { message }) => {
                        tracing::debug!("{} are read one by one: {message}", self.kind);
                        state.denied = true;
                    }
                    // The single read that follows succeeds or reports a better error.
                    Err(_) => {}
                }
            }
        }
        // Each listed object is returned once: a second read probably expects a change.
        state.listed.remove(name)
    }

    /// Discards all listed objects.
    pub(super) async fn forget(&self) {
        self.state.lock().await.listed.clear();
    }
}
