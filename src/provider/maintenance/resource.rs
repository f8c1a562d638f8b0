//! `metal_server_maintenance`: locks a server for a maintenance.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tf_provider::{AttributePath, Diagnostics, Resource, schema::Schema, value::Value};

use crate::{
    engine::{Control, Engine, EngineError, MaintenanceRequest},
    maintenance::{
        decide::Finish,
        lock::{AskingState, Refusal},
        spec::{MaintenanceKind, WaitFor},
        state::Ending,
    },
    plugin::diagnostic,
};

use crate::provider::{
    maintenance::end::{over_already, released},
    maintenance::model::{MaintenanceModel, maintenance_schema},
    maintenance::outcome::{conclude, imported, refresh, show},
    shared::cell::Cell,
    shared::diagnostics::{changed_since, kept, managed_elsewhere, of_engine, other_owner, value_or_error},
    shared::effect,
    shared::ended,
    shared::moved,
    shared::not_updated::not_updated,
    shared::private::{Private, missing_here},
    shared::replaced,
    shared::restored::{Expected, is_current, may_act, nothing_left, shown},
    shared::review,
    shared::review_change,
    shared::takeover,
    shared::values::{given, read_id, time_limit},
    shared::write_only::keep_unless_raised,
};

/// Default time limit for waiting and preparing.
const CREATE: Duration = Duration::from_hours(1);
/// Default time limit for the release.
const DELETE: Duration = Duration::from_mins(30);

/// The resource type.
#[derive(Debug)]
pub(in crate::provider) struct ServerMaintenance {
    pub(in crate::provider) cell: Cell,
}

impl ServerMaintenance {
    pub(in crate::provider) fn control(&self, model: &MaintenanceModel, create: bool) -> Control {
        let release_timeout = time_limit(&model.timeouts, |t| &t.delete, DELETE);
        let timeout = time_limit(&model.timeouts, |t| if create { &t.create } else { &t.update }, CREATE);
        Control { stop: self.cell.stop.clone(), timeout, release_timeout }
    }

    /// Returns how long create waits for the server; `None` if it could only enqueue.
    pub(in crate::provider) fn patience(&self, model: &MaintenanceModel) -> Option<Duration> {
        let waits = !model.wait_for.is_unknown() && model.wait_for() != WaitFor::Enqueued;
        waits.then(|| self.control(model, true).timeout)
    }
}

