//! Calls whose effect outlives their reply.

use super::ids::Uid;
use super::machine::MachineView;
use super::machine::MediaSlot;
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

    /// Whether the effect shows in the same place as that of another call, so that a look cannot
    /// tell them apart.
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

    /// Whether what is observed shows that the effect has come, or can come no more. `media`: the
    /// drives, where they are known.
    ///
    /// A restart leaves no such sign, because the server is on before and after it: it is waited
    /// out.
    #[must_use]
    pub fn is_settled_by(&self, machine: &MachineView, media: Option<&[MediaSlot]>) -> bool {
        let drive = |name: &str| media?.iter().find(|drive| drive.slot == name);
        match &self.action {
            Action::Reset(ResetType::GracefulShutdown | ResetType::ForceOff) => machine.power == PowerState::Off,
            Action::Reset(ResetType::On) => machine.power == PowerState::On,
            Action::SetBoot { wanted, .. } => machine.boot.as_ref().is_some_and(|boot| boot.is_like(wanted)),
            Action::Insert { slot, .. } => drive(slot).is_some_and(|drive| drive.inserted),
            Action::Eject { slot } => drive(slot).is_some_and(|drive| !drive.inserted),
            _ => false,
        }
    }
}
