//! Claims and approvals.

use super::ids::MaintenanceId;
use super::ids::Uid;
use jiff::Timestamp;
use serde::Deserialize;
use serde::Serialize;
use shown_text::OneLine;
use std::fmt;

/// An owner's declaration that a server is in use and that maintenances need approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// UID of this claim.
    pub uid: Uid,
    /// Name of the claim.
    pub id: MaintenanceId,
    /// The server's owner. Approvals must come from a provider configuration with this `owner`.
    pub owner: OneLine,
    /// How to contact the owner, for people.
    pub contact: Option<OneLine>,
    /// The server's name in the owner's configuration.
    pub server: OneLine,
    /// Start of the claim, on the store's clock.
    pub since: Timestamp,
    /// Author of the claim, for people.
    pub by: OneLine,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.contact {
            Some(contact) => write!(f, "{} (contact: {contact})", self.owner),
            None => write!(f, "{}", self.owner),
        }
    }
}

/// Scope of an approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// One maintenance, with exactly the approved specification.
    Maintenance {
        /// Name of the maintenance.
        id: MaintenanceId,
        /// Digest of its specification.
        digest: OneLine,
    },
    /// Every maintenance on the claimed server.
    All,
}

/// An owner's approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// UID of this approval.
    pub uid: Uid,
    /// Scope of the approval.
    pub scope: Scope,
    /// Start of validity.
    pub not_before: Option<Timestamp>,
    /// End of validity.
    pub expires: Option<Timestamp>,
    /// When the owner approved, on the store's clock.
    pub at: Timestamp,
    /// Author of the approval, for people.
    pub by: OneLine,
    /// The record that started with this approval. A `Maintenance` approval covers one run.
    pub used_by: Option<Uid>,
}
