//! What drains the Nodes that run on servers.

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;

use super::BackendError;
use crate::maintenance::{
    drain::{DrainView, DrainWish},
    gate::ExternalRequest,
};

/// A Node that one of our maintenances cordoned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cordon {
    /// The Node's name.
    pub node: String,
    /// The coordination store that knows the maintenance, by its id.
    pub store: String,
    /// The incarnation of the maintenance.
    pub uid: String,
    /// The maintenance, as its own words name it.
    pub id: String,
    /// The command with which a person uncordons the Node.
    pub by_hand: String,
}

impl Cordon {
    /// The words of the maintenance, as far as the Node tells them.
    #[must_use]
    pub fn by(&self) -> ExternalRequest {
        super::wish_of_ended(&self.store, &self.uid)
    }
}

/// What was done to a Node that was to be uncordoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UncordonOutcome {
    /// It is uncordoned, and our annotations are gone.
    Uncordoned,
    /// Only our annotations were removed: the cordon that we set was removed before.
    AnnotationsRemoved {
        /// Whether another author has cordoned it since.
        cordoned: bool,
    },
    /// Nothing: it has no annotation of this maintenance, or is gone.
    Nothing,
}

/// Nodes that run on servers, whatever backend drives those.
///
/// `by` names the maintenance: what one maintenance cordoned, no other uncordons.
#[async_trait]
pub trait NodeDrain: Send + Sync + Debug {
    /// Where they are, for people.
    fn address(&self) -> String;

    /// The command with which a person uncordons a Node.
    fn by_hand(&self, node: &str) -> String;

    /// How a Node is now. With `wish` also its Pods, as far as they matter for a drain.
    async fn look(&self, node: &str, by: &ExternalRequest, wish: Option<&DrainWish>)
    -> Result<DrainView, BackendError>;

    /// Follows a Node for as long as the value lives. Sends no request before it is used.
    fn follow(self: Arc<Self>, node: &str) -> Arc<dyn FollowedNode>;

    /// How a Node is, or was some seconds ago: without its Pods and the last word of its kubelet.
    /// Many of these at once cost a list.
    async fn glance(&self, node: &str, by: &ExternalRequest) -> Result<DrainView, BackendError>;

    /// Cordons a Node and marks it as ours; does nothing where it is cordoned.
    async fn cordon(&self, node: &str, by: &ExternalRequest) -> Result<(), BackendError>;

    /// Asks once for the eviction of each Pod that has to leave. Returns before they have left.
    async fn evict(&self, wish: &DrainWish) -> Result<(), BackendError>;

    /// Uncordons a Node and removes our marks; does nothing where it is not ours.
    async fn uncordon(&self, node: &str, by: &ExternalRequest) -> Result<UncordonOutcome, BackendError>;

    /// Every Node that a maintenance of ours cordoned, of all stores.
    async fn cordons(&self) -> Result<Vec<Cordon>, BackendError>;
}

/// A Node that is followed by watches, while its Pods leave or until it is Ready again.
///
/// It tells only that waiting goes on. What ends a wait is read by [`NodeDrain::look`]: a watch may
/// be late.
#[async_trait]
pub trait FollowedNode: Send + Sync + Debug {
    /// What [`NodeDrain::look`] would show, where that still has to be waited for; `None`: it has
    /// to be read.
    async fn still(&self, by: &ExternalRequest, wish: Option<&DrainWish>) -> Option<DrainView>;

    /// Returns once [`Self::still`] may have ended. Never returns where watching is not possible.
    async fn ended(&self, by: &ExternalRequest, wish: Option<&DrainWish>);
}
