//! What all resources share. The wire makes resources before the provider is configured, so they
//! hold this cell.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use tf_provider::{AttributePath, Diagnostics};
use tokio_util::sync::CancellationToken;

use crate::{clock::within, engine::Engine, plugin::diagnostic};

/// How long a process that was asked to stop waits for what it still has to read.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// How far the provider's configuration has got.
#[derive(Debug)]
pub(in crate::provider) enum Configured {
    /// Not yet.
    No,
    /// Some of it is not known before apply: planning goes on without looking, everything else
    /// refuses.
    Deferred,
    /// Ready.
    Ready(Arc<Engine>),
}

/// Shared by the provider and its resources.
#[derive(Clone, Debug)]
pub(in crate::provider) struct Cell {
    state: Arc<RwLock<Configured>>,
    /// Cancelled when the host asks us to stop.
    pub(in crate::provider) stop: CancellationToken,
}

impl Cell {
    /// A cell that is not configured.
    pub(in crate::provider) fn new(stop: CancellationToken) -> Self {
        Self { state: Arc::new(RwLock::new(Configured::No)), stop }
    }

    /// Sets what came of the configuration.
    pub(in crate::provider) fn set(&self, configured: Configured) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = configured;
    }

    /// What comes of some reading, unless the process is asked to stop first: no BMC that does not
    /// answer may hold up a Ctrl-C.
    pub(in crate::provider) async fn unless_stopped<T>(&self, reading: impl Future<Output = T> + Send) -> Option<T> {
        tokio::select! {
            read = reading => Some(read),
            () = self.stop.cancelled() => None,
        }
    }

    /// What comes of what a data source reads. Where the process is asked to stop first, an error
    /// says so: hosts take no answer without an error for a bug of the provider.
    pub(in crate::provider) async fn read<T>(
        &self,
        diags: &mut Diagnostics,
        what: &str,
        reading: impl Future<Output = T> + Send,
    ) -> Option<T> {
        let read = self.unless_stopped(reading).await;
        if read.is_none() {
            diags.add_error(diagnostic(
                format!("Reading {what} was interrupted"),
                "Nothing was changed.",
                AttributePath::root(),
            ));
        }
        read
    }

    /// What comes of a reading that decides what is kept. A process that was asked to stop waits
    /// for it only briefly: a person does not wait a second time for a store that is away.
    pub(in crate::provider) async fn soon_if_stopped<T>(&self, reading: impl Future<Output = T> + Send) -> Option<T> {
        if self.stop.is_cancelled() {
            return within(STOP_GRACE, reading).await;
        }
        Some(reading.await)
    }

    /// Whether some of the provider's configuration is only known in a later run.
    pub(in crate::provider) fn is_deferred(&self) -> bool {
        matches!(&*self.state.read().unwrap_or_else(PoisonError::into_inner), Configured::Deferred)
    }

    /// Whether the host has not configured the provider: it only validates.
    pub(in crate::provider) fn is_new(&self) -> bool {
        matches!(&*self.state.read().unwrap_or_else(PoisonError::into_inner), Configured::No)
    }

    /// The engine, if it is there; planning goes on without.
    pub(in crate::provider) fn engine_if_ready(&self) -> Option<Arc<Engine>> {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            Configured::Ready(engine) => Some(Arc::clone(engine)),
            Configured::No | Configured::Deferred => None,
        }
    }

    /// The engine, or an error that says why there is none.
    pub(in crate::provider) fn engine(&self, diags: &mut Diagnostics) -> Option<Arc<Engine>> {
        let ready = self.engine_if_ready();
        if ready.is_none() {
            let detail = if self.is_deferred() {
                "Some of the provider's configuration is only known after other resources are applied. Apply those first, \
                 for example with -target."
            } else {
                "The host asked for a server before it configured the provider."
            };
            diags.add_error(diagnostic("The provider is not configured", detail, AttributePath::root()));
        }
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_read_comes_unless_it_is_interrupted_which_is_said() {
        let (stop, mut diags) = (CancellationToken::new(), Diagnostics::default());
        let cell = Cell::new(stop.clone());
        assert_eq!(cell.read(&mut diags, "node1", async { 1 }).await, Some(1));
        assert!(diags.errors.is_empty());
        stop.cancel();
        assert_eq!(cell.read(&mut diags, "node1", std::future::pending::<i32>()).await, None);
        assert_eq!(diags.errors[0].summary, "Reading node1 was interrupted");
    }
}
