//! `ephemeral "metal_server_lock"`: a lock for exactly one run.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tf_provider::{AttributePath, Diagnostic, Diagnostics, schema::Schema, value::Value};
use tokio_util::sync::CancellationToken;

use crate::provider::{
    lock::model::{LockModel, lock_schema},
    shared::cell::Cell,
    shared::diagnostics::value_or_error,
    shared::effect,
    shared::lost,
    shared::private::Private,
    shared::prospect::PlannedRequest,
    shared::renamed_timeouts::rename_timeouts,
    shared::review,
    shared::values::{bad, shown_duration},
};
use crate::{
    engine::{Control, Engine, EngineError, MaintenanceRequest, ReconcileResult},
    maintenance::{
        decide::Finish,
        ids::Uid,
        lock::AskingState,
        queue::shown_time,
        spec::WaitFor,
        state::{Ending, Maintenance, Phase},
    },
    plugin::{EphemeralResource, Opened, diagnostic},
    shown::shell_word,
};

/// The resource type.
#[derive(Debug)]
pub(in crate::provider) struct ServerLock {
    pub(in crate::provider) cell: Cell,
}

/// The data that close receives; absent if the server was not locked.
#[derive(Debug, Serialize, Deserialize)]
struct Handle {
    uid: String,
    server: String,
    /// The time limit for closing, in seconds.
    limit: u64,
}

impl Handle {
    fn read(private: &[u8]) -> Option<Self> {
        serde_json::from_slice(private).ok()
    }
}

impl ServerLock {
    /// Shows an apply's outlook without locking.
    async fn look(&self, diags: &mut Diagnostics, mut model: LockModel) -> Option<Opened<Value<LockModel>>> {
        let engine = self.cell.engine_if_ready();
        let spec = model.check(diags, engine.as_deref());
        if !diags.errors.is_empty() {
            return None;
        }
        let id = model.name_id();
        match (&engine, &spec) {
            (Some(engine), Some(spec)) => {
                let asked = PlannedRequest::new(spec, id.as_ref(), Some(model.time_limits().0));
                self.cell.unless_stopped(review::maintenance(diags, engine, &asked)).await;
            }
            (None, Some(spec)) => review::not_checked(diags, &Value::Value(effect::of(spec))),
            _ => {}
        }
        model.show_planned(engine.as_deref());
        Some(Opened { result: Value::Value(model), private: Vec::new(), renew_at: None })
    }

    /// Locks the server.
    async fn lock(&self, diags: &mut Diagnostics, mut model: LockModel) -> Option<Opened<Value<LockModel>>> {
        let engine = self.cell.engine(diags)?;
        let spec = model.check(diags, Some(&engine))?;
        let (id, server) = (model.name_id()?, spec.server.to_string());
        let (timeout, release_timeout) = model.time_limits();
        // Use a new state id: closing would otherwise release another state's record.
        let asking = AskingState { state: Private::new_state(), ephemeral: true, ..AskingState::default() };
        let wish = MaintenanceRequest { id, spec, wait_for: WaitFor::InMaintenance, asking };
        let control = Control { stop: self.cell.stop.clone(), timeout, release_timeout };
        let driven = value_or_error(diags, &server, engine.open(&wish, &control).await)?;
        if driven.finish != Finish::Reached {
            diags.add_error(not_opened(&driven, timeout));
            return None;
        }
        let record = &driven.record;
        let power = self.cell.unless_stopped(power_of(&engine, &server)).await.flatten();
        model.show(&engine, record, power);
        let handle = Handle { uid: record.uid.raw().to_owned(), server, limit: release_timeout.as_secs() };
        let private = serde_json::to_vec(&handle).ok()?;
        Some(Opened { result: Value::Value(model), private, renew_at: Some(next_renewal(&engine)) })
    }
}

