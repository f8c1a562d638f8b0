//! `claims`, `approve` and `withdraw`: an owner's commands, for the store and for clusters.

use async_trait::async_trait;
use jiff::Timestamp;

use crate::{
    backend::plug::BackendPlugin,
    engine::{Engine, EngineError},
    maintenance::{approval::PendingMaintenance, ids::MaintenanceId, lock::Refusal, queue::shown_time, spec::Policy},
};

use super::{cluster_approvals::InCluster, commands::CommandError, shape, store_approvals::InStore};

/// An owner's commands. They return text or JSON.
#[async_trait]
pub(super) trait OwnerCommands: Send + Sync {
    /// Returns every claim, or one server's claim, with its pending requests.
    async fn claims(&self, server: Option<&str>, as_json: bool) -> Result<String, CommandError>;

    /// Approves one maintenance.
    async fn approve(&self, id: &MaintenanceId, limits: Limits, as_json: bool) -> Result<String, CommandError>;

    /// Withdraws one maintenance's approval.
    async fn withdraw(&self, id: &MaintenanceId, as_json: bool) -> Result<String, CommandError>;
}

/// An approval's validity.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// Start of validity.
    pub(super) not_before: Option<Timestamp>,
    /// End of validity.
    pub(super) expires: Option<Timestamp>,
}

/// Returns true if a backend's claims are in the coordination store. Commands about them then work
/// without a configured server.
pub(super) fn in_store(plugin: &dyn BackendPlugin) -> bool {
    !plugin.has_own_claims()
}

/// Returns the owner's commands for the engine's claims.
pub(super) fn owner(engine: &Engine) -> Box<dyn OwnerCommands + '_> {
    match engine.ownership() {
        Some(there) => Box::new(InCluster { engine, there }),
        None => Box::new(InStore { engine }),
    }
}

/// Formats pending maintenances for `--json`.
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
        text.push_str(&format!("; the server {}", asked.effect.shown().trim_end_matches('.')));
    }
    text.push_str(match (asked.policy, asked.allowed) {
        (Policy::Enforced, _) => "; approval not required",
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
            "the server is claimed by {claim}, and you act for {you:?}; only its owner can approve (--owner {})",
            claim.owner,
            you = engine.owner()
        )),
        EngineError::Refused(Refusal::NotClaimed) => CommandError::Other(
            "the server is unclaimed, so approval is not required (unless the maintenance sets require_claim)"
                .to_owned(),
        ),
        other => other.into(),
    }
}
