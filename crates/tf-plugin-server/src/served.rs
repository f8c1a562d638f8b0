//! The provider and its offers, shared by all requests.
use std::{collections::BTreeMap, sync::OnceLock};

use tf_provider::{AttributePath, Diagnostics, Provider};

use super::{
    ServedProvider,
    action::AnyAction,
    codec::Received,
    data_source::AnyDataSource,
    diagnostics::{diagnostic, known, to_wire},
    ephemeral::AnyEphemeral,
    function::{self, AnyFunction},
    list_resource::AnyListResource,
    proto::tfplugin6 as wire,
    resource::{AnyResource, Described},
    schema,
};

/// The served provider.
pub(super) struct Served<P> {
    pub(super) provider: P,
    described: OnceLock<Result<Described, Diagnostics>>,
    pub resources: BTreeMap<&'static str, Box<dyn AnyResource>>,
    data_sources: BTreeMap<&'static str, Box<dyn AnyDataSource>>,
    pub functions: BTreeMap<&'static str, Box<dyn AnyFunction>>,
    list_resources: BTreeMap<&'static str, Box<dyn AnyListResource>>,
    actions: BTreeMap<&'static str, Box<dyn AnyAction>>,
    ephemerals: BTreeMap<&'static str, Box<dyn AnyEphemeral>>,
}

impl<P: ServedProvider> Served<P> {
    pub fn new(provider: P) -> Self {
        Self {
            described: OnceLock::new(),
            resources: provider.resources().into_iter().collect(),
            data_sources: provider.data_sources().into_iter().collect(),
            functions: provider.functions().into_iter().collect(),
            list_resources: provider.list_resources().into_iter().collect(),
            actions: provider.actions().into_iter().collect(),
            ephemerals: provider.ephemeral_resources().into_iter().collect(),
            provider,
        }
    }

    fn described(&self) -> Result<&Described, Diagnostics> {
        let described = self.described.get_or_init(|| {
            let produce = |diags: &mut Diagnostics| Provider::schema(&self.provider, diags);
            Described::new(produce, &[], "the provider")
        });
        described.as_ref().map_err(Clone::clone)
    }

    pub fn resource(&self, diags: &mut Diagnostics, name: &str) -> Option<&dyn AnyResource> {
        let found = self.resources.get(name).map(AsRef::as_ref);
        found.or_else(|| unknown(diags, "resource type", name))
    }

    pub fn data_source(&self, diags: &mut Diagnostics, name: &str) -> Option<&dyn AnyDataSource> {
        let found = self.data_sources.get(name).map(AsRef::as_ref);
        found.or_else(|| unknown(diags, "data source", name))
    }

    pub fn list_resource(&self, diags: &mut Diagnostics, name: &str) -> Option<&dyn AnyListResource> {
        let found = self.list_resources.get(name).map(AsRef::as_ref);
        found.or_else(|| unknown(diags, "list resource", name))
    }

    pub fn action(&self, diags: &mut Diagnostics, name: &str) -> Option<&dyn AnyAction> {
        let found = self.actions.get(name).map(AsRef::as_ref);
        found.or_else(|| unknown(diags, "action", name))
    }

    pub fn ephemeral(&self, diags: &mut Diagnostics, name: &str) -> Option<&dyn AnyEphemeral> {
        let found = self.ephemerals.get(name).map(AsRef::as_ref);
        found.or_else(|| unknown(diags, "ephemeral resource", name))
    }

