//! The Terraform surface: the only layer, besides the plugin protocol, that depends on tf_provider.
//!
//! Each type has a folder. `resource`, `data_source`, `list`, `action` or `ephemeral` contain the
//! methods that hosts call. `model` contains the attributes, `plan` the planned values, and
//! `outcome` the values after an apply. `shared` contains code for several types.

mod approval;
mod boot_configuration;
mod claim;
mod config;
mod functions;
mod lock;
mod maintenance;
mod operation;
mod planning;
mod server;
mod shared;

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

use config::provider_block::ProviderModel;
use shared::block::MayBeUnknown as _;
use shared::cell::{Cell, Configured};

/// The provider.
#[derive(Debug)]
pub struct MetalProvider {
    cell: Cell,
    environment: Environment,
}

impl MetalProvider {
    /// Returns a provider that stops when `stop` is cancelled.
    #[must_use]
    pub fn new(stop: CancellationToken, environment: Environment) -> Self {
        Self { cell: Cell::new(stop), environment }
    }

    /// Returns a handle that releases the lease, the BMC sessions and the store before the process
    /// ends.
    #[must_use]
    pub fn closer(&self) -> Closer {
        Closer { cell: self.cell.clone() }
    }
}

/// Closes a provider's resources after it was served.
#[derive(Debug)]
pub struct Closer {
    cell: Cell,
}

impl Closer {
    /// Ends the lease, the BMC sessions and the store connection, within a time limit.
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
        Some(config::provider_block::provider_schema())
    }

    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::Config<'a>) -> Option<()> {
        if let Value::Value(model) = config
            && let Some(input) = model.check(diags)
        {
            for problem in settings::check(&input) {
                diags.add_error(shared::wrong_settings::of_settings(&problem));
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
        match settings::build(input, &self.environment, &self.cell.stop).await {
            Ok(built) => {
                for warning in built.warnings {
                    diags.add_warning(diagnostic(warning.summary, warning.detail, AttributePath::root()));
                }
                self.cell.set(Configured::Ready(Arc::new(built.engine)));
                Some(())
            }
            Err(error) => {
                diags.add_error(shared::wrong_settings::of_settings(&error));
                None
            }
        }
    }
}

impl ServedProvider for MetalProvider {
    fn resources(&self) -> Vec<(&'static str, Box<dyn AnyResource>)> {
        use approval::resource::MaintenanceApproval;
        use boot_configuration::resource::ServerBootConfiguration;
        use claim::resource::ServerClaimResource;
        use maintenance::resource::ServerMaintenance;
        use operation::resource::ServerOperation;
        let cell = || self.cell.clone();
        vec![
            ("metal_server_maintenance", resource(ServerMaintenance { cell: cell() })),
            ("metal_server_operation", resource(ServerOperation { cell: cell() })),
            ("metal_server_claim", resource(ServerClaimResource { cell: cell() })),
            ("metal_maintenance_approval", resource(MaintenanceApproval { cell: cell() })),
            ("metal_server_boot_configuration", resource(ServerBootConfiguration { cell: cell() })),
        ]
    }

    fn data_sources(&self) -> Vec<(&'static str, Box<dyn AnyDataSource>)> {
        use planning::preview::MaintenancePreview;
        use planning::queue::MaintenanceQueue;
        use planning::window::MaintenanceWindow;
        use server::data_source::ServerDataSource;
        let cell = || self.cell.clone();
        vec![
            ("metal_server", data_source(ServerDataSource { cell: cell() })),
            ("metal_servers", data_source(server::data_source_of_many::Servers { cell: cell() })),
            ("metal_server_claim", data_source(claim::data_source::ServerClaimDataSource { cell: cell() })),
            ("metal_maintenance_queue", data_source(MaintenanceQueue { cell: cell() })),
            ("metal_maintenance_preview", data_source(MaintenancePreview { cell: cell() })),
            ("metal_maintenance_window", data_source(MaintenanceWindow { cell: cell() })),
        ]
    }

    fn functions(&self) -> Vec<(&'static str, Box<dyn AnyFunction>)> {
        use functions::in_window::InWindow;
        use functions::next_window::NextWindow;
        vec![("next_window", function(NextWindow)), ("in_window", function(InWindow))]
    }

    fn list_resources(&self) -> Vec<(&'static str, Box<dyn AnyListResource>)> {
        use approval::list::ListMaintenanceApproval;
        use claim::list::ListServerClaim;
        use shared::list_records::{ListBootConfiguration, ListServerMaintenance};
        let cell = || self.cell.clone();
        vec![
            ("metal_server_maintenance", list_resource(ListServerMaintenance { cell: cell() })),
            ("metal_server_boot_configuration", list_resource(ListBootConfiguration { cell: cell() })),
            ("metal_server_claim", list_resource(ListServerClaim { cell: cell() })),
            ("metal_maintenance_approval", list_resource(ListMaintenanceApproval { cell: cell() })),
        ]
    }

    fn actions(&self) -> Vec<(&'static str, Box<dyn AnyAction>)> {
        use operation::action::ServerOperationAction;
        vec![("metal_server_operation", action(ServerOperationAction::new(self.cell.clone())))]
    }

    fn ephemeral_resources(&self) -> Vec<(&'static str, Box<dyn AnyEphemeral>)> {
        use lock::ephemeral::ServerLock;
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
