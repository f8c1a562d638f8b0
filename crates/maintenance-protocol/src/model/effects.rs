//! Calls that can change the server after their reply.

use jiff::Timestamp;
use serde::Deserialize;
use serde::Serialize;

use super::ids::Uid;
use super::machine::MachineView;
use super::machine::MediaSlot;
use super::machine::PowerState;
use super::machine::ResetType;
use super::step::Action;
use super::step::Attempt;

/// A call without an observed effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingEffect {
    /// The maintenance that owns the lock.
    pub root: Uid,
    /// The record whose process called: that maintenance, or work under it.
    pub by: Uid,
    /// The call.
    pub action: Action,
    /// When the intent was recorded, on the store's clock.
    pub at: Timestamp,
    /// When the call can no longer change the server, on the store's clock.
    pub until: Timestamp,
}

impl PendingEffect {
    /// Returns true if one of `attempts` is this call.
    #[must_use]
    pub fn is_of(&self, attempts: &[Attempt]) -> bool {
        attempts.iter().any(|attempt| attempt.action == self.action && attempt.at == self.at)
    }

    /// Returns true if another call changes the same state, so an observation cannot distinguish
    /// them.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        let place = |action: &Action| match action {
            Action::Reset(_) => Some("power".to_owned()),
            Action::SetBoot { .. } => Some("boot".to_owned()),
            Action::Insert { slot, .. } | Action::Eject { slot } => Some(format!("drive {slot}")),
            _ => None,
        };
        place(&self.action) == place(&other.action)
    }

    /// Returns true if the observed state proves that the effect arrived or can no longer arrive.
    /// `media` contains the drives, if they were read.
    ///
    /// A restart leaves no such evidence, because the server is on before and after it. Its time
    /// limit settles it.
    #[must_use]
    pub fn is_settled_by(&self, machine: &MachineView, media: Option<&[MediaSlot]>) -> bool {
        let drive = |name: &str| media?.iter().find(|drive| drive.slot == name);
        match &self.action {
            Action::Reset(ResetType::GracefulShutdown | ResetType::ForceOff) => machine.power == PowerState::Off,
            Action::Reset(ResetType::On) => machine.power == PowerState::On,
            Action::SetBoot { wanted, .. } => machine.boot.as_ref().is_some_and(|boot| boot.is_like(wanted)),
            Action::Insert { slot, .. } => drive(slot.raw()).is_some_and(|drive| drive.inserted),
            Action::Eject { slot } => drive(slot.raw()).is_some_and(|drive| !drive.inserted),
            _ => false,
        }
    }
}
