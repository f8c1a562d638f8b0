//! An owner's commands for claims and approvals in an external system: keys on a cluster's
//! ServerClaim.
//!
//! A key on the claim approves all its requests. A mark next to it identifies this owner's command
//! line. `withdraw` therefore never removes a key that belongs to a `metal_maintenance_approval`, a
//! controller or a kubectl user.

use async_trait::async_trait;
use serde_json::json;

use crate::{
    backend::{ApprovalMarkRef, ExternalClaimView, ExternalOwnership},
    engine::{Engine, EngineError},
    maintenance::{approval::PendingMaintenance, ids::MaintenanceId, spec::Policy},
    shown::OneLine,
    store::RecordLookup,
};

use super::{
    approvals::{self, Limits, OwnerCommands, explained, shown},
    commands::{CommandError, pretty},
};

/// A cluster's claims and approvals.
pub(super) struct InCluster<'a> {
    pub(super) engine: &'a Engine,
    pub(super) there: &'a dyn ExternalOwnership,
}

/// A request found by its name.
struct ApprovalTarget {
    server: String,
    started: bool,
    asks: bool,
}

/// Finds a request in the store, or another store's request in the cluster.
async fn find(
    engine: &Engine,
    there: &dyn ExternalOwnership,
    id: &MaintenanceId,
) -> Result<ApprovalTarget, CommandError> {
    let known = engine.store().find(id).await?;
    if let Some(RecordLookup::Active(record)) = &known {
        let asks = record.spec.policy == Policy::OwnerApproval && !record.spec.always_perform;
        let started = record.admitted_at.is_some();
        return Ok(ApprovalTarget { server: record.server().to_owned(), started, asks });
    }
    for server in there.claims().await.map_err(EngineError::from)?.into_iter().filter_map(|claim| claim.server) {
        let all = there.asked(&server).await.map_err(EngineError::from)?;
        // Active requests in our store were handled above.
        let mut others = all.into_iter().filter(|it| it.store.as_deref() != Some(engine.store().id()));
        if let Some(found) = others.find(|asked| asked.id == id.to_string()) {
            return Ok(ApprovalTarget { server, started: found.started, asks: found.asks });
        }
    }
    Err(match known {
        Some(RecordLookup::Past(record)) => EngineError::Over(record),
        _ => EngineError::NotFound { id: id.clone(), store: engine.store().address() },
    }
    .into())
}

/// Returns this owner's command-line mark on a claim.
fn word(engine: &Engine, claim: &ExternalClaimView) -> ApprovalMarkRef {
    ApprovalMarkRef {
        uid: format!("command-line/{}", engine.owner()),
        claim: claim.id.clone(),
        claim_uid: Some(claim.uid.clone()),
        node: None,
    }
}

async fn claim_on(
    engine: &Engine,
    there: &dyn ExternalOwnership,
    server: &str,
) -> Result<ExternalClaimView, CommandError> {
    engine.claim_on(there, server).await.map_err(|error| explained(error, engine))
}

async fn asked(
    engine: &Engine,
    there: &dyn ExternalOwnership,
    server: &str,
    approved: bool,
) -> Result<Vec<PendingMaintenance>, CommandError> {
    let key = engine.known_lock_key(server).await;
    Ok(engine.asked_there(there, server, key.as_ref(), approved).await?)
}

fn lines(asked: &[PendingMaintenance]) -> String {
    asked.iter().map(|asked| format!("  asked     {}\n", shown(asked))).collect()
}