    pub fn schemas(&self) -> wire::get_provider_schema::Response {
        let mut diags = Diagnostics::default();
        let mut keep = |described: Result<&Described, Diagnostics>| match described {
            Ok(described) => Some(described.wire.clone()),
            Err(errors) => {
                diags.add_diagnostics(errors);
                None
            }
        };
        let provider = keep(self.described());
        let resources = self.resources.iter();
        let resource_schemas =
            resources.filter_map(|(name, of)| Some(((*name).to_owned(), keep(of.described())?))).collect();
        let data_sources = self.data_sources.iter();
        let data_source_schemas =
            data_sources.filter_map(|(name, of)| Some(((*name).to_owned(), keep(of.described())?))).collect();
        let lists = self.list_resources.iter();
        let list_resource_schemas =
            lists.filter_map(|(name, of)| Some(((*name).to_owned(), keep(of.described())?))).collect();
        let actions = self.actions.iter().filter_map(|(name, of)| {
            let schema = Some(keep(of.described())?);
            Some(((*name).to_owned(), wire::ActionSchema { schema }))
        });
        let action_schemas = actions.collect();
        let ephemerals = self.ephemerals.iter();
        let ephemeral_resource_schemas =
            ephemerals.filter_map(|(name, of)| Some(((*name).to_owned(), keep(of.described())?))).collect();
        let functions = self.function_schemas(&mut diags);
        wire::get_provider_schema::Response {
            provider,
            resource_schemas,
            data_source_schemas,
            functions,
            list_resource_schemas,
            action_schemas,
            ephemeral_resource_schemas,
            provider_meta: self.provider.provider_meta_schema().map(|of| schema::to_wire(&of, &[])),
            server_capabilities: Some(CAPABILITIES),
            diagnostics: to_wire(diags),
        }
    }

    pub fn function_schemas(&self, diags: &mut Diagnostics) -> BTreeMap<String, wire::Function> {
        let mut schemas = BTreeMap::new();
        for (name, of) in &self.functions {
            match of.schema() {
                Ok(schema) => {
                    schemas.insert((*name).to_owned(), function::to_wire(schema));
                }
                Err(errors) => diags.add_diagnostics(errors),
            }
        }
        schemas
    }

    pub fn metadata(&self) -> wire::get_metadata::Response {
        use wire::get_metadata::{
            ActionMetadata, DataSourceMetadata, EphemeralMetadata, FunctionMetadata, ListResourceMetadata,
            ResourceMetadata,
        };
        let names = |name: &&'static str| (*name).to_owned();
        wire::get_metadata::Response {
            server_capabilities: Some(CAPABILITIES),
            resources: self.resources.keys().map(names).map(|type_name| ResourceMetadata { type_name }).collect(),
            data_sources: self
                .data_sources
                .keys()
                .map(names)
                .map(|type_name| DataSourceMetadata { type_name })
                .collect(),
            functions: self.functions.keys().map(names).map(|name| FunctionMetadata { name }).collect(),
            list_resources: self
                .list_resources
                .keys()
                .map(names)
                .map(|type_name| ListResourceMetadata { type_name })
                .collect(),
            ephemeral_resources: self
                .ephemerals
                .keys()
                .map(names)
                .map(|type_name| EphemeralMetadata { type_name })
                .collect(),
            actions: self.actions.keys().map(names).map(|type_name| ActionMetadata { type_name }).collect(),
            ..Default::default()
        }
    }

    pub async fn validate_config(&self, diags: &mut Diagnostics, config: Option<&wire::DynamicValue>) -> Option<()> {
        let described = known(diags, self.described())?;
        let config = Received::new(config, &described.shape, "provider configuration");
        let config = config.decode(diags)?;
        Provider::validate(&self.provider, diags, config).await
    }

    pub async fn configure(&self, diags: &mut Diagnostics, request: &wire::configure_provider::Request) -> Option<()> {
        let described = known(diags, self.described())?;
        let config = Received::new(request.config.as_ref(), &described.shape, "provider configuration");
        let config = config.decode(diags)?;
        Provider::configure(&self.provider, diags, request.terraform_version.clone(), config).await
    }
}

/// The schema is the same in every process, so hosts can cache it.
const CAPABILITIES: wire::ServerCapabilities =
    wire::ServerCapabilities { plan_destroy: true, get_provider_schema_optional: true, move_resource_state: true };

pub(super) fn unknown<T>(diags: &mut Diagnostics, kind: &str, name: &str) -> Option<T> {
    diags.add_error(diagnostic(
        format!("Unknown {kind} {name}"),
        "This version of the provider does not have it.",
        AttributePath::root(),
    ));
    None
}
