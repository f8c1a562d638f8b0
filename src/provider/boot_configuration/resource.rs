//! `metal_server_boot_configuration`: boots a server, under a maintenance or queued separately.

use std::time::Duration;

use async_trait::async_trait;
use tf_provider::{AttributePath, Diagnostics, Resource, schema::Schema, value::Value};

use crate::{
    engine::{Control, Engine, EngineError, MaintenanceRequest},
    maintenance::{
        lock::{AskingState, Refusal},
        spec::{MaintenanceKind, Spec, WaitFor},
        state::{Ending, Maintenance},
    },
    plugin::diagnostic,
};

use crate::provider::{
    boot_configuration::model::{BootConfigurationModel, boot_configuration_schema},
    boot_configuration::outcome::{conclude, refused, taken_away},
    maintenance::end::{over_already, released},
    shared::cell::Cell,
    shared::diagnostics::{kept, managed_elsewhere, of_engine},
    shared::effect,
    shared::ended,
    shared::not_updated::not_updated,
    shared::own_turn::hold_named,
    shared::private::{Private, missing_here},
    shared::replaced,
    shared::restored::{Expected, is_current, may_act, nothing_left},
    shared::review,
    shared::review_release,
    shared::takeover,
    shared::values::{given, read_id, time_limit},
    shared::write_only::keep_unless_raised,
};

/// Default time limits.
const CREATE: Duration = Duration::from_hours(1);
const DELETE: Duration = Duration::from_mins(30);

/// The resource type.
#[derive(Debug)]
pub(in crate::provider) struct ServerBootConfiguration {
    pub(in crate::provider) cell: Cell,
}

impl ServerBootConfiguration {
    pub(in crate::provider) fn control(&self, model: &BootConfigurationModel, create: bool) -> Control {
        let release_timeout = time_limit(&model.timeouts, |t| &t.delete, DELETE);
        let timeout = time_limit(&model.timeouts, |t| if create { &t.create } else { &t.update }, CREATE);
        Control { stop: self.cell.stop.clone(), timeout, release_timeout }
    }
}

