//! Leases that cluster components share for the Nodes that run on servers.

use std::fmt::Debug;

use async_trait::async_trait;

use super::BackendError;
use crate::maintenance::node::{NodeLease, SeenLease};

/// The Node Leases of one cluster, independent of lock store and backend.
///
/// `us` is the holder name of a maintenance.
#[async_trait]
pub trait NodeLeasing: Send + Sync + Debug {
    /// Reads a Lease's holder.
    ///
    /// # Errors
    /// The cluster does not answer, or rejects the request.
    async fn look(&self, lease: &NodeLease, us: &str) -> Result<SeenLease, BackendError>;

    /// Acquires a Lease; does nothing while another component holds it.
    ///
    /// # Errors
    /// As [`look`](Self::look), or the Node does not exist.
    async fn take(&self, lease: &NodeLease, us: &str) -> Result<(), BackendError>;

    /// Deletes a Lease; does nothing if it is not ours.
    ///
    /// # Errors
    /// As [`look`](Self::look).
    async fn release(&self, lease: &NodeLease, us: &str) -> Result<(), BackendError>;
}
