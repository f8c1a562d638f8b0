//! Whether the server behind a name is still the one whose lock a record has.
//!
//! A configuration names a server by an address, and a cluster may change that address: also while
//! the server is held, and to one whose lock another maintenance has.

use std::time::Duration;

use crate::{
    backend::{BackendError, HardwareIdentity},
    maintenance::{
        aliases::Alias,
        identity::{Identified, another_server},
        ids::LockKey,
        machine::MachineView,
        step::Action,
    },
};

use super::{Engine, EngineError, act::LookError, drive::Reconciler};

/// How old the last answer may be when the server is read.
pub(super) const FOR_A_LOOK: Duration = Duration::from_mins(1);

/// How old it may be when the server is changed, or recorded as it is.
pub(super) const FOR_A_CHANGE: Duration = Duration::from_secs(10);

/// Whether an action is sent to the server itself.
pub(super) fn changes_server(action: &Action) -> bool {
    !matches!(
        action,
        Action::TakeNode
            | Action::ReturnNode
            | Action::CordonNode { .. }
            | Action::EvictPods
            | Action::UncordonNode
            | Action::EnterGate
            | Action::LeaveGate
    )
}

impl Reconciler<'_> {
    /// Whether the last answer is older than this.
    fn may_be_another(&self, age: Duration) -> bool {
        let known = self.identified_at.is_some_and(|at| self.engine.parts.clock.monotonic().saturating_sub(at) <= age);
        !known && !self.waits()
    }

    /// Refuses another server than the one that is held, where the last answer is older than `age`.
    pub(super) async fn checks_server(&mut self, age: Duration) -> Result<(), LookError> {
        if !self.may_be_another(age) {
            return Ok(());
        }
        let now = self.engine.parts.clock.monotonic();
        let shown = self.machine()?.identify().await;
        self.compares(shown, now).await
    }

    /// How the server is, unless it is another one than the one that is held.
    pub(super) async fn observes(&mut self) -> Result<MachineView, LookError> {
        let machine = self.machine()?;
        if !self.may_be_another(FOR_A_LOOK) {
            return Ok(machine.observe().await?);
        }
        let now = self.engine.parts.clock.monotonic();
        let (shown, view) = machine.recognize().await;
        self.compares(shown, now).await?;
        Ok(view?)
    }

    /// Compares what the server showed of itself, at a time, with the held server. One that does
    /// not tell what it is does not tell the rest either, so that this stops nothing which could go
    /// on.
    async fn compares(
        &mut self,
        shown: Result<HardwareIdentity, BackendError>,
        now: Duration,
    ) -> Result<(), LookError> {
        let other = match shown {
            Ok(shown) => self.engine.differs(&self.server, &self.key, shown).await,
            Err(error) => Err(error.into()),
        };
        match other {
            Ok(None) => {
                self.identified_at = Some(now);
                Ok(())
            }
            Ok(Some(other)) => Err(LookError::Machine(other)),
            Err(error) => {
                tracing::debug!(%error, "what the server is cannot be read now");
                Ok(())
            }
        }
    }
}

impl Engine {
    /// When a server was seen that was identified at a time; `None`: it did not answer, and only
    /// its name is known.
    pub(super) fn seen_as(&self, server: &str, found: &Identified, at: Duration) -> Option<Duration> {
        let name = Alias::name(&self.bound_name(server));
        let answered = !found.fresh.is_empty() || found.claims.iter().any(|claim| claim.alias != name);
        answered.then_some(at)
    }

    /// The server behind a name, where it is another one than that of a lock.
    async fn differs(
        &self,
        server: &str,
        key: &LockKey,
        identity: HardwareIdentity,
    ) -> Result<Option<BackendError>, EngineError> {
        let machine = self.machine(server)?;
        let seen = self.sighting(server, identity);
        let mut places = self.places(&seen.hardware()).await?;
        self.follow(&mut places).await?;
        let Some(shown) = another_server(&seen, key, &places) else { return Ok(None) };
        let shown: Vec<String> = shown.iter().map(ToString::to_string).collect();
        Ok(Some(BackendError::OtherServer { address: machine.address(), shown: shown.join(", ") }))
    }
}
