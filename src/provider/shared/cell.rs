//! Data shared by all resources. Hosts create resources before they configure the provider, so
//! resources keep this cell.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use tf_provider::{AttributePath, Diagnostics};
use tokio_util::sync::CancellationToken;

use crate::{backend::planning, clock::within, engine::Engine, plugin::diagnostic};

/// How long a stopped process waits for an essential read.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// Progress of configuring the provider.
#[derive(Debug)]
pub(in crate::provider) enum Configured {
    /// Not configured yet.
    No,
    /// Partly unknown before apply: plans continue without checks, everything else is refused.
    Deferred,
    /// Configured.
    Ready(Arc<Engine>),
}

/// State shared by the provider and its resources.
#[derive(Clone, Debug)]
pub(in crate::provider) struct Cell {
    state: Arc<RwLock<Configured>>,
    /// Cancelled when the host requests a stop.
    pub(in crate::provider) stop: CancellationToken,
}

impl Cell {
    /// Returns an unconfigured cell.
    pub(in crate::provider) fn new(stop: CancellationToken) -> Self {
        Self { state: Arc::new(RwLock::new(Configured::No)), stop }
    }

    /// Stores the configuration's result.
    pub(in crate::provider) fn set(&self, configured: Configured) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = configured;
    }

    /// Runs a plan's or refresh's read unless the process is stopped first, so that a silent BMC
    /// cannot block Ctrl-C. All reads of one server share a time limit.
    pub(in crate::provider) async fn unless_stopped<T>(&self, reading: impl Future<Output = T> + Send) -> Option<T> {
        tokio::select! {
            read = planning(reading) => Some(read),
            () = self.stop.cancelled() => None,
        }
    }

    /// Runs a data source's read. Adds an error if the process is stopped first: hosts treat a
    /// missing result without an error as a provider bug.
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

    /// Runs a read that decides which state is kept. A stopped process waits only briefly, so that
    /// users do not wait for an unreachable store again.
    pub(in crate::provider) async fn soon_if_stopped<T>(&self, reading: impl Future<Output = T> + Send) -> Option<T> {
        if self.stop.is_cancelled() {
            return within(STOP_GRACE, reading).await;
        }
        Some(reading.await)
    }

    /// Returns true if the provider's configuration is partly unknown in this run.
    pub(in crate::provider) fn is_deferred(&self) -> bool {
        matches!(&*self.state.read().unwrap_or_else(PoisonError::into_inner), Configured::Deferred)
    }

    /// Returns true if the host only validates and has not configured the provider.
    pub(in crate::provider) fn is_new(&self) -> bool {
        matches!(&*self.state.read().unwrap_or_else(PoisonError::into_inner), Configured::No)
    }

    /// Returns the engine if the provider is configured; plans continue without it.
    pub(in crate::provider) fn engine_if_ready(&self) -> Option<Arc<Engine>> {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            Configured::Ready(engine) => Some(Arc::clone(engine)),
            Configured::No | Configured::Deferred => None,
        }
    }

    /// Returns the engine, or adds an error that explains why it is missing.
    pub(in crate::provider) fn engine(&self, diags: &mut Diagnostics) -> Option<Arc<Engine>> {
        let ready = self.engine_if_ready();
        if ready.is_none() {
            let detail = if self.is_deferred() {
                "Some of the provider's configuration is only known after other resources are applied. Apply those first, \
                 for example with -target."
            } else {
                "The host requested a server before it configured the provider."
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
