//! Checks that a name still leads to the server whose lock a record has.
//!
//! A configuration names a server by an address. A cluster can change that address while the server
//! is locked, even to another locked server.

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

/// Maximum age of the last identification before a read.
pub(super) const FOR_A_LOOK: Duration = Duration::from_mins(1);

/// Maximum age of the last identification before a change or a recording.
pub(super) const FOR_A_CHANGE: Duration = Duration::from_secs(10);

/// Returns true if an action goes to the server itself.
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
    /// Returns true if the last identification is older than `age`.
    fn may_be_another(&self, age: Duration) -> bool {
        let known = self.identified_at.is_some_and(|at| self.engine.parts.clock.monotonic().saturating_sub(at) <= age);
        !known && !self.waits()
    }

    /// Rejects another server than the locked server, if the last identification is older than
    /// `age`.
    pub(super) async fn checks_server(&mut self, age: Duration) -> Result<(), LookError> {
        if !self.may_be_another(age) {
            return Ok(());
        }
        let now = self.engine.parts.clock.monotonic();
        let shown = self.machine()?.identify().await;
        self.compares(shown, now).await
    }

    /// Reads the server's state, unless it is another server.
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

    /// Compares a server's identity with the locked server. Ignores read errors, because every
    /// other read fails with them too.
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
                tracing::debug!(%error, "the server's identity cannot be read now");
                Ok(())
            }
        }
    }
}

impl Engine {
    /// Returns `at` if the server itself answered; `None` if only its name identified it.
    pub(super) fn seen_as(&self, server: &str, found: &Identified, at: Duration) -> Option<Duration> {
        let name = Alias::name(&self.bound_name(server));
        let answered = !found.fresh.is_empty() || found.claims.iter().any(|claim| claim.alias != name);
        answered.then_some(at)
    }

    /// Returns an error if the name leads to another server than the lock.
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
        Ok(Some(BackendError::OtherServer { address: machine.address().into(), shown: shown.join(", ").into() }))
    }
}