#[async_trait]
impl Resource for ServerMaintenance {
    type State<'a> = Value<MaintenanceModel>;
    type PrivateState<'a> = Value<Private>;
    type ProviderMetaState<'a> = Value<()>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(maintenance_schema())
    }

    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<()> {
        if let Value::Value(mut model) = config {
            model.set_defaults();
            model.check_write_only(diags);
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
        let Value::Value(mut model) = config else { return None };
        model.set_defaults();
        model.check_write_only(diags);
        model.effect = effect::of_create(&model);
        let engine = self.cell.engine_if_ready();
        let spec = model.check(diags, engine.as_deref());
        let mut private = Value::Null;
        match (spec, &engine) {
            (Some(spec), Some(engine)) => {
                self.cell.unless_stopped(Box::pin(self.release_of_replaced(diags, engine, &model))).await;
                let id = model.name_id();
                let replaced = replaced::plan(engine, id.as_ref(), &model.server, model.adopts(), &mut model.effect);
                private = self.cell.unless_stopped(Box::pin(replaced)).await.unwrap_or(Value::Null);
                let before = id.filter(|_| !private.is_null());
                self.cell.unless_stopped(self.review(diags, engine, &model, &spec, before.as_ref())).await;
            }
            (_, None) => review::not_checked(diags, &model.effect),
            _ => {}
        }
        review_change::not_waited_for(diags, &model);
        // Also its id, which is known: so a hold that is replaced under the same name replaces what
        // acts under it, because that ends with it.
        model.unknown_outputs();
        Some((Value::Value(model), private))
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
        if moved::is_moved(&prior) {
            // Without a refresh the host still has the moved state. Destroying that does not change
            // anything.
            diags.add_warning(moved::dropped(&prior));
        }
        let mut model = config.with_outputs_of(&prior);
        model.set_defaults();
        model.check_write_only(diags);
        let replaced = Box::pin(self.plan_change(diags, &prior, &mut model, &private)).await?;
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
            self.cell.unless_stopped(self.release_warning(diags, prior, &private)).await;
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
        let spec = model.check(diags, Some(&engine))?;
        effect::settle(&mut model.effect, &spec);
        let server = spec.server.to_string();
        model.hand_over(&engine);
        let id = model.name_id()?;
        let (state, replaces) = (Private::new_state(), engine.predecessor(&id).filter(|_| !model.adopts()));
        let asking = AskingState { state, adopt: model.adopts(), replaces, ..AskingState::default() };
        let wish = MaintenanceRequest { id, spec, wait_for: model.wait_for(), asking };
        let control = self.control(&model, true);
        match engine.hold(&wish, &control).await {
            Ok(driven) => {
                let state = &wish.asking.state;
                let (mut model, private) = conclude(diags, &engine, model, &driven, control.timeout, state)?;
                fill_place(&engine, &mut model, &private).await;
                Some((Value::Value(model), Value::Value(private)))
            }
            Err(error) => {
                diags.add_error(of_engine(&server, &error));
                self.keep_if_locked(&engine, model, &wish).await
            }
        }
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
        let (Value::Value(prior), Value::Value(mut model)) = (prior, planned) else { return None };
        let engine = self.cell.engine(diags)?;
        model.take_write_only(&config);
        let mut spec = model.check(diags, Some(&engine))?;
        effect::settle(&mut model.effect, &spec);
        let server = spec.server.to_string();
        model.hand_over(&engine);
        // A failed change boots the previous image again.
        let previous = prior.boot_configuration.as_ref_option().and_then(|boot| given(&boot.image));
        engine.remember_addresses(previous);
        if let Some(uid) = Private::uid(&private) {
            let versions = (&prior.ignition_version(), &model.ignition_version());
            keep_unless_raised(&engine, &uid, versions, &mut spec).await;
        }
        let asking = AskingState { state: Private::state_or_new(&private), ..AskingState::default() };
        let wish = MaintenanceRequest { id: model.name_id()?, spec, wait_for: model.wait_for(), asking };
        let control = self.control(&model, false);
        let Some(uid) = Private::uid(&private) else {
            Private::not_found(diags, &engine, &server, &prior.remembered()).await;
            return Some((Value::Value(prior), private));
        };
        if !may_act(diags, &engine, &private, &uid, &expected(&prior, &server)).await {
            return Some((Value::Value(prior), private));
        }
        if prior.managed_by.is_null()
            && let Err(error) = engine.take_over(&uid, &wish.asking.state).await
        {
            diags.add_error(of_engine(&server, &error));
            return Some((Value::Value(prior), private));
        }
        if model.managed_by.is_unknown() {
            model.managed_by = Value::Value(wish.asking.state.clone());
        }
        if ended::ends_revoked(&prior, &model) {
            let states = (prior, model);
            let kept = Box::pin(self.end_revoked(diags, &engine, &uid, states, &private, &control)).await;
            return Some((Value::Value(kept), private));
        }
        if effect::is_quiet(&prior, &model) {
            return match engine.amend(&uid, &wish, &control).await {
                Ok(Some(true)) => Some((Value::Value(model), private)),
                Ok(Some(false)) => {
                    diags.add_error(changed_since(&server));
                    Some((Value::Value(prior), private))
                }
                Ok(None) => Some((Value::Value(self.ended_since(diags, &engine, prior, model, &uid).await), private)),
                Err(error) => {
                    diags.add_error(of_engine(&server, &error));
                    Some((Value::Value(prior), private))
                }
            };
        }
        let resumed = if effect::drifted(&prior, &model).is_some() {
            engine.restore_drift(&uid, &wish, &control).await
        } else {
            engine.resume(&uid, &wish, &control).await
        };
        match resumed {
            Ok(Some(driven)) => {
                if not_updated(diags, &engine, &driven).await {
                    // The previous configuration is active again, or is being restored.
                    let mut kept = prior;
                    show(&mut kept, &driven.record, None, None);
                    return Some((Value::Value(kept), private));
                }
                let state = &wish.asking.state;
                let concluded = conclude(diags, &engine, model, &driven, control.timeout, state);
                let (mut model, private) = concluded?;
                // It was released during the update, so dependent resources must not run.
                let over = ended::ended_meanwhile(&driven.record, &model).filter(|_| driven.finish == Finish::Over);
                if let Some(error) = over {
                    diags.add_error(error);
                }
                fill_place(&engine, &mut model, &private).await;
                Some((Value::Value(model), Value::Value(private)))
            }
            Ok(None) => Some((Value::Value(self.ended_since(diags, &engine, prior, model, &uid).await), private)),
            Err(error) => {
                diags.add_error(of_engine(&server, &error));
                Some((Value::Value(prior), private))
            }
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
        if moved::is_moved(&model) {
            // Nothing was created yet.
            diags.add_warning(moved::dropped(&model));
            return Some(());
        }
        let engine = self.cell.engine(diags)?;
        let server = given(&model.server).unwrap_or_default().to_owned();
        let Some(uid) = Private::uid(&private) else {
            return nothing_left(diags, &engine, &model.remembered(), &expected(&model, &server)).await;
        };
        if !may_act(diags, &engine, &private, &uid, &expected(&model, &server)).await {
            return None;
        }
        let control = self.control(&model, false);
        let control = Control { timeout: control.release_timeout, ..control };
        match Box::pin(engine.release_for(Private::state(&private), &uid, &server, Ending::Completed, &control)).await {
            Ok(Some(driven)) => {
                replaced::note(&engine, &private, Some(&driven.record)).await;
                released(diags, &engine, &server, &driven).await
            }
            Err(EngineError::Refused(refusal @ Refusal::KnownToAnother { .. })) => {
                takeover::not_ours(diags, &server, &model.managed_by, &refusal)
            }
            Ok(None) => {
                replaced::note(&engine, &private, None).await;
                over_already(diags, &engine, &server, &uid, &private).await
            }
            Err(error) => {
                let mut problem = of_engine(&server, &error);
                if matches!(error, EngineError::Machine(_)) {
                    problem.detail += "\nThe server stays held. Fix the cause and destroy again.";
                }
                diags.add_error(problem);
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
        let Value::Value(model) = state else { return Some((Value::Null, private)) };
        if moved::is_moved(&model) {
            diags.add_warning(moved::dropped(&model));
            return Some((Value::Null, private));
        }
        // A refresh before the provider is configured keeps the state.
        let Some(engine) = self.cell.engine_if_ready() else { return Some((Value::Value(model), private)) };
        let mut model = model;
        replaced::settle(&mut model.effect);
        let server = given(&model.server).unwrap_or_default().to_owned();
        let held = Private::held(&engine, &private, &model.remembered()).await;
        if let Ok(found) = &held {
            let record = found.as_ref().map(|held| &held.record);
            if !is_current(diags, &engine, &private, record, &expected(&model, &server)).await {
                return Some((Value::Value(model), private));
            }
        }
        match held {
            Ok(Some(held)) => {
                if let Some(refusal) = held.record.refuses_owner(engine.owner()).filter(|_| held.active) {
                    diags.add_warning(other_owner(&server, &refusal));
                } else if held.active
                    && let Some(refusal) = takeover::lost(&held.record, Private::state(&private), &model.managed_by)
                {
                    diags.add_warning(managed_elsewhere(&server, &refusal));
                    return Some((Value::Null, private));
                }
                let private = Private::after(private, &held.record);
                let kept = model.clone();
                let refreshed = Box::pin(refresh(diags, &engine, model, held));
                let shown = self.cell.unless_stopped(refreshed).await;
                Some((shown.unwrap_or(Some(kept)).map_or(Value::Null, Value::Value), private))
            }
            Ok(None) => {
                let gone = missing_here(diags, &engine, &server, &private);
                Some((ended::without_record(gone, model), private))
            }
            Err(error) => {
                diags.add_warning(kept(&server, &error));
                Some((Value::Value(model), private))
            }
        }
    }

    async fn import<'a>(
        &self,
        diags: &mut Diagnostics,
        id: String,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let engine = self.cell.engine(diags)?;
        let id = read_id(diags, &id, AttributePath::root(), "a maintenance", "")?;
        let record = match engine.active(&id).await {
            Ok(record) if record.spec.kind != MaintenanceKind::Maintenance => {
                diags.add_error(diagnostic(
                    format!("{id} is not a maintenance"),
                    "It is a boot configuration or an operation. Import a boot configuration as its own resource type.",
                    AttributePath::root(),
                ));
                return None;
            }
            found => found.and_then(|record| match record.refuses_owner(engine.owner()) {
                Some(refusal) => Err(refusal.into()),
                None => Ok(record),
            }),
        };
        let record = value_or_error(diags, &id.to_string(), record)?;
        let mut model = imported(&record);
        show(&mut model, &record, None, None);
        let private = Private::of(&engine, &record).of_state(&Private::new_state());
        Some((Value::Value(model), Value::Value(private)))
    }
}

impl ServerMaintenance {
    /// After an error, returns a state if the server is held nevertheless, so that destroy can
    /// release it.
    async fn keep_if_locked(
        &self,
        engine: &Arc<Engine>,
        mut model: MaintenanceModel,
        wish: &MaintenanceRequest,
    ) -> Option<(Value<MaintenanceModel>, Value<Private>)> {
        let held = self.cell.soon_if_stopped(engine.held_by_name(&wish.id)).await?.ok()??;
        let ours = held.active && held.record.prior.is_some() && held.record.requester.id == engine.runner().id;
        if !ours {
            return None;
        }
        show(&mut model, &held.record, None, None);
        model.managed_by = Value::Value(wish.asking.state.clone());
        Some((Value::Value(model), Value::Value(Private::of(engine, &held.record).of_state(&wish.asking.state))))
    }
}

/// Returns the state's data about its record.
fn expected<'a>(model: &'a MaintenanceModel, server: &'a str) -> Expected<'a> {
    Expected { server, generation: shown(&model.generation), state: Some(&model.state), lock_key: &model.lock_key }
}

/// Fills in the queue attributes.
async fn fill_place(engine: &Engine, model: &mut MaintenanceModel, private: &Private) {
    if given(&model.state) == Some("Pending")
        && let Ok(Some(held)) = engine.held(&private.own_uid()).await
    {
        show(model, &held.record, held.waiting_for, held.ahead);
    }
}
