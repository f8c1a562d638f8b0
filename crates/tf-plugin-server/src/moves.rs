//! Converts states of an older schema version or of another type (`moved` blocks across types).
use serde_json::Value as Json;
use tf_provider::{AttributePath, Diagnostics};

use super::{
    ServedProvider, codec,
    diagnostics::{diagnostic, ensure_error, to_wire},
    panics,
    proto::tfplugin6 as wire,
    resource::{Erased, ResourceState},
    running::RpcResult,
    service::Service,
};

/// Another type's state, for conversion to this type.
#[derive(Clone, Debug)]
pub struct MovedState {
    /// Source address of the provider that wrote it.
    pub provider: String,
    /// Its type.
    pub type_name: String,
    /// Its schema version.
    pub schema_version: i64,
    /// Its attributes, as in the state file.
    pub attributes: Json,
}

impl MovedState {
    /// Reads a host's request; `None` after an error.
    pub(super) fn read(diags: &mut Diagnostics, request: &wire::move_resource_state::Request) -> Option<Self> {
        let state = request.source_state.as_ref().map(|state| state.json.clone()).unwrap_or_default();
        match serde_json::from_slice(&state) {
            Ok(attributes) => Some(Self {
                provider: request.source_provider_address.clone(),
                type_name: request.source_type_name.clone(),
                schema_version: request.source_schema_version,
                attributes,
            }),
            // serde_json errors contain a position, never the content.
            Err(error) => {
                diags.add_error(diagnostic("State cannot be read", format!("{error}."), AttributePath::root()));
                None
            }
        }
    }
}

impl<P: ServedProvider> Service<P> {
    pub(super) async fn upgrade_state(
        &self,
        request: wire::upgrade_resource_state::Request,
    ) -> RpcResult<wire::upgrade_resource_state::Response> {
        let name = request.type_name.clone();
        self.run("UpgradeResourceState", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            let state = request.raw_state.unwrap_or_default();
            let mut upgraded_state = None;
            if let Some(resource) = served.resource(&mut diags, &request.type_name) {
                let upgraded = panics::caught(resource.upgrade(&mut diags, request.version, &state)).await;
                upgraded_state = running.settle(&mut diags, upgraded, "No state was returned.");
            }
            wire::upgrade_resource_state::Response { upgraded_state, diagnostics: to_wire(diags) }
        })
        .await
    }

    pub(super) async fn upgrade_identity(
        &self,
        request: wire::upgrade_resource_identity::Request,
    ) -> RpcResult<wire::upgrade_resource_identity::Response> {
        let name = request.type_name.clone();
        self.run("UpgradeResourceIdentity", &name, |served, _| async move {
            let mut diags = Diagnostics::default();
            let resource = served.resource(&mut diags, &request.type_name);
            let schema = resource.and_then(Erased::identity_schema);
            let same = schema.is_some_and(|schema| schema.version == request.version);
            // A state without identities; the next refresh sets the identity.
            let absent = request.raw_identity.as_ref().is_none_or(|raw| raw.json.is_empty());
            if !same && !absent {
                let detail = format!("Identities of version {} are not supported.", request.version);
                ensure_error(&mut diags, || diagnostic("Identity cannot be upgraded", detail, AttributePath::root()));
            }
            let identity = request.raw_identity.filter(|_| same && !absent).map(|raw| wire::ResourceIdentityData {
                identity_data: Some(wire::DynamicValue { json: raw.json, ..Default::default() }),
            });
            wire::upgrade_resource_identity::Response { upgraded_identity: identity, diagnostics: to_wire(diags) }
        })
        .await
    }

    pub(super) async fn move_state(
        &self,
        request: wire::move_resource_state::Request,
    ) -> RpcResult<wire::move_resource_state::Response> {
        let name = request.target_type_name.clone();
        self.run("MoveResourceState", &name, |served, running| async move {
            let mut diags = Diagnostics::default();
            let mut response = wire::move_resource_state::Response::default();
            if let Some(resource) = served.resource(&mut diags, &request.target_type_name) {
                let moved = panics::caught(resource.move_state(&mut diags, &request)).await;
                if let Some(ResourceState { state, private, identity }) =
                    running.settle(&mut diags, moved, "No state was returned.")
                {
                    response.target_state = Some(state);
                    response.target_private = private;
                    response.target_identity = identity;
                }
            }
            // With an error, return no state, because a moved resource must be checked.
            if !diags.errors.is_empty() {
                response.target_state = Some(codec::null());
            }
            response.diagnostics = to_wire(diags);
            response
        })
        .await
    }
}
