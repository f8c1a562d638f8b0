//! The connection to a cluster, and patience with it.

use std::{sync::Arc, time::Duration};

use etcd_client::{Client, GetOptions, GetResponse, KvClient, LeaseClient, Permission, Txn, TxnResponse, WatchClient};
use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;

use super::{fault::ErrorMapper, keys::Keys, url::Parsed};
use crate::{
    clock::Clock,
    store::{StoreError, patience::Patience},
};

/// How a cluster is reached.
pub(super) struct StoreClient {
    parsed: Parsed,
    client: OnceCell<Client>,
    pub(super) keys: Keys,
    pub(super) faults: ErrorMapper,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) patience: Patience,
}

impl std::fmt::Debug for StoreClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("address", &self.faults.address()).finish_non_exhaustive()
    }
}

impl StoreClient {
    pub(super) fn new(parsed: Parsed, faults: ErrorMapper, clock: Arc<dyn Clock>, limit: Duration) -> Self {
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

    /// The roles that the user of this connection may see, with what they permit; none where the
    /// cluster has no users.
    pub(super) async fn roles(&self) -> Result<Vec<(String, Vec<Permission>)>, StoreError> {
        let mut auth = self.client().await?.auth_client();
        let fault = |error| self.faults.etcd(&error);
        let Some(user) = self.parsed.user() else { return Ok(Vec::new()) };
        // Only root may list them.
        let names = match auth.role_list().await {
            Ok(all) => all.roles().to_vec(),
            Err(_) => match auth.user_get(user).await {
                Ok(own) => own.roles().to_vec(),
                // No users, or one that is known by its certificate.
                Err(_) => return Ok(Vec::new()),
            },
        };
        let mut roles = Vec::with_capacity(names.len());
        for name in names {
            let role = auth.role_get(name.clone()).await.map_err(fault)?;
            roles.push((name, role.permissions()));
        }
        Ok(roles)
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
