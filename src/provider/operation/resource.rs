//! `metal_server_operation`: one power operation, once per trigger, under the lock.

use std::time::Duration;

use async_trait::async_trait;
use tf_provider::{AttributePath, Diagnostics, Resource, schema::Schema, value::Value};

use crate::{
    engine::{Control, Engine, MaintenanceRequest, ReconcileResult},
    maintenance::{
        decide::Finish,
        lock::AskingState,
        operate::OperationOutcome,
        spec::{Spec, WaitFor},
        state::{Ending, Phase},
    },
    plugin::diagnostic,
};

use crate::provider::{
    operation::model::{OperationModel, operation_schema},
    operation::plan::{Plans, review_operation},
    shared::cell::Cell,
    shared::diagnostics::{kept, of_engine},
    shared::effect,
    shared::lost::{no_longer_ours, waited},
    shared::own_turn::hold_named,
    shared::private::{Private, missing_here},
    shared::restored::{Expected, is_current, may_act, nothing_left},
    shared::review,
    shared::values::{given, shown_duration, time_limit},
};

/// Default time limits.
const CREATE: Duration = Duration::from_hours(1);
const DELETE: Duration = Duration::from_mins(30);

/// The resource type.
#[derive(Debug)]
pub(in crate::provider) struct ServerOperation {
    pub(in crate::provider) cell: Cell,
}

impl ServerOperation {
    fn control(&self, model: &OperationModel, create: bool) -> Control {
        let release_timeout = time_limit(&model.timeouts, |t| &t.delete, DELETE);
        let timeout = time_limit(&model.timeouts, |t| if create { &t.create } else { &t.update }, CREATE);
        Control { stop: self.cell.stop.clone(), timeout, release_timeout }
    }

    async fn review(&self, diags: &mut Diagnostics, model: &OperationModel) {
        review_operation(diags, &self.cell, model, Plans::Resource, self.control(model, true).timeout).await;
    }
}

/// Checks that a destroy can finish: it waits for a running service, because the external system
/// still works on the server.
fn ended(diags: &mut Diagnostics, server: &str, driven: Option<&ReconcileResult>) -> Option<()> {
    let Some(driven) = driven.filter(|driven| matches!(driven.record.phase, Phase::Preparing(_))) else {
        return Some(());
    };
    let why = match &driven.finish {
        Finish::TimedOut(why) | Finish::Stuck(why) => format!("not ended within timeouts.delete: {why}"),
        _ => "interrupted".to_owned(),
    };
    let detail = format!("{} still runs ({why}). The lock stays; destroy again to wait for its end.", driven.record.id);
    diags.add_error(diagnostic(format!("The service of {server} has not ended"), detail, AttributePath::root()));
    None
}

