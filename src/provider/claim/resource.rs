//! `metal_server_claim`: marks a server as in use, so that others need the owner's approval.

use async_trait::async_trait;
use tf_provider::{AttributePath, Diagnostics, Resource, schema::Schema, value::Value};

use crate::provider::{
    claim::lifecycle::claims,
    claim::model::{ClaimModel, claim_schema},
    shared::cell::Cell,
    shared::private::Owned,
};

/// The resource type.
#[derive(Debug)]
pub(in crate::provider) struct ServerClaimResource {
    pub(in crate::provider) cell: Cell,
}

#[async_trait]
impl Resource for ServerClaimResource {
    type State<'a> = Value<ClaimModel>;
    type PrivateState<'a> = Value<Owned>;
    type ProviderMetaState<'a> = Value<()>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(claim_schema())
    }

    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<()> {
        if let Value::Value(model) = config {
            model.check(diags);
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
        let Value::Value(mut model) = config else { return None };
        model.check(diags);
        self.review(diags, &model).await;
        model.unknown_outputs();
        if let Some(id) = model.name_id() {
            model.id = Value::Value(id.to_string());
        }
        Some((Value::Value(model), Value::Null))
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
        config.check(diags);
        let mut replaced = Vec::new();
        for (name, now, before) in [
            ("server", &config.server, &prior.server),
            ("namespace", &config.namespace, &prior.namespace),
            ("name", &config.name, &prior.name),
        ] {
            if now != before {
                replaced.push(AttributePath::new(name));
            }
        }
        let mut model = config.with_outputs_of(&prior);
        if !replaced.is_empty() {
            self.farewell(diags, &prior, &private).await;
            self.review(diags, &model).await;
            model.unknown_outputs();
        } else if let Some(engine) = self.cell.engine_if_ready() {
            self.cell.unless_stopped(claims(&engine, &self.cell).review_change(diags, &prior, &mut model)).await;
        }
        Some((Value::Value(model), private, replaced))
    }

    async fn plan_destroy<'a>(
        &self,
        diags: &mut Diagnostics,
        prior: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<Self::PrivateState<'a>> {
        if let Value::Value(prior) = &prior {
            self.farewell(diags, prior, &private).await;
        }
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
        let Value::Value(mut model) = planned else { return None };
        model.take_write_only(&config);
        let engine = self.cell.engine(diags)?;
        let (model, owned) = claims(&engine, &self.cell).create(diags, model).await?;
        Some((Value::Value(model), Value::Value(owned)))
    }

    async fn update<'a>(
        &self,
        diags: &mut Diagnostics,
        prior: Self::State<'a>,
        planned: Self::State<'a>,
        config: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let Value::Value(mut model) = planned else { return None };
        model.take_write_only(&config);
        let engine = self.cell.engine(diags)?;
        Some(match claims(&engine, &self.cell).update(diags, model, &private).await {
            Some((model, private)) => (Value::Value(model), private),
            None => (prior, private),
        })
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
        claims(&engine, &self.cell).destroy(diags, &model, &private).await
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
        let claims = claims(&engine, &self.cell);
        let now = self.cell.unless_stopped(claims.read(diags, model, &private)).await.unwrap_or(Some(known));
        Some((now.map_or(Value::Null, Value::Value), private))
    }

    async fn import<'a>(
        &self,
        diags: &mut Diagnostics,
        id: String,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let engine = self.cell.engine(diags)?;
        let (model, owned) = claims(&engine, &self.cell).import(diags, &id).await?;
        Some((Value::Value(model), Value::Value(owned)))
    }
}

impl ServerClaimResource {
    /// Rejects unsupported attributes, and describes the outlook to the reviewer.
    async fn review(&self, diags: &mut Diagnostics, model: &ClaimModel) {
        let Some(engine) = self.cell.engine_if_ready() else { return };
        self.cell.unless_stopped(claims(&engine, &self.cell).review(diags, model)).await;
    }

    /// Warns of the effects of deleting the claim.
    async fn farewell(&self, diags: &mut Diagnostics, prior: &ClaimModel, private: &Value<Owned>) {
        let Some(engine) = self.cell.engine_if_ready() else { return };
        self.cell.unless_stopped(claims(&engine, &self.cell).farewell(diags, prior, private)).await;
    }
}
