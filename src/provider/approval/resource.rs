//! `metal_maintenance_approval`: a server owner's approval.

use async_trait::async_trait;
use tf_provider::{AttributePath, Diagnostics, Resource, schema::Schema, value::Value};

use crate::provider::{
    approval::lifecycle::approvals,
    approval::model::{ApprovalModel, approval_schema},
    shared::cell::Cell,
    shared::private::Owned,
    shared::values::given,
};

/// The resource type.
#[derive(Debug)]
pub(in crate::provider) struct MaintenanceApproval {
    pub(in crate::provider) cell: Cell,
}

#[async_trait]
impl Resource for MaintenanceApproval {
    type State<'a> = Value<ApprovalModel>;
    type PrivateState<'a> = Value<Owned>;
    type ProviderMetaState<'a> = Value<()>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(approval_schema())
    }

    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<()> {
        if let Value::Value(model) = config {
            model.check(diags, None);
        }
        Some(())
    }

    async fn plan_create<'a>(
        &self,
        diags: &mut Diagnostics,
        _proposed: Self::State<'a>,
        config: Self::State<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let Value::Value(model) = config else { return None };
        Some((Value::Value(self.planned(diags, model).await), Value::Null))
    }

    async fn plan_update<'a>(
        &self,
        diags: &mut Diagnostics,
        prior: Self::State<'a>,
        _proposed: Self::State<'a>,
        config: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>, Vec<AttributePath>)> {
        let (Value::Value(prior), Value::Value(config)) = (prior, config) else { return None };
        let mut replaced = Vec::new();
        for (name, now, before) in [
            ("server", &config.server, &prior.server),
            ("maintenance", &config.maintenance, &prior.maintenance),
            ("not_before", &config.not_before, &prior.not_before),
            ("expires", &config.expires, &prior.expires),
            ("node", &config.node, &prior.node),
        ] {
            if now != before {
                replaced.push(AttributePath::new(name));
            }
        }
        if config.all != prior.all {
            replaced.push(AttributePath::new("all"));
        }
        if !config.digest.is_null() && config.digest != prior.digest {
            replaced.push(AttributePath::new("digest"));
        }
        if replaced.is_empty() {
            return Some((Value::Value(prior), private, replaced));
        }
        Some((Value::Value(self.planned(diags, config).await), private, replaced))
    }

    async fn plan_destroy<'a>(
        &self,
        _diags: &mut Diagnostics,
        _prior: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<Self::PrivateState<'a>> {
        Some(private)
    }

    async fn create<'a>(
        &self,
        diags: &mut Diagnostics,
        planned: Self::State<'a>,
        config: Self::State<'a>,
        _private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let (Value::Value(model), Value::Value(config)) = (planned, config) else { return None };
        let engine = self.cell.engine(diags)?;
        let wish = config.check(diags, Some(engine.now()))?;
        let (model, owned) = approvals(&engine).create(diags, model, &wish).await?;
        Some((Value::Value(model), Value::Value(owned)))
    }

    async fn update<'a>(
        &self,
        _diags: &mut Diagnostics,
        _prior: Self::State<'a>,
        planned: Self::State<'a>,
        _config: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        // Every change replaces the resource.
        Some((planned, private))
    }

    async fn destroy<'a>(
        &self,
        diags: &mut Diagnostics,
        prior: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<()> {
        let Value::Value(model) = prior else { return Some(()) };
        let engine = self.cell.engine(diags)?;
        approvals(&engine).destroy(diags, &model, &private).await
    }

    async fn read<'a>(
        &self,
        diags: &mut Diagnostics,
        state: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let Value::Value(model) = state else { return Some((Value::Null, private)) };
        let Some(engine) = self.cell.engine_if_ready() else { return Some((Value::Value(model), private)) };
        let known = model.clone();
        let approvals = approvals(&engine);
        let now = self.cell.unless_stopped(approvals.read(diags, model, &private)).await.unwrap_or(Some(known));
        Some((now.map_or(Value::Null, Value::Value), private))
    }

    async fn import<'a>(
        &self,
        diags: &mut Diagnostics,
        id: String,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let engine = self.cell.engine(diags)?;
        let (model, owned) = approvals(&engine).import(diags, &id).await?;
        Some((Value::Value(model), Value::Value(owned)))
    }
}

impl MaintenanceApproval {
    async fn planned(&self, diags: &mut Diagnostics, mut model: ApprovalModel) -> ApprovalModel {
        let engine = self.cell.engine_if_ready();
        let wish = model.check(diags, engine.as_ref().map(|engine| engine.now()));
        if let (Some(engine), Some(wish), Some(_)) = (engine, wish, given(&model.server)) {
            self.cell.unless_stopped(approvals(&engine).review(diags, &model, &wish)).await;
        }
        model.unknown_outputs();
        model.plan_digest();
        model
    }
}
