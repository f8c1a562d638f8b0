//! The server itself: its power, and what was asked of it and has not come yet.

use jiff::Timestamp;
use maintenance_protocol::{
    machine::{Capabilities, MachineView, PowerState, ResetType},
    prepare::Facts,
};

/// A power change that the BMC accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The hold for which it was asked, by number.
    pub root: usize,
    pub on: bool,
    /// It comes before this moment, or never.
    pub until: Timestamp,
}

/// The server.
#[derive(Clone, Debug)]
pub struct Machine {
    pub on: bool,
    pub coming: Vec<Effect>,
}

impl Machine {
    pub fn new() -> Self {
        Self { on: true, coming: Vec::new() }
    }

    /// Two of one kind that are asked for in one moment come as one. Nothing comes of asking for
    /// what is there already, unless something else is still to come.
    pub fn accept(&mut self, root: usize, reset: ResetType, until: Timestamp) {
        let effect = Effect { root, on: reset == ResetType::On, until };
        if effect.on == self.on && self.coming.is_empty() {
            return;
        }
        self.coming.retain(|other| *other != effect);
        self.coming.push(effect);
    }

    /// What has not come by now never comes.
    pub fn forget(&mut self, now: Timestamp) {
        self.coming.retain(|effect| effect.until > now);
    }

    pub fn power(&self) -> PowerState {
        if self.on { PowerState::On } else { PowerState::Off }
    }

    /// What a process reads.
    pub fn facts(&self) -> Facts {
        let view = MachineView {
            power: self.power(),
            boot_progress: None,
            last_reset: None,
            boot: None,
            boot_unclear: false,
            health: None,
            description: maintenance_protocol::machine::MachineDescription::default(),
        };
        let capabilities = Capabilities { resets: vec![ResetType::On, ResetType::ForceOff], ..Capabilities::default() };
        Facts { machine: Some(view), media: Some(Vec::new()), capabilities: Some(capabilities), ..Facts::default() }
    }
}
