//! `metal_server_claim`: says that a server is in use, so that whoever needs it asks.

use async_trait::async_trait;
use tf_provider::{AttributePath, Diagnostics, Resource, schema::Schema, value::Value};

use crate::{
    engine::{Engine, EngineError},
    maintenance::{approval, ids::LockKey},
    plugin::diagnostic,
};

use crate::provider::{
    claim::cluster::Claims,
    claim::model::{ClaimModel, claim_schema, tell},
    shared::cell::Cell,
    shared::diagnostics::{kept, of_engine},
    shared::private::Owned,
    shared::values::{given, known},
};

/// The resource type.
#[derive(Debug)]
pub(in crate::provider) struct ServerClaim {
    pub(in crate::provider) cell: Cell,
}

#[async_trait]
impl Resource for ServerClaim {
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
        let mut model = ClaimModel {
            server: config.server,
            namespace: config.namespace,
            name: config.name,
            contact: config.contact,
            image: config.image,
            ignition: config.ignition,
            server_power: config.server_power,
            tolerations: config.tolerations,
            timeouts: config.timeouts,
            ..prior.clone()
        };
        if !replaced.is_empty() {
            self.farewell(diags, &prior).await;
            self.review(diags, &model).await;
            model.unknown_outputs();
        } else if let Some(engine) = self.cell.engine_if_ready() {
            match engine.ownership() {
                None => model.only_told(diags),
                Some(there) => {
                    let claims = Claims { engine: &engine, there, cell: &self.cell };
                    self.cell.unless_stopped(claims.check(diags, &model)).await;
                    model.ignition_secret = claims.planned_secret(&model);
                    // One that was imported becomes ours with the first change.
                    if model != prior && model.owner.is_null() {
                        model.owner = Value::Unknown;
                    }
                }
            }
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
        let Value::Value(prior) = &prior else { return Some(private) };
        self.farewell(diags, prior).await;
        let Value::Value(owned) = &private else { return Some(private) };
        if let Some(engine) = self.cell.engine_if_ready()
            && engine.ownership().is_none()
            && let Ok(view) = engine.view(&owned.key()).await
        {
            let waiting: Vec<String> = approval::asked(&view.lock, view.now)
                .into_iter()
                .filter(|asked| !asked.allowed)
                .map(|asked| asked.id.to_string())
                .collect();
            if !waiting.is_empty() {
                diags.add_warning(diagnostic(
                    "Maintenance that waits for approval starts when a claim goes",
                    format!(
                        "{}: {} would need no approval any more.",
                        given(&prior.server).unwrap_or_default(),
                        waiting.join(", ")
                    ),
                    AttributePath::root(),
                ));
            }
        }
        Some(private)
    }