/// Returns when the host renews next. Heartbeats run independently; a renewal checks once per lease
/// that this run still has the lock.
fn next_renewal(engine: &Engine) -> SystemTime {
    SystemTime::from(engine.now()) + engine.tuning().lease
}

async fn power_of(engine: &Engine, server: &str) -> Option<String> {
    let view = engine.machine(server).ok()?.observe().await.ok()?;
    Some(view.power.to_string())
}

/// Explains why a server was not locked.
fn not_opened(driven: &ReconcileResult, timeout: Duration) -> Diagnostic {
    let record = &driven.record;
    let (server, waited) = (record.server(), lost::waited(driven.waited, timeout, "timeouts.open"));
    let (summary, detail) = match &driven.finish {
        Finish::Withdrawn => (
            format!("Waiting for {server} was interrupted"),
            format!("{} left the queue; the server is unchanged.", record.id),
        ),
        Finish::Refused(why) => {
            (format!("{server} cannot be locked"), format!("{why}\nNothing was done to the server."))
        }
        Finish::Stuck(cause) => (
            format!("Releasing {server} failed"),
            format!(
                "{cause}\nThe lock stays, because its prior state is not restored. Fix the cause and apply again, or run: \
                 terraform-provider-metal release {} --owner {}",
                record.id,
                shell_word(record.owner.shown())
            ),
        ),
        Finish::TimedOut(reason) if matches!(record.phase, Phase::Pending) => (
            format!("{server} was not available in time"),
            format!(
                "{} was {reason}.\n{waited} The queue position is reserved for {}: apply again to resume, or \
                 raise timeouts.open.",
                record.id,
                shown_duration(record.spec.hold_place_for)
            ),
        ),
        Finish::Interrupted if matches!(record.phase, Phase::Pending) => (
            format!("Waiting for {server} was interrupted"),
            format!(
                "{} could not leave the queue. Its position is reserved for {}.",
                record.id,
                shown_duration(record.spec.hold_place_for)
            ),
        ),
        Finish::Interrupted => (
            format!("Preparing {server} was interrupted"),
            format!("{} was released; the server is restored.", record.id),
        ),
        Finish::Lost => return lost(server, Some(record)),
        Finish::Over | Finish::TimedOut(_) | Finish::NotUpdated { .. } | Finish::Reached => {
            let cause = match (&record.phase, &driven.finish) {
                (_, Finish::TimedOut(cause) | Finish::NotUpdated { cause, .. }) => cause.clone(),
                (Phase::Failed { cause, .. }, _) => cause.to_string().into(),
                (phase, _) => format!("{} is {}", record.id, phase.name()).into(),
            };
            (
                format!("{server} could not be prepared"),
                format!("{cause}\nThe server is restored and its lock is free. Fix the cause and apply again."),
            )
        }
    };
    diagnostic(summary, detail, AttributePath::root())
}

/// Builds the error for a lock that this run lost.
fn lost(server: &str, record: Option<&Maintenance>) -> Diagnostic {
    let unknown =
        || (format!("Lost the lock on {server}"), "The coordination store does not contain it any more".to_owned());
    let (summary, how) = record.map_or_else(unknown, |record| lost::lost(server, record));
    let detail = format!(
        "{how}. This run does not touch the server any more, and does not release it. Since then, this run's other \
         resources have acted without the lock."
    );
    diagnostic(summary, detail, AttributePath::root())
}

#[async_trait]
impl EphemeralResource for ServerLock {
    type State<'a> = Value<LockModel>;

    fn schema(&self, _: &mut Diagnostics) -> Option<Schema> {
        Some(lock_schema())
    }

    async fn validate<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<()> {
        let Value::Value(model) = config else { return Some(()) };
        model.check(diags, None);
        // Hosts validate before they configure, and then terraform.applying is false. In a plan and
        // in an apply they configure first.
        if model.is_applying() && self.cell.is_new() {
            bad(
                diags,
                AttributePath::new("applying"),
                "A plan would lock the server",
                "Its value is always true. Write applying = terraform.applying, so that only an apply locks the server.",
            );
        }
        Some(())
    }

