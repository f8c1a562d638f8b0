//! The Terraform surface: the only room, besides the wire, that names tf_provider. One type per file.

mod action_model;
mod action_server_operation;
mod approval_model;
mod backend_block;
mod boot;
mod boot_configuration_model;
mod boot_configuration_outcome;
mod boot_configuration_plan;
mod boot_proof;
mod cell;
mod claim_end;
mod claim_model;
mod cluster_api;
mod cluster_approval;
mod cluster_claim;
mod config;
mod data_source_maintenance_preview;
mod data_source_maintenance_queue;
mod data_source_maintenance_window;
mod data_source_server;
mod data_source_server_claim;
mod data_source_servers;
mod diagnostics;
mod effect;
mod ended;
mod ephemeral_server_lock;
mod function_in_window;
mod function_next_window;
mod function_window;
mod identity;
mod kubernetes_node;
mod list_filter;
mod list_maintenance_approval;
mod list_records;
mod list_server_claim;
mod lock_model;
mod maintenance_end;
mod maintenance_model;
mod maintenance_outcome;
mod maintenance_plan;
mod moved;
mod node_leases;
mod not_updated;
mod operation_model;
mod operation_plan;
mod own_turn;
mod private;
mod prospect;
mod renamed_timeouts;
mod resource_ext;
mod resource_identity;
mod resource_maintenance_approval;
mod resource_server_boot_configuration;
mod resource_server_claim;
mod resource_server_maintenance;
mod resource_server_operation;
mod restored;
mod review;
mod schema;
mod server_check_model;
mod service_model;
mod standing;
mod toleration;
mod values;
mod window;
mod write_only;
mod wrong_settings;

use std::sync::Arc;

use async_trait::async_trait;
use tf_provider::{AttributePath, Diagnostics, Provider, schema::Schema, value::Value};
use tokio_util::sync::CancellationToken;

use crate::{
    plugin::{
        AnyAction, AnyDataSource, AnyEphemeral, AnyFunction, AnyListResource, AnyResource, ServedProvider, action,
        data_source, diagnostic, ephemeral, function, list_resource, resource,
    },
    settings::{self, Environment},
};

use cell::{Cell, Configured};
use config::ProviderModel;

/// The provider.
#[derive(Debug)]
pub struct MetalProvider {
    cell: Cell,
    environment: Environment,
}

impl MetalProvider {
    /// A provider that stops when `stop` is cancelled.
    #[must_use]
    pub fn new(stop: CancellationToken, environment: Environment) -> Self {
        Self { cell: Cell::new(stop), environment }
    }

    /// What has to be ended before the process ends: the lease, sessions on BMCs, the store.
    #[must_use]
    pub fn closer(&self) -> Closer {
        Closer { cell: self.cell.clone() }
    }
}

/// Ends what a provider opened, after it was served.
#[derive(Debug)]
pub struct Closer {
    cell: Cell,
}

impl Closer {
    /// Ends the lease, sessions on BMCs and the store. Bounded in time.
    pub async fn close(self) {
        if let Some(engine) = self.cell.engine_if_ready() {
            engine.close().await;
        }
    }
}

#[async_trait]
impl Provider for MetalProvider {
    type Config<'a> = Value<ProviderModel>;
    type MetaState<'a> = Value<()>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(config::provider_schema())
    }

    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::Config<'a>) -> Option<()> {
        if let Value::Value(model) = config
            && let Some(input) = model.check(diags)
        {
            for problem in settings::check(&input) {
                diags.add_error(wrong_settings::of_settings(&problem));
            }
        }
        Some(())
    }

    async fn configure<'a>(
        &self,
        diags: &mut Diagnostics,
        _terraform_version: String,
        config: Self::Config<'a>,
    ) -> Option<()> {
        let model = match config {
            Value::Value(model) => model,
            _ => ProviderModel::default(),
        };
        if model.has_unknown() {
            self.cell.set(Configured::Deferred);
            return Some(());
        }
        let input = model.check(diags)?;
        match settings::build(input, &self.environment).await {
            Ok(built) => {
                for warning in built.warnings {
                    diags.add_warning(diagnostic(warning.summary, warning.detail, AttributePath::root()));
                }
                self.cell.set(Configured::Ready(Arc::new(built.engine)));
                Some(())
            }
            Err(error) => {
                diags.add_error(wrong_settings::of_settings(&error));
                None
            }
        }
    }
}

