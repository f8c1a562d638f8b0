//! What a simulator is started with.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::journal::JournalMode;
use crate::machine::{Behaviour, SystemUuid};
use crate::personality::Personality;
use crate::words::PowerState;

/// What a simulator is started with.
#[derive(Clone, Debug)]
pub struct SimulatorConfig {
    /// The machines; more may be added while it runs.
    pub systems: Vec<SystemConfig>,
    /// How machines that name no BMC are spread over BMCs.
    pub layout: Layout,
    /// Whether the BMCs speak TLS.
    pub tls: TlsMode,
    /// The administrator's account on every BMC.
    pub credentials: Credentials,
    /// Whether every account name gets in with the administrator's password: its account is made
    /// when it first asks. So that many clients can tell in the journal who they are.
    pub any_account: bool,
    /// The address on which the BMCs listen.
    pub bind: IpAddr,
    /// The first BMC's port; the next ones follow. Zero lets the system choose each.
    pub port: u16,
    /// The control interface's port on 127.0.0.1, zero for any; nothing starts none.
    pub control_port: Option<u16>,
    /// How long every request takes in addition.
    pub latency: Duration,
    /// How much of the requests is kept.
    pub journal: JournalMode,
    /// How BMCs behave whose machines do not say otherwise.
    pub personality: Personality,
    /// How machines behave that do not say otherwise.
    pub behaviour: Behaviour,
}

/// How machines are spread over BMCs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// One BMC with its own port for each machine.
    BmcPerSystem,
    /// One BMC for all.
    SharedBmc,
}

/// Whether BMCs speak TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TlsMode {
    /// Plain HTTP.
    Off,
    /// HTTPS with a certificate of an authority that is made up at start.
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

/// One machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SystemConfig {
    /// Its name in the simulator, the key of everything else.
    pub name: String,
    /// Its `Id` in Redfish; by default `1` behind a BMC of its own and its name otherwise.
    #[serde(default)]
    pub system_id: Option<String>,
    /// The name of its BMC, which is made when there is none of that name. By default the layout
    /// decides.
    #[serde(default)]
    pub bmc: Option<String>,
    /// `UUID`; by default a real one that depends on nothing but the name.
    #[serde(default)]
    pub uuid: Option<SystemUuid>,
    /// `SerialNumber`; by default one that depends on nothing but the name.
    #[serde(default)]
    pub serial_number: Option<String>,
    /// `Manufacturer`; by default that of the personality.
    #[serde(default)]
    pub manufacturer: Option<String>,
    /// `Model`; by default that of the personality.
    #[serde(default)]
    pub model: Option<String>,
    /// The power state at the start.
    #[serde(default = "on")]
    pub power: PowerState,
    /// How it behaves.
    #[serde(default)]
    pub behaviour: Option<Behaviour>,
    /// How its BMC behaves; counts for the machine that makes the BMC.
    #[serde(default)]
    pub personality: Option<Personality>,
}

const fn on() -> PowerState {
    PowerState::On
}

impl SystemConfig {
    /// A machine that is on and has a real UUID.
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

    /// The UUID that a machine of this name has by default.
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
    /// So many machines, `node1` and onwards, each behind a BMC of its own.
    #[must_use]
    pub fn with_systems(count: usize) -> Self {
        Self {
            systems: (1..=count).map(|number| SystemConfig::named(format!("node{number}"))).collect(),
            ..Self::default()
        }
    }

    /// Puts the machines behind one BMC.
    #[must_use]
    pub fn behind_one_bmc(mut self) -> Self {
        self.layout = Layout::SharedBmc;
        self
    }

    /// Speaks plain HTTP.
    #[must_use]
    pub fn without_tls(mut self) -> Self {
        self.tls = TlsMode::Off;
        self
    }

    /// Starts the control interface on a port of the system's choice.
    #[must_use]
    pub fn with_control(mut self) -> Self {
        self.control_port = Some(0);
        self
    }

    /// Sets how BMCs behave.
    #[must_use]
    pub fn with_personality(mut self, personality: Personality) -> Self {
        self.personality = personality;
        self
    }

    /// Sets how machines behave.
    #[must_use]
    pub fn with_behaviour(mut self, behaviour: Behaviour) -> Self {
        self.behaviour = behaviour;
        self
    }
}
