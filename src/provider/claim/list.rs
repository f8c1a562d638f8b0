//! `list "metal_server_claim"`: the claims of an owner.

use async_trait::async_trait;
use serde_json::Value as Json;
use tf_provider::{AttributePath, Diagnostics, schema::Schema, value::Value};

use crate::{
    backend::ExternalOwnership,
    engine::Engine,
    plugin::{FoundResource, FoundResources, ListResource, diagnostic},
};

use crate::provider::{
    claim::cluster::Claims,
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
            "The claims on servers. With `metal_operator` the ServerClaims of the cluster that name a server, otherwise those \
             of the coordination store. Changes nothing.",
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
        match engine.ownership() {
            Some(there) => {
                let listed = self.of_cluster(diags, &engine, there, &filter, found);
                self.cell.unless_stopped(listed).await;
            }
            None => {
                self.cell.unless_stopped(of_store(diags, &engine, &filter, found)).await;
            }
        }
    }
}

/// The claims of the coordination store.
async fn of_store(
    diags: &mut Diagnostics,
    engine: &Engine,
    filter: &FilterModel,
    found: &mut FoundResources<Value<ClaimModel>>,
) {
    let views = match engine.views().await {
        Ok(views) => views,
        Err(error) => return diags.add_error(not_listed(&error)),
    };
    let mut claims: Vec<_> =
        views.iter().filter_map(|view| Some((view.lock.ownership.claim.as_ref()?, view))).collect();
    claims.sort_by_cached_key(|(claim, _)| claim.id.to_string());
    for (claim, view) in claims {
        let selected = filter.selects_server(&claim.server)
            && filter.selects_namespace(claim.id.namespace())
            && filter.selects_owner(engine, Some(&claim.owner));
        if !selected {
            continue;
        }
        let id = claim.id.to_string();
        let Some(identity) = of_joined(&Value::Value(id.clone())) else { continue };
        let display_name = line(&id, &claim.server, Some(&claim.owner));
        let state = Value::Value(ClaimModel::imported(claim, view));
        if !found.send(FoundResource { display_name, identity, state }).await {
            return;
        }
    }
}

impl ListServerClaim {
    /// The claims of the servers' own cluster.
    async fn of_cluster(
        &self,
        diags: &mut Diagnostics,
        engine: &Engine,
        there: &dyn ExternalOwnership,
        filter: &FilterModel,
        found: &mut FoundResources<Value<ClaimModel>>,
    ) {
        let mut claims = match there.claims().await {
            Ok(claims) => claims,
            Err(error) => return diags.add_error(not_listed(&error.into())),
        };
        claims.sort_by(|a, b| a.id.cmp(&b.id));
        for claim in claims {
            let (Some(server), Some((namespace, _))) = (claim.server.as_deref(), claim.id.split_once('/')) else {
                continue;
            };
            let selected = filter.selects_server(server)
                && filter.selects_namespace(namespace)
                && filter.selects_owner(engine, claim.owner.as_deref());
            if !selected || claim.leaving {
                continue;
            }
            let identity: Option<Json> = of_joined(&Value::Value(claim.id.clone()));
            let Some(identity) = identity else { continue };
            let mut model = ClaimModel::default();
            if found.with_state() {
                let claims = Claims { engine, there, cell: &self.cell };
                let mut problems = Diagnostics::default();
                let Some((read, _)) = claims.import(&mut problems, &claim.id).await else {
                    let detail: Vec<_> = problems.errors.into_iter().map(|error| error.detail).collect();
                    let warning = diagnostic(
                        "A claim cannot be read",
                        format!("{}: {} It is left out of the list.", claim.id, detail.join(" ")),
                        AttributePath::root(),
                    );
                    if found.warn(warning).await {
                        continue;
                    }
                    return;
                };
                model = read;
            }
            let display_name = line(&claim.id, server, claim.owner.as_deref());
            if !found.send(FoundResource { display_name, identity, state: Value::Value(model) }).await {
                return;
            }
        }
    }
}

/// One line for people.
fn line(id: &str, server: &str, owner: Option<&str>) -> String {
    match owner {
        Some(owner) => format!("{id}: {server}, of {owner}"),
        None => format!("{id}: {server}, of no owner"),
    }
}
