//! The connection to a cluster, and patience with it.

use std::{sync::Arc, time::Duration};

use etcd_client::{Client, GetOptions, GetResponse, KvClient, LeaseClient, Txn, TxnResponse, WatchClient};
use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;

use super::{fault::Faults, keys::Keys, url::Parsed};
use crate::{
    clock::Clock,
    store::{StoreError, patience::Patience},
};

/// How a cluster is reached.
pub(super) struct Link {
    parsed: Parsed,
    client: OnceCell<Client>,
    pub(super) keys: Keys,
    pub(super) faults: Faults,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) patience: Patience,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("address", &self.faults.address()).finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new(parsed: Parsed, faults: Faults, clock: Arc<dyn Clock>, limit: Duration) -> Self {
        let patience = Patience::new(faults.address(), Arc::clone(&clock), limit);
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
}
