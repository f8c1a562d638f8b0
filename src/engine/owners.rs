//! Claims and approvals in the servers' own maintenance system.

use std::time::Duration;

use jiff::Timestamp;

use crate::{
    backend::{
        ApprovalMarkRef, BackendError, Binding, ExternalClaim, ExternalClaimView, ExternalOwnership, ExternalWaiter,
    },
    maintenance::{
        approval::{self, Claim, PendingMaintenance},
        ids::{LockKey, Uid},
        lock::Refusal,
        model::ownership::Ownership,
        spec::Policy,
    },
    shown::OneLine,
    store::LockView,
};

use super::{Control, Engine, EngineError};

/// Longest pause between two reads.
const PAUSE: Duration = Duration::from_millis(500);

/// How long a conflicting change is retried.
const PATIENCE: Duration = Duration::from_secs(30);

/// Result of a claim.
#[derive(Clone, Debug)]
pub enum Claimed {
    /// The server is bound to the claim.
    Bound(Box<ExternalClaimView>),
    /// The claim is impossible, for this reason, and was deleted.
    Refused(String),
    /// The claim timed out, for this reason, and was deleted.
    TimedOut(String),
    /// The process was stopped, and the claim was deleted.
    Interrupted,
}

impl Engine {
    /// Returns the claims and approvals of the servers' own maintenance system; `None` if the
    /// coordination store keeps them.
    #[must_use]
    pub fn ownership(&self) -> Option<&dyn ExternalOwnership> {
        self.parts.backend.ownership()
    }

