//! A maintenance's access to the Nodes' Leases.

use std::time::Duration;

use async_trait::async_trait;

use crate::{
    kubernetes::{ClusterError, Holder, NodeLeaseError, NodeLeases},
    maintenance::node::{NodeLease, NodeView, SeenLease},
    shown::OneLine,
};

use crate::backend::{BackendError, NodeLeasing, before_change};

use super::{KubernetesNodes, meaning};

/// A Lease's duration, the maximum for its 32-bit seconds. A maintenance's end is unknown, and
/// the lock survives its process, which then could not renew the Lease. Release ends the Lease.
const NO_END: Duration = Duration::from_secs(i32::MAX as u64);

impl KubernetesNodes {
    fn leases(&self, lease: &NodeLease) -> NodeLeases {
        NodeLeases::new(self.cluster.clone(), lease.namespace.raw())
    }
}

#[async_trait]
impl NodeLeasing for KubernetesNodes {
    async fn look(&self, lease: &NodeLease, us: &str) -> Result<SeenLease, BackendError> {
        let cluster = self.uid().await?;
        let view = match self.leases(lease).observe(lease.node.raw()).await.map_err(meaning)? {
            None => NodeView::Free,
            Some(Holder { identity, .. }) if identity == us => NodeView::Ours,
            Some(holder) if holder.expired => NodeView::Free,
            Some(holder) => NodeView::Held(holder.to_string().into()),
        };
        Ok(SeenLease { cluster: cluster.map(OneLine::from), view })
    }

    async fn take(&self, lease: &NodeLease, us: &str) -> Result<(), BackendError> {
        before_change(&format!("take the Lease of Node {}", lease.node)).await?;
        done(lease, self.leases(lease).take(lease.node.raw(), us, NO_END).await)
    }

    async fn release(&self, lease: &NodeLease, us: &str) -> Result<(), BackendError> {
        before_change(&format!("delete the Lease of Node {}", lease.node)).await?;
        done(lease, self.leases(lease).release(lease.node.raw(), us).await.map(drop))
    }
}

/// Ignores a Lease that another component holds: the next look reports it.
fn done(lease: &NodeLease, result: Result<(), NodeLeaseError>) -> Result<(), BackendError> {
    let NodeLease { namespace, node } = lease;
    match result {
        Ok(()) | Err(NodeLeaseError::Held { .. }) => Ok(()),
        Err(NodeLeaseError::Cluster(ClusterError::NotFound { address, request })) => Err(BackendError::Missing {
            address,
            what: format!(
                "{request}: not found; check that the Node {node:?} and the namespace {namespace:?} of node_leases \
                 exist"
            )
            .into(),
        }),
        Err(NodeLeaseError::Cluster(error)) => Err(meaning(error)),
    }
}
