//! `list "metal_maintenance_approval"`: the approvals that an owner has given.

use async_trait::async_trait;
use tf_provider::{AttributePath, Diagnostics, schema::Schema, value::Value};

use crate::plugin::{FoundResource, FoundResources, ListResource, diagnostic};

use crate::provider::{
    approval::model::ApprovalModel,
    shared::cell::Cell,
    shared::list_filter::{FilterModel, filter_of, list_schema, not_listed},
    shared::resource_identity::of_id,
    shared::values::given,
};

/// The list of approvals.
#[derive(Debug)]
pub(in crate::provider) struct ListMaintenanceApproval {
    pub(in crate::provider) cell: Cell,
}

const STATES: [&str; 5] = ["InForce", "NotBefore", "Expired", "Void", "Used"];

#[async_trait]
impl ListResource for ListMaintenanceApproval {
    type Config = Value<FilterModel>;
    type State = Value<ApprovalModel>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(list_schema(
            "The approvals on claims in the coordination store. With `metal_operator` nothing is listed: an approval mark on \
             a ServerClaim does not tell its author, so that it cannot be imported. Changes nothing.",
            false,
            &STATES,
        ))
    }

    async fn validate(&self, diags: &mut Diagnostics, config: Self::Config) -> Option<()> {
        filter_of(config).check(diags, &STATES);
        Some(())
    }

    async fn list(&self, diags: &mut Diagnostics, config: Self::Config, found: &mut FoundResources<Self::State>) {
        let filter = filter_of(config);
        let Some(engine) = self.cell.engine(diags) else { return };
        if engine.ownership().is_some() {
            diags.add_warning(diagnostic(
                "Approvals of a cluster cannot be listed",
                "An approval mark on a ServerClaim does not tell its author. Write the resource: applying it changes nothing \
                 where an approval exists already.",
                AttributePath::root(),
            ));
            return;
        }
        let Some(views) = self.cell.unless_stopped(engine.views()).await else { return };
        let views = match views {
            Ok(views) => views,
            Err(error) => return diags.add_error(not_listed(&error)),
        };
        let approvals =
            views.iter().flat_map(|view| view.lock.ownership.approvals.iter().map(move |approval| (approval, view)));
        let mut chosen = Vec::new();
        for (approval, view) in approvals {
            let claim = view.lock.ownership.claim.as_ref();
            let server = claim.map(|claim| claim.server.clone()).unwrap_or_default();
            if !filter.selects_server(&server)
                || !filter.selects_owner(&engine, claim.map(|claim| claim.owner.as_str()))
            {
                continue;
            }
            let mut model = ApprovalModel::of(approval, &server);
            model.show(approval, view);
            if filter.selects_state(&model.state) {
                chosen.push((approval.at, server, model));
            }
        }
        chosen.sort_by_key(|(at, ..)| *at);
        for (_, server, model) in chosen {
            let Some(identity) = of_id(&model.id) else { continue };
            let what = given(&model.maintenance).unwrap_or("everything");
            let display_name = format!("{server}: {what}, {}", given(&model.state).unwrap_or_default());
            if !found.send(FoundResource { display_name, identity, state: Value::Value(model) }).await {
                return;
            }
        }
    }
}
