//! The simulator's configuration.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::journal::JournalMode;
use crate::machine::{Behaviour, SystemUuid};
use crate::personality::Personality;
use crate::words::PowerState;

/// The simulator's configuration.
#[derive(Clone, Debug)]
pub struct SimulatorConfig {
    /// The machines; more can be added at run time.
    pub systems: Vec<SystemConfig>,
    /// How machines without a named BMC are assigned to BMCs.
    pub layout: Layout,
    /// TLS or plain HTTP.
    pub tls: TlsMode,
    /// The administrator's account on every BMC.
    pub credentials: Credentials,
    /// True if every account name can log in with the administrator's password; its account is
    /// created at the first request. The journal then distinguishes many clients.
    pub any_account: bool,
    /// The address on which the BMCs listen.
    pub bind: IpAddr,
    /// The first BMC's port; the others follow. With zero, the system chooses each port.
    pub port: u16,
    /// The control interface's port on 127.0.0.1; zero for any port, `None` without control
    /// interface.
    pub control_port: Option<u16>,
    /// Additional latency of every request.
    pub latency: Duration,
    /// How many requests are kept.
    pub journal: JournalMode,
    /// The BMCs' default behaviour.
    pub personality: Personality,
    /// The machines' default behaviour.
    pub behaviour: Behaviour,
}

/// How machines are assigned to BMCs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// One BMC with its own port for each machine.
    BmcPerSystem,
    /// One BMC for all machines.
    SharedBmc,
}

/// TLS or plain HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TlsMode {
    /// Plain HTTP.
    Off,
    /// HTTPS with an authority generated at start.
    Generated,
}

/// A user's name and password.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The name.
    pub username: String,
    /// The password.
    pub password: SecretString,
}

impl Default for Credentials {
    fn default() -> Self {
        Self { username: "admin".into(), password: "simulated-password".into() }
    }
}

/// A machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SystemConfig {
    /// Its unique name in the simulator.
    pub name: String,
    /// Its `Id` in Redfish; by default `1` with its own BMC and its name otherwise.
    #[serde(default)]
    pub system_id: Option<String>,
    /// Its BMC's name; the BMC is created if necessary. By default the layout decides.
    #[serde(default)]
    pub bmc: Option<String>,
    /// `UUID`; by default a valid UUID derived from the name.
    #[serde(default)]
    pub uuid: Option<SystemUuid>,
    /// `SerialNumber`; by default derived from the name.
    #[serde(default)]
    pub serial_number: Option<String>,
    /// `Manufacturer`; by default the personality's.
    #[serde(default)]
    pub manufacturer: Option<String>,
    /// `Model`; by default the personality's.
    #[serde(default)]
    pub model: Option<String>,
    /// The initial power state.
    #[serde(default = "on")]
    pub power: PowerState,
    /// Its behaviour.
    #[serde(default)]
    pub behaviour: Option<Behaviour>,
    /// Its BMC's behaviour; used if this machine creates the BMC.
    #[serde(default)]
    pub personality: Option<Personality>,
}

const fn on() -> PowerState {
    PowerState::On
}

impl SystemConfig {
    /// Returns a machine that is on and has a valid UUID.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            system_id: None,
            bmc: None,
            uuid: None,
            serial_number: None,
            manufacturer: None,
            model: None,
            power: PowerState::On,
            behaviour: None,
            personality: None,
        }
    }

    /// Returns the default UUID for this name.
    #[must_use]
    pub fn default_uuid(name: &str) -> Uuid {
        Uuid::new_v5(&Uuid::NAMESPACE_URL, format!("system:{name}").as_bytes())
    }
}

impl Default for SimulatorConfig {
    fn default() -> Self {
        Self {
            systems: Vec::new(),
            layout: Layout::BmcPerSystem,
            tls: TlsMode::Generated,
            credentials: Credentials::default(),
            any_account: false,
            bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            control_port: None,
            latency: Duration::ZERO,
            journal: JournalMode::default(),
            personality: Personality::generic(),
            behaviour: Behaviour::default(),
        }
    }
}

impl SimulatorConfig {
    /// Returns `count` machines, `node1` and onwards, each with its own BMC.
    #[must_use]
    pub fn with_systems(count: usize) -> Self {
        Self {
            systems: (1..=count).map(|number| SystemConfig::named(format!("node{number}"))).collect(),
            ..Self::default()
        }
    }

    /// Uses one BMC for all machines.
    #[must_use]
    pub fn behind_one_bmc(mut self) -> Self {
        self.layout = Layout::SharedBmc;
        self
    }

    /// Uses plain HTTP.
    #[must_use]
    pub fn without_tls(mut self) -> Self {
        self.tls = TlsMode::Off;
        self
    }

    /// Starts the control interface on a port that the system chooses.
    #[must_use]
    pub fn with_control(mut self) -> Self {
        self.control_port = Some(0);
        self
    }

    /// Sets the BMCs' behaviour.
    #[must_use]
    pub fn with_personality(mut self, personality: Personality) -> Self {
        self.personality = personality;
        self
    }

    /// Sets the machines' behaviour.
    #[must_use]
    pub fn with_behaviour(mut self, behaviour: Behaviour) -> Self {
        self.behaviour = behaviour;
        self
    }
}
