//! Whether the server behind a name is still the one whose lock a record has.
//!
//! A configuration names a server by an address, and a cluster may change that address: also while
//! the server is held, and to one whose lock another maintenance has.

use std::time::Duration;

use crate::{
    backend::BackendError,
    maintenance::{
        aliases::Alias,
        identity::{Identified, another_server},
        ids::LockKey,
        step::Action,
    },
};

use super::{Engine, EngineError, act::LookError, drive::Reconciler};

/// How old the last answer may be when the server is read.
const FOR_A_LOOK: Duration = Duration::from_mins(1);

/// How old it may be when the server is changed.
const FOR_A_CHANGE: Duration = Duration::from_secs(10);

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
    /// Before the server is read.
    pub(super) async fn checks_server_to_look(&mut self) -> Result<(), LookError> {
        self.checks_server(FOR_A_LOOK).await
    }

    /// Before the server is changed, or recorded as it is.
    pub(super) async fn checks_server_to_change(&mut self) -> Result<(), LookError> {
        self.checks_server(FOR_A_CHANGE).await
    }

    /// Refuses another server than the one that is held. A server that does not tell what it is
    /// does not tell the rest either, so that this stops nothing which could go on.
    async fn checks_server(&mut self, age: Duration) -> Result<(), LookError> {
        let now = self.engine.parts.clock.monotonic();
        let known = self.identified_at.is_some_and(|at| now.saturating_sub(at) <= age);
        if known || self.waits() {
            return Ok(());
        }
        match self.engine.differs(&self.server, &self.key).await {
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
    async fn differs(&self, server: &str, key: &LockKey) -> Result<Option<BackendError>, EngineError> {
        let machine = self.machine(server)?;
        let seen = self.sighting(server, machine.identify().await?);
        let mut places = self.places(&seen.hardware()).await?;
        self.follow(&mut places).await?;
        let Some(shown) = another_server(&seen, key, &places) else { return Ok(None) };
        let shown: Vec<String> = shown.iter().map(ToString::to_string).collect();
        Ok(Some(BackendError::OtherServer { address: machine.address(), shown: shown.join(", ") }))
    }
}
