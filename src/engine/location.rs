//! A record's location: checked before any change, and read again after a release without a
//! restore.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    backend::{BackendError, Machine},
    clock::Clock,
    maintenance::{
        gate::{self, ExternalSystem},
        identity::Identified,
        location::Location,
        lock::reaches,
        machine::PowerState,
        spec::Spec,
        state::{Maintenance, Phase},
    },
};

use super::{Control, Engine, EngineError};

/// Pause between two tries to locate a backend.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a request without effects waits for an answer before it fails.
const BRIEF: Duration = Duration::from_secs(30);

/// A server's state after its maintenance ended without a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Its power state, or the read error.
    pub power: Result<PowerState, String>,
    /// Its power state before the maintenance, if recorded.
    pub before: Option<PowerState>,
    /// Its state in the external system, if that answered.
    pub state: Option<String>,
}

impl fmt::Display for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.power {
            Ok(power) => write!(f, "Power is {power} now")?,
            Err(why) => write!(f, "Power could not be read ({why})")?,
        }
        match self.before {
            Some(before) if before.restored().is_some() => write!(f, ", and was {before} before the maintenance")?,
            Some(_) => write!(f, "; the power before the maintenance is not recorded")?,
            None => {}
        }
        if let Some(state) = &self.state {
            write!(f, "; its external system shows {state}")?;
        }
        write!(f, ".")
    }
}

/// A wait for a backend that does not answer.
struct Waiting<'a> {
    clock: &'a dyn Clock,
    server: &'a str,
    control: &'a Control,
    /// On our monotonic clock.
    deadline: Duration,
    said: bool,
}

impl<'a> Waiting<'a> {
    fn new(engine: &'a Engine, server: &'a str, control: &'a Control, limit: Duration) -> Self {
        let clock = &*engine.parts.clock;
        Self { clock, server, control, deadline: clock.monotonic() + limit, said: false }
    }

    /// Returns the answer, or `None` after a pause if another try is worthwhile.
    async fn judge<T>(&mut self, answer: Result<T, EngineError>) -> Option<Result<T, EngineError>> {
        let error = match answer {
            Err(EngineError::Machine(error)) if error.is_transient() => error,
            answer => return Some(answer),
        };
        if self.clock.monotonic() >= self.deadline || self.control.stop.is_cancelled() {
            return Some(Err(error.into()));
        }
        if !self.said {
            tracing::info!("{}: {error}; trying again", self.server);
            self.said = true;
        }
        tokio::select! {
            () = self.clock.sleep(PAUSE) => {}
            () = self.control.stop.cancelled() => {}
        }
        None
    }
}

/// Returns true if the external system that granted the server reports that the server does not
/// exist. An answer from another address does not count.
pub(super) fn is_deleted(record: &Maintenance, error: &EngineError) -> bool {
    let EngineError::Machine(BackendError::NoServer { address, .. }) = error else { return false };
    let granted = record.location.as_ref().and_then(|location| location.cluster.as_ref());
    granted.is_some_and(|granted| granted.address == *address)
}

impl Engine {
    /// Checks once that this process reaches the record's location.
    ///
    /// # Errors
    /// [`crate::maintenance::lock::Refusal::Elsewhere`] if it does not; the backend's error if that
    /// does not answer.
    pub async fn reaches(&self, record: &Maintenance) -> Result<(), EngineError> {
        let Some(recorded) = &record.location else { return Ok(()) };
        self.parts.backend.remember(record.server(), recorded);
        let reached = self.parts.backend.location(record.server()).await?;
        Ok(reaches(record, Some(&reached))?)
    }

    /// Runs [`Self::reaches`] before a change, and waits for a silent backend within the time
    /// limit. A record without effects can be ended from anywhere.
    pub(super) async fn reach(&self, record: &Maintenance, control: &Control) -> Result<(), EngineError> {
        let asked = gate::is_asked(record);
        if record.phase == Phase::Pending && !asked {
            return Ok(());
        }
        let mut waiting = Waiting::new(self, record.server(), control, control.timeout);
        loop {
            let reached = self.reaches(record).await;
            if reached.as_ref().is_err_and(|error| is_deleted(record, error)) {
                return Ok(());
            }
            if let Some(reached) = waiting.judge(reached).await {
                return reached;
            }
        }
    }

    /// Returns a server's location, after a short wait for a silent backend.
    pub(super) async fn located_at(&self, server: &str, control: &Control) -> Result<Location, EngineError> {
        let mut waiting = Waiting::new(self, server, control, control.timeout.min(BRIEF));
        loop {
            let location = self.backend().location(server).await.map_err(EngineError::from);
            if let Some(location) = waiting.judge(location).await {
                return location;
            }
        }
    }

    /// Returns a specification's gates, after a short wait for silent systems.
    pub(super) async fn systems_of(&self, spec: &Spec, control: &Control) -> Result<Vec<ExternalSystem>, EngineError> {
        let mut waiting = Waiting::new(self, spec.server.shown(), control, control.timeout.min(BRIEF));
        loop {
            let systems = self.systems(spec).await;
            if let Some(systems) = waiting.judge(systems).await {
                return systems;
            }
        }
    }

    /// Identifies a server. Waits briefly for a system that answers with 5xx or 429. An unreachable
    /// system fails immediately, because its address can be wrong.
    pub(super) async fn identified(&self, server: &str, control: &Control) -> Result<Identified, EngineError> {
        let mut waiting = Waiting::new(self, server, control, control.timeout.min(BRIEF));
        loop {
            let identified = self.identify(server).await;
            let answered = matches!(&identified, Err(EngineError::Machine(BackendError::Rejected { .. })));
            if !answered {
                return identified;
            }
            if let Some(identified) = waiting.judge(identified).await {
                return identified;
            }
        }
    }

    /// Returns a record's plain machine, if this process reaches its location.
    async fn reached(&self, record: &Maintenance) -> Result<Arc<dyn Machine>, EngineError> {
        self.reaches(record).await?;
        self.machine(record.server())
    }

    /// Reads a server whose maintenance ended without a restore.
    pub async fn observed(&self, record: &Maintenance) -> Observed {
        let power = match self.reached(record).await {
            Ok(machine) => machine.observe().await.map(|view| view.power).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let state = match self.ownership().filter(|_| power.is_ok()) {
            Some(there) => there.state(record.server(), true).await.ok().map(|seen| match seen.claim {
                Some(claim) => format!("{} (claimed by {claim})", seen.state),
                None => seen.state,
            }),
            None => None,
        };
        Observed { power, before: record.prior.as_ref().map(|prior| prior.power), state }
    }
}

/// Converts the error for an unreachable machine.
pub(super) fn unreached(error: EngineError) -> BackendError {
    match error {
        EngineError::Machine(error) => error,
        error => BackendError::Elsewhere { message: error.to_string().into() },
    }
}
