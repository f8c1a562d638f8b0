//! `claims`, `approve` and `withdraw`: what an owner sees and says, wherever claims and approvals
//! are kept.

use async_trait::async_trait;
use jiff::Timestamp;

use crate::{
    backend::plug::BackendPlugin,
    engine::{Engine, EngineError},
    maintenance::{approval::PendingMaintenance, ids::MaintenanceId, lock::Refusal, queue::shown_time, spec::Policy},
};

use super::{cluster_approvals::InCluster, commands::CommandError, shape, store_approvals::InStore};

/// What an owner sees and says. What is printed is JSON where that is asked for.
#[async_trait]
pub(super) trait OwnerCommands: Send + Sync {
    /// Every claim, or that on one server, with what is asked of it.
    async fn claims(&self, server: Option<&str>, as_json: bool) -> Result<String, CommandError>;

    /// Approves one maintenance.
    async fn approve(&self, id: &MaintenanceId, limits: Limits, as_json: bool) -> Result<String, CommandError>;

    /// Withdraws the approval of one maintenance.
    async fn withdraw(&self, id: &MaintenanceId, as_json: bool) -> Result<String, CommandError>;
}

/// When an approval counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// From when on.
    pub(super) not_before: Option<Timestamp>,
    /// Until when.
    pub(super) expires: Option<Timestamp>,
}

/// Whether the coordination store keeps the claims of a backend's servers, so that a command about
/// them needs no server.
pub(super) fn in_store(plugin: &dyn BackendPlugin) -> bool {
    !plugin.has_own_claims()
}

/// The claims and approvals that a command is about.
pub(super) fn owner(engine: &Engine) -> Box<dyn OwnerCommands + '_> {
    match engine.ownership() {
        Some(there) => Box::new(InCluster { engine, there }),
        None => Box::new(InStore { engine }),
    }
}

/// Pending maintenances, as scripts see them.
pub(super) fn pending(all: &[PendingMaintenance]) -> Vec<serde_json::Value> {
    all.iter().map(|one| shape::pick(one, shape::PENDING)).collect()
}

pub(super) fn shown(asked: &PendingMaintenance) -> String {
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
        text.push_str(&format!(", starts without approval at {}", shown_time(at)));
    }
    text
}

pub(super) fn explained(error: EngineError, engine: &Engine) -> CommandError {
    match error {
        EngineError::Refused(Refusal::NotTheOwner { claim, .. }) => CommandError::Other(format!(
            "the server is claimed by {claim}, and you speak for {you:?}; only its owner approves (--owner {})",
            claim.owner,
            you = engine.owner()
        )),
        EngineError::Refused(Refusal::NotClaimed) => CommandError::Other(
            "the server is unclaimed, so that it needs no approval (unless the maintenance says require_claim)"
                .to_owned(),
        ),
        other => other.into(),
    }
}
