//! What the lifecycle of a claim asks of the system that keeps claims: the coordination store, or
//! the servers' own.

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
    /// What its state would be, where that is known already; otherwise an import tells.
    pub(super) model: Option<ClaimModel>,
}

/// The claims of one system. Only `create`, `update` and `destroy` change something.
#[async_trait]
pub(in crate::provider) trait ClaimLifecycle: Send + Sync {
    /// Where the claims are, for people.
    fn place(&self) -> String;

    /// Refuses what is not possible there, and tells the reviewer what a new claim can expect.
    async fn review(&self, diags: &mut Diagnostics, model: &ClaimModel);

    /// Refuses and tells that for a claim that changes; completes what its plan says.
    async fn review_change(&self, diags: &mut Diagnostics, prior: &ClaimModel, model: &mut ClaimModel);

    /// Tells the reviewer what the end of a claim does.
    async fn farewell(&self, diags: &mut Diagnostics, model: &ClaimModel, private: &Value<Owned>);

    /// Makes the claim, and waits until the server is its where that takes time.
    async fn create(&self, diags: &mut Diagnostics, model: ClaimModel) -> Option<(ClaimModel, Owned)>;

    /// Brings a claim up to date. `None`: an error was reported, and the state stays.
    async fn update(
        &self,
        diags: &mut Diagnostics,
        planned: ClaimModel,
        private: &Value<Owned>,
    ) -> Option<(ClaimModel, Value<Owned>)>;

    /// Gives the claim up. `None`: it still has the server, and an error says why.
    async fn destroy(&self, diags: &mut Diagnostics, model: &ClaimModel, private: &Value<Owned>) -> Option<()>;

    /// Finds the private state of this claim by its attributes. `None`: not found.
    async fn recover(&self, model: &ClaimModel) -> Option<Owned>;

    /// The claim as it is now. `None`: it is gone.
    async fn read(&self, diags: &mut Diagnostics, model: ClaimModel, private: &Value<Owned>) -> Option<ClaimModel>;

    /// A claim that is there, by `namespace/name`.
    async fn import(&self, diags: &mut Diagnostics, id: &str) -> Option<(ClaimModel, Owned)>;

    /// What a claim says, whoever made it.
    async fn look(&self, id: &str) -> Result<Option<ClaimLook>, EngineError>;

    /// All claims that name a server, sorted by name.
    async fn all(&self) -> Result<Vec<ListedClaim>, EngineError>;
}

/// The claims that a provider configuration is about.
pub(in crate::provider) fn claims<'a>(engine: &'a Engine, cell: &'a Cell) -> Box<dyn ClaimLifecycle + 'a> {
    match engine.ownership() {
        Some(there) => Box::new(ClusterClaims { engine, there, cell }),
        None => Box::new(StoreClaims { engine }),
    }
}