    /// Returns a lock's claim and approvals from the coordination store; `None` if the external
    /// system keeps them.
    #[must_use]
    pub fn kept_ownership<'a>(&self, view: &'a LockView) -> Option<&'a Ownership> {
        self.ownership().is_none().then_some(&view.lock.ownership)
    }

    /// Creates a claim and waits for its server.
    pub async fn bring_claim(
        &self,
        there: &dyn ExternalOwnership,
        wanted: &ExternalClaim,
        control: &Control,
    ) -> Result<Claimed, EngineError> {
        let deadline = self.parts.clock.monotonic() + control.timeout;
        let (id, server) = (wanted.id(), wanted.server.as_str());
        let (mut made, mut said) = (false, String::new());
        loop {
            let step = async {
                let binding = there.binding(&id, server, &wanted.tolerations).await?;
                // Other clients can read the claim, so create it only if it can succeed.
                if !made && !matches!(binding, Binding::Impossible(_)) {
                    there.claim(wanted, None).await?;
                    return Ok(None);
                }
                Ok(Some(binding))
            };
            let why = match step.await {
                Ok(None) => {
                    made = true;
                    continue;
                }
                Ok(Some(Binding::Bound)) => {
                    if let Some(view) = there.claim_view(&id, true).await? {
                        return Ok(Claimed::Bound(Box::new(view)));
                    }
                    "the claim to exist".to_owned()
                }
                Ok(Some(Binding::Impossible(why))) => {
                    if made {
                        self.delete_failed_claim(there, &id).await;
                    }
                    return Ok(Claimed::Refused(why));
                }
                Ok(Some(Binding::Waiting(why))) => why,
                Err(error) if BackendError::is_transient(&error) => format!("the cluster: {error}"),
                Err(error) => return Err(error.into()),
            };
            if why != said {
                tracing::info!("claim {id} on {server}: waiting for {why}");
                said.clone_from(&why);
            }
            let over = self.parts.clock.monotonic() >= deadline;
            if over || control.stop.is_cancelled() {
                if made {
                    self.delete_failed_claim(there, &id).await;
                }
                return Ok(if over { Claimed::TimedOut(why) } else { Claimed::Interrupted });
            }
            self.pause(there, control).await;
        }
    }

    /// Updates an existing claim.
    pub async fn change_claim(
        &self,
        there: &dyn ExternalOwnership,
        wanted: &ExternalClaim,
        uid: &Uid,
    ) -> Result<Option<ExternalClaimView>, EngineError> {
        self.owns_claim(there, &wanted.id()).await?;
        self.retry_conflicts(|| there.claim(wanted, Some(uid.raw()))).await?;
        Ok(there.claim_view(&wanted.id(), true).await?)
    }

    /// Rejects changes to another owner's claim. A claim without an owner is not from this
    /// provider.
    pub async fn owns_claim(&self, there: &dyn ExternalOwnership, id: &str) -> Result<(), EngineError> {
        let Some(claim) = there.claim_view(id, true).await? else { return Ok(()) };
        let server = claim.server.clone().unwrap_or_default();
        Ok(Self::as_claim(&claim, &server).map_or(Ok(()), |claim| claim.allows_owner(self.owner()))?)
    }

    /// Converts a cluster's claim with an owner into the store's form.
    fn as_claim(claim: &ExternalClaimView, server: &str) -> Option<Claim> {
        let owner = claim.owner.clone()?;
        Some(Claim {
            uid: Uid::new(claim.uid.clone()),
            id: claim.id.parse().ok()?,
            contact: claim.contact.clone(),
            server: server.into(),
            since: moment(claim.since.as_deref()),
            by: owner.clone(),
            owner,
        })
    }

    /// Deletes a failed claim, so that it does not block others.
    async fn delete_failed_claim(&self, there: &dyn ExternalOwnership, id: &str) {
        let gone = self.retry_conflicts(|| async {
            match there.claim_view(id, true).await? {
                Some(claim) if claim.owner.as_ref().is_some_and(|owner| *owner == *self.owner()) => {
                    there.unclaim(id, &claim.uid).await
                }
                _ => Ok(()),
            }
        });
        if let Err(error) = gone.await {
            tracing::warn!(%error, "the claim {id} could not be deleted; delete it by hand");
        }
    }

    /// Deletes a claim and waits until the server is free. Returns the blocker if the time limit
    /// ends first.
    pub async fn give_up_claim(
        &self,
        there: &dyn ExternalOwnership,
        id: &str,
        uid: &Uid,
        server: &str,
        control: &Control,
    ) -> Result<Option<String>, EngineError> {
        let deadline = self.parts.clock.monotonic() + control.timeout;
        self.owns_claim(there, id).await?;
        self.retry_conflicts(|| there.unclaim(id, uid.raw())).await?;
        loop {
            let why = match there.kept(id, uid.raw(), server).await {
                Ok(None) => return Ok(None),
                Ok(Some(why)) => why,
                Err(error) if error.is_transient() => format!("the cluster: {error}"),
                Err(error) => return Err(error.into()),
            };
            if self.parts.clock.monotonic() >= deadline || control.stop.is_cancelled() {
                return Ok(Some(why));
            }
            self.pause(there, control).await;
        }
    }

    async fn pause(&self, there: &dyn ExternalOwnership, control: &Control) {
        tokio::select! {
            () = there.changed() => {}
            () = self.parts.clock.sleep(PAUSE) => {}
            () = control.stop.cancelled() => {}
        }
    }

    /// Returns the server's claim, unless it belongs to another owner.
    pub async fn claim_on(
        &self,
        there: &dyn ExternalOwnership,
        server: &str,
    ) -> Result<ExternalClaimView, EngineError> {
        let claim = there.state(server, true).await?.claim.ok_or(Refusal::NotClaimed)?;
        let claim = there.claim_view(&claim, true).await?.ok_or(Refusal::NotClaimed)?;
        if let Some(claim) = Self::as_claim(&claim, server) {
            claim.allows_owner(self.owner())?;
        }
        Ok(claim)
    }

    /// Writes an approval.
    pub async fn write_approval(
        &self,
        there: &dyn ExternalOwnership,
        word: &ApprovalMarkRef,
    ) -> Result<(), EngineError> {
        self.retry_conflicts(|| there.approve(word)).await
    }

    /// Removes an approval.
    pub async fn remove_approval(
        &self,
        there: &dyn ExternalOwnership,
        word: &ApprovalMarkRef,
    ) -> Result<(), EngineError> {
        self.retry_conflicts(|| there.withdraw(word)).await
    }

    /// Retries a change to one object after a conflict or a lost reply. Each try reads the object
    /// first.
    async fn retry_conflicts<F>(&self, change: impl Fn() -> F) -> Result<(), EngineError>
    where
        F: Future<Output = Result<(), BackendError>>,
    {
        let until = self.parts.clock.monotonic() + PATIENCE;
        loop {
            match change().await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_transient() && self.parts.clock.monotonic() < until => {
                    tracing::debug!(%error, "trying again");
                    self.parts.clock.sleep(Duration::from_millis(100)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns pending requests for a server, from the coordination store and from the external
    /// system.
    pub async fn asked_there(
        &self,
        there: &dyn ExternalOwnership,
        server: &str,
        key: Option<&LockKey>,
        approved: bool,
    ) -> Result<Vec<PendingMaintenance>, EngineError> {
        let mut all = match key {
            Some(key) => {
                let view = self.view(key).await?;
                approval::asked(&view.lock, view.now)
            }
            None => Vec::new(),
        };
        for asked in &mut all {
            asked.allowed = approved || asked.policy == Policy::Enforced;
        }
        let others = there.asked(server).await?.into_iter();
        let others = others.filter(|it| !it.started && it.store.as_deref() != Some(self.store().id()));
        all.extend(others.filter_map(|asked| of_another(asked, approved)));
        Ok(all)
    }
}

fn moment(text: Option<&str>) -> Timestamp {
    text.and_then(|text| text.parse().ok()).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Converts a request that our store does not contain.
fn of_another(asked: ExternalWaiter, approved: bool) -> Option<PendingMaintenance> {
    Some(PendingMaintenance {
        id: asked.id.parse().ok()?,
        policy: if asked.asks { Policy::OwnerApproval } else { Policy::Enforced },
        by: asked.by.into(),
        requested_at: moment(asked.since.as_deref()),
        reason: asked.reason.map(Into::into),
        ticket: asked.ticket.map(Into::into),
        priority: asked.priority,
        digest: String::new().into(),
        allowed: approved || !asked.asks,
        escalates_at: None,
        effect: OneLine::default(),
        window: None,
    })
}
