//! `list "metal_server_maintenance"` and `list "metal_server_boot_configuration"`: active records.

use async_trait::async_trait;
use tf_provider::{Diagnostics, schema::Schema, value::Value};

use crate::{
    engine::Engine,
    maintenance::{
        ids::MaintenanceId,
        spec::MaintenanceKind,
        state::{Maintenance, Phase},
    },
    plugin::{FoundResource, FoundResources, ListResource},
};

use crate::provider::{
    boot_configuration::model::BootConfigurationModel,
    maintenance::model::MaintenanceModel,
    maintenance::outcome::{imported, show},
    shared::cell::Cell,
    shared::list_filter::{FilterModel, filter_of, list_schema, not_listed},
    shared::resource_identity::of_joined,
    shared::values::given,
};

/// The list of maintenances.
#[derive(Debug)]
pub(in crate::provider) struct ListServerMaintenance {
    pub(in crate::provider) cell: Cell,
}

/// The states that can be listed: ended maintenances cannot be imported.
const MAINTENANCE_STATES: [&str; 4] = ["Pending", "Preparing", "InMaintenance", "Releasing"];

#[async_trait]
impl ListResource for ListServerMaintenance {
    type Config = Value<FilterModel>;
    type State = Value<MaintenanceModel>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(list_schema(
            "Active and waiting maintenances in the coordination store. Does not read BMCs and changes \
             nothing.",
            true,
            &MAINTENANCE_STATES,
        ))
    }

    async fn validate(&self, diags: &mut Diagnostics, config: Self::Config) -> Option<()> {
        filter_of(config).check(diags, &MAINTENANCE_STATES);
        Some(())
    }

    async fn list(&self, diags: &mut Diagnostics, config: Self::Config, found: &mut FoundResources<Self::State>) {
        let filter = filter_of(config);
        for (_, record) in records(&self.cell, diags, MaintenanceKind::Maintenance, &filter).await {
            let mut model = imported(&record);
            show(&mut model, &record, None, None);
            if !filter.selects_state(&model.state) {
                continue;
            }
            let Some(identity) = of_joined(&model.id) else { continue };
            let display_name = line(&record, given(&model.state).unwrap_or_default());
            if !found.send(FoundResource { display_name, identity, state: Value::Value(model) }).await {
                return;
            }
        }
    }
}

/// The list of boot configurations.
#[derive(Debug)]
pub(in crate::provider) struct ListBootConfiguration {
    pub(in crate::provider) cell: Cell,
}

const BOOT_STATES: [&str; 3] = ["Pending", "Ready", "Error"];

#[async_trait]
impl ListResource for ListBootConfiguration {
    type Config = Value<FilterModel>;
    type State = Value<BootConfigurationModel>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(list_schema(
            "Active and waiting boot configurations in the coordination store. Does not read BMCs and changes nothing.",
            false,
            &BOOT_STATES,
        ))
    }

    async fn validate(&self, diags: &mut Diagnostics, config: Self::Config) -> Option<()> {
        filter_of(config).check(diags, &BOOT_STATES);
        Some(())
    }

    async fn list(&self, diags: &mut Diagnostics, config: Self::Config, found: &mut FoundResources<Self::State>) {
        let filter = filter_of(config);
        for (hold, record) in records(&self.cell, diags, MaintenanceKind::BootConfiguration, &filter).await {
            let model = BootConfigurationModel::imported(&record, hold.as_ref());
            if !filter.selects_state(&model.state) {
                continue;
            }
            let Some(identity) = of_joined(&model.id) else { continue };
            let display_name = line(&record, given(&model.state).unwrap_or_default());
            if !found.send(FoundResource { display_name, identity, state: Value::Value(model) }).await {
                return;
            }
        }
    }
}

/// Returns a filter's active records of a kind, sorted by name, each with its parent maintenance.
async fn records(
    cell: &Cell,
    diags: &mut Diagnostics,
    kind: MaintenanceKind,
    filter: &FilterModel,
) -> Vec<(Option<MaintenanceId>, Maintenance)> {
    let Some(engine) = cell.engine(diags) else { return Vec::new() };
    let Some(views) = cell.unless_stopped(engine.views()).await else { return Vec::new() };
    let views = match views {
        Ok(views) => views,
        Err(error) => {
            diags.add_error(not_listed(&error));
            return Vec::new();
        }
    };
    let active: Vec<&Maintenance> = views.iter().flat_map(|view| &view.lock.active).map(|record| &**record).collect();
    let mut chosen: Vec<_> = active
        .iter()
        .filter(|record| record.spec.kind == kind && selects(filter, &engine, record))
        .map(|record| {
            let hold = record.spec.parent.as_ref().and_then(|uid| active.iter().find(|hold| hold.uid == *uid));
            (hold.map(|hold| hold.id.clone()), (*record).clone())
        })
        .collect();
    chosen.sort_by_cached_key(|(_, record)| record.id.to_string());
    chosen
}

fn selects(filter: &FilterModel, engine: &Engine, record: &Maintenance) -> bool {
    filter.selects_server(record.server())
        && filter.selects_namespace(record.id.namespace())
        && filter.selects_owner(engine, Some(record.owner.raw()))
}

/// Describes a record in one line.
fn line(record: &Maintenance, state: &str) -> String {
    let reason = record.spec.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let stuck = match &record.phase {
        Phase::Releasing { stuck: Some(_), .. } => ", release failed",
        _ => "",
    };
    format!("{}: {}, {state}{stuck}{reason}", record.id, record.server())
}
