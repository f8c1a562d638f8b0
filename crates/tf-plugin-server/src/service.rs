//! The `tfplugin6.Provider` service: the answer to each request after success and failure.
//!
//! Rule: an answer never loses a resource by accident. If the provider returns nothing, panics, or
//! sends an invalid result, the host receives its previous state with an error.
use std::sync::Arc;

use prost::bytes::Bytes;
use tf_provider::Diagnostics;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Request, Response, codegen::BoxStream};

use super::{
    ServedProvider, codec, deferral,
    diagnostics::{internal_error, to_wire, to_wire_of_provider},
    function, panics,
    proto::tfplugin6::{self as wire, provider_server},
    running::RpcResult,
    schema,
    served::{Served, unknown},
};

/// The gRPC service.
pub(super) struct Service<P> {
    pub served: Arc<Served<P>>,
    /// Cancelled by the host's stop request. Requests are answered before and after it.
    pub stop: CancellationToken,
    /// All running requests.
    pub requests: TaskTracker,
}

#[tonic::async_trait]
impl<P: ServedProvider> provider_server::Provider for Service<P> {
    async fn get_metadata(&self, _: Request<wire::get_metadata::Request>) -> RpcResult<wire::get_metadata::Response> {
        self.run("GetMetadata", "", |served, _| async move { served.metadata() }).await
    }

    async fn get_provider_schema(
        &self,
        _: Request<wire::get_provider_schema::Request>,
    ) -> RpcResult<wire::get_provider_schema::Response> {
        self.run("GetProviderSchema", "", |served, running| async move {
            let schemas = panics::caught(async { served.schemas() }).await;
            schemas.unwrap_or_else(|caught| {
                let mut diags = Diagnostics::default();
                diags.add_error(internal_error(running.rpc, "", caught));
                wire::get_provider_schema::Response { diagnostics: to_wire(diags), ..Default::default() }
            })
        })
        .await
    }

    async fn get_resource_identity_schemas(
        &self,
        _: Request<wire::get_resource_identity_schemas::Request>,
    ) -> RpcResult<wire::get_resource_identity_schemas::Response> {
        self.run("GetResourceIdentitySchemas", "", |served, _| async move {
            let with_identity = served
                .resources
                .iter()
                .filter_map(|(name, of)| Some(((*name).to_owned(), schema::identity_to_wire(&of.identity_schema()?))));
            wire::get_resource_identity_schemas::Response {
                identity_schemas: with_identity.collect(),
                diagnostics: Vec::new(),
            }
        })
        .await
    }

    async fn get_functions(
        &self,
        _: Request<wire::get_functions::Request>,
    ) -> RpcResult<wire::get_functions::Response> {
        self.run("GetFunctions", "", |served, running| async move {
            let mut diags = Diagnostics::default();
            let found = panics::caught(async { Some(served.function_schemas(&mut diags)) }).await;
            let functions = running.settle(&mut diags, found, "").unwrap_or_default();
            wire::get_functions::Response { functions, diagnostics: to_wire(diags) }
        })
        .await
    }

    async fn validate_provider_config(
        &self,
        request: Request<wire::validate_provider_config::Request>,
    ) -> RpcResult<wire::validate_provider_config::Response> {
        let request = request.into_inner();
        self.run("ValidateProviderConfig", "", |served, running| async move {
            let mut diags = Diagnostics::default();
            let valid = panics::caught(served.validate_config(&mut diags, request.config.as_ref())).await;
            running.settle(&mut diags, valid, "The configuration was refused without a reason.");
            wire::validate_provider_config::Response { diagnostics: to_wire_of_provider(diags) }
        })
        .await
    }

    async fn configure_provider(
        &self,
        request: Request<wire::configure_provider::Request>,
    ) -> RpcResult<wire::configure_provider::Response> {
        let request = request.into_inner();
        self.run("ConfigureProvider", "", |served, running| async move {
            let mut diags = Diagnostics::default();
            let done = panics::caught(served.configure(&mut diags, &request)).await;
            running.settle(&mut diags, done, "The configuration was refused without a reason.");
            wire::configure_provider::Response { diagnostics: to_wire_of_provider(diags) }
        })
        .await
    }

