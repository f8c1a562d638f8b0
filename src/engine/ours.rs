//! Fencing checks for backends during a call.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    backend::StillOurs,
    maintenance::ids::{Fence, LockKey, Uid},
    store::Store,
};

/// One process's attachment to one record.
#[derive(Debug)]
pub(super) struct Ours {
    pub(super) store: Arc<dyn Store>,
    pub(super) key: LockKey,
    pub(super) uid: Uid,
    pub(super) fence: Fence,
}

#[async_trait]
impl StillOurs for Ours {
    async fn check(&self) -> Result<(), String> {
        let view = self.store.view(&self.key).await.map_err(|error| error.to_string())?;
        if view.lock.may_act(&self.uid, self.fence, &view.leases, view.now) {
            Ok(())
        } else {
            Err("this process lost the right to act on the server".to_owned())
        }
    }
}
