//! `metal_server_maintenance`: holds a server.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tf_provider::{AttributePath, Diagnostics, Resource, schema::Schema, value::Value};

use crate::{
    engine::{Control, Driven, Engine, EngineError, Held, Wish},
    maintenance::{
        decide::Finish,
        ids::{MaintenanceId, Uid},
        queue::shown_time,
        spec::{CompleteWhen, Spec, WaitFor},
        state::{Ending, Maintenance, Phase},
    },
    plugin::{ResourceExt, diagnostic},
};

use super::{
    cell::Cell,
    diagnostics::{no_longer_ours, of_engine},
    maintenance_model::{MaintenanceModel, maintenance_schema, shown_texts},
    private::{Private, missing_here},
    review,
    values::{given, known, shown_duration, time_limit},
};

/// Time limit for waiting and preparing when none is given.
const CREATE: Duration = Duration::from_hours(1);
/// Time limit for giving back when none is given.
const DELETE: Duration = Duration::from_mins(30);

/// The resource type.
#[derive(Debug)]
pub(super) struct ServerMaintenance {
    pub(super) cell: Cell,
}

impl ServerMaintenance {
    fn control(&self, model: &MaintenanceModel, create: bool) -> Control {
        let release_timeout = time_limit(&model.timeouts, |t| &t.delete, DELETE);
        let timeout = time_limit(&model.timeouts, |t| if create { &t.create } else { &t.update }, CREATE);
        Control { stop: self.cell.stop.clone(), timeout, release_timeout }
    }
}

/// What a drive means for the state: `None` leaves nothing in it.
fn conclude(
    diags: &mut Diagnostics,
    engine: &Engine,
    mut model: MaintenanceModel,
    driven: &Driven,
    timeout: Duration,
) -> Option<(MaintenanceModel, Private)> {
    let record = &driven.record;
    let server = record.server().to_owned();
    show(&mut model, record, None, None);
    let state = Some((model, Private::of(engine, record)));
    let mut error =
        |summary: String, detail: String| diags.add_error(diagnostic(summary, detail, AttributePath::root()));
    match &driven.finish {
        Finish::Reached => state,
        Finish::Over => match &record.phase {
            Phase::Failed { cause, .. } => {
                error(
                    format!("{server} could not be prepared"),
                    format!(
                        "{cause}\nThe server was given back{}; nothing is left in the state. Apply again when the cause is gone.",
                        as_it_was(record)
                    ),
                );
                None
            }
            Phase::Completed { ending: Ending::CompletedBy(_) | Ending::Completed, .. } => state,
            _ => {
                diags.add_error(no_longer_ours(&server, record));
                None
            }
        },
        Finish::Withdrawn => {
            error(
                format!("Waiting for {server} was interrupted"),
                format!(
                    "{} left the queue; nothing was done to the server and nothing is left in the state.",
                    record.id
                ),
            );
            None
        }
        Finish::TimedOut(reason) if matches!(record.phase, Phase::Pending) => {
            error(
                format!("{server} was not available in time"),
                format!(
                    "{} was {reason}.\nWaited {} (timeouts.create). The place in the queue is kept for {}: apply again to go \
                     on in it, or raise timeouts.create.",
                    record.id,
                    shown_duration(timeout),
                    shown_duration(record.spec.hold_place_for)
                ),
            );
            None
        }
        Finish::TimedOut(reason) => {
            error(
                format!("The maintenance of {server} did not end in time"),
                format!(
                    "{} was {reason} after {} (timeouts.create). The server is still held; destroy gives it back.",
                    record.id,
                    shown_duration(timeout)
                ),
            );
            state
        }
        Finish::Interrupted => {
            diags.add_warning(diagnostic(
                "Preparing a server was interrupted",
                format!(
                    "{server}: {} stopped at {}. The server is held; apply goes on, destroy gives it back.",
                    record.id,
                    at(record)
                ),
                AttributePath::root(),
            ));
            state
        }
        Finish::Stuck(cause) => {
            error(format!("{server} could not be given back"), stuck(record, cause));
            state
        }
        Finish::Lost => {
            diags.add_error(no_longer_ours(&server, record));
            None
        }
    }
}

