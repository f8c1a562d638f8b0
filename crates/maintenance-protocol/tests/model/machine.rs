//! The server: its power and its pending power changes.

use jiff::Timestamp;
use maintenance_protocol::{
    machine::{Capabilities, MachineView, PowerState, ResetType},
    prepare::Facts,
};

/// A power change that the BMC accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Number of the maintenance that requested it.
    pub root: usize,
    pub on: bool,
    /// It takes effect before this time, or never.
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

    /// Accepts a reset. Two equal requests at the same time have one effect. A request for the
    /// current state is ignored unless another effect is pending.
    pub fn accept(&mut self, root: usize, reset: ResetType, until: Timestamp) {
        let effect = Effect { root, on: reset == ResetType::On, until };
        if effect.on == self.on && self.coming.is_empty() {
            return;
        }
        self.coming.retain(|other| *other != effect);
        self.coming.push(effect);
    }

    /// Drops effects whose time has passed.
    pub fn forget(&mut self, now: Timestamp) {
        self.coming.retain(|effect| effect.until > now);
    }

    pub fn power(&self) -> PowerState {
        if self.on { PowerState::On } else { PowerState::Off }
    }

    /// Returns a process's reading.
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
