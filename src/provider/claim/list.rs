//! `list "metal_server_claim"`: an owner's claims.

use async_trait::async_trait;
use tf_provider::{AttributePath, Diagnostics, schema::Schema, value::Value};

use crate::{
    engine::Engine,
    plugin::{FoundResource, FoundResources, ListResource, diagnostic},
};

use crate::provider::{
    claim::lifecycle::{ClaimLifecycle, ListedClaim, claims},
    claim::model::ClaimModel,
    shared::cell::Cell,
    shared::list_filter::{FilterModel, filter_of, list_schema, not_listed},
    shared::resource_identity::of_joined,
};

/// The list of claims.
#[derive(Debug)]
pub(in crate::provider) struct ListServerClaim {
    pub(in crate::provider) cell: Cell,
}

#[async_trait]
impl ListResource for ListServerClaim {
    type Config = Value<FilterModel>;
    type State = Value<ClaimModel>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(list_schema(
            "Claims on servers: with `metal_operator` the cluster's ServerClaims that name a server, otherwise the claims in the \
             coordination store. Changes nothing.",
            true,
            &[],
        ))
    }

    async fn validate(&self, diags: &mut Diagnostics, config: Self::Config) -> Option<()> {
        filter_of(config).check(diags, &[]);
        Some(())
    }

    async fn list(&self, diags: &mut Diagnostics, config: Self::Config, found: &mut FoundResources<Self::State>) {
        let filter = filter_of(config);
        let Some(engine) = self.cell.engine(diags) else { return };
        let claims = claims(&engine, &self.cell);
        let listed = async {
            let all = match claims.all().await {
                Ok(all) => all,
                Err(error) => return diags.add_error(not_listed(&error)),
            };
            for claim in all.into_iter().filter(|claim| selects(&filter, &engine, claim)) {
                if !send(&*claims, claim, found).await {
                    return;
                }
            }
        };
        self.cell.unless_stopped(listed).await;
    }
}

fn selects(filter: &FilterModel, engine: &Engine, claim: &ListedClaim) -> bool {
    filter.selects_server(&claim.server)
        && claim.id.split_once('/').is_some_and(|(namespace, _)| filter.selects_namespace(namespace))
        && filter.selects_owner(engine, claim.owner.as_deref())
}

/// Sends a claim; returns false if the host wants no more.
async fn send(claims: &dyn ClaimLifecycle, claim: ListedClaim, found: &mut FoundResources<Value<ClaimModel>>) -> bool {
    let Some(identity) = of_joined(&Value::Value(claim.id.clone())) else { return true };
    let display_name = line(&claim.id, &claim.server, claim.owner.as_deref());
    let mut problems = Diagnostics::default();
    let model = match claim.model {
        Some(model) => Some(model),
        None if !found.with_state() => Some(ClaimModel::default()),
        None => claims.import(&mut problems, &claim.id).await.map(|(model, _)| model),
    };
    let Some(model) = model else {
        let detail: Vec<_> = problems.errors.into_iter().map(|error| error.detail).collect();
        let warning = diagnostic(
            "A claim cannot be read",
            format!("{}: {} The list omits it.", claim.id, detail.join(" ")),
            AttributePath::root(),
        );
        return found.warn(warning).await;
    };
    found.send(FoundResource { display_name, identity, state: Value::Value(model) }).await
}

/// Describes a claim in one line.
fn line(id: &str, server: &str, owner: Option<&str>) -> String {
    match owner {
        Some(owner) => format!("{id}: {server}, of {owner}"),
        None => format!("{id}: {server}, of no owner"),
    }
}