/// Converts a run's result to a state; `None` removes the resource from the state.
fn conclude(
    diags: &mut Diagnostics,
    engine: &Engine,
    mut model: OperationModel,
    driven: &ReconcileResult,
    timeout: Duration,
) -> Option<(Value<OperationModel>, Value<Private>)> {
    let record = &driven.record;
    let server = record.server().to_owned();
    let what = record.spec.operation.as_ref().map(|operation| operation.reset.to_string());
    let what = what.unwrap_or_else(|| "The service".to_owned());
    model.show(record);
    let state = Some((Value::Value(model), Value::Value(Private::of(engine, record))));
    let mut error =
        |summary: String, detail: String| diags.add_error(diagnostic(summary, detail, AttributePath::root()));
    match &driven.finish {
        Finish::Reached => {
            if record.outcome == Some(OperationOutcome::Unproven) {
                diags.add_warning(diagnostic(
                    "An operation could not be proven",
                    format!(
                        "{server}: {what} was sent, and the BMC does not show whether it took effect.{} The provider \
                         does not send it again automatically: check the server, and change triggers to run it \
                         again.",
                        record.unproven_cause()
                    ),
                    AttributePath::root(),
                ));
            }
            state
        }
        Finish::Over => {
            match &record.phase {
                Phase::Failed { cause, .. } => error(
                    format!("{what} of {server} failed"),
                    format!("{cause}\nThe resource was not saved. Fix the cause and apply again."),
                ),
                _ => diags.add_error(no_longer_ours(&server, record)),
            }
            None
        }
        Finish::Withdrawn => {
            error(
                format!("Waiting for {server} was interrupted"),
                format!("{} left the queue; server and state are unchanged.", record.id),
            );
            None
        }
        Finish::Refused(why) => {
            error(format!("{what} of {server} cannot run"), format!("{why}\nNothing was done to the server."));
            None
        }
        Finish::TimedOut(reason) if matches!(record.phase, Phase::Preparing(_)) => {
            error(
                format!("{what} of {server} did not end in time"),
                format!(
                    "{} was at {reason}.\n{} The external system continues the operation, and the lock stays: apply again to wait \
                     for its end. It is not started a second time.",
                    record.id,
                    waited(driven.waited, timeout, "timeouts.create"),
                ),
            );
            None
        }
        Finish::Stuck(cause) => {
            error(
                format!("Releasing {server} failed"),
                format!("{cause}\n{} keeps the lock. Fix the cause and apply again to continue.", record.id),
            );
            None
        }
        Finish::TimedOut(reason) | Finish::NotUpdated { cause: reason, .. } => {
            error(
                format!("{server} was not available in time"),
                format!(
                    "{} was {reason}.\n{} The queue position is reserved for {}; apply again to resume.",
                    record.id,
                    waited(driven.waited, timeout, "timeouts.create"),
                    shown_duration(record.spec.hold_place_for)
                ),
            );
            None
        }
        Finish::Interrupted => {
            diags.add_warning(diagnostic(
                "An operation was interrupted",
                format!("{server}: {what} is {}. Apply again to resume.", record.phase.name()),
                AttributePath::root(),
            ));
            state
        }
        Finish::Lost => {
            diags.add_error(no_longer_ours(&server, record));
            None
        }
    }
}

