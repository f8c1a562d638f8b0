//! Draining of the Nodes that run on servers.

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;

use super::BackendError;
use crate::maintenance::{
    drain::{DrainView, DrainWish},
    gate::ExternalRequest,
};

/// A Node cordoned for a maintenance of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cordon {
    /// The Node's name.
    pub node: String,
    /// The ID of the coordination store that has the maintenance.
    pub store: String,
    /// The maintenance's incarnation.
    pub uid: String,
    /// The maintenance, as its annotation names it.
    pub id: String,
    /// The command that uncordons the Node.
    pub by_hand: String,
}

impl Cordon {
    /// Returns the maintenance's request, as far as the Node's annotations describe it.
    #[must_use]
    pub fn by(&self) -> ExternalRequest {
        super::wish_of_ended(&self.store, &self.uid)
    }
}

/// The result of uncordoning a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UncordonOutcome {
    /// The Node is uncordoned and our annotations are removed.
    Uncordoned,
    /// Only our annotations were removed, because our cordon no longer existed.
    AnnotationsRemoved {
        /// True if another author has cordoned the Node since.
        cordoned: bool,
    },
    /// Nothing changed: the Node lacks this maintenance's annotations, or no longer exists.
    Nothing,
}

/// Access to the Nodes that run on servers of any backend.
///
/// `by` identifies the maintenance. A maintenance uncordons only the Nodes that it cordoned.
#[async_trait]
pub trait NodeDrain: Send + Sync + Debug {
    /// Returns the cluster's address for messages.
    fn address(&self) -> String;

    /// Returns the command that uncordons a Node.
    fn by_hand(&self, node: &str) -> String;

    /// Reads a Node's state. With `wish`, the result includes the Pods that affect the drain.
    async fn look(&self, node: &str, by: &ExternalRequest, wish: Option<&DrainWish>)
    -> Result<DrainView, BackendError>;

    /// Watches a Node while the returned value lives. Sends no request before its first use.
    fn follow(self: Arc<Self>, node: &str) -> Arc<dyn FollowedNode>;

    /// Reads a Node's state, which can be some seconds old, without its Pods or kubelet heartbeat.
    /// Many concurrent calls share one list request.
    async fn glance(&self, node: &str, by: &ExternalRequest) -> Result<DrainView, BackendError>;

    /// Cordons a Node and annotates it as ours; does nothing if it is already cordoned.
    async fn cordon(&self, node: &str, by: &ExternalRequest) -> Result<(), BackendError>;

    /// Requests eviction of each Pod that must leave. Returns before the Pods have left.
    async fn evict(&self, wish: &DrainWish) -> Result<(), BackendError>;

    /// Uncordons a Node and removes our annotations; does nothing if it is not ours.
    async fn uncordon(&self, node: &str, by: &ExternalRequest) -> Result<UncordonOutcome, BackendError>;

    /// Lists every Node cordoned for our maintenances, in all stores.
    async fn cordons(&self) -> Result<Vec<Cordon>, BackendError>;
}

/// A watched Node, while its Pods leave or until it is Ready again.
///
/// A watch can lag, so it can only prolong a wait. [`NodeDrain::look`] decides that a wait has
/// ended.
#[async_trait]
pub trait FollowedNode: Send + Sync + Debug {
    /// Returns the current view if the wait must continue; `None` if the caller must call
    /// [`NodeDrain::look`].
    async fn still(&self, by: &ExternalRequest, wish: Option<&DrainWish>) -> Option<DrainView>;

    /// Returns when [`Self::still`] could have ended. Never returns if watching is not possible.
    async fn ended(&self, by: &ExternalRequest, wish: Option<&DrainWish>);
}
