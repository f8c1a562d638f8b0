//! Additions of each resource to `tf_provider::Resource`: its deletion, recovery and identity.

use async_trait::async_trait;
use serde_json::Value as Json;
use tf_provider::{Diagnostics, value::Value};

use crate::plugin::{IdentitySchema, MovedState, ResourceExt};

use crate::provider::{
    approval::{lifecycle::approvals, resource::MaintenanceApproval},
    boot_configuration::resource::ServerBootConfiguration,
    claim::{lifecycle::claims, resource::ServerClaimResource},
    maintenance::resource::ServerMaintenance,
    operation::resource::ServerOperation,
    shared::{moved, private::Private, resource_identity},
};

#[async_trait]
impl ResourceExt for ServerMaintenance {
    fn write_only(&self) -> &'static [&'static str] {
        &["boot_configuration.ignition_wo"]
    }

    fn is_gone(&self, state: &Self::State<'_>) -> bool {
        state.is_null()
    }

    async fn recover<'a>(&self, state: Self::State<'a>, private: Self::PrivateState<'a>) -> Self::PrivateState<'a> {
        match (self.cell.engine_if_ready(), &state) {
            (Some(engine), Value::Value(model)) => Private::recovered(&engine, private, &model.remembered()).await,
            _ => private,
        }
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

#[async_trait]
impl ResourceExt for ServerOperation {
    fn is_gone(&self, state: &Self::State<'_>) -> bool {
        state.is_null()
    }

    async fn recover<'a>(&self, state: Self::State<'a>, private: Self::PrivateState<'a>) -> Self::PrivateState<'a> {
        match (self.cell.engine_if_ready(), &state) {
            (Some(engine), Value::Value(model)) => Private::recovered(&engine, private, &model.remembered()).await,
            _ => private,
        }
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

#[async_trait]
impl ResourceExt for ServerClaimResource {
    fn write_only(&self) -> &'static [&'static str] {
        &["ignition_wo"]
    }

    fn is_gone(&self, state: &Self::State<'_>) -> bool {
        state.is_null()
    }

    async fn recover<'a>(&self, state: Self::State<'a>, private: Self::PrivateState<'a>) -> Self::PrivateState<'a> {
        match (self.cell.engine_if_ready(), &state) {
            (Some(engine), Value::Value(model)) if private.is_null() => {
                claims(&engine, &self.cell).recover(model).await.map_or(private, Value::Value)
            }
            _ => private,
        }
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

#[async_trait]
impl ResourceExt for ServerBootConfiguration {
    fn write_only(&self) -> &'static [&'static str] {
        &["ignition_wo"]
    }

    fn is_gone(&self, state: &Self::State<'_>) -> bool {
        state.is_null()
    }

    async fn recover<'a>(&self, state: Self::State<'a>, private: Self::PrivateState<'a>) -> Self::PrivateState<'a> {
        match (self.cell.engine_if_ready(), &state) {
            (Some(engine), Value::Value(model)) => Private::recovered(&engine, private, &model.remembered()).await,
            _ => private,
        }
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

#[async_trait]
impl ResourceExt for MaintenanceApproval {
    fn is_gone(&self, state: &Self::State<'_>) -> bool {
        state.is_null()
    }

    async fn recover<'a>(&self, state: Self::State<'a>, private: Self::PrivateState<'a>) -> Self::PrivateState<'a> {
        match (self.cell.engine_if_ready(), &state) {
            (Some(engine), Value::Value(model)) if private.is_null() => {
                approvals(&engine).recover(model).await.map_or(private, Value::Value)
            }
            _ => private,
        }
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