#[async_trait]
impl Resource for ServerOperation {
    type State<'a> = Value<OperationModel>;
    type PrivateState<'a> = Value<Private>;
    type ProviderMetaState<'a> = Value<()>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(operation_schema())
    }

    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<()> {
        if let Value::Value(mut model) = config {
            model.set_defaults();
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
        model.effect = effect::planned(model.acting().as_ref());
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
        let mut model = config.with_outputs_of(&prior);
        model.set_defaults();
        let replaced = model.replacing(&prior);
        if let (Some(uid), Some(engine)) = (Private::uid(&private), self.cell.engine_if_ready()) {
            engine.note_managed(&uid);
        }
        if !replaced.is_empty() {
            // Warn here, because the host drops warnings of the create that it plans next.
            self.review(diags, &model).await;
            model.unknown_outputs();
        } else if given(&prior.state) == Some("Completed") {
            model.check(diags, None);
        } else {
            // An interrupted operation continues.
            model.effect = effect::resumed(model.acting().as_ref());
            self.review(diags, &model).await;
            let (id, lock_key, requested_at) = (model.id.clone(), model.lock_key.clone(), model.requested_at.clone());
            model.unknown_outputs();
            (model.id, model.lock_key, model.requested_at) = (id, lock_key, requested_at);
        }
        Some((Value::Value(model), private, replaced))
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
        _config: Self::State<'a>,
        _private: Self::PrivateState<'a>,
        _meta: Self::ProviderMetaState<'a>,
    ) -> Option<(Self::State<'a>, Self::PrivateState<'a>)> {
        let Value::Value(mut model) = planned else { return None };
        let engine = self.cell.engine(diags)?;
        let spec = model.check(diags, Some(&engine))?;
        effect::settle(&mut model.effect, &spec);
        let server = spec.server.to_string();
        let hold = hold_named(diags, &model.maintenance_id);
        let parent = review::hold(diags, &engine, hold.as_ref(), &server).await.ok()?;
        let wish = MaintenanceRequest {
            id: model.name_id()?,
            spec: Spec { parent, ..spec },
            wait_for: WaitFor::InMaintenance,
            asking: AskingState::default(),
        };
        let control = self.control(&model, true);
        match engine.hold(&wish, &control).await {
            Ok(driven) => conclude(diags, &engine, model, &driven, control.timeout),
            Err(error) => {
                diags.add_error(of_engine(&server, &error));
                None
            }
        }
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
        let (Value::Value(prior), Value::Value(mut model)) = (prior, planned) else { return None };
        if given(&prior.state) == Some("Completed") {
            // Already performed; the changed attributes no longer have an effect.
            return Some((Value::Value(model), private));
        }
        let engine = self.cell.engine(diags)?;
        let spec = model.check(diags, Some(&engine))?;
        effect::settle(&mut model.effect, &spec);
        let server = spec.server.to_string();
        let wish = MaintenanceRequest {
            id: model.name_id()?,
            spec,
            wait_for: WaitFor::InMaintenance,
            asking: AskingState::default(),
        };
        let control = self.control(&model, false);
        let Some(uid) = Private::uid(&private) else {
            Private::not_found(diags, &engine, &server, &prior.remembered()).await;
            return Some((Value::Value(prior), private));
        };
        if !may_act(diags, &engine, &private, &uid, &expected(&prior, &server)).await {
            return Some((Value::Value(prior), private));
        }
        match engine.resume(&uid, &wish, &control).await {
            Ok(Some(driven)) => conclude(diags, &engine, model, &driven, control.timeout),
            Ok(None) => {
                let mut model = model;
                if let Ok(Some(held)) = engine.held(&uid).await {
                    model.show(&held.record);
                }
                Some((Value::Value(model), private))
            }
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
        let engine = self.cell.engine(diags)?;
        let server = given(&model.server).unwrap_or_default().to_owned();
        // Without a record, the operation cannot run again.
        let Some(uid) = Private::uid(&private) else {
            return nothing_left(diags, &engine, &model.remembered(), &expected(&model, &server)).await;
        };
        if !may_act(diags, &engine, &private, &uid, &expected(&model, &server)).await {
            return None;
        }
        let control = self.control(&model, false);
        let control = Control { timeout: control.release_timeout, ..control };
        match engine.release(&uid, &server, Ending::Completed, &control).await {
            Ok(driven) => ended(diags, &server, driven.as_ref()),
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
        if let (Some(uid), Some(engine)) = (Private::uid(&private), self.cell.engine_if_ready()) {
            engine.note_managed(&uid);
        }
        // A performed operation is final, whatever happens to the server or the store.
        if given(&model.state) == Some("Completed") {
            return Some((Value::Value(model), private));
        }
        let Some(engine) = self.cell.engine_if_ready() else { return Some((Value::Value(model), private)) };
        let server = given(&model.server).unwrap_or_default().to_owned();
        let held = Private::held(&engine, &private, &model.remembered()).await;
        if let Ok(found) = &held {
            let record = found.as_ref().map(|held| &held.record);
            if !is_current(diags, &engine, &private, record, &expected(&model, &server)).await {
                return Some((Value::Value(model), private));
            }
        }
        match held {
            Ok(Some(held)) if matches!(held.record.phase, Phase::Failed { .. }) => Some((Value::Null, private)),
            Ok(Some(held)) => {
                model.show(&held.record);
                let private = Private::after(private, &held.record);
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
        diags.add_error(diagnostic(
            format!("The operation {id} cannot be imported"),
            "An operation runs once, so an import would leave nothing to manage. Add the resource to the \
             configuration to run it.",
            AttributePath::root(),
        ));
        None
    }
}

/// Returns the state's data about its record.
fn expected<'a>(model: &'a OperationModel, server: &'a str) -> Expected<'a> {
    Expected { server, generation: 0, state: None, lock_key: &model.lock_key }
}
