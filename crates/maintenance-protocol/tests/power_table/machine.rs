//! A server: its power, and how its BMC obeys.

use jiff::{SignedDuration, Timestamp};
use maintenance_protocol::{
    machine::{BootOverride, MachineView, PowerState, ResetType},
    step::Reply,
};
use shown_text::{AsRaw, OneLine};

/// How long a power change takes.
const TAKES: SignedDuration = SignedDuration::from_secs(4);
/// How long an operating system takes to shut down.
const SHUTDOWN: SignedDuration = SignedDuration::from_secs(20);

/// Which accepted calls have their effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obeys {
    /// Every call.
    Always,
    /// Of each reset type, every call but the first.
    SecondTime,
    /// None.
    Never,
    /// None, and each answer is an error that does not show whether the call was applied.
    Fails,
}

/// The message in each failed answer.
pub const MESSAGE: &str = "500: \"The fan tray is missing\" (Base.1.12.InternalError)";

/// A power change on its way.
#[derive(Clone, Copy, Debug)]
struct Coming {
    at: Timestamp,
    power: PowerState,
    boots: bool,
}

/// The server.
#[derive(Clone, Debug)]
pub struct Machine {
    pub power: PowerState,
    pub boot: BootOverride,
    pub booted_from: Option<&'static str>,
    /// Every reset that was sent.
    pub calls: Vec<ResetType>,
    /// Boots that a call caused.
    pub caused: u32,
    obeys: Obeys,
    resets: u32,
    coming: Vec<Coming>,
    now: Timestamp,
}

impl Machine {
    pub fn new(power: PowerState, obeys: Obeys) -> Self {
        let boot =
            BootOverride { enabled: Some("Disabled".into()), target: Some("None".into()), ..BootOverride::default() };
        let mut machine = Self {
            power,
            boot,
            booted_from: None,
            calls: Vec::new(),
            caused: 0,
            obeys,
            resets: 0,
            coming: Vec::new(),
            now: Timestamp::UNIX_EPOCH,
        };
        match power {
            PowerState::PoweringOn => machine.plan(TAKES, PowerState::On, true),
            PowerState::PoweringOff => machine.plan(SHUTDOWN, PowerState::Off, false),
            _ => {}
        }
        machine
    }

    fn plan(&mut self, after: SignedDuration, power: PowerState, boots: bool) {
        self.coming.push(Coming { at: self.now.checked_add(after).unwrap(), power, boots });
    }

    /// Advances time.
    pub fn pass(&mut self, now: Timestamp) {
        self.now = now;
        while let Some(n) = self.coming.iter().position(|coming| coming.at <= now) {
            let coming = self.coming.remove(n);
            self.power = coming.power;
            if coming.boots {
                let armed = self.boot.enabled.as_raw() != Some("Disabled");
                let pxe = armed && self.boot.target.as_raw() == Some("Pxe");
                self.booted_from = Some(if pxe { "Pxe" } else { "Hdd" });
                if self.boot.enabled.as_raw() == Some("Once") {
                    (self.boot.enabled, self.boot.target) = (Some("Disabled".into()), Some("None".into()));
                }
                self.resets += 1;
            }
        }
    }

    /// Applies all pending power changes.
    pub fn rest(&mut self) {
        self.pass(Timestamp::MAX);
    }

    pub fn view(&self) -> MachineView {
        MachineView {
            power: self.power,
            last_reset: Some(self.resets.to_string().into()),
            boot: Some(self.boot.clone()),
            ..MachineView::default()
        }
    }

    /// Returns the answer to every call.
    pub fn reply(&self) -> Reply {
        if self.obeys == Obeys::Fails { Reply::Unclear { message: MESSAGE.into() } } else { Reply::Accepted }
    }

    pub fn set_boot(&mut self, wanted: &BootOverride) {
        if self.obeys == Obeys::Fails {
            return;
        }
        let set = |to: &mut Option<OneLine>, from: &Option<OneLine>| {
            if from.is_some() {
                to.clone_from(from);
            }
        };
        set(&mut self.boot.enabled, &wanted.enabled);
        set(&mut self.boot.target, &wanted.target);
    }

    /// Accepts every call, like BMCs that answer 204 before checking it.
    pub fn reset(&mut self, reset: ResetType) {
        let first = !self.calls.contains(&reset);
        self.calls.push(reset);
        let obeys = match self.obeys {
            Obeys::Always => true,
            // A shutdown that is ignored is followed by ForceOff.
            Obeys::SecondTime => !first || reset == ResetType::GracefulShutdown,
            Obeys::Never | Obeys::Fails => false,
        };
        if !obeys {
            return;
        }
        let runs = self.power == PowerState::On;
        self.caused += u32::from(!matches!(reset, ResetType::ForceOff | ResetType::GracefulShutdown | ResetType::Nmi));
        let powered = matches!(self.power, PowerState::On | PowerState::PoweringOn | PowerState::Paused);
        match reset {
            // On does not start a server that is Paused or on.
            ResetType::On if self.power == PowerState::Off => self.plan(TAKES, PowerState::On, true),
            ResetType::ForceOff if self.power != PowerState::Off => {
                self.coming.clear();
                self.plan(TAKES, PowerState::Off, false);
            }
            ResetType::GracefulShutdown if runs => self.plan(SHUTDOWN, PowerState::Off, false),
            ResetType::GracefulRestart if runs => self.plan(SHUTDOWN, PowerState::On, true),
            ResetType::ForceRestart | ResetType::PowerCycle if powered => {
                self.coming.clear();
                self.plan(TAKES, PowerState::On, true);
            }
            _ => {}
        }
    }
}
