//! What keeps the Leases that components of a cluster share for the Nodes that run on servers.

use std::fmt::Debug;

use async_trait::async_trait;

use super::BackendError;
use crate::maintenance::node::{NodeLease, SeenLease};

/// The Leases of the Nodes of one cluster, whatever store keeps the lock and whatever backend
/// drives the servers.
///
/// `us` is the name under which a maintenance holds a Lease.
#[async_trait]
pub trait NodeLeasing: Send + Sync + Debug {
    /// Reads whose a Lease is.
    ///
    /// # Errors
    /// The cluster does not answer, or refuses.
    async fn look(&self, lease: &NodeLease, us: &str) -> Result<SeenLease, BackendError>;

    /// Takes a Lease; does nothing while another component holds it.
    ///
    /// # Errors
    /// As [`look`](Self::look), or the Node is not there.
    async fn take(&self, lease: &NodeLease, us: &str) -> Result<(), BackendError>;

    /// Deletes a Lease; does nothing where it is not ours.
    ///
    /// # Errors
    /// As [`look`](Self::look).
    async fn release(&self, lease: &NodeLease, us: &str) -> Result<(), BackendError>;
}
