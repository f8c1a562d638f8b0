//! `claims`, `approve` and `withdraw`: what an owner sees and says.

use jiff::Timestamp;
use serde_json::json;
use uuid::Uuid;

use crate::{
    backend::ExternalOwnership,
    engine::{ApprovalWish, Engine, EngineError},
    maintenance::{
        approval::{Approval, Asked, Scope, asked},
        ids::{MaintenanceId, Uid},
        lock::Refusal,
        queue::shown_time,
        spec::Policy,
    },
};

use super::{
    cluster_approvals,
    commands::{CommandError, pretty},
    shape,
};

pub(super) async fn claims(engine: &Engine, server: Option<&str>, as_json: bool) -> Result<String, CommandError> {
    if let Some(there) = engine.ownership() {
        return in_cluster(engine, there, server, as_json).await;
    }
    let views = engine.views().await?;
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
            engine.store().address()
        );
    }
    Ok(text)
}

/// The ServerClaims of a cluster, and what is asked of them.
async fn in_cluster(
    engine: &Engine,
    there: &dyn ExternalOwnership,
    server: Option<&str>,
    as_json: bool,
) -> Result<String, CommandError> {
    let (mut text, mut all) = (String::new(), Vec::new());
    for claim in there.claims().await.map_err(EngineError::from)? {
        let Some(name) = claim.server.clone().filter(|name| server.is_none_or(|server| server == name)) else {
            continue;
        };
        let key = engine.known_lock_key(&name).await;
        let pending = engine.asked_there(there, &name, key.as_ref(), claim.approved).await?;
        let phase = claim.phase.as_deref().unwrap_or("Unbound");
        let owner = claim.owner.as_deref().unwrap_or("not made by this provider");
        text.push_str(&format!("{name}  {owner}, as {}, {phase}\n", claim.id));
        for asked in &pending {
            text.push_str(&format!("  asked     {}\n", shown(asked)));
        }
        if claim.approved {
            text.push_str("  approved  everything that is asked of it\n");
        }
        all.push(json!({
            "claim": {
                "id": claim.id, "uid": claim.uid, "owner": claim.owner, "contact": claim.contact, "server": name,
                "since": claim.since, "phase": claim.phase, "image": claim.image, "power": claim.power,
            },
            "lock_key": key, "pending": self::pending(&pending), "approved": claim.approved,
        }));
    }
    if as_json {
        return Ok(pretty(&json!({ "claims": all })));
    }
    if text.is_empty() {
        text = format!("No ServerClaims in {}.\n", there.address());
    }
    Ok(text)
}

/// Pending maintenances, as scripts see them.
pub(super) fn pending(all: &[Asked]) -> Vec<serde_json::Value> {
    all.iter().map(|one| shape::pick(one, shape::PENDING)).collect()
}

pub(super) fn shown(asked: &Asked) -> String {
    let mut text = format!("{} by {} at {}", asked.id, asked.by, shown_time(asked.requested_at));
    if let Some(reason) = &asked.reason {
        text.push_str(&format!(", {reason:?}"));
    }
    if let Some(ticket) = &asked.ticket {
        text.push_str(&format!(", {ticket}"));
    }
    if let Some(window) = &asked.window {
        text.push_str(&format!(", starts only in {window}"));
    }
    if !asked.effect.is_empty() {
        text.push_str(&format!("; the server {}", asked.effect.trim_end_matches('.')));
    }
    text.push_str(match (asked.policy, asked.allowed) {
        (Policy::Enforced, _) => "; needs no approval",
        (_, true) => "; approved",
        (_, false) => "; waits for approval",
    });
    if let Some(at) = asked.escalates_at {
        text.push_str(&format!(", taken without an answer from {} on", shown_time(at)));
    }
    text
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

pub(super) async fn approve(
    engine: &Engine,
    id: &MaintenanceId,
    not_before: Option<Timestamp>,
    expires: Option<Timestamp>,
    as_json: bool,
) -> Result<String, CommandError> {
    if let Some(there) = engine.ownership() {
        let limited = not_before.is_some() || expires.is_some();
        return cluster_approvals::approve(engine, there, id, limited, as_json).await;
    }
    let counts_from = not_before.unwrap_or(Timestamp::MIN).max(engine.now());
    if let Some(until) = expires.filter(|until| *until <= counts_from) {
        return Err(CommandError::Other(format!("--expires {until} is over before the approval would count")));
    }
    let record = engine.active(id).await?;
    let Some(asked) = record.awaiting_turn() else {
        let state = record.phase.name();
        return Err(CommandError::Other(format!("{id} has started ({state}); an approval counts at the start only")));
    };
    let wish = ApprovalWish { maintenance: Some(id.clone()), digest: Some(asked.digest.clone()), not_before, expires };
    let uid = Uid(Uuid::now_v7().to_string());
    let approval = engine.approve(&record.lock_key, &uid, &wish).await.map_err(|error| explained(error, engine))?;
    Ok(if as_json {
        pretty(&shape::pick(&approval, shape::APPROVAL))
    } else {
        format!("{id} is approved on {}: {}\n", asked.spec.server, asked.spec.summary())
    })
}

pub(super) async fn withdraw(engine: &Engine, id: &MaintenanceId, as_json: bool) -> Result<String, CommandError> {
    if let Some(there) = engine.ownership() {
        return cluster_approvals::withdraw(engine, there, id, as_json).await;
    }
    let about =
        |approval: &&Approval| matches!(&approval.scope, Scope::Maintenance { id: approved, .. } if approved == id);
    for view in engine.views().await? {
        let Some(approval) = view.lock.ownership.approvals.iter().find(about) else { continue };
        let Some(claim) = view.lock.ownership.claim.as_ref() else { continue };
        if claim.owner != engine.owner() {
            let refusal = Refusal::NotTheOwner { claim: Box::new(claim.clone()), asked: engine.owner().to_owned() };
            return Err(explained(refusal.into(), engine));
        }
        engine.withdraw_approval(&view.lock.key, &approval.uid).await?;
        return Ok(if as_json {
            pretty(&json!({ "id": id, "withdrawn": approval.uid, "had_started": approval.used_by.is_some() }))
        } else if approval.used_by.is_some() {
            format!("The approval of {id} is withdrawn; it has started and goes on\n")
        } else {
            format!("The approval of {id} is withdrawn\n")
        });
    }
    Err(CommandError::Other(format!("{id} is not approved in {}", engine.store().address())))
}

pub(super) fn explained(error: EngineError, engine: &Engine) -> CommandError {
    match error {
        EngineError::Refused(Refusal::NotTheOwner { claim, .. }) => CommandError::Other(format!(
            "the server is claimed by {claim}, and you speak for {:?}; only its owner approves (--owner {})",
            engine.owner(),
            claim.owner
        )),
        EngineError::Refused(Refusal::NotClaimed) => CommandError::Other(
            "the server is unclaimed, so that it needs no approval (unless the maintenance says require_claim)"
                .to_owned(),
        ),
        other => other.into(),
    }
}
