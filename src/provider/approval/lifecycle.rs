//! What the lifecycle of an approval asks of the system that keeps approvals: the coordination
//! store, or the servers' own.

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

/// The approvals of one system. Only `create` and `destroy` change something.
#[async_trait]
pub(in crate::provider) trait ApprovalLifecycle: Send + Sync {
    /// Refuses what could not be given, and tells the reviewer what would be allowed.
    async fn review(&self, diags: &mut Diagnostics, model: &ApprovalModel, wish: &ApprovalWish);

    /// Gives the approval.
    async fn create(
        &self,
        diags: &mut Diagnostics,
        model: ApprovalModel,
        wish: &ApprovalWish,
    ) -> Option<(ApprovalModel, Owned)>;

    /// Finds the private state of this approval by its attributes. `None`: not found.
    async fn recover(&self, model: &ApprovalModel) -> Option<Owned>;

    /// The approval as it is now. `None`: it is gone.
    async fn read(
        &self,
        diags: &mut Diagnostics,
        model: ApprovalModel,
        private: &Value<Owned>,
    ) -> Option<ApprovalModel>;

    /// Withdraws the approval. `None`: it is still there, and an error says why.
    async fn destroy(&self, diags: &mut Diagnostics, model: &ApprovalModel, private: &Value<Owned>) -> Option<()>;

    /// An approval that is there, by its id.
    async fn import(&self, diags: &mut Diagnostics, id: &str) -> Option<(ApprovalModel, Owned)>;

    /// All approvals, the oldest first. `None`: they cannot be listed, and a message says why.
    async fn all(&self, diags: &mut Diagnostics) -> Option<Vec<ListedApproval>>;
}

/// The approvals that a provider configuration is about.
pub(in crate::provider) fn approvals(engine: &Engine) -> Box<dyn ApprovalLifecycle + '_> {
    match engine.ownership() {
        Some(there) => Box::new(ClusterApprovals { engine, there }),
        None => Box::new(StoreApprovals { engine }),
    }
}

/// A request, for people.
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
        text.push_str(&format!("; the server {}", asked.effect.trim_end_matches('.')));
    }
    text
}
