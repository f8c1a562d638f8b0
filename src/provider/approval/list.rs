//! `list "metal_maintenance_approval"`: an owner's approvals.

use async_trait::async_trait;
use tf_provider::{Diagnostics, schema::Schema, value::Value};

use crate::plugin::{FoundResource, FoundResources, ListResource};

use crate::provider::{
    approval::lifecycle::{ListedApproval, approvals},
    approval::model::ApprovalModel,
    shared::cell::Cell,
    shared::list_filter::{FilterModel, filter_of, list_schema},
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
            "Approvals on claims in the coordination store. With `metal_operator` the list is empty: an approval mark on a \
             ServerClaim does not name its author, so it cannot be imported. Changes nothing.",
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
        let Some(Some(all)) = self.cell.unless_stopped(approvals(&engine).all(diags)).await else { return };
        for ListedApproval { server, owner, model } in all {
            let selected = filter.selects_server(&server)
                && filter.selects_owner(&engine, owner.as_deref())
                && filter.selects_state(&model.state);
            if !selected {
                continue;
            }
            let Some(identity) = of_id(&model.id) else { continue };
            let what = given(&model.maintenance).unwrap_or("everything");
            let display_name = format!("{server}: {what}, {}", given(&model.state).unwrap_or_default());
            if !found.send(FoundResource { display_name, identity, state: Value::Value(model) }).await {
                return;
            }
        }
    }
}
