//! Leases of Kubernetes Nodes.

use std::sync::Arc;

use crate::{
    backend::{BackendError, NodeLeasing},
    maintenance::{
        node::{self, NodeLease, NodeView, SeenLease},
        spec::Spec,
        state::{Maintenance, Progress},
        step::{Action, Step},
    },
};

use super::{Engine, drive::Reconciler};

impl Engine {
    /// Describes a server's Node for a reviewer; `None` without a Node.
    pub async fn node_outlook(&self, spec: &Spec) -> Option<String> {
        let spec = self.as_asked_here(spec);
        let wish = spec.node.filter(|_| spec.parent.is_none())?;
        let node = &wish.lease.node;
        let taken = if wish.take { "; its Lease is taken for the maintenance" } else { "" };
        let leases = self.leasing(spec.server.shown()).ok()?;
        Some(match leases.look(&wish.lease, "").await.map(|seen| seen.view) {
            Ok(NodeView::Held(by)) => format!("Node: {node}, held by {by}; apply waits for that{taken}."),
            Ok(NodeView::Free | NodeView::Ours) => format!("Node: {node}, not held{taken}."),
            Err(error) => format!("Node: {node}; its holder was not checked: {error}."),
        })
    }

    /// Releases the Node Lease of a maintenance that ends without steps.
    pub(super) async fn return_node(&self, record: &Maintenance) {
        let Some(lease) = &record.node.taken else { return };
        if let Err(why) = self.release_node(record, lease).await {
            let NodeLease { namespace, node } = lease;
            tracing::warn!("{}: the Lease of Node {node} in namespace {namespace} stays, delete it: {why}", record.id);
        }
    }

    async fn release_node(&self, record: &Maintenance, lease: &NodeLease) -> Result<(), String> {
        let shown = |error: BackendError| error.to_string();
        let (leases, us) = (self.leasing(record.server()).map_err(shown)?, node::identity(record));
        let seen = leases.look(lease, &us).await.map_err(shown)?;
        if let Some(cluster) = record.node.elsewhere(&seen) {
            return Err(format!(
                "it is in another cluster (kube-system {cluster}), which this configuration does not reach"
            ));
        }
        leases.release(lease, &us).await.map_err(shown)
    }

    fn leasing(&self, server: &str) -> Result<&Arc<dyn NodeLeasing>, BackendError> {
        self.parts.nodes.leasing.as_ref().ok_or_else(|| BackendError::Unsupported {
            address: server.into(),
            what: "the Lease of its Node was taken through node_leases, which this configuration does not have".into(),
        })
    }

    /// Returns the reason if another component has taken the maintenance's Node Lease.
    ///
    /// # Errors
    /// The Lease cannot be read.
    pub(super) async fn node_lost(&self, record: &Maintenance) -> Result<Option<String>, BackendError> {
        let (Some(lease), Ok(leases)) = (&record.node.taken, self.leasing(record.server())) else { return Ok(None) };
        let seen = leases.look(lease, &node::identity(record)).await;
        let seen = seen.map_err(|cause| of_lease(record, lease.node.shown(), cause))?;
        Ok(node::lost(record, &seen).map(|why| format!("the Lease of Node {} {why}", lease.node)))
    }
}

/// Returns a cluster error that names the Node and the maintenance.
fn of_lease(record: &Maintenance, node: &str, cause: BackendError) -> BackendError {
    let id = &record.id;
    let what = match record.phase.progress().and_then(Progress::step) {
        Some(Step::ReturnNode) => {
            format!("the server is restored, but the Lease of Node {node} could still belong to {id}")
        }
        _ => format!("the Lease of Node {node}, for {id}"),
    };
    BackendError::Node { what: what.into(), block: "node_leases", cause: Box::new(cause) }
}

impl Reconciler<'_> {
    /// Reads the Lease; for a child record, the parent's Lease.
    pub(super) async fn look_node(&mut self) -> Result<(), BackendError> {
        if self.record().is_some_and(|record| record.spec.parent.is_some()) {
            return self.look_node_of_holder().await;
        }
        let Some((lease, us)) = self.node() else { return Ok(()) };
        let seen = self.engine.leasing(lease.node.shown())?.look(&lease, &us).await;
        self.facts.node = Some(seen.map_err(|cause| self.of_lease(&lease, cause))?);
        Ok(())
    }

    async fn look_node_of_holder(&mut self) -> Result<(), BackendError> {
        let Some(holder) = self.holder() else { return Ok(()) };
        let Some(lease) = &holder.node.taken else { return Ok(()) };
        self.facts.node = Some(match &self.engine.parts.nodes.leasing {
            Some(leases) => {
                let seen = leases.look(lease, &node::identity(holder)).await;
                seen.map_err(|cause| of_lease(holder, lease.node.shown(), cause))?
            }
            // A child record does not need access to its parent's cluster, so an unread Lease
            // blocks nothing.
            None => SeenLease { cluster: None, view: NodeView::Ours },
        });
        Ok(())
    }

    /// Takes or deletes the Lease. The next read shows the result.
    pub(super) async fn call_node(&self, action: &Action) -> Result<(), BackendError> {
        let Some((lease, us)) = self.node() else { return Ok(()) };
        let leases = self.engine.leasing(lease.node.shown())?;
        let take = *action == Action::TakeNode;
        let called = if take { leases.take(&lease, &us).await } else { leases.release(&lease, &us).await };
        called.map_err(|cause| self.of_lease(&lease, cause))
    }

    fn of_lease(&self, lease: &NodeLease, cause: BackendError) -> BackendError {
        match self.record() {
            Some(record) => of_lease(record, lease.node.shown(), cause),
            None => cause,
        }
    }

    /// Returns the driven record's Lease and our holder identity.
    fn node(&self) -> Option<(NodeLease, String)> {
        let record = self.last.as_ref()?;
        let wished = || node::wanted(record).map(|wish| wish.lease.clone());
        Some((record.node.taken.clone().or_else(wished)?, node::identity(record)))
    }
}
