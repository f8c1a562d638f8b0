//! The action `metal_server_operation`: one power operation under the lock, invoked by hand or by a
//! resource change.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tf_provider::{AttributePath, Diagnostics, schema::Schema, value::Value};

use crate::{
    engine::{Control, Engine, EngineError, Invoked, MaintenanceRequest, ReconcileResult},
    maintenance::{
        decide::Finish,
        ids::MaintenanceId,
        lock::AskingState,
        operate::OperationOutcome,
        spec::{Spec, WaitFor},
        state::{Maintenance, Phase},
    },
    plugin::{Action, Progress, diagnostic},
};

use crate::provider::{
    operation::action_model::{ActionModel, action_schema, in_its_words},
    operation::model::OperationModel,
    operation::plan::{Plans, review_operation},
    shared::cell::Cell,
    shared::diagnostics::{of_engine, value_or_error},
    shared::effect,
    shared::lost::{lost, waited},
    shared::own_turn::hold_named,
    shared::review,
    shared::values::{shown_duration, time_limit},
};

/// The default time limit.
const INVOKE: Duration = Duration::from_hours(1);
/// The time limit for ending a performed operation's record; the server is not touched.
const END: Duration = Duration::from_secs(30);

/// The action type.
#[derive(Debug)]
pub(in crate::provider) struct ServerOperationAction {
    cell: Cell,
    /// Serializes a run's invocations with one name: several resources can trigger one action
    /// concurrently.
    turns: Mutex<HashMap<MaintenanceId, Arc<tokio::sync::Mutex<()>>>>,
}

impl ServerOperationAction {
    /// Returns the action type for a provider.
    pub(in crate::provider) fn new(cell: Cell) -> Self {
        Self { cell, turns: Mutex::default() }
    }

    fn control(&self, model: &OperationModel) -> Control {
        let timeout = time_limit(&model.timeouts, |t| &t.create, INVOKE);
        Control { stop: self.cell.stop.clone(), timeout, release_timeout: timeout }
    }

    fn turn(&self, id: &MaintenanceId) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(turns.entry(id.clone()).or_default())
    }

    /// Checks the configuration, finds its maintenance, and performs the operation.
    async fn make(&self, diags: &mut Diagnostics, model: &OperationModel, progress: &Progress) -> Option<()> {
        let engine = self.cell.engine(diags)?;
        let spec = model.check(diags, Some(&engine))?;
        let (server, id) = (spec.server.to_string(), model.name_id()?);
        let turn = self.turn(&id);
        let _turn = tokio::select! {
            turn = turn.lock() => turn,
            () = self.cell.stop.cancelled() => {
                diags.add_error(of_engine(&server, &EngineError::Stopped));
                return None;
            }
        };
        let hold = hold_named(diags, &model.maintenance_id);
        let parent = review::hold(diags, &engine, hold.as_ref(), &server).await.ok()?;
        let spec = Spec { parent, ..spec };
        progress.tell(&format!("{id}: {}", effect::of(&spec)));
        let shown = progress.clone();
        let listening = engine.listen(&id, move |line| shown.tell(line));
        let wish = MaintenanceRequest { id, spec, wait_for: WaitFor::InMaintenance, asking: AskingState::default() };
        let control = self.control(model);
        let invoked = value_or_error(diags, &server, engine.invoke(&wish, &control).await)?;
        drop(listening);
        let made = conclude(diags, &invoked, &wish, control.timeout)?;
        // A disconnected host did not receive the result; the next invocation reports it.
        if wish.spec.triggers.is_empty() && progress.is_heard() && !self.cell.stop.is_cancelled() {
            forget(&engine, &made, &control).await;
        }
        Some(())
    }
}

/// Ends the record, so that the next invocation performs the operation again.
async fn forget(engine: &Engine, made: &Maintenance, control: &Control) {
    let control = Control { timeout: END, release_timeout: END, ..control.clone() };
    if let Err(error) = engine.forget_made(made, &control).await {
        tracing::warn!(%error, "{}: its record stays, so the next invocation only reports the operation", made.id);
    }
}

fn made_before(record: &Maintenance) -> tf_provider::Diagnostic {
    let again = if record.spec.triggers.is_empty() {
        "the run that invoked it was killed before it could report. Invoke the action again to repeat the operation."
    } else {
        "an earlier invocation had the same triggers. Change triggers to run the operation again."
    };
    diagnostic(
        "An operation has already run",
        format!("{}: {} already ran {}. Nothing was sent now: {again}", record.server(), record.id, record.made()),
        AttributePath::root(),
    )
}

