//! The Leases of Nodes of the cluster in which the store lies, in the words of a store.

use std::time::Duration;

use super::link::Link;
use crate::{
    kubernetes::{ClusterError, Holder, NodeLeaseError, NodeLeases},
    maintenance::node::{NodeLease, NodeVerb, NodeView},
    store::StoreError,
};

/// For how long one is taken: a Lease counts seconds in 32 bits. A hold has no end that is known, and survives its process,
/// which therefore could not renew the Lease either; it ends when the server is given back.
const NO_END: Duration = Duration::from_secs(i32::MAX as u64);

/// See [`crate::store::Store::node`].
pub(super) async fn node(link: &Link, lease: &NodeLease, verb: NodeVerb, us: &str) -> Result<NodeView, StoreError> {
    let leases = NodeLeases::new(link.cluster.clone(), &lease.namespace);
    let node = &lease.node;
    let done = match verb {
        NodeVerb::Look => leases.observe(node).await.map(|holder| view(holder, us)).map_err(NodeLeaseError::from),
        NodeVerb::Take => leases.take(node, us, NO_END).await.map(|()| NodeView::Ours),
        NodeVerb::Return => leases.release(node, us).await.map(|_| NodeView::Free),
    };
    match done {
        Ok(view) => Ok(view),
        Err(NodeLeaseError::Held { holder, .. }) => Ok(NodeView::Held(holder.to_string())),
        Err(NodeLeaseError::Cluster(error @ ClusterError::NotFound { .. })) => Err(link.faults.forbidden(format!(
            "{error}; node_leases names the Node {node:?} and the namespace {:?}: are they there?",
            lease.namespace
        ))),
        Err(NodeLeaseError::Cluster(error)) => Err(link.faults.cluster(&error)),
    }
}

fn view(holder: Option<Holder>, us: &str) -> NodeView {
    match holder {
        None => NodeView::Free,
        Some(holder) if holder.identity == us => NodeView::Ours,
        Some(holder) if holder.expired => NodeView::Free,
        Some(holder) => NodeView::Held(holder.to_string()),
    }
}
