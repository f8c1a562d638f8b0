//! The interface between claim resources and the system with the claims: the coordination store or
//! the servers' external system.

use async_trait::async_trait;
use tf_provider::{Diagnostics, value::Value};

use crate::engine::{Engine, EngineError};

use crate::provider::{
    claim::{data_source::ClaimLook, model::ClaimModel, of_cluster::ClusterClaims, of_store::StoreClaims},
    shared::{cell::Cell, private::Owned},
};

/// A claim in a list.
pub(in crate::provider) struct ListedClaim {
    pub(super) id: String,
    pub(super) server: String,
    pub(super) owner: Option<String>,
    /// Its state if already known; otherwise an import reads it.
    pub(super) model: Option<ClaimModel>,
}

/// One system's claims. Only `create`, `update` and `destroy` change anything.
#[async_trait]
pub(in crate::provider) trait ClaimLifecycle: Send + Sync {
    /// Returns the location for messages.
    fn place(&self) -> String;

    /// Rejects unsupported attributes, and describes the outlook for a new claim.
    async fn review(&self, diags: &mut Diagnostics, model: &ClaimModel);

    /// Reviews a change in the same way, and completes its planned values.
    async fn review_change(&self, diags: &mut Diagnostics, prior: &ClaimModel, model: &mut ClaimModel);

    /// Warns of the effects of deleting a claim.
    async fn farewell(&self, diags: &mut Diagnostics, model: &ClaimModel, private: &Value<Owned>);

    /// Creates the claim, and waits until it has the server if that takes time.
    async fn create(&self, diags: &mut Diagnostics, model: ClaimModel) -> Option<(ClaimModel, Owned)>;

    /// Updates a claim. Returns `None` after an error; the state is kept.
    async fn update(
        &self,
        diags: &mut Diagnostics,
        planned: ClaimModel,
        private: &Value<Owned>,
    ) -> Option<(ClaimModel, Value<Owned>)>;

    /// Deletes the claim. Returns `None` after an error if it still has the server.
    async fn destroy(&self, diags: &mut Diagnostics, model: &ClaimModel, private: &Value<Owned>) -> Option<()>;

    /// Finds this claim's private state by its attributes, or returns `None`.
    async fn recover(&self, model: &ClaimModel) -> Option<Owned>;

    /// Reads the claim. Returns `None` if it was deleted.
    async fn read(&self, diags: &mut Diagnostics, model: ClaimModel, private: &Value<Owned>) -> Option<ClaimModel>;

    /// Reads an existing claim by `namespace/name`.
    async fn import(&self, diags: &mut Diagnostics, id: &str) -> Option<(ClaimModel, Owned)>;

    /// Reads a claim by any author.
    async fn look(&self, id: &str) -> Result<Option<ClaimLook>, EngineError>;

    /// Returns all claims that name a server, sorted by name.
    async fn all(&self) -> Result<Vec<ListedClaim>, EngineError>;
}

/// Returns a provider configuration's claims.
pub(in crate::provider) fn claims<'a>(engine: &'a Engine, cell: &'a Cell) -> Box<dyn ClaimLifecycle + 'a> {
    match engine.ownership() {
        Some(there) => Box::new(ClusterClaims { engine, there, cell }),
        None => Box::new(StoreClaims { engine }),
    }
}