/// Reports an invocation's result; returns the record if the operation was performed.
fn conclude(
    diags: &mut Diagnostics,
    invoked: &Invoked,
    wish: &MaintenanceRequest,
    timeout: Duration,
) -> Option<Maintenance> {
    let driven = match invoked {
        Invoked::MadeBefore(record) => {
            diags.add_warning(made_before(record));
            return Some(record.clone());
        }
        Invoked::NotEnded(driven) => {
            let detail = format!(
                "It is {} for an earlier invocation ({}) and did not end in {} (timeouts.invoke). Nothing was sent \
                 for this invocation. Invoke the action again after that one has ended.",
                driven.record.phase.name(),
                driven.record.operation_name(),
                shown_duration(timeout)
            );
            let summary = format!("{} has not ended on {}", wish.id, driven.record.server());
            diags.add_error(diagnostic(summary, detail, AttributePath::root()));
            return None;
        }
        Invoked::Driven(driven) => driven,
    };
    if driven.finish == Finish::Reached {
        if driven.record.outcome == Some(OperationOutcome::Unproven) {
            diags.add_warning(unproven(&driven.record));
        }
        return Some(driven.record.clone());
    }
    diags.add_error(not_made(driven, timeout));
    None
}

fn unproven(record: &Maintenance) -> tf_provider::Diagnostic {
    let again = if record.spec.triggers.is_empty() { "invoke the action" } else { "change triggers to run it" };
    diagnostic(
        "An operation could not be proven",
        format!(
            "{}: {} was sent, and the BMC does not show whether it took effect.{} The provider does not send it \
             again automatically: check the server, and {again} again.",
            record.server(),
            record.operation_name(),
            record.unproven_cause()
        ),
        AttributePath::root(),
    )
}

/// Explains why an operation was not performed, or has an unknown outcome.
fn not_made(driven: &ReconcileResult, timeout: Duration) -> tf_provider::Diagnostic {
    let record = &driven.record;
    let (server, what) = (record.server(), record.operation_name());
    let waited = waited(driven.waited, timeout, "timeouts.invoke");
    let (summary, detail) = match &driven.finish {
        Finish::Over => match &record.phase {
            Phase::Failed { cause, .. } => {
                (format!("{what} of {server} failed"), format!("{cause}\nFix the cause and invoke the action again."))
            }
            _ => taken(record),
        },
        Finish::Withdrawn => (
            format!("Waiting for {server} was interrupted"),
            format!("{} left the queue; the server is unchanged.", record.id),
        ),
        Finish::Refused(why) => {
            (format!("{what} of {server} cannot run"), format!("{why}\nNothing was done to the server."))
        }
        Finish::TimedOut(reason) if matches!(record.phase, Phase::Preparing(_)) => (
            format!("{what} of {server} did not end in time"),
            format!(
                "{} was at {reason}.\n{waited} The external system continues the operation, and the lock stays: invoke the action \
                 again to wait for its end. It is not started a second time.",
                record.id
            ),
        ),
        Finish::Stuck(cause) => (
            format!("Releasing {server} failed"),
            format!("{cause}\n{} keeps the lock. Fix the cause and invoke the action again to continue.", record.id),
        ),
        Finish::TimedOut(reason) | Finish::NotUpdated { cause: reason, .. } => (
            format!("{server} was not available in time"),
            format!(
                "{} was {reason}.\n{waited} The queue position is reserved for {}: invoke the action again \
                 to resume, or raise timeouts.invoke.",
                record.id,
                shown_duration(record.spec.hold_place_for)
            ),
        ),
        Finish::Interrupted | Finish::Reached => (
            format!("{what} of {server} was interrupted"),
            format!(
                "{} is {}. Invoke the action again to continue; it does not repeat requests that were already sent.",
                record.id,
                record.phase.name()
            ),
        ),
        Finish::Lost => taken(record),
    };
    diagnostic(summary, detail, AttributePath::root())
}

/// Returns a lost operation's summary and detail.
fn taken(record: &Maintenance) -> (String, String) {
    let (summary, how) = lost(record.server(), record);
    (summary, format!("{how}. Nothing more was done to the server."))
}

#[async_trait]
impl Action for ServerOperationAction {
    type Config<'a> = Value<ActionModel>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(action_schema())
    }

    /// Allows an ephemeral lock as the value; it then stays open until the operation is finished.
    fn write_only(&self) -> &'static [&'static str] {
        &["maintenance_id"]
    }

    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::Config<'a>) -> Option<()> {
        if let Value::Value(config) = config {
            config.operation().check(diags, None);
            in_its_words(diags);
        }
        Some(())
    }

    async fn plan<'a>(&self, diags: &mut Diagnostics, config: Self::Config<'a>) -> Option<()> {
        if let Value::Value(config) = config {
            let mut model = config.operation();
            model.effect = effect::planned(model.acting().as_ref());
            let patience = self.control(&model).timeout;
            review_operation(diags, &self.cell, &model, Plans::Action, patience).await;
            in_its_words(diags);
        }
        Some(())
    }

    async fn invoke<'a>(&self, diags: &mut Diagnostics, config: Self::Config<'a>, progress: &Progress) -> Option<()> {
        let Value::Value(config) = config else { return None };
        let made = self.make(diags, &config.operation(), progress).await;
        in_its_words(diags);
        made
    }
}
