//! `data metal_server_claim`: reads a claim that another configuration manages.

use async_trait::async_trait;
use tf_provider::{
    AttributePath, DataSource, Diagnostics,
    schema::Schema,
    value::{Value, ValueBool, ValueList},
};

use crate::plugin::diagnostic;

use crate::provider::{
    claim::lifecycle::claims,
    claim::model::AskedModel,
    shared::block::table,
    shared::cell::Cell,
    shared::diagnostics::of_engine,
    shared::schema::{computed, required, schema},
    shared::values::{Text, given, not_empty},
};

table! {
    /// A `metal_server_claim` in configuration and state.
    pub(in crate::provider) struct ClaimLook {
        pub(super) id: Text => required(String, "`namespace/name` of the claim.");
        pub(super) server: Text => computed(String, "The claimed server; null if the claim does not name a server.");
        pub(super) owner: Text => computed(
            String,
            "The `owner` that created it; null for another author's ServerClaim.",
        );
        pub(super) contact: Text => computed(String, "How to contact the owner.");
        pub(super) claimed_at: Text => computed(String, "When the server was claimed (RFC 3339, UTC).");
        pub(super) phase: Text => computed(String, "With `metal_operator`: `Bound` or `Unbound`; otherwise null.");
        pub(super) image: Text => computed(String, "With `metal_operator`: the image that the server boots; otherwise null.");
        pub(super) server_power: Text => computed(
            String,
            "With `metal_operator`: the power that the owner requests; otherwise null.",
        );
        pub(super) ignition_secret: Text => computed(
            String,
            "With `metal_operator`: the Secret with the ignition file; otherwise null.",
        );
        pub(super) maintenance_needed: ValueBool => computed(Bool, "True if maintenance of the server is pending.");
        pub(super) approved: ValueBool => computed(
            Bool,
            "True if the owner allows all pending maintenance to start.",
        );
        pub(super) pending: ValueList<AskedModel> => computed(
            AttributeList(AskedModel::settings()),
            "Pending maintenance, oldest first.",
        );
    }
}

/// The data source type.
#[derive(Debug)]
pub(in crate::provider) struct ServerClaimDataSource {
    pub(in crate::provider) cell: Cell,
}

#[async_trait]
impl DataSource for ServerClaimDataSource {
    type State<'a> = Value<ClaimLook>;
    type ProviderMetaState<'a> = Value<()>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(schema(
            "A claim that another configuration or tool manages: with `metal_operator` any ServerClaim, otherwise a claim in the \
             coordination store. Changes nothing.",
            ClaimLook::settings(),
        ))
    }

    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<()> {
        if let Value::Value(model) = config {
            not_empty(diags, &model.id, AttributePath::new("id"));
        }
        Some(())
    }

    async fn read<'a>(
        &self,
        diags: &mut Diagnostics,
        config: Self::State<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<Self::State<'a>> {
        let Value::Value(model) = config else { return Some(Value::Null) };
        let engine = self.cell.engine(diags)?;
        let id = given(&model.id)?;
        let claims = claims(&engine, &self.cell);
        match self.cell.read(diags, id, claims.look(id)).await? {
            Ok(Some(found)) => Some(Value::Value(found)),
            Ok(None) => {
                let place = claims.place();
                diags.add_error(diagnostic(
                    format!("No claim is called {id}"),
                    format!("{place} does not contain a claim with that name (NAMESPACE/NAME)."),
                    AttributePath::new("id"),
                ));
                None
            }
            Err(error) => {
                diags.add_error(of_engine(id, &error));
                None
            }
        }
    }
}