fn as_it_was(record: &Maintenance) -> String {
    match &record.prior {
        Some(prior) => {
            let boot = prior.boot.as_ref().map(|boot| format!(", boot override {boot}")).unwrap_or_default();
            format!(" as it was ({}{boot})", prior.power)
        }
        None => " untouched".to_owned(),
    }
}

fn at(record: &Maintenance) -> String {
    match &record.phase {
        Phase::Preparing(progress) | Phase::Releasing { progress, .. } => {
            format!("{} {}", record.phase.name(), progress.text())
        }
        phase => phase.name().to_owned(),
    }
}

fn stuck(record: &Maintenance, cause: &str) -> String {
    let why = match &record.phase {
        Phase::Releasing { ending: Ending::Failed(first), .. } => format!("It could not be prepared: {first}\nThen: "),
        _ => String::new(),
    };
    format!(
        "{why}{cause}\nThe server stays held ({}, generation {}), because it is not as it was. Destroy again when the cause is \
         gone: it goes on where it stopped.",
        at(record),
        record.generation
    )
}

/// Writes what the record tells into the model.
fn show(model: &mut MaintenanceModel, record: &Maintenance, waiting_for: Option<String>, ahead: Option<usize>) {
    let number = |n: u64| Value::Value(i64::try_from(n).unwrap_or(i64::MAX));
    model.id = Value::Value(record.id.to_string());
    model.state = Value::Value(record.phase.name().to_owned());
    model.waiting_for = known(waiting_for);
    model.queue_position = ahead.map_or(Value::Null, |n| number(n as u64));
    model.requested_at = Value::Value(record.requested_at.to_string());
    model.started_at = known(record.started_at.map(|at| at.to_string()));
    model.generation = number(record.generation);
    model.lock_key = Value::Value(record.lock_key.to_string());
    model.previous_power_state = known(record.prior.as_ref().map(|prior| prior.power.to_string()));
    model.power_state = match (&record.phase, record.spec.server_power, &record.prior) {
        (Phase::InMaintenance { .. }, Some(power), _) => Value::Value(power.to_string()),
        (Phase::InMaintenance { .. } | Phase::Completed { .. }, _, Some(prior)) => {
            Value::Value(prior.power.to_string())
        }
        _ => known(record.last_power.map(|power| power.to_string())),
    };
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
        model.set_defaults();
        if let Some(spec) = model.check(diags)
            && let Some(engine) = self.cell.engine_if_ready()
        {
            let id = model.name_id();
            self.cell.unless_stopped(review::maintenance(diags, &engine, &spec, id.as_ref())).await;
        }
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
        let mut model = MaintenanceModel {
            id: prior.id.clone(),
            state: prior.state.clone(),
            waiting_for: prior.waiting_for.clone(),
            queue_position: prior.queue_position,
            requested_at: prior.requested_at.clone(),
            started_at: prior.started_at.clone(),
            generation: prior.generation,
            lock_key: prior.lock_key.clone(),
            power_state: prior.power_state.clone(),
            previous_power_state: prior.previous_power_state.clone(),
            ..config
        };
        model.set_defaults();
        let spec = model.check(diags);
        let replaced = model.replacing(&prior);
        if !replaced.is_empty() {
            if let (Some(spec), Some(engine)) = (&spec, self.cell.engine_if_ready()) {
                self.cell.unless_stopped(review::maintenance(diags, &engine, spec, None)).await;
            }
            model.unknown_outputs();
            return Some((Value::Value(model), private, replaced));
        }
        if model != prior || goes_on(&prior, model.wait_for()) {
            if let (Some(spec), Some(engine)) = (&spec, self.cell.engine_if_ready()) {
                self.cell.unless_stopped(review::changed_hold(diags, &engine, spec)).await;
            }
            let (id, lock_key, requested_at) = (model.id.clone(), model.lock_key.clone(), model.requested_at.clone());
            model.unknown_outputs();
            (model.id, model.lock_key, model.requested_at) = (id, lock_key, requested_at);
        }
        Some((Value::Value(model), private, Vec::new()))
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
        let Value::Value(model) = planned else { return None };
        let engine = self.cell.engine(diags)?;
        let spec = model.check(diags)?;
        let server = spec.server.clone();
        let wish = Wish { id: model.name_id()?, spec, wait_for: model.wait_for() };
        let control = self.control(&model, true);
        match engine.hold(&wish, &control).await {
            Ok(driven) => {
                let (mut model, private) = conclude(diags, &engine, model, &driven, control.timeout)?;
                fill_place(&engine, &mut model, &private).await;
                Some((Value::Value(model), Value::Value(private)))
            }
            Err(error) => {
                diags.add_error(of_engine(&server, &error));
                self.held_all_the_same(&engine, model, &wish.id).await
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
        let (Value::Value(prior), Value::Value(model)) = (prior, planned) else { return None };
        let engine = self.cell.engine(diags)?;
        let spec = model.check(diags)?;
        let server = spec.server.clone();
        let wish = Wish { id: model.name_id()?, spec, wait_for: model.wait_for() };
        let control = self.control(&model, false);
        let Some(uid) = Private::uid(&private) else {
            diags.add_error(Private::missing(&server));
            return Some((Value::Value(prior), private));
        };
        match engine.resume(&uid, &wish, &control).await {
            Ok(Some(driven)) => {
                let concluded = conclude(diags, &engine, model, &driven, control.timeout);
                let (mut model, private) = concluded?;
                fill_place(&engine, &mut model, &private).await;
                Some((Value::Value(model), Value::Value(private)))
            }
            Ok(None) => {
                // Over: what changed concerns a hold that is no more.
                let mut model = model;
                if let Ok(Some(held)) = engine.held(&uid).await {
                    show(&mut model, &held.record, None, None);
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
        let Some(uid) = Private::uid(&private) else {
            diags.add_error(Private::missing(&server));
            return None;
        };
        let control = self.control(&model, false);
        let control = Control { timeout: control.release_timeout, ..control };
        match engine.release(&uid, &server, Ending::Completed, &control).await {
            Ok(Some(driven)) => released(diags, &server, &driven),
            Ok(None) => over_already(diags, &engine, &server, &uid, &private).await,
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
        let Value::Value(model) = state else { return Some((Value::Null, private)) };
        // A refresh before the provider can be configured keeps what is known.
        let Some(engine) = self.cell.engine_if_ready() else { return Some((Value::Value(model), private)) };
        let server = given(&model.server).unwrap_or_default().to_owned();
        let Some(uid) = Private::uid(&private) else {
            diags.add_error(Private::missing(&server));
            return Some((Value::Value(model), private));
        };
        match engine.held(&uid).await {
            Ok(Some(held)) => {
                let kept = model.clone();
                let shown = self.cell.unless_stopped(refresh(diags, &engine, model, held)).await;
                Some((shown.unwrap_or(Some(kept)).map_or(Value::Null, Value::Value), private))
            }
            Ok(None) => {
                let gone = missing_here(diags, &engine, &server, &private);
                Some((if gone { Value::Null } else { Value::Value(model) }, private))
            }
            Err(error) => {
                diags.add_warning(diagnostic(
                    "The coordination store did not answer",
                    format!("{server}: {error}. Its last known values are kept."),
                    AttributePath::root(),
                ));
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
        let id: MaintenanceId = match id.parse() {
            Ok(id) => id,
            Err(problem) => {
                diags.add_error(diagnostic(
                    "Not an id of a maintenance",
                    format!("{id:?}: it {problem}."),
                    AttributePath::root(),
                ));
                return None;
            }
        };
        match engine.active(&id).await {
            Ok(record) => {
                let mut model = imported(&record);
                show(&mut model, &record, None, None);
                Some((Value::Value(model), Value::Value(Private::of(&engine, &record))))
            }
            Err(error) => {
                diags.add_error(of_engine(&id.to_string(), &error));
                None
            }
        }
    }
}

impl ResourceExt for ServerMaintenance {
    fn is_gone(&self, state: &Self::State<'_>) -> bool {
        state.is_null()
    }
}

impl ServerMaintenance {
    /// After an error in the middle: when the server is held all the same, it must be in the state, so that destroy can
    /// give it back.
    async fn held_all_the_same(
        &self,
        engine: &Arc<Engine>,
        mut model: MaintenanceModel,
        id: &MaintenanceId,
    ) -> Option<(Value<MaintenanceModel>, Value<Private>)> {
        let held = engine.held_by_name(id).await.ok()??;
        let ours = held.active && held.record.prior.is_some() && held.record.requester.id == engine.runner().id;
        if !ours {
            return None;
        }
        show(&mut model, &held.record, None, None);
        Some((Value::Value(model), Value::Value(Private::of(engine, &held.record))))
    }
}

/// Whether the last run ended before what was asked for was reached, so that apply has to go on.
fn goes_on(prior: &MaintenanceModel, wait_for: WaitFor) -> bool {
    match given(&prior.state) {
        Some("Preparing" | "Releasing") => true,
        // Its turn has come, and nobody drives it.
        Some("Pending") => wait_for != WaitFor::Enqueued || prior.queue_position == Value::Value(0),
        Some("InMaintenance") => wait_for == WaitFor::Completed,
        _ => false,
    }
}

/// Fills what only a queue tells.
async fn fill_place(engine: &Engine, model: &mut MaintenanceModel, private: &Private) {
    if given(&model.state) == Some("Pending")
        && let Ok(Some(held)) = engine.held(&private.own_uid()).await
    {
        show(model, &held.record, held.waiting_for, held.ahead);
    }
}

/// The state after a look at the record and, while it is held, at the server. `None`: it exists no more.
async fn refresh(
    diags: &mut Diagnostics,
    engine: &Engine,
    mut model: MaintenanceModel,
    held: Held,
) -> Option<MaintenanceModel> {
    let record = &held.record;
    let server = record.server().to_owned();
    let mut warn = |summary: &'static str, detail: String| {
        diags.add_warning(diagnostic(summary, detail, AttributePath::root()));
    };
    if !held.active {
        return match &record.phase {
            Phase::Completed { ending: Ending::Released { .. }, .. } | Phase::Failed { .. } => {
                warn(
                    "A hold was released by somebody else",
                    format!(
                        "{server}: {} is over ({}). The resource is dropped from the state.",
                        record.id,
                        ended(record)
                    ),
                );
                None
            }
            _ => {
                show(&mut model, record, None, None);
                Some(model)
            }
        };
    }
    if record.is_overdue(held.now) {
        let since = record.expires_at().map(shown_time).unwrap_or_default();
        warn(
            "A hold is overdue",
            format!(
                "{server}: {} should have ended at {since} (expires_after). It is held by {}; whoever is next in the queue may \
                 give the server back and take it.",
                record.id, record.requester
            ),
        );
    }
    let before = model.power_state.clone();
    show(&mut model, record, held.waiting_for.clone(), held.ahead);
    if !matches!(record.phase, Phase::InMaintenance { .. }) {
        return Some(model);
    }
    let wanted = record.spec.server_power;
    let ends_by_power = matches!(record.spec.complete_when, Some(CompleteWhen::PowerState(_)));
    let seen = engine.seen(&server, held).await;
    match seen.machine {
        Ok(view) => {
            if let Some(wanted) = wanted
                && let Some(settled) = view.power.settled().filter(|settled| *settled != wanted)
                && !ends_by_power
            {
                model.power_state = Value::Value(settled.to_string());
                warn(
                    "A held server is not as the hold asked",
                    format!(
                        "{server}: its power is {settled}, {wanted} was asked for. It is left so; destroy puts it back as it was."
                    ),
                );
            }
        }
        Err(error) => {
            model.power_state = before;
            warn("BMC did not answer", format!("{server}: {error}. Its last known values are kept."));
        }
    }
    Some(model)
}

fn ended(record: &Maintenance) -> String {
    match &record.phase {
        Phase::Completed { at, ending } => format!("{ending} at {}", shown_time(*at)),
        Phase::Failed { at, cause } => format!("failed at {}: {cause}", shown_time(*at)),
        phase => phase.name().to_owned(),
    }
}

/// What a drive that gives back means for a destroy.
pub(super) fn released(diags: &mut Diagnostics, server: &str, driven: &Driven) -> Option<()> {
    let record = &driven.record;
    let (summary, detail) = match &driven.finish {
        Finish::Over | Finish::Withdrawn | Finish::Reached => return Some(()),
        Finish::Lost => {
            diags.add_warning(diagnostic(
                "A hold was released by somebody else",
                format!("{server}: {} is {} now. Nothing more was done to the server.", record.id, record.phase.name()),
                AttributePath::root(),
            ));
            return Some(());
        }
        Finish::Stuck(cause) => (format!("{server} could not be given back"), stuck(record, cause)),
        Finish::TimedOut(reason) => (
            format!("{server} could not be given back in time"),
            format!("{} is {reason}. The server stays held. Destroy again, or raise timeouts.delete.", record.id),
        ),
        Finish::Interrupted => (
            format!("Giving {server} back was interrupted"),
            format!("{} stopped at {}. The server stays held; the next destroy goes on there.", record.id, at(record)),
        ),
    };
    diags.add_error(diagnostic(summary, detail, AttributePath::root()));
    None
}

/// A destroy of something that is over: the server is not touched.
pub(super) async fn over_already(
    diags: &mut Diagnostics,
    engine: &Engine,
    server: &str,
    uid: &Uid,
    private: &Value<Private>,
) -> Option<()> {
    match engine.held(uid).await {
        Ok(Some(held)) => {
            if let Phase::Completed { ending: Ending::Released { .. }, .. } = held.record.phase {
                diags.add_warning(diagnostic(
                    "A hold was released by somebody else",
                    format!("{server}: {} was {}. The server was not touched.", held.record.id, ended(&held.record)),
                    AttributePath::root(),
                ));
            }
            Some(())
        }
        Ok(None) => missing_here(diags, engine, server, private).then_some(()),
        Err(error) => {
            let error: EngineError = error;
            diags.add_error(of_engine(server, &error));
            None
        }
    }
}

/// A model of what a record says was asked for.
fn imported(record: &Maintenance) -> MaintenanceModel {
    let Spec { reason, ticket, priority, server_power, expires_after, hold_place_for, triggers, policy, .. } =
        record.spec.clone();
    let mut model = MaintenanceModel {
        server: Value::Value(record.server().to_owned()),
        namespace: Value::Value(record.id.namespace().to_owned()),
        name: Value::Value(record.id.name().to_owned()),
        policy: Value::Value(policy.to_string()),
        reason: known(reason),
        ticket: known(ticket),
        priority: Value::Value(priority),
        server_power: known(server_power.map(|power| power.to_string())),
        expires_after: known(expires_after.map(shown_duration)),
        hold_place_for: Value::Value(shown_duration(hold_place_for)),
        triggers: shown_texts(&triggers),
        boot_configuration: record.spec.boot.as_ref().map_or(Value::Null, |boot| Value::Value(boot.into())),
        complete_when: record.spec.complete_when.as_ref().map_or(Value::Null, |when| Value::Value(when.into())),
        ..MaintenanceModel::default()
    };
    model.set_defaults();
    model
}
