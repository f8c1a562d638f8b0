//! Machines of servers that are not configured one by one, and the end of their sessions.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;

use crate::clock::within;

/// How long ending all sessions may take.
const GOODBYE: Duration = Duration::from_secs(2);

/// Machines by the name of their server, each made once.
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

    /// The machine of a server; made where it is asked for the first time.
    pub(super) fn get(&self, server: &str, make: impl FnOnce(String) -> M) -> Arc<M> {
        let mut machines = self.locked();
        Arc::clone(machines.entry(server.to_owned()).or_insert_with(|| Arc::new(make(server.to_owned()))))
    }

    /// Every machine that was asked for.
    pub(super) fn all(&self) -> Vec<Arc<M>> {
        self.locked().values().cloned().collect()
    }
}

/// Ends sessions, all at once and bounded in time: a BMC that does not answer ends its own.
pub(super) async fn end_sessions<F: Future<Output = ()> + Send>(sessions: impl IntoIterator<Item = F>) {
    if within(GOODBYE, join_all(sessions)).await.is_none() {
        tracing::debug!("not every session was ended in time; they end by themselves");
    }
}
