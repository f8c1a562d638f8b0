//! An owner's commands for claims and approvals in the coordination store.

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::json;
use uuid::Uuid;

use crate::{
    engine::{ApprovalWish, Engine},
    maintenance::{
        approval::{Approval, Scope, asked},
        ids::{MaintenanceId, Uid},
        lock::Refusal,
        queue::shown_time,
    },
};

use super::{
    approvals::{Limits, OwnerCommands, explained, pending, shown},
    commands::{CommandError, pretty},
    shape,
};

/// A store's claims and approvals.
pub(super) struct InStore<'a> {
    pub(super) engine: &'a Engine,
}

#[async_trait]
impl OwnerCommands for InStore<'_> {
    async fn claims(&self, server: Option<&str>, as_json: bool) -> Result<String, CommandError> {
        let views = self.engine.views().await?;
        let owned = views.iter().filter_map(|view| {
            let claim = view.lock.ownership.claim.as_ref()?;
            server.is_none_or(|server| claim.server == server).then_some((view, claim))
        });
        if as_json {
            let all: Vec<_> = owned
                .map(|(view, claim)| {
                    json!({
                        "claim": shape::pick(claim, shape::CLAIM), "lock_key": view.lock.key,
                        "pending": pending(&asked(&view.lock, view.now)),
                        "approvals": view.lock.ownership.approvals.iter()
                            .map(|one| shape::pick(one, shape::APPROVAL)).collect::<Vec<_>>(),
                    })
                })
                .collect();
            return Ok(pretty(&json!({ "claims": all })));
        }
        let mut text = String::new();
        for (view, claim) in owned {
            text.push_str(&format!("{}  {claim}, as {} since {}\n", claim.server, claim.id, shown_time(claim.since)));
            for asked in asked(&view.lock, view.now) {
                text.push_str(&format!("  asked     {}\n", shown(&asked)));
            }
            for approval in &view.lock.ownership.approvals {
                text.push_str(&format!("  approved  {}\n", allowed(approval)));
            }
        }
        if text.is_empty() {
            text = format!(
                "No claims in {}. ServerClaims of a cluster are listed with --metal-operator.\n",
                self.engine.store().address()
            );
        }
        Ok(text)
    }

    async fn approve(&self, id: &MaintenanceId, limits: Limits, as_json: bool) -> Result<String, CommandError> {
        let Limits { not_before, expires } = limits;
        let counts_from = not_before.unwrap_or(Timestamp::MIN).max(self.engine.now());
        if let Some(until) = expires.filter(|until| *until <= counts_from) {
            return Err(CommandError::Other(format!("--expires {until} is before the approval takes effect")));
        }
        let record = self.engine.active(id).await?;
        let Some(asked) = record.awaiting_consent() else {
            let state = record.phase.name();
            return Err(CommandError::Other(format!(
                "{id} has started ({state}); an approval covers only actions that have not begun"
            )));
        };
        let wish = ApprovalWish {
            maintenance: Some(id.clone()),
            digest: Some(asked.digest.raw().to_owned()),
            not_before,
            expires,
        };
        let uid = Uid::new(Uuid::now_v7().to_string());
        let approval =
            self.engine.approve(&record.lock_key, &uid, &wish).await.map_err(|error| explained(error, self.engine))?;
        Ok(if as_json {
            pretty(&shape::pick(&approval, shape::APPROVAL))
        } else {
            format!("{id} is approved on {}: {}\n", asked.spec.server, asked.spec.summary())
        })
    }

    async fn withdraw(&self, id: &MaintenanceId, as_json: bool) -> Result<String, CommandError> {
        let about =
            |approval: &&Approval| matches!(&approval.scope, Scope::Maintenance { id: approved, .. } if approved == id);
        for view in self.engine.views().await? {
            let Some(approval) = view.lock.ownership.approvals.iter().find(about) else { continue };
            let Some(claim) = view.lock.ownership.claim.as_ref() else { continue };
            if claim.owner != self.engine.owner() {
                let refusal =
                    Refusal::NotTheOwner { claim: Box::new(claim.clone()), asked: self.engine.owner().to_owned() };
                return Err(explained(refusal.into(), self.engine));
            }
            self.engine.withdraw_approval(&view.lock.key, &approval.uid).await?;
            return Ok(if as_json {
                pretty(&json!({ "id": id, "withdrawn": approval.uid, "had_started": approval.used_by.is_some() }))
            } else if approval.used_by.is_some() {
                format!("The approval of {id} is withdrawn; it has started and continues\n")
            } else {
                format!("The approval of {id} is withdrawn\n")
            });
        }
        Err(CommandError::Other(format!("{id} is not approved in {}", self.engine.store().address())))
    }
}

fn allowed(approval: &Approval) -> String {
    let what = match &approval.scope {
        Scope::Maintenance { id, .. } => id.to_string(),
        Scope::All => "everything".to_owned(),
    };
    let mut text = format!("{what} by {} at {}", approval.by, shown_time(approval.at));
    if let Some(from) = approval.not_before {
        text.push_str(&format!(", from {}", shown_time(from)));
    }
    if let Some(until) = approval.expires {
        text.push_str(&format!(", until {}", shown_time(until)));
    }
    if approval.used_by.is_some() {
        text.push_str(", used");
    }
    text
}
