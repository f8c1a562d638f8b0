//! Machines of servers without their own configuration entry, and logout from their BMCs.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;

use crate::clock::within;

/// Time limit for ending all sessions.
const GOODBYE: Duration = Duration::from_secs(2);

/// Machines by server name, each created once.
#[derive(Debug)]
pub(super) struct Machines<M>(Mutex<BTreeMap<String, Arc<M>>>);

impl<M> Default for Machines<M> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<M> Machines<M> {
    fn locked(&self) -> MutexGuard<'_, BTreeMap<String, Arc<M>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a server's machine, creating it on first use.
    pub(super) fn get(&self, server: &str, make: impl FnOnce(String) -> M) -> Arc<M> {
        let mut machines = self.locked();
        Arc::clone(machines.entry(server.to_owned()).or_insert_with(|| Arc::new(make(server.to_owned()))))
    }

    /// Returns every machine created so far.
    pub(super) fn all(&self) -> Vec<Arc<M>> {
        self.locked().values().cloned().collect()
    }
}

/// Ends all sessions concurrently within a time limit. A BMC that does not answer expires its own
/// sessions.
pub(super) async fn end_sessions<F: Future<Output = ()> + Send>(sessions: impl IntoIterator<Item = F>) {
    if within(GOODBYE, join_all(sessions)).await.is_none() {
        tracing::debug!("not every session was ended in time; the BMCs expire the others");
    }
}