#[async_trait]
impl OwnerCommands for InCluster<'_> {
    async fn claims(&self, server: Option<&str>, as_json: bool) -> Result<String, CommandError> {
        let (mut text, mut all) = (String::new(), Vec::new());
        for claim in self.there.claims().await.map_err(EngineError::from)? {
            let Some(name) = claim.server.clone().filter(|name| server.is_none_or(|server| server == name)) else {
                continue;
            };
            let key = self.engine.known_lock_key(&name).await;
            let pending = self.engine.asked_there(self.there, &name, key.as_ref(), claim.approved).await?;
            let phase = claim.phase.as_deref().unwrap_or("Unbound");
            let owner = claim.owner.as_ref().map_or("not created by this provider", OneLine::shown);
            text.push_str(&format!("{name}  {owner}, as {}, {phase}\n", claim.id));
            for asked in &pending {
                text.push_str(&format!("  asked     {}\n", shown(asked)));
            }
            if claim.approved {
                text.push_str("  approved  all its maintenance\n");
            }
            all.push(json!({
                "claim": {
                    "id": claim.id, "uid": claim.uid, "owner": claim.owner, "contact": claim.contact, "server": name,
                    "since": claim.since, "phase": claim.phase, "image": claim.image, "power": claim.power,
                },
                "lock_key": key, "pending": approvals::pending(&pending), "approved": claim.approved,
            }));
        }
        if as_json {
            return Ok(pretty(&json!({ "claims": all })));
        }
        if text.is_empty() {
            text = format!("No ServerClaims in {}.\n", self.there.address());
        }
        Ok(text)
    }

    /// Writes the owner's key on the claim.
    async fn approve(&self, id: &MaintenanceId, limits: Limits, as_json: bool) -> Result<String, CommandError> {
        let limited = limits.not_before.is_some() || limits.expires.is_some();
        if limited {
            let texts = self.there.texts();
            return Err(CommandError::Other(format!(
                "--not-before and --expires are not supported with {}: {}",
                texts.flag, texts.limits
            )));
        }
        let request = find(self.engine, self.there, id).await?;
        let server = &request.server;
        if request.started {
            return Err(CommandError::Other(format!("{id} has started; an approval only counts before the start")));
        }
        if !request.asks {
            return Err(CommandError::Other(format!(
                "{id} does not require approval. Nothing was written, because an approval on {server} would apply to \
                 every request"
            )));
        }
        let claim = claim_on(self.engine, self.there, server).await?;
        let word = word(self.engine, &claim);
        let before = self.there.word(&word).await.map_err(EngineError::from)?;
        self.engine.write_approval(self.there, &word).await?;
        let seen = self.there.word(&word).await.map_err(EngineError::from)?;
        let asked = asked(self.engine, self.there, server, true).await?;
        let written = seen.ours && !before.present;
        if as_json {
            return Ok(pretty(&json!({
                "id": id, "server": server, "claim": claim.id, "cluster": self.there.address(), "place": seen.place,
                "approved": seen.present, "written": written, "pending": approvals::pending(&asked),
            })));
        }
        let (place, address) = (&seen.place, self.there.address());
        let what = match (seen.present, seen.ours) {
            (false, _) => {
                let problem = format!("{place} was written, but another author removed it immediately ({address})");
                return Err(CommandError::Other(problem));
            }
            (true, true) if written => format!("wrote the {place}"),
            (true, true) => format!("the {place} already exists, from an earlier approve"),
            (true, false) => format!("the {place} already exists, from another author; nothing was written"),
        };
        Ok(format!(
            "{id} is approved on {server}: {what}, in {address}\nIt applies to every request for {server}, present \
             and future, until the last request has ended. Now:\n{}",
            lines(&asked)
        ))
    }

    /// Removes the key from the claim, if this owner's command line wrote it.
    async fn withdraw(&self, id: &MaintenanceId, as_json: bool) -> Result<String, CommandError> {
        let request = find(self.engine, self.there, id).await?;
        let server = &request.server;
        let claim = claim_on(self.engine, self.there, server).await?;
        let word = word(self.engine, &claim);
        let before = self.there.word(&word).await.map_err(EngineError::from)?;
        let (place, address) = (&before.place, self.there.address());
        if !before.present {
            return Err(CommandError::Other(format!("{id} is not approved: the {place} does not exist, in {address}")));
        }
        if !before.ours {
            return Err(CommandError::Other(format!(
                "the {place} was not removed, in {address}: its author is not `approve` of the owner {owner:?}. Only its author \
                 can remove it: destroy its metal_maintenance_approval, or, if a person wrote it, use kubectl",
                owner = self.engine.owner()
            )));
        }
        self.engine.remove_approval(self.there, &word).await?;
        let still = self.there.word(&word).await.map_err(EngineError::from)?.present;
        let asked = asked(self.engine, self.there, server, still).await?;
        if as_json {
            return Ok(pretty(&json!({
                "id": id, "server": server, "claim": claim.id, "cluster": address, "place": place, "withdrawn": true,
                "had_started": request.started, "approved": still, "pending": approvals::pending(&asked),
            })));
        }
        let mut text = format!("The approval of {id} is withdrawn: removed the {place}, in {address}\n");
        if request.started {
            text.push_str(&format!("{id} has started and continues\n"));
        }
        if still {
            text.push_str("Another author has also approved; that approval stays\n");
        } else if !asked.is_empty() {
            text.push_str(&format!("It applied to every request for {server}. Now:\n{}", lines(&asked)));
        }
        Ok(text)
    }
}
