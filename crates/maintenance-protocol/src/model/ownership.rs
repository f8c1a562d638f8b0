//! Who owns a server, and what that owner allowed.

use super::approval::Approval;
use super::approval::Claim;
use super::ids::Uid;
use serde::Deserialize;
use serde::Serialize;

/// Who owns a server, and what that owner allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ownership {
    /// The claim, if the server is in use.
    pub claim: Option<Claim>,
    /// The owner's approvals. They end with the claim.
    pub approvals: Vec<Approval>,
}

impl Ownership {
    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.claim.is_none() && self.approvals.is_empty()
    }

    /// The approvals as their owners wrote them, without what runs made of them.
    #[must_use]
    pub fn words(&self) -> Vec<Approval> {
        self.approvals.iter().map(|approval| Approval { used_by: None, ..approval.clone() }).collect()
    }

    /// Which run started with which approval.
    #[must_use]
    pub fn uses(&self) -> Vec<(Uid, Uid)> {
        let uses = self.approvals.iter().map(|approval| Some((approval.uid.clone(), approval.used_by.clone()?)));
        uses.flatten().collect()
    }

    /// One approval.
    #[must_use]
    pub fn approval(&self, uid: &Uid) -> Option<&Approval> {
        self.approvals.iter().find(|approval| approval.uid == *uid)
    }
}
