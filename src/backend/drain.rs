//! What drains the Nodes that run on servers.

use std::fmt::Debug;

use async_trait::async_trait;

use super::BackendError;
use crate::maintenance::{
    drain::{DrainView, DrainWish},
    native::NativeWish,
};

/// Nodes that run on servers, whatever backend drives those.
///
/// `by` names the maintenance: what one maintenance cordoned, no other uncordons.
#[async_trait]
pub trait NodeDrain: Send + Sync + Debug {
    /// Where they are, for people.
    fn address(&self) -> String;

    /// How a Node is now. With `wish` also its Pods, as far as they matter for a drain.
    async fn look(&self, node: &str, by: &NativeWish, wish: Option<&DrainWish>) -> Result<DrainView, BackendError>;

    /// Cordons a Node and marks it as ours; does nothing where it is cordoned.
    async fn cordon(&self, node: &str, by: &NativeWish) -> Result<(), BackendError>;

    /// Asks once for the eviction of each Pod that has to leave. Returns before they have left.
    async fn evict(&self, wish: &DrainWish) -> Result<(), BackendError>;

    /// Uncordons a Node and removes our marks; does nothing where it is not ours.
    async fn uncordon(&self, node: &str, by: &NativeWish) -> Result<(), BackendError>;
}
