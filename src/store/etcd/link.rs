//! The connection to a cluster, and patience with it.

use std::{future::Future, sync::Arc, time::Duration};

use etcd_client::{Client, GetOptions, GetResponse, KvClient, LeaseClient, Txn, TxnResponse, WatchClient};
use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;

use super::{fault::Faults, keys::Keys, url::Parsed};
use crate::{
    clock::{Clock, within},
    store::StoreError,
};

/// The pauses between two attempts to reach a cluster that is away.
const PAUSE: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(500));

/// How a cluster is reached.
pub(super) struct Link {
    parsed: Parsed,
    client: OnceCell<Client>,
    pub(super) keys: Keys,
    pub(super) faults: Faults,
    pub(super) clock: Arc<dyn Clock>,
    patience: Duration,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("address", &self.faults.address()).finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new(parsed: Parsed, faults: Faults, clock: Arc<dyn Clock>, patience: Duration) -> Self {
        let keys = Keys::below(&parsed.prefix);
        Self { parsed, client: OnceCell::new(), keys, faults, clock, patience }
    }

    /// With a login, the first use asks for a token; the client renews it by itself.
    async fn client(&self) -> Result<&Client, StoreError> {
        let connect = || async {
            let connected = Client::connect(&self.parsed.endpoints, Some(self.parsed.connect_options())).await;
            connected.map_err(|error| self.faults.etcd(&error))
        };
        self.client.get_or_try_init(connect).await
    }

    async fn kv(&self) -> Result<KvClient, StoreError> {
        // A queue of a thousand waiters is larger than gRPC's usual limit.
        Ok(self.client().await?.kv_client().max_decoding_message_size(usize::MAX))
    }

    pub(super) async fn leases(&self) -> Result<LeaseClient, StoreError> {
        Ok(self.client().await?.lease_client())
    }

    pub(super) async fn watches(&self) -> Result<WatchClient, StoreError> {
        Ok(self.client().await?.watch_client().max_decoding_message_size(usize::MAX))
    }

    /// One transaction, once. On the heap, as what comes next: the client's own futures are large.
    pub(super) fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnResponse, StoreError>> {
        Box::pin(async { self.kv().await?.txn(txn).await.map_err(|error| self.faults.etcd(&error)) })
    }

    /// Some keys.
    pub(super) fn get(
        &self,
        key: impl Into<Vec<u8>>,
        options: GetOptions,
    ) -> BoxFuture<'_, Result<GetResponse, StoreError>> {
        let key: Vec<u8> = key.into();
        Box::pin(async { self.kv().await?.get(key, Some(options)).await.map_err(|error| self.faults.etcd(&error)) })
    }

    /// One attempt that must not be repeated blindly, within the patience.
    pub(super) async fn once<T>(
        &self,
        attempt: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        within(self.patience, Box::pin(attempt)).await.unwrap_or_else(|| Err(self.faults.silent()))
    }

    /// Repeats an attempt that changes nothing, or the same each time, while the cluster is away: a new leader takes a
    /// few seconds.
    pub(super) async fn patiently<T, F>(&self, attempt: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>> + Send,
    {
        let deadline = self.clock.monotonic() + self.patience;
        let mut pause = PAUSE.0;
        let mut said: Option<StoreError> = None;
        loop {
            // One member that hangs must not take all the time.
            let left = deadline.saturating_sub(self.clock.monotonic());
            let result = within(left.min(self.patience / 2), Box::pin(attempt())).await;
            // What it said before tells more than that there was no time left for more.
            match result.unwrap_or_else(|| Err(said.take().unwrap_or_else(|| self.faults.silent()))) {
                Err(error @ StoreError::Unavailable { .. }) if self.clock.monotonic() + pause < deadline => {
                    said = Some(error);
                    self.clock.sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
                other => return other,
            }
        }
    }
}