    async fn create<'a>(
        &self,
        diags: &mut Diagnostics,
        planned: Self::State<'a>,
        _config: Self::State<'a>,
        _private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let Value::Value(model) = planned else { return None };
        let engine = self.cell.engine(diags)?;
        if let Some(there) = engine.ownership() {
            return Claims { engine: &engine, there, cell: &self.cell }.create(diags, model).await;
        }
        self.bring(diags, &engine, model).await
    }

    async fn update<'a>(
        &self,
        diags: &mut Diagnostics,
        prior: Self::State<'a>,
        planned: Self::State<'a>,
        _config: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let Value::Value(model) = planned else { return None };
        let engine = self.cell.engine(diags)?;
        if let Some(there) = engine.ownership() {
            let claims = Claims { engine: &engine, there, cell: &self.cell };
            let state = claims.update(diags, model, &private).await.map_or(prior, Value::Value);
            return Some((state, private));
        }
        let planned = (model.maintenance_needed, model.pending.clone());
        match self.bring(diags, &engine, model).await {
            // Planned values must come true; what changed meanwhile is found by the next refresh.
            Some((Value::Value(mut model), private)) => {
                (model.maintenance_needed, model.pending) = planned;
                Some((Value::Value(model), private))
            }
            _ => Some((prior, private)),
        }
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
        if let Some(there) = engine.ownership() {
            return Claims { engine: &engine, there, cell: &self.cell }.destroy(diags, &model, &private).await;
        }
        let server = given(&model.server).unwrap_or_default().to_owned();
        let private = match given(&model.lock_key).map(|key| LockKey(key.to_owned())) {
            Some(key) if private.is_null() => {
                let view = engine.view(&key).await.ok();
                let claim = view.and_then(|view| view.lock.ownership.claim.clone());
                let same = claim.filter(|claim| Some(claim.since.to_string().as_str()) == given(&model.claimed_at));
                Owned::of_destroyed(&engine, private, same.map(|claim| claim.uid), &model.lock_key)
            }
            _ => private,
        };
        let owned = Owned::here(diags, &engine, &private, &format!("The claim on {server}"))?;
        match engine.unclaim(&owned.key(), &owned.own_uid()).await {
            Ok(_) => Some(()),
            Err(error) => {
                diags.add_error(of_engine(&server, &error));
                None
            }
        }
    }

    async fn read<'a>(
        &self,
        diags: &mut Diagnostics,
        state: Self::State<'a>,
        private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let Value::Value(mut model) = state else { return Some((Value::Null, private)) };
        let Some(engine) = self.cell.engine_if_ready() else { return Some((Value::Value(model), private)) };
        if let Some(there) = engine.ownership() {
            let claims = Claims { engine: &engine, there, cell: &self.cell };
            let known = model.clone();
            let Some(now) = self.cell.unless_stopped(claims.read(diags, model, &private)).await else {
                return Some((Value::Value(known), private));
            };
            return Some((now.map_or(Value::Null, Value::Value), private));
        }
        let server = given(&model.server).unwrap_or_default().to_owned();
        let Some(owned) = Owned::here(diags, &engine, &private, &format!("The claim on {server}")) else {
            return Some((Value::Value(model), private));
        };
        let view = match engine.view(&owned.key()).await {
            Ok(view) => view,
            Err(error) => {
                diags.add_warning(kept(&server, &error));
                return Some((Value::Value(model), private));
            }
        };
        let Some(claim) = view.lock.ownership.claim.as_ref().filter(|claim| claim.uid == owned.own_uid()) else {
            return Some((Value::Null, private));
        };
        tell(diags, &claim.server, &approval::asked(&view.lock, view.now), "terraform-provider-metal");
        model.contact = known(claim.contact.clone());
        model.show(claim, &view);
        Some((Value::Value(model), private))
    }

    async fn import<'a>(
        &self,
        diags: &mut Diagnostics,
        id: String,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let engine = self.cell.engine(diags)?;
        if let Some(there) = engine.ownership() {
            let (model, owned) = Claims { engine: &engine, there, cell: &self.cell }.import(diags, &id).await?;
            return Some((Value::Value(model), Value::Value(owned)));
        }
        let views = match engine.views().await {
            Ok(views) => views,
            Err(error) => {
                diags.add_error(of_engine(&id, &error));
                return None;
            }
        };
        for view in &views {
            let Some(claim) = view.lock.ownership.claim.as_ref().filter(|claim| claim.id.to_string() == id) else {
                continue;
            };
            if let Err(refusal) = claim.allows_owner(engine.owner()) {
                diags.add_error(of_engine(&claim.server, &EngineError::Refused(refusal)));
                return None;
            }
            let model = ClaimModel::imported(claim, view);
            return Some((Value::Value(model), Value::Value(Owned::new(&engine, &view.lock.key, &claim.uid))));
        }
        diags.add_error(diagnostic(
            format!("No claim is called {id}"),
            format!("{} knows none of that name (NAMESPACE/NAME).", engine.store().address()),
            AttributePath::root(),
        ));
        None
    }
}

impl ServerClaim {
    /// Refuses what is not possible here, and tells the reviewer what is to be expected.
    async fn review(&self, diags: &mut Diagnostics, model: &ClaimModel) {
        let Some(engine) = self.cell.engine_if_ready() else { return };
        match engine.ownership() {
            None => model.only_told(diags),
            Some(there) => {
                let claims = Claims { engine: &engine, there, cell: &self.cell };
                self.cell.unless_stopped(claims.review(diags, model)).await;
            }
        }
    }

    /// Tells the reviewer what becomes of a server whose claim goes, where that is more than a word.
    async fn farewell(&self, diags: &mut Diagnostics, prior: &ClaimModel) {
        let Some(engine) = self.cell.engine_if_ready() else { return };
        if let Some(there) = engine.ownership() {
            let claims = Claims { engine: &engine, there, cell: &self.cell };
            self.cell.unless_stopped(claims.farewell(diags, prior)).await;
        }
    }

    /// Makes the claim as configured and shows it.
    async fn bring(
        &self,
        diags: &mut Diagnostics,
        engine: &Engine,
        mut model: ClaimModel,
    ) -> Option<(Value<ClaimModel>, Value<Owned>)> {
        let wish = model.wish()?;
        let claimed = async {
            let (key, claim) = engine.claim(&wish).await?;
            let view = engine.view(&key).await?;
            Ok((key, claim, view))
        };
        match claimed.await {
            Ok((key, claim, view)) => {
                model.show(&claim, &view);
                Some((Value::Value(model), Value::Value(Owned::new(engine, &key, &claim.uid))))
            }
            Err(error) => {
                diags.add_error(of_engine(&wish.server, &error));
                None
            }
        }
    }
}
