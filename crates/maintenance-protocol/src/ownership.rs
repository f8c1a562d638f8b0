//! Claims and approvals of a server, and their transitions.

pub use super::model::ownership::Ownership;

use jiff::Timestamp;

use super::{
    ids::{MaintenanceId, Uid},
    model::{
        approval::{Approval, Claim, Scope},
        lock::{AuditEvent, Refusal, ServerLock},
    },
};

impl Claim {
    /// Checks that this owner can change the claim and approve for it.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotTheOwner`].
    pub fn allows_owner(&self, owner: &str) -> Result<(), Refusal> {
        if self.owner == owner {
            return Ok(());
        }
        Err(Refusal::NotTheOwner { claim: Box::new(self.clone()), asked: owner.to_owned() })
    }
}

impl ServerLock {
    fn note(&mut self, now: Timestamp, id: &MaintenanceId, uid: &Uid, by: &str, what: &str, detail: String) {
        let generation = self.generation;
        self.events.push(AuditEvent {
            at: now,
            id: id.clone(),
            uid: uid.clone(),
            generation,
            by: by.into(),
            what: what.into(),
            detail: detail.into(),
        });
    }

    /// Claims the server, or updates a claim with the same name and owner. Returns the claim's UID.
    pub fn claim(&mut self, claim: Claim, now: Timestamp) -> Result<Uid, Refusal> {
        if let Some(found) = &self.ownership.claim {
            if found.id != claim.id || found.owner != claim.owner {
                return Err(Refusal::Claimed { claim: Box::new(found.clone()) });
            }
            let kept = Claim { uid: found.uid.clone(), since: found.since, ..claim };
            let uid = kept.uid.clone();
            self.ownership.claim = Some(kept);
            return Ok(uid);
        }
        let uid = claim.uid.clone();
        self.note(now, &claim.id, &claim.uid, claim.by.raw(), "claimed", format!("for {claim}"));
        self.ownership.claim = Some(claim);
        Ok(uid)
    }

    /// Ends an owner's claim; see [`Self::unclaim`].
    ///
    /// # Errors
    ///
    /// [`Refusal::NotTheOwner`] if another owner owns the claim.
    pub fn unclaim_for(&mut self, uid: &Uid, owner: &str, by: &str, now: Timestamp) -> Result<bool, Refusal> {
        if let Some(claim) = self.ownership.claim.as_ref().filter(|claim| claim.uid == *uid) {
            claim.allows_owner(owner)?;
        }
        Ok(self.unclaim(uid, by, now))
    }

    /// Withdraws an approval for the claim's owner; see [`Self::withdraw_approval`].
    ///
    /// # Errors
    ///
    /// [`Refusal::NotTheOwner`] if another owner owns the claim.
    pub fn withdraw_approval_for(&mut self, uid: &Uid, owner: &str, by: &str, now: Timestamp) -> Result<bool, Refusal> {
        if let (Some(claim), Some(_)) = (&self.ownership.claim, self.ownership.approval(uid)) {
            claim.allows_owner(owner)?;
        }
        Ok(self.withdraw_approval(uid, by, now))
    }

    /// Ends a claim and its approvals. Returns `false` if the claim does not exist.
    pub fn unclaim(&mut self, uid: &Uid, by: &str, now: Timestamp) -> bool {
        let Some(claim) = self.ownership.claim.take_if(|claim| claim.uid == *uid) else { return false };
        self.ownership.approvals.clear();
        self.note(now, &claim.id, uid, by, "unclaimed", String::new());
        true
    }

    /// Stores an approval. `owner` is the approving owner, and must own the claim.
    ///
    /// It replaces an approval with the same scope.
    pub fn approve(&mut self, approval: Approval, owner: &str, now: Timestamp) -> Result<(), Refusal> {
        let claim = self.ownership.claim.clone().ok_or(Refusal::NotClaimed)?;
        claim.allows_owner(owner)?;
        let (about, detail) = match &approval.scope {
            Scope::Maintenance { id, digest } => (id.clone(), format!("as specified by {digest}")),
            Scope::All => (claim.id.clone(), "all maintenance of the claim".to_owned()),
        };
        self.note(now, &about, &approval.uid, approval.by.raw(), "approved", detail);
        self.ownership.approvals.retain(|other| other.uid != approval.uid && !same_scope(other, &approval));
        self.ownership.approvals.push(approval);
        Ok(())
    }

    /// Withdraws an approval. Started maintenances continue. Returns `false` if it does not exist.
    pub fn withdraw_approval(&mut self, uid: &Uid, by: &str, now: Timestamp) -> bool {
        let Some(at) = self.ownership.approvals.iter().position(|approval| approval.uid == *uid) else { return false };
        let approval = self.ownership.approvals.remove(at);
        let about = match (&approval.scope, &self.ownership.claim) {
            (Scope::Maintenance { id, .. }, _) => id.clone(),
            (Scope::All, Some(claim)) => claim.id.clone(),
            (Scope::All, None) => return true,
        };
        self.note(now, &about, uid, by, "approval withdrawn", String::new());
        true
    }
}

/// Approvals of the same name replace each other even for different digests.
fn same_scope(one: &Approval, other: &Approval) -> bool {
    match (&one.scope, &other.scope) {
        (Scope::All, Scope::All) => true,
        (Scope::Maintenance { id: one, .. }, Scope::Maintenance { id: other, .. }) => one == other,
        _ => false,
    }
}
