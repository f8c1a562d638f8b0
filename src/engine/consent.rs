//! Claims and approvals by server owners.

use jiff::Timestamp;
use uuid::Uuid;

use crate::{
    maintenance::{
        aliases::Alias,
        approval::{Approval, Claim, Scope},
        ids::{LockKey, MaintenanceId, Uid},
        lock::Refusal,
    },
    shown::OneLine,
    store::{LockView, RecordLookup},
};

use super::{Engine, EngineError};

/// A claim to create.
#[derive(Clone, Debug)]
pub struct ClaimWish {
    /// The claim's name.
    pub id: MaintenanceId,
    /// The server's name in the configuration.
    pub server: String,
    /// How to reach the owner.
    pub contact: Option<String>,
}

/// An approval to create.
#[derive(Clone, Debug)]
pub struct ApprovalWish {
    /// The approved maintenance; `None` approves all.
    pub maintenance: Option<MaintenanceId>,
    /// Digest of the approved specification; `None`: the pending request's.
    pub digest: Option<String>,
    /// Start of the approval.
    pub not_before: Option<Timestamp>,
    /// End of the approval.
    pub expires: Option<Timestamp>,
}

impl Engine {
    /// Claims a server for the provider's owner. Returns the lock key and the claim.
    pub async fn claim(&self, wish: &ClaimWish) -> Result<(LockKey, Claim), EngineError> {
        let server = self.identify(&wish.server).await?;
        let key = server.key.clone();
        let fresh = Uid::new(Uuid::now_v7().to_string());
        let mut made = None;
        self.store()
            .transact(&key, &mut |lock, _, now| {
                lock.keeps(&server.claims)?;
                lock.claim(
                    Claim {
                        uid: fresh.clone(),
                        id: wish.id.clone(),
                        owner: self.owner().into(),
                        contact: wish.contact.as_ref().map(OneLine::from),
                        server: wish.server.as_str().into(),
                        since: now,
                        by: self.runner().to_string().into(),
                    },
                    now,
                )?;
                made.clone_from(&lock.ownership.claim);
                Ok(())
            })
            .await?;
        let claim = made.ok_or_else(|| EngineError::LeaseLost("the store applied no transition".to_owned()))?;
        if !self.claim_fresh(&server).await? {
            self.unclaim(&key, &claim.uid).await?;
            let alias = server.fresh.into_iter().next().unwrap_or_else(|| Alias::name(&self.bound_name(&wish.server)));
            return Err(Refusal::AliasMoved { alias }.into());
        }
        Ok((key, claim))
    }

    /// Deletes the provider owner's claim. Returns false if it no longer existed.
    pub async fn unclaim(&self, key: &LockKey, uid: &Uid) -> Result<bool, EngineError> {
        let mut gone = false;
        self.store()
            .transact(key, &mut |lock, _, now| {
                gone = lock.unclaim_for(uid, self.owner(), &self.runner().to_string(), now)?;
                Ok(())
            })
            .await?;
        Ok(gone)
    }

    /// Returns everything stored about a lock.
    pub async fn view(&self, key: &LockKey) -> Result<LockView, EngineError> {
        Ok(self.store().view(key).await?)
    }

    /// Records an approval by the provider's owner. Without a digest, the maintenance must be
    /// active.
    pub async fn approve(&self, key: &LockKey, uid: &Uid, wish: &ApprovalWish) -> Result<Approval, EngineError> {
        let mut made = None;
        self.store()
            .transact(key, &mut |lock, _, now| {
                let scope = match &wish.maintenance {
                    None => Scope::All,
                    Some(id) => {
                        let asks = lock.active.iter().find(|record| record.id == *id);
                        let asked = asks
                            .map(|found| found.awaiting_consent().map_or(found.digest.clone(), |it| it.digest.clone()));
                        let digest = wish.digest.clone().or(asked.map(OneLine::into_raw)).ok_or(Refusal::Gone)?;
                        Scope::Maintenance { id: id.clone(), digest: digest.into() }
                    }
                };
                let approval = Approval {
                    uid: uid.clone(),
                    scope,
                    not_before: wish.not_before,
                    expires: wish.expires,
                    at: now,
                    by: format!("{} ({})", self.owner(), self.runner()).into(),
                    used_by: None,
                };
                made = Some(approval.clone());
                lock.approve(approval, self.owner(), now)
            })
            .await?;
        made.ok_or_else(|| EngineError::LeaseLost("the store applied no transition".to_owned()))
    }

    /// Withdraws an approval by the provider's owner; a started maintenance continues. Returns
    /// false if it no longer existed.
    pub async fn withdraw_approval(&self, key: &LockKey, uid: &Uid) -> Result<bool, EngineError> {
        let mut gone = false;
        self.store()
            .transact(key, &mut |lock, _, now| {
                gone = lock.withdraw_approval_for(uid, self.owner(), &self.runner().to_string(), now)?;
                Ok(())
            })
            .await?;
        Ok(gone)
    }

    /// Returns all locks in a single store read.
    pub async fn views(&self) -> Result<Vec<LockView>, EngineError> {
        Ok(self.store().view_all().await?)
    }

    /// Returns a maintenance by name, active or ended; `None` if the store does not contain it.
    pub async fn known(&self, id: &MaintenanceId) -> Result<Option<RecordLookup>, EngineError> {
        Ok(self.store().find(id).await?)
    }
}
