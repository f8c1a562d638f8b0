//! The Lease of the Kubernetes Node that runs on a server.

use crate::{
    backend::BackendError,
    maintenance::{
        node::{self, NodeLease, NodeVerb, NodeView},
        spec::Spec,
        state::Maintenance,
        step::Action,
    },
    store::StoreError,
};

use super::{Engine, drive::Drive};

impl Engine {
    /// What a reviewer should know about the Node of a wished server; `None` where it has none.
    pub async fn node_outlook(&self, spec: &Spec) -> Option<String> {
        let spec = self.as_asked_here(spec);
        let wish = spec.node.filter(|_| spec.parent.is_none())?;
        let node = &wish.lease.node;
        let taken = if wish.take { "; its Lease is taken meanwhile" } else { "" };
        Some(match self.store().node(&wish.lease, NodeVerb::Look, "").await {
            Ok(NodeView::Held(by)) => format!("Node: {node}, held by {by}; that is waited for{taken}."),
            Ok(NodeView::Free | NodeView::Ours) => format!("Node: {node}, not held{taken}."),
            Err(error) => format!("Node: {node}; whether it is held was not checked: {error}."),
        })
    }

    /// Gives back the Lease that came with a hold, where that ends without steps.
    pub(super) async fn return_node(&self, record: &Maintenance) {
        let Some(lease) = &record.node.taken else { return };
        if let Err(error) = self.store().node(lease, NodeVerb::Return, &node::identity(record)).await {
            let NodeLease { namespace, node } = lease;
            tracing::warn!(
                "{}: the Lease of Node {node} in namespace {namespace} stays, delete it: {error}",
                record.id
            );
        }
    }

    /// Why the Lease that came with a hold is not ours any more, where that was seen.
    pub(super) async fn node_lost(&self, record: &Maintenance) -> Option<String> {
        let lease = record.node.taken.as_ref()?;
        let node = &lease.node;
        match self.store().node(lease, NodeVerb::Look, &node::identity(record)).await {
            Ok(NodeView::Free) => Some(format!("the Lease of Node {node} is not held: it was deleted")),
            Ok(NodeView::Held(by)) => Some(format!("the Lease of Node {node} is held by {by}")),
            Ok(NodeView::Ours) | Err(_) => None,
        }
    }
}

impl Drive<'_> {
    /// Looks whose the Lease is.
    pub(super) async fn look_node(&mut self) -> Result<(), BackendError> {
        let Some((lease, us)) = self.node() else { return Ok(()) };
        let view = self.engine.store().node(&lease, NodeVerb::Look, &us).await.map_err(of_store)?;
        self.facts.node = Some(view);
        Ok(())
    }

    /// Takes the Lease or gives it back. What came of it is seen by looking.
    pub(super) async fn call_node(&self, action: &Action) -> Result<(), BackendError> {
        let Some((lease, us)) = self.node() else { return Ok(()) };
        let verb = if *action == Action::TakeNode { NodeVerb::Take } else { NodeVerb::Return };
        self.engine.store().node(&lease, verb, &us).await.map(|_| ()).map_err(of_store)
    }

    /// The Lease of the record that is driven, and the name under which it is ours.
    fn node(&self) -> Option<(NodeLease, String)> {
        let record = self.last.as_ref()?;
        let wished = || node::wanted(record).map(|wish| wish.lease.clone());
        Some((record.node.taken.clone().or_else(wished)?, node::identity(record)))
    }
}

fn of_store(error: StoreError) -> BackendError {
    match error {
        StoreError::Unavailable { address, cause } => BackendError::ClusterAway { address, cause },
        error => BackendError::Denied { message: error.to_string() },
    }
}