    async fn validate_resource_config(
        &self,
        request: Request<wire::validate_resource_config::Request>,
    ) -> RpcResult<wire::validate_resource_config::Response> {
        let request = request.into_inner();
        let name = request.type_name.clone();
        self.run("ValidateResourceConfig", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            if let Some(resource) = served.resource(&mut diags, &request.type_name) {
                let valid = panics::caught(resource.validate(&mut diags, &request)).await;
                running.settle(&mut diags, valid, "The configuration was refused without a reason.");
            }
            wire::validate_resource_config::Response { diagnostics: to_wire(diags) }
        })
        .await
    }

    async fn validate_data_resource_config(
        &self,
        request: Request<wire::validate_data_resource_config::Request>,
    ) -> RpcResult<wire::validate_data_resource_config::Response> {
        let request = request.into_inner();
        let name = request.type_name.clone();
        self.run("ValidateDataResourceConfig", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            if let Some(source) = served.data_source(&mut diags, &request.type_name) {
                let valid = panics::caught(source.validate(&mut diags, &request)).await;
                running.settle(&mut diags, valid, "The configuration was refused without a reason.");
            }
            wire::validate_data_resource_config::Response { diagnostics: to_wire(diags) }
        })
        .await
    }

    async fn upgrade_resource_state(
        &self,
        request: Request<wire::upgrade_resource_state::Request>,
    ) -> RpcResult<wire::upgrade_resource_state::Response> {
        self.upgrade_state(request.into_inner()).await
    }

    async fn upgrade_resource_identity(
        &self,
        request: Request<wire::upgrade_resource_identity::Request>,
    ) -> RpcResult<wire::upgrade_resource_identity::Response> {
        self.upgrade_identity(request.into_inner()).await
    }

    async fn move_resource_state(
        &self,
        request: Request<wire::move_resource_state::Request>,
    ) -> RpcResult<wire::move_resource_state::Response> {
        self.move_state(request.into_inner()).await
    }

    async fn read_resource(
        &self,
        request: Request<wire::read_resource::Request>,
    ) -> RpcResult<wire::read_resource::Response> {
        let request = request.into_inner();
        let name = request.type_name.clone();
        self.run("ReadResource", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            let mut outcome = None;
            let deferred = served.deferred(request.client_capabilities);
            let resource = served.resource(&mut diags, &request.type_name);
            if let Some(resource) = resource.filter(|_| deferred.is_none()) {
                let read = panics::caught(resource.read(&mut diags, &request)).await;
                outcome = running.settle(&mut diags, read, "No state was returned; the current state was kept.");
            }
            let (new_state, private, new_identity) = match outcome {
                Some(outcome) => {
                    let gone = codec::is_null(Some(&outcome.state));
                    let identity = outcome.identity.or(request.current_identity.filter(|_| !gone));
                    (Some(outcome.state), outcome.private, identity)
                }
                None => (request.current_state, request.private, request.current_identity),
            };
            wire::read_resource::Response { new_state, private, new_identity, diagnostics: to_wire(diags), deferred }
        })
        .await
    }

    async fn plan_resource_change(
        &self,
        request: Request<wire::plan_resource_change::Request>,
    ) -> RpcResult<wire::plan_resource_change::Response> {
        let request = request.into_inner();
        let name = request.type_name.clone();
        self.run("PlanResourceChange", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            let mut response = wire::plan_resource_change::Response::default();
            let deferred = served.deferred(request.client_capabilities);
            let resource = served.resource(&mut diags, &request.type_name);
            if let Some(resource) = resource {
                let planned = panics::caught(resource.plan(&mut diags, &request)).await;
                if let Some(planned) = running.settle(&mut diags, planned, "No plan was returned.") {
                    response.planned_state = Some(planned.state);
                    response.planned_private = planned.private;
                    response.requires_replace = planned.requires_replace;
                    response.planned_identity = planned.identity;
                }
            }
            response.diagnostics = to_wire(diags);
            response.deferred = deferred;
            response
        })
        .await
    }

    async fn apply_resource_change(
        &self,
        request: Request<wire::apply_resource_change::Request>,
    ) -> RpcResult<wire::apply_resource_change::Response> {
        let request = request.into_inner();
        let name = request.type_name.clone();
        self.run("ApplyResourceChange", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            let mut outcome = None;
            if let Some(resource) = served.resource(&mut diags, &request.type_name) {
                let applied = panics::caught(resource.apply(&mut diags, &request)).await;
                let missing = "No state was returned; the prior state was kept.";
                outcome = running.settle(&mut diags, applied, missing);
            }
            let created = codec::is_null(request.prior_state.as_ref());
            let (new_state, private, new_identity) = match outcome {
                Some(outcome) => (Some(outcome.state), outcome.private, outcome.identity),
                // A create without a result leaves no resource; other requests keep the previous
                // state.
                None if created => (Some(codec::null()), Bytes::new(), None),
                None => (request.prior_state, request.planned_private, request.planned_identity),
            };
            wire::apply_resource_change::Response { new_state, private, new_identity, diagnostics: to_wire(diags) }
        })
        .await
    }

    async fn import_resource_state(
        &self,
        request: Request<wire::import_resource_state::Request>,
    ) -> RpcResult<wire::import_resource_state::Response> {
        let request = request.into_inner();
        let name = request.type_name.clone();
        self.run("ImportResourceState", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            let deferred = served.deferred(request.client_capabilities);
            // Without a resource the host plans a creation, which is also deferred.
            let mut imported = None;
            let resource = served.resource(&mut diags, &request.type_name);
            if let Some(resource) = resource.filter(|_| deferred.is_none()) {
                let outcome = panics::caught(resource.import(&mut diags, &request)).await;
                imported = running.settle(&mut diags, outcome, "Nothing was imported.");
            }
            let imported = imported.map(|outcome| wire::import_resource_state::ImportedResource {
                type_name: request.type_name,
                state: Some(outcome.state),
                private: outcome.private,
                identity: outcome.identity,
            });
            wire::import_resource_state::Response {
                imported_resources: imported.into_iter().collect(),
                diagnostics: to_wire(diags),
                deferred,
            }
        })
        .await
    }

    async fn read_data_source(
        &self,
        request: Request<wire::read_data_source::Request>,
    ) -> RpcResult<wire::read_data_source::Response> {
        let request = request.into_inner();
        let name = request.type_name.clone();
        self.run("ReadDataSource", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            let mut state = None;
            let deferred = served.deferred(request.client_capabilities);
            match served.data_source(&mut diags, &request.type_name) {
                Some(source) if deferred.is_some() => {
                    state = deferral::to_be_filled(&mut diags, source.described(), request.config.as_ref());
                }
                Some(source) => {
                    let read = panics::caught(source.read(&mut diags, &request)).await;
                    state = running.settle(&mut diags, read, "Nothing was read.");
                }
                None => {}
            }
            wire::read_data_source::Response { state, diagnostics: to_wire(diags), deferred }
        })
        .await
    }

    async fn call_function(
        &self,
        request: Request<wire::call_function::Request>,
    ) -> RpcResult<wire::call_function::Response> {
        let request = request.into_inner();
        let name = request.name.clone();
        self.run("CallFunction", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            let mut result = None;
            match served.functions.get(request.name.as_str()) {
                Some(function) => {
                    let called = panics::caught(function.call(&mut diags, &request)).await;
                    result = running.settle(&mut diags, called, "No result was returned.");
                }
                None => unknown::<()>(&mut diags, "function", &request.name).unwrap_or_default(),
            }
            for warning in &diags.warnings {
                tracing::warn!(summary = %warning.summary, "a function cannot return warnings");
            }
            let error = function::error(&diags);
            wire::call_function::Response { result: result.filter(|_| error.is_none()), error }
        })
        .await
    }

    async fn validate_list_resource_config(
        &self,
        request: Request<wire::validate_list_resource_config::Request>,
    ) -> RpcResult<wire::validate_list_resource_config::Response> {
        self.validate_list(request.into_inner()).await
    }

    async fn list_resource(
        &self,
        request: Request<wire::list_resource::Request>,
    ) -> RpcResult<BoxStream<wire::list_resource::Event>> {
        Ok(self.list(request.into_inner()))
    }

    async fn validate_action_config(
        &self,
        request: Request<wire::validate_action_config::Request>,
    ) -> RpcResult<wire::validate_action_config::Response> {
        self.validate_action(request.into_inner()).await
    }

    async fn plan_action(
        &self,
        request: Request<wire::plan_action::Request>,
    ) -> RpcResult<wire::plan_action::Response> {
        self.planned_action(request.into_inner()).await
    }

    async fn invoke_action(
        &self,
        request: Request<wire::invoke_action::Request>,
    ) -> RpcResult<BoxStream<wire::invoke_action::Event>> {
        Ok(Response::new(self.invoked_action(request.into_inner())))
    }

    async fn validate_ephemeral_resource_config(
        &self,
        request: Request<wire::validate_ephemeral_resource_config::Request>,
    ) -> RpcResult<wire::validate_ephemeral_resource_config::Response> {
        self.validate_ephemeral(request.into_inner()).await
    }

    async fn open_ephemeral_resource(
        &self,
        request: Request<wire::open_ephemeral_resource::Request>,
    ) -> RpcResult<wire::open_ephemeral_resource::Response> {
        self.open_ephemeral(request.into_inner()).await
    }

    async fn renew_ephemeral_resource(
        &self,
        request: Request<wire::renew_ephemeral_resource::Request>,
    ) -> RpcResult<wire::renew_ephemeral_resource::Response> {
        self.renew_ephemeral(request.into_inner()).await
    }

    async fn close_ephemeral_resource(
        &self,
        request: Request<wire::close_ephemeral_resource::Request>,
    ) -> RpcResult<wire::close_ephemeral_resource::Response> {
        self.close_ephemeral(request.into_inner()).await
    }

    async fn stop_provider(
        &self,
        _: Request<wire::stop_provider::Request>,
    ) -> RpcResult<wire::stop_provider::Response> {
        tracing::info!("the host requested a stop");
        self.stop.cancel();
        Ok(Response::new(wire::stop_provider::Response::default()))
    }
}
