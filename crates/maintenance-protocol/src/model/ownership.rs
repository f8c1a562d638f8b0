//! A server's owner and its approvals.

use super::approval::Approval;
use super::approval::Claim;
use super::ids::Uid;
use serde::Deserialize;
use serde::Serialize;

/// A server's owner and its approvals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ownership {
    /// The claim, if the server is in use.
    pub claim: Option<Claim>,
    /// The owner's approvals. They end with the claim.
    pub approvals: Vec<Approval>,
}

impl Ownership {
    /// Returns true if neither a claim nor an approval exists.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.claim.is_none() && self.approvals.is_empty()
    }

    /// Returns the approvals as their owners wrote them, without their uses.
    #[must_use]
    pub fn words(&self) -> Vec<Approval> {
        self.approvals.iter().map(|approval| Approval { used_by: None, ..approval.clone() }).collect()
    }

    /// Returns the used approvals, each with the record that used it.
    #[must_use]
    pub fn uses(&self) -> Vec<(Uid, Uid)> {
        let uses = self.approvals.iter().map(|approval| Some((approval.uid.clone(), approval.used_by.clone()?)));
        uses.flatten().collect()
    }

    /// Returns the approval with this UID.
    #[must_use]
    pub fn approval(&self, uid: &Uid) -> Option<&Approval> {
        self.approvals.iter().find(|approval| approval.uid == *uid)
    }
}