    async fn open<'a>(&self, diags: &mut Diagnostics, config: Self::State<'a>) -> Option<Opened<Self::State<'a>>> {
        let Value::Value(model) = config else { return None };
        let opened = if model.is_applying() {
            Box::pin(self.lock(diags, model)).await
        } else {
            Box::pin(self.look(diags, model)).await
        };
        rename_timeouts(diags, &[("create", "open"), ("delete", "close")]);
        opened
    }

    async fn renew(&self, diags: &mut Diagnostics, private: &[u8]) -> Option<Option<SystemTime>> {
        let Some(handle) = Handle::read(private) else { return Some(None) };
        let engine = self.cell.engine(diags)?;
        match engine.is_open(&Uid::new(handle.uid)).await {
            Ok(Ok(())) => {}
            Ok(Err(record)) => {
                diags.add_error(lost(&handle.server, record.as_ref()));
                return None;
            }
            // Heartbeats continue, and this process does not change the server before the next
            // renewal.
            Err(error) => tracing::warn!(%error, "{}: whether the lock is still held is not known", handle.server),
        }
        Some(Some(next_renewal(&engine)))
    }

    async fn close(&self, diags: &mut Diagnostics, private: &[u8]) -> Option<()> {
        let Some(handle) = Handle::read(private) else { return Some(()) };
        let engine = self.cell.engine(diags)?;
        let (uid, server) = (Uid::new(handle.uid), handle.server);
        // An interrupt can be the reason for closing, so it must not stop the release.
        let limit = Duration::from_secs(handle.limit);
        let control = Control { stop: CancellationToken::new(), timeout: limit, release_timeout: limit };
        match Box::pin(engine.close_lock(&uid, &control)).await {
            Ok(Some(driven)) => closed(diags, &server, &driven, limit),
            Ok(None) => {
                let record = engine.held(&uid).await.ok().flatten().map(|held| held.record);
                diags.add_error(lost(&server, record.as_ref()));
                None
            }
            Err(error) => {
                let id = match &error {
                    EngineError::StoreLost { id, .. } => id.to_string(),
                    _ => "NAMESPACE/NAME".to_owned(),
                };
                diags.add_error(not_released(&server, &error.to_string(), "", &id, engine.owner()));
                None
            }
        }
    }
}

/// Reports a release's result to the run.
fn closed(diags: &mut Diagnostics, server: &str, driven: &ReconcileResult, limit: Duration) -> Option<()> {
    let record = &driven.record;
    let cause = match &driven.finish {
        Finish::Over if matches!(record.phase, Phase::Completed { ending: Ending::Completed, .. }) => return Some(()),
        Finish::Over | Finish::Lost => {
            diags.add_error(lost(server, Some(record)));
            return None;
        }
        Finish::TimedOut(why) => format!("It was {why} after {} (timeouts.close)", shown_duration(limit)),
        Finish::Stuck(why) => why.to_string(),
        _ => format!("It is {}", record.phase.name()),
    };
    let expires = record.expires_at().map(|at| format!(" from {} on", shown_time(at))).unwrap_or_default();
    diags.add_error(not_released(server, &cause, &expires, &record.id.to_string(), record.owner.shown()));
    None
}

/// Explains why a server stays locked and how it is released.
fn not_released(server: &str, cause: &str, expires: &str, id: &str, owner: &str) -> Diagnostic {
    let owner = shell_word(owner);
    let detail = format!(
        "{cause}.\nThe lock stays, because its prior state is not restored. Fix the cause; then the next run of this \
         configuration, or the next waiter when the lock is overdue{expires}, releases the server. By hand: \
         terraform-provider-metal release {id} --owner {owner}"
    );
    diagnostic(format!("Releasing {server} failed"), detail, AttributePath::root())
}
