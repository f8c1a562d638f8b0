//! The interface between approval resources and the system with the approvals: the coordination
//! store or the servers' external system.

use async_trait::async_trait;
use tf_provider::{Diagnostics, value::Value};

use crate::{
    engine::{ApprovalWish, Engine},
    maintenance::{approval::PendingMaintenance, queue::shown_time},
};

use crate::provider::{
    approval::{model::ApprovalModel, of_cluster::ClusterApprovals, of_store::StoreApprovals},
    shared::private::Owned,
};

/// An approval in a list.
pub(in crate::provider) struct ListedApproval {
    pub(super) server: String,
    pub(super) owner: Option<String>,
    pub(super) model: ApprovalModel,
}

/// One system's approvals. Only `create` and `destroy` change anything.
#[async_trait]
pub(in crate::provider) trait ApprovalLifecycle: Send + Sync {
    /// Rejects impossible approvals, and describes the approval's effect.
    async fn review(&self, diags: &mut Diagnostics, model: &ApprovalModel, wish: &ApprovalWish);

    /// Creates the approval.
    async fn create(
        &self,
        diags: &mut Diagnostics,
        model: ApprovalModel,
        wish: &ApprovalWish,
    ) -> Option<(ApprovalModel, Owned)>;

    /// Finds this approval's private state by its attributes, or returns `None`.
    async fn recover(&self, model: &ApprovalModel) -> Option<Owned>;

    /// Reads the approval. Returns `None` if it was deleted.
    async fn read(
        &self,
        diags: &mut Diagnostics,
        model: ApprovalModel,
        private: &Value<Owned>,
    ) -> Option<ApprovalModel>;

    /// Withdraws the approval. Returns `None` after an error if it still exists.
    async fn destroy(&self, diags: &mut Diagnostics, model: &ApprovalModel, private: &Value<Owned>) -> Option<()>;

    /// Reads an existing approval by its id.
    async fn import(&self, diags: &mut Diagnostics, id: &str) -> Option<(ApprovalModel, Owned)>;

    /// Returns all approvals, oldest first. Returns `None` with a diagnostic if they cannot be
    /// listed.
    async fn all(&self, diags: &mut Diagnostics) -> Option<Vec<ListedApproval>>;
}

/// Returns a provider configuration's approvals.
pub(in crate::provider) fn approvals(engine: &Engine) -> Box<dyn ApprovalLifecycle + '_> {
    match engine.ownership() {
        Some(there) => Box::new(ClusterApprovals { engine, there }),
        None => Box::new(StoreApprovals { engine }),
    }
}

/// Describes a request for people.
pub(super) fn shown(asked: &PendingMaintenance) -> String {
    let mut text = asked.id.to_string();
    if let Some(reason) = &asked.reason {
        text.push_str(&format!(", {reason:?}"));
    }
    if let Some(ticket) = &asked.ticket {
        text.push_str(&format!(", {ticket}"));
    }
    text.push_str(&format!(", requested by {} at {}", asked.by, shown_time(asked.requested_at)));
    if let Some(window) = &asked.window {
        text.push_str(&format!(", starts only in {window}"));
    }
    if !asked.effect.is_empty() {
        text.push_str(&format!("; the server {}", asked.effect.shown().trim_end_matches('.')));
    }
    text
}
