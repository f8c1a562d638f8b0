//! Claims and approvals: who owns a server, and what the owner allows.

use jiff::Timestamp;
use uuid::Uuid;

use crate::{
    maintenance::{
        aliases::Alias,
        approval::{Approval, Claim, Scope},
        ids::{LockKey, MaintenanceId, Uid},
        lock::Refusal,
    },
    store::{LockView, RecordLookup},
};

use super::{Engine, EngineError};

/// What somebody claims.
#[derive(Clone, Debug)]
pub struct ClaimWish {
    /// The claim's name.
    pub id: MaintenanceId,
    /// The server's name in the configuration.
    pub server: String,
    /// Where the owner is reached.
    pub contact: Option<String>,
}

/// What an owner allows.
#[derive(Clone, Debug)]
pub struct ApprovalWish {
    /// One maintenance, or everything when there is none.
    pub maintenance: Option<MaintenanceId>,
    /// The specification that is meant; `None` means the one that is asked for now.
    pub digest: Option<String>,
    /// From when on.
    pub not_before: Option<Timestamp>,
    /// Until when.
    pub expires: Option<Timestamp>,
}

impl Engine {
    /// Claims a server for the provider's owner. Returns where it is kept, and the claim.
    pub async fn claim(&self, wish: &ClaimWish) -> Result<(LockKey, Claim), EngineError> {
        let server = self.identify(&wish.server).await?;
        let key = server.key.clone();
        let fresh = Uid(Uuid::now_v7().to_string());
        let mut made = None;
        self.store()
            .transact(&key, &mut |lock, _, now| {
                lock.keeps(&server.claims)?;
                lock.claim(
                    Claim {
                        uid: fresh.clone(),
                        id: wish.id.clone(),
                        owner: self.owner().to_owned(),
                        contact: wish.contact.clone(),
                        server: wish.server.clone(),
                        since: now,
                        by: self.runner().to_string(),
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

    /// Gives a claim of the provider's owner up. `false` when it was not in force any more.
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

    /// Everything about a machine.
    pub async fn view(&self, key: &LockKey) -> Result<LockView, EngineError> {
        Ok(self.store().view(key).await?)
    }

    /// Gives the provider's owner's approval on a machine. Without a digest the maintenance must be
    /// asked for now.
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
                        let digest = wish.digest.clone().or(asked).ok_or(Refusal::Gone)?;
                        Scope::Maintenance { id: id.clone(), digest }
                    }
                };
                let approval = Approval {
                    uid: uid.clone(),
                    scope,
                    not_before: wish.not_before,
                    expires: wish.expires,
                    at: now,
                    by: format!("{} ({})", self.owner(), self.runner()),
                    used_by: None,
                };
                made = Some(approval.clone());
                lock.approve(approval, self.owner(), now)
            })
            .await?;
        made.ok_or_else(|| EngineError::LeaseLost("the store applied no transition".to_owned()))
    }

    /// Withdraws an approval of the provider's owner. What has started goes on. `false` when it was
    /// not there any more.
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

    /// Every machine that somebody claimed or asked for, in one read of the store.
    pub async fn views(&self) -> Result<Vec<LockView>, EngineError> {
        Ok(self.store().view_all().await?)
    }

    /// A maintenance by name, active or over; `None` when this store never knew it.
    pub async fn known(&self, id: &MaintenanceId) -> Result<Option<RecordLookup>, EngineError> {
        Ok(self.store().find(id).await?)
    }
}
