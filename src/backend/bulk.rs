//! Objects of a cluster that are read one by one while they are few, and by one list once they are
//! many.
//!
//! A single refresh must not list what a large cluster has, and a refresh of hundreds must not ask
//! for each. `get` alone is enough for a role.

use std::{collections::BTreeMap, fmt, time::Duration};

use tokio::sync::Mutex;

use crate::clock::Clock;

use super::BackendError;

/// So many are read one by one before all are listed.
const FEW: usize = 8;

/// What was listed a moment ago, by name.
pub(super) struct BulkReads<T> {
    /// In words, for the log.
    kind: &'static str,
    /// How long a listed object counts as one that was read now.
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
    /// Sends no request.
    pub(super) fn new(kind: &'static str, recent: Duration) -> Self {
        Self { kind, recent, state: Mutex::new(State::default()) }
    }

    /// What the list has of this name; `None`: it is to be read by itself. `list` is only polled
    /// where all are to be listed.
    pub(super) async fn take(
        &self,
        clock: &dyn Clock,
        name: &str,
        list: impl Future<Output = Result<BTreeMap<String, T>, BackendError>> + Send,
    ) -> Option<T> {
        // Held while all are listed: the others wait for that instead of asking for one each.
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
                    // The get tells it better, or works.
                    Err(_) => {}
                }
            }
        }
        // Given once: a second reader has reason to believe that the object changed.
        state.listed.remove(name)
    }

    /// Forgets all of them.
    pub(super) async fn forget(&self) {
        self.state.lock().await.listed.clear();
    }
}
