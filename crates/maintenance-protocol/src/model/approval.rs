//! Claims and approvals.

use super::ids::MaintenanceId;
use super::ids::Uid;
use jiff::Timestamp;
use serde::Deserialize;
use serde::Serialize;
use shown_text as shown;
use std::fmt;

/// An owner's hold on a server: it is in use, and whoever needs it asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// This incarnation.
    pub uid: Uid,
    /// Its name.
    pub id: MaintenanceId,
    /// Whose server it is: approvals come from a provider configuration with this `owner`.
    pub owner: String,
    /// Where the owner is reached, for people.
    pub contact: Option<String>,
    /// The server's name in the owner's configuration.
    pub server: String,
    /// Since when, on the store's clock.
    pub since: Timestamp,
    /// Who claimed it, for people.
    pub by: String,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown::line(&self.owner))?;
        match self.contact.as_deref().map(shown::line) {
            Some(contact) => write!(f, " (contact: {contact})"),
            None => Ok(()),
        }
    }
}

/// What an approval allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// One maintenance, exactly as it was specified when it was approved.
    Maintenance {
        /// Its name.
        id: MaintenanceId,
        /// The digest of its specification.
        digest: String,
    },
    /// Everything asked of the claim.
    All,
}

/// An approval of an owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// This incarnation.
    pub uid: Uid,
    /// What it allows.
    pub scope: Scope,
    /// From when on it counts.
    pub not_before: Option<Timestamp>,
    /// Until when it counts.
    pub expires: Option<Timestamp>,
    /// When it was given, on the store's clock.
    pub at: Timestamp,
    /// Who gave it, for people.
    pub by: String,
    /// The incarnation that started with it. An approval of one maintenance is for one run.
    pub used_by: Option<Uid>,
}