#[async_trait]
impl Resource for ServerBootConfiguration {
    type State<'a> = Value<BootConfigurationModel>;
    type PrivateState<'a> = Value<Private>;
    type ProviderMetaState<'a> = Value<()>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(boot_configuration_schema())
    }

    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<()> {
        if let Value::Value(mut model) = config {
            model.set_defaults();
            model.boot().check_write_only(diags, &AttributePath::root());
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
        model.boot().check_write_only(diags, &AttributePath::root());
        model.effect = effect::planned(model.acting().as_ref());
        let mut private = Value::Null;
        if let Some(engine) = self.cell.engine_if_ready() {
            let id = model.record_id(engine.owner());
            let replaced = replaced::plan(&engine, id.as_ref(), &model.server, false, &mut model.effect);
            private = self.cell.unless_stopped(Box::pin(replaced)).await.unwrap_or(Value::Null);
        }
        self.review(diags, &model, Some(self.control(&model, true).timeout)).await;
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
        let mut model = config.with_outputs_of(&prior);
        model.set_defaults();
        model.boot().check_write_only(diags, &AttributePath::root());
        if let (Some(uid), Some(engine)) = (Private::uid(&private), self.cell.engine_if_ready()) {
            engine.note_managed(&uid);
        }
        let mut replaced = Vec::new();
        for (name, now, before) in
            [("server", &model.server, &prior.server), ("maintenance_id", &model.maintenance_id, &prior.maintenance_id)]
        {
            if now != before {
                replaced.push(AttributePath::new(name));
            }
        }
        let over = given(&prior.state) == Some("Error");
        if over && replaced.is_empty() && model.boot() == prior.boot() && model.server_power == prior.server_power {
            // The configuration lost its effect, so it is created again.
            replaced.push(AttributePath::new("state"));
        }
        if !replaced.is_empty() {
            // Warn here, because the host drops warnings of the create that it plans next.
            self.cell.unless_stopped(self.release_warning(diags, &prior, &private)).await;
            self.review(diags, &model, Some(self.control(&model, true).timeout)).await;
            model.unknown_outputs();
            return Some((Value::Value(model), private, replaced));
        }
        let resumes = given(&prior.state) == Some("Pending");
        let takes_over = prior.managed_by.is_null();
        if takes_over {
            let engine = self.cell.engine_if_ready();
            self.cell.unless_stopped(takeover::planned(diags, engine.as_deref(), &private)).await;
            model.managed_by = Value::Unknown;
        }
        if model != prior || resumes {
            let touches = resumes || acts(&prior, &model);
            let acting = model.acting();
            model.effect = match (resumes, touches) {
                (true, _) => effect::resumed(acting.as_ref()),
                (false, true) => effect::planned(acting.as_ref()),
                (false, false) => prior.effect.clone(),
            };
            self.review_change(diags, &model, touches, &private).await;
            if touches {
                let (id, lock_key, managed_by) = (model.id.clone(), model.lock_key.clone(), model.managed_by.clone());
                model.unknown_outputs();
                (model.id, model.lock_key, model.managed_by) = (id, lock_key, managed_by);
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
        model.boot().hand_over(&engine);
        let server = spec.server.to_string();
        let hold = hold_named(diags, &model.maintenance_id);
        let parent = review::hold(diags, &engine, hold.as_ref(), &server).await.ok()?;
        let state = Private::new_state();
        let wish = MaintenanceRequest {
            id: model.record_id(engine.owner())?,
            spec: Spec { parent, ..spec },
            wait_for: WaitFor::InMaintenance,
            asking: AskingState { state: state.clone(), ..AskingState::default() },
        };
        let control = self.control(&model, true);
        match engine.hold(&wish, &control).await {
            Ok(driven) => conclude(diags, &engine, model, &driven, control.timeout, &state),
            Err(error) => {
                diags.add_error(refused(&server, &error));
                // If the server was changed despite the error, keep it in the state so that destroy
                // can restore it.
                let left = self.cell.soon_if_stopped(engine.held_by_name(&wish.id)).await?.ok()??;
                let touched = left.active && left.record.prior.is_some();
                let ours = touched && left.record.requester.id == engine.runner().id;
                ours.then(|| {
                    model.show(&left.record);
                    model.managed_by = Value::Value(state.clone());
                    (Value::Value(model), Value::Value(Private::of(&engine, &left.record).of_state(&state)))
                })
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
        let takes_over = prior.managed_by.is_null();
        if !acts(&prior, &model) && given(&prior.state) != Some("Pending") && !takes_over {
            // The new time limits apply to later runs.
            return Some((Value::Value(model), private));
        }
        let engine = self.cell.engine(diags)?;
        model.take_write_only(&config);
        let mut spec = model.check(diags, Some(&engine))?;
        effect::settle(&mut model.effect, &spec);
        model.boot().hand_over(&engine);
        // A failed change boots the previous image again.
        engine.remember_addresses(given(&prior.image));
        let server = spec.server.to_string();
        let state = Private::state_or_new(&private);
        if let Some(uid) = Private::uid(&private) {
            let versions = (&prior.ignition_wo_version, &model.ignition_wo_version);
            keep_unless_raised(&engine, &uid, versions, &mut spec).await;
        }
        let wish = MaintenanceRequest {
            id: model.record_id(engine.owner())?,
            spec,
            wait_for: WaitFor::InMaintenance,
            asking: AskingState { state: state.clone(), ..AskingState::default() },
        };
        let control = self.control(&model, false);
        let Some(uid) = Private::uid(&private) else {
            Private::not_found(diags, &engine, &server, &prior.remembered()).await;
            return Some((Value::Value(prior), private));
        };
        if !may_act(diags, &engine, &private, &uid, &expected(&prior, &server)).await {
            return Some((Value::Value(prior), private));
        }
        if takes_over {
            if let Err(error) = engine.take_over(&uid, &state).await {
                diags.add_error(refused(&server, &error));
                return Some((Value::Value(prior), private));
            }
            model.managed_by = Value::Value(state.clone());
            if !acts(&prior, &model) && given(&prior.state) != Some("Pending") {
                return Some((Value::Value(model), private));
            }
        }
        match engine.resume(&uid, &wish, &control).await {
            Ok(Some(driven)) => {
                if not_updated(diags, &engine, &driven).await {
                    let mut kept = prior;
                    kept.show(&driven.record);
                    return Some((Value::Value(kept), private));
                }
                conclude(diags, &engine, model, &driven, control.timeout, &state)
            }
            Ok(None) => {
                let mut prior = prior;
                let mut how = "It ended since the plan".to_owned();
                if let Ok(Some(held)) = engine.held(&uid).await {
                    prior.show(&held.record);
                    how = ended::how(&held.record);
                }
                diags.add_error(diagnostic(
                    format!("The boot configuration of {server} has ended"),
                    format!(
                        "{how}, so the change would have no effect. The server is unchanged. Plan again: the new \
                         plan creates the resource again."
                    ),
                    AttributePath::root(),
                ));
                Some((Value::Value(prior), private))
            }
            Err(error) => {
                diags.add_error(refused(&server, &error));
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
        let given_back = engine.release_for(Private::state(&private), &uid, &server, Ending::Completed, &control);
        match Box::pin(given_back).await {
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
            Ok(Some(held)) if !held.active => Some((Value::Null, private)),
            Ok(Some(held)) => {
                if let Some(refusal) = takeover::lost(&held.record, Private::state(&private), &model.managed_by) {
                    diags.add_warning(managed_elsewhere(&server, &refusal));
                    return Some((Value::Null, private));
                }
                model.show(&held.record);
                let private = Private::after(private, &held.record);
                if let Some(seen) = self.cell.unless_stopped(engine.gates_seen(&held.record)).await {
                    if let Some(why) = &seen.revoked {
                        diags.add_warning(taken_away(&server, why));
                        model.lost(why);
                    }
                    diags.warnings.extend(review_release::deletion(&server, &seen));
                }
                Some((Value::Value(model), private))
            }
            Ok(None) => {
                let gone = missing_here(diags, &engine, &server, &private);
                Some((if gone { Value::Null } else { Value::Value(model) }, private))
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
        let hint = " The commands queue and show print the id.";
        let id = read_id(diags, &id, AttributePath::root(), "a boot configuration", hint)?;
        let record = match engine.active(&id).await {
            Ok(record) if record.spec.kind == MaintenanceKind::BootConfiguration => record,
            Ok(_) => {
                diags.add_error(diagnostic(
                    format!("{id} is not a boot configuration"),
                    "It is a maintenance or an operation: import it as its own resource type.",
                    AttributePath::root(),
                ));
                return None;
            }
            Err(error) => {
                diags.add_error(of_engine(&id.to_string(), &error));
                return None;
            }
        };
        match Self::imported(&engine, &record).await {
            Ok(model) => {
                let private = Private::of(&engine, &record).of_state(&Private::new_state());
                Some((Value::Value(model), Value::Value(private)))
            }
            Err(error) => {
                diags.add_error(refused(record.server(), &error));
                None
            }
        }
    }
}

impl ServerBootConfiguration {
    /// Builds the model from a record and its maintenance.
    async fn imported(engine: &Engine, record: &Maintenance) -> Result<BootConfigurationModel, EngineError> {
        if let Some(refusal) = record.refuses_owner(engine.owner()) {
            return Err(refusal.into());
        }
        let hold = match &record.spec.parent {
            Some(uid) => engine.held(uid).await?.map(|held| held.record.id),
            None => None,
        };
        Ok(BootConfigurationModel::imported(record, hold.as_ref()))
    }
}

/// Returns true if a change affects the server.
fn acts(prior: &BootConfigurationModel, model: &BootConfigurationModel) -> bool {
    model.boot() != prior.boot() || model.server_power != prior.server_power
}

/// Returns the state's data about its record.
fn expected<'a>(model: &'a BootConfigurationModel, server: &'a str) -> Expected<'a> {
    Expected { server, generation: 0, state: None, lock_key: &model.lock_key }
}
