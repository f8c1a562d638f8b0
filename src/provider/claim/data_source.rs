//! `data metal_server_claim`: a claim that somebody else makes, looked at.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, DataSource, Diagnostics,
    schema::{AttributeType, Schema},
    value::{Value, ValueBool, ValueList},
};

use crate::{
    backend::{ExternalClaimView, ExternalOwnership},
    engine::{Engine, EngineError},
    maintenance::approval,
    plugin::diagnostic,
};

use crate::provider::{
    claim::model::{AskedModel, asked_attributes},
    shared::cell::Cell,
    shared::diagnostics::of_engine,
    shared::schema::{attributes, computed, required, schema},
    shared::values::{Text, given, known, not_empty},
};

/// What a claim says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct ClaimLook {
    id: Text,
    server: Text,
    owner: Text,
    contact: Text,
    claimed_at: Text,
    phase: Text,
    image: Text,
    server_power: Text,
    ignition_secret: Text,
    maintenance_needed: ValueBool,
    approved: ValueBool,
    pending: ValueList<AskedModel>,
}

/// The data source type.
#[derive(Debug)]
pub(in crate::provider) struct ServerClaim {
    pub(in crate::provider) cell: Cell,
}

#[async_trait]
impl DataSource for ServerClaim {
    type State<'a> = Value<ClaimLook>;
    type ProviderMetaState<'a> = Value<()>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        use AttributeType::{AttributeList, Bool, String};
        Some(schema(
            "A claim on a server that something else makes and keeps: with `metal_operator` any ServerClaim, otherwise one of the \
             coordination store. Reads only.",
            attributes([
                ("id", required(String, "`namespace/name` of the claim.")),
                ("server", computed(String, "The server that it names; null while it names none.")),
                ("owner", computed(String, "The `owner` that made it; null for a ServerClaim of another author.")),
                ("contact", computed(String, "Where the owner is reached.")),
                ("claimed_at", computed(String, "Since when (RFC 3339, UTC).")),
                ("phase", computed(String, "With `metal_operator`: `Bound` or `Unbound`; else null.")),
                ("image", computed(String, "With `metal_operator`: what the server boots; else null.")),
                ("server_power", computed(String, "With `metal_operator`: the power that the owner wants; else null.")),
                (
                    "ignition_secret",
                    computed(String, "With `metal_operator`: the Secret with the ignition file; else null."),
                ),
                ("maintenance_needed", computed(Bool, "Whether maintenance of the server is pending.")),
                (
                    "approved",
                    computed(Bool, "Whether everything that is asked now may start as far as the owner is concerned."),
                ),
                (
                    "pending",
                    computed(AttributeList(asked_attributes()), "What is asked and has not started, the oldest first."),
                ),
            ]),
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
        let looked = async {
            match engine.ownership() {
                Some(there) => in_cluster(&engine, there, id).await,
                None => in_store(&engine, id).await,
            }
        };
        match self.cell.unless_stopped(looked).await? {
            Ok(Some(found)) => Some(Value::Value(found)),
            Ok(None) => {
                let place = engine.ownership().map_or_else(|| engine.store().address(), ExternalOwnership::address);
                diags.add_error(diagnostic(
                    format!("No claim is called {id}"),
                    format!("{place} knows none of that name (NAMESPACE/NAME)."),
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

async fn in_cluster(
    engine: &Engine,
    there: &dyn ExternalOwnership,
    id: &str,
) -> Result<Option<ClaimLook>, EngineError> {
    let Some(claim) = there.claim_view(id, true).await? else { return Ok(None) };
    let asked = match &claim.server {
        Some(server) => {
            let key = engine.known_lock_key(server).await;
            engine.asked_there(there, server, key.as_ref(), claim.approved).await?
        }
        None => Vec::new(),
    };
    let ExternalClaimView { id, owner, contact, server, since, phase, image, ignition_secret, power, .. } = claim;
    Ok(Some(ClaimLook {
        id: Value::Value(id),
        server: known(server),
        owner: known(owner),
        contact: known(contact),
        claimed_at: known(since),
        phase: known(phase),
        image: known(image),
        server_power: known(power),
        ignition_secret: known(ignition_secret),
        maintenance_needed: Value::Value(claim.needed || !asked.is_empty()),
        approved: Value::Value(claim.approved || asked.iter().all(|asked| asked.allowed)),
        pending: Value::Value(asked.into_iter().map(AskedModel::from).collect()),
    }))
}

async fn in_store(engine: &Engine, id: &str) -> Result<Option<ClaimLook>, EngineError> {
    for view in engine.views().await? {
        let Some(claim) = view.lock.ownership.claim.as_ref().filter(|claim| claim.id.to_string() == id) else {
            continue;
        };
        let asked = approval::asked(&view.lock, view.now);
        return Ok(Some(ClaimLook {
            id: Value::Value(id.to_owned()),
            server: Value::Value(claim.server.clone()),
            owner: Value::Value(claim.owner.clone()),
            contact: known(claim.contact.clone()),
            claimed_at: Value::Value(claim.since.to_string()),
            maintenance_needed: Value::Value(!asked.is_empty()),
            approved: Value::Value(asked.iter().all(|asked| asked.allowed)),
            pending: Value::Value(asked.into_iter().map(AskedModel::from).collect()),
            ..ClaimLook::default()
        }));
    }
    Ok(None)
}
