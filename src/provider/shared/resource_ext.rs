//! What each resource says beyond `tf_provider::Resource`: when it is gone, and what identifies it.

use async_trait::async_trait;
use serde_json::Value as Json;
use tf_provider::{Diagnostics, value::Value};

use crate::plugin::{IdentitySchema, MovedState, ResourceExt};

use crate::provider::{
    approval::resource::MaintenanceApproval, boot_configuration::resource::ServerBootConfiguration,
    claim::resource::ServerClaimResource, maintenance::resource::ServerMaintenance,
    operation::resource::ServerOperation, shared::moved, shared::resource_identity,
};

#[async_trait]
impl ResourceExt for ServerMaintenance {
    fn write_only(&self) -> &'static [&'static str] {
        &["boot_configuration.ignition_wo"]
    }

    fn is_gone(&self, state: &Self::State<'_>) -> bool {
        state.is_null()
    }

    fn identity_schema(&self) -> Option<IdentitySchema> {
        Some(resource_identity::named_schema())
    }

    fn identity(&self, state: &Self::State<'_>) -> Option<Json> {
        let model = state.as_ref_option()?;
        resource_identity::of_name(&model.namespace, &model.name)
    }

    fn import_id(&self, identity: &Json) -> Option<String> {
        resource_identity::import_name(identity)
    }

    async fn move_state<'a>(
        &self,
        diags: &mut Diagnostics,
        from: MovedState,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        Some((Value::Value(moved::moved(diags, &from)?), Value::Null))
    }
}

impl ResourceExt for ServerOperation {
    fn is_gone(&self, state: &Self::State<'_>) -> bool {
        state.is_null()
    }

    fn identity_schema(&self) -> Option<IdentitySchema> {
        Some(resource_identity::named_schema())
    }

    fn identity(&self, state: &Self::State<'_>) -> Option<Json> {
        let model = state.as_ref_option()?;
        resource_identity::of_name(&model.namespace, &model.name)
    }

    fn import_id(&self, identity: &Json) -> Option<String> {
        resource_identity::import_name(identity)
    }
}

impl ResourceExt for ServerClaimResource {
    fn write_only(&self) -> &'static [&'static str] {
        &["ignition_wo"]
    }

    fn is_gone(&self, state: &Self::State<'_>) -> bool {
        state.is_null()
    }

    fn identity_schema(&self) -> Option<IdentitySchema> {
        Some(resource_identity::named_schema())
    }

    fn identity(&self, state: &Self::State<'_>) -> Option<Json> {
        let model = state.as_ref_option()?;
        resource_identity::of_name(&model.namespace, &model.name)
    }

    fn import_id(&self, identity: &Json) -> Option<String> {
        resource_identity::import_name(identity)
    }
}

impl ResourceExt for ServerBootConfiguration {
    fn write_only(&self) -> &'static [&'static str] {
        &["ignition_wo"]
    }

    fn is_gone(&self, state: &Self::State<'_>) -> bool {
        state.is_null()
    }

    fn identity_schema(&self) -> Option<IdentitySchema> {
        Some(resource_identity::named_schema())
    }

    fn identity(&self, state: &Self::State<'_>) -> Option<Json> {
        let model = state.as_ref_option()?;
        resource_identity::of_joined(&model.id)
    }

    fn import_id(&self, identity: &Json) -> Option<String> {
        resource_identity::import_name(identity)
    }
}

impl ResourceExt for MaintenanceApproval {
    fn is_gone(&self, state: &Self::State<'_>) -> bool {
        state.is_null()
    }

    fn identity_schema(&self) -> Option<IdentitySchema> {
        Some(resource_identity::id_schema())
    }

    fn identity(&self, state: &Self::State<'_>) -> Option<Json> {
        let model = state.as_ref_option()?;
        resource_identity::of_id(&model.id)
    }

    fn import_id(&self, identity: &Json) -> Option<String> {
        resource_identity::import_id(identity)
    }
}
