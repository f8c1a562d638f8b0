//! Calls whose effect outlives their reply.

use super::ids::Uid;
use super::machine::MachineView;
use super::machine::PowerState;
use super::machine::ResetType;
use super::step::Action;
use super::step::Attempt;
use jiff::Timestamp;
use serde::Deserialize;
use serde::Serialize;

/// A call that was made and whose effect was not observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingEffect {
    /// The maintenance that holds the lock.
    pub root: Uid,
    /// The record whose process called: that maintenance, or what acts under it.
    pub by: Uid,
    /// What was called.
    pub action: Action,
    /// When the intent was recorded, on the store's clock.
    pub at: Timestamp,
    /// When it cannot change the server any more, on the store's clock.
    pub until: Timestamp,
}

impl PendingEffect {
    /// Whether it is one of these attempts.
    #[must_use]
    pub fn is_of(&self, attempts: &[Attempt]) -> bool {
        attempts.iter().any(|attempt| attempt.action == self.action && attempt.at == self.at)
    }

    /// Whether what is observed shows that the effect has come, or can come no more.
    ///
    /// A restart leaves no such sign, because the server is on before and after it: it is waited out.
    #[must_use]
    pub fn is_settled_by(&self, machine: &MachineView) -> bool {
        match self.action {
            Action::Reset(ResetType::GracefulShutdown | ResetType::ForceOff) => machine.power == PowerState::Off,
            Action::Reset(ResetType::On) => machine.power == PowerState::On,
            _ => false,
        }
    }
}