impl ServedProvider for MetalProvider {
    fn resources(&self) -> Vec<(&'static str, Box<dyn AnyResource>)> {
        use resource_maintenance_approval::MaintenanceApproval;
        use resource_server_boot_configuration::ServerBootConfiguration;
        use resource_server_claim::ServerClaim;
        use resource_server_maintenance::ServerMaintenance;
        use resource_server_operation::ServerOperation;
        let cell = || self.cell.clone();
        vec![
            ("metal_server_maintenance", resource(ServerMaintenance { cell: cell() })),
            ("metal_server_operation", resource(ServerOperation { cell: cell() })),
            ("metal_server_claim", resource(ServerClaim { cell: cell() })),
            ("metal_maintenance_approval", resource(MaintenanceApproval { cell: cell() })),
            ("metal_server_boot_configuration", resource(ServerBootConfiguration { cell: cell() })),
        ]
    }

    fn data_sources(&self) -> Vec<(&'static str, Box<dyn AnyDataSource>)> {
        use data_source_maintenance_preview::MaintenancePreview;
        use data_source_maintenance_queue::MaintenanceQueue;
        use data_source_maintenance_window::MaintenanceWindow;
        use data_source_server::Server;
        let cell = || self.cell.clone();
        vec![
            ("metal_server", data_source(Server { cell: cell() })),
            ("metal_servers", data_source(data_source_servers::Servers { cell: cell() })),
            ("metal_server_claim", data_source(data_source_server_claim::ServerClaim { cell: cell() })),
            ("metal_maintenance_queue", data_source(MaintenanceQueue { cell: cell() })),
            ("metal_maintenance_preview", data_source(MaintenancePreview { cell: cell() })),
            ("metal_maintenance_window", data_source(MaintenanceWindow { cell: cell() })),
        ]
    }

    fn functions(&self) -> Vec<(&'static str, Box<dyn AnyFunction>)> {
        use function_in_window::InWindow;
        use function_next_window::NextWindow;
        vec![("next_window", function(NextWindow)), ("in_window", function(InWindow))]
    }

    fn list_resources(&self) -> Vec<(&'static str, Box<dyn AnyListResource>)> {
        use list_maintenance_approval::ListMaintenanceApproval;
        use list_records::{ListBootConfiguration, ListServerMaintenance};
        use list_server_claim::ListServerClaim;
        let cell = || self.cell.clone();
        vec![
            ("metal_server_maintenance", list_resource(ListServerMaintenance { cell: cell() })),
            ("metal_server_boot_configuration", list_resource(ListBootConfiguration { cell: cell() })),
            ("metal_server_claim", list_resource(ListServerClaim { cell: cell() })),
            ("metal_maintenance_approval", list_resource(ListMaintenanceApproval { cell: cell() })),
        ]
    }

    fn actions(&self) -> Vec<(&'static str, Box<dyn AnyAction>)> {
        use action_server_operation::ServerOperationAction;
        vec![("metal_server_operation", action(ServerOperationAction::new(self.cell.clone())))]
    }

    fn ephemeral_resources(&self) -> Vec<(&'static str, Box<dyn AnyEphemeral>)> {
        use ephemeral_server_lock::ServerLock;
        vec![("metal_server_lock", ephemeral(ServerLock { cell: self.cell.clone() }))]
    }

    fn is_deferred(&self) -> bool {
        self.cell.is_deferred()
    }

    async fn before_end(&self) {
        if let Some(engine) = self.cell.engine_if_ready() {
            engine.close_open_locks().await;
        }
    }
}
