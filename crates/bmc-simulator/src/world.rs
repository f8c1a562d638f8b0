//! The state shared by a simulator's parts.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::bmc::{Accounts, Bmc};
use crate::clock::Timeline;
use crate::config::{Credentials, Layout, SystemConfig};
use crate::fault::Faults;
use crate::hold::Holds;
use crate::journal::{Journal, JournalMode};
use crate::machine::{Behaviour, Birth, Identity, Machine, SystemUuid};
use crate::net::listen;
use crate::personality::Personality;

/// The BMC's name for [`Layout::SharedBmc`].
const SHARED_BMC: &str = "bmc";

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) journal: Journal,
    pub(crate) faults: Faults,
    pub(crate) holds: Holds,
    pub(crate) defaults: Defaults,
    latency_micros: AtomicU64,
    connections: AtomicU64,
    bmcs: RwLock<BTreeMap<Arc<str>, Arc<Bmc>>>,
    machines: RwLock<BTreeMap<Arc<str>, Arc<Machine>>>,
    tls: Option<Arc<ServerConfig>>,
    stop: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// Defaults for new machines and BMCs.
#[derive(Debug)]
pub(crate) struct Defaults {
    pub(crate) layout: Layout,
    pub(crate) credentials: Credentials,
    /// True if every account name can log in with the administrator's password.
    pub(crate) any_account: bool,
    pub(crate) bind: IpAddr,
    pub(crate) personality: Arc<Personality>,
    pub(crate) behaviour: Behaviour,
    /// The next BMC's port; with zero, the system chooses.
    pub(crate) next_port: Mutex<u16>,
}

/// A machine could not be added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// A machine with that name exists.
    #[error("there is a system named {0} already")]
    NameTaken(String),
    /// The BMC already has a system with that `Id`.
    #[error("BMC {bmc} has a system with the id {id} already")]
    IdTaken {
        /// The BMC's name.
        bmc: String,
        /// The `Id`.
        id: String,
    },
    /// The BMC's port could not be opened.
    #[error("opening a port for BMC {bmc}: {error}")]
    Listen {
        /// The BMC's name.
        bmc: String,
        /// The system's error.
        error: io::Error,
    },
}

impl World {
    pub(crate) fn new(
        defaults: Defaults,
        tls: Option<Arc<ServerConfig>>,
        journal: JournalMode,
        latency: Duration,
    ) -> Arc<Self> {
        let timeline = Arc::new(Timeline::new());
        let world = Self {
            journal: Journal::new(journal),
            faults: Faults::default(),
            holds: Holds::new(Arc::clone(&timeline)),
            timeline,
            defaults,
            latency_micros: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            bmcs: RwLock::default(),
            machines: RwLock::default(),
            tls,
            stop: watch::Sender::new(false),
            tasks: Mutex::default(),
        };
        world.set_latency(latency);
        Arc::new(world)
    }

    pub(crate) fn latency(&self) -> Duration {
        Duration::from_micros(self.latency_micros.load(Ordering::Relaxed))
    }

    pub(crate) fn set_latency(&self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.latency_micros.store(micros, Ordering::Relaxed);
    }

    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.tls.clone()
    }

    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
        self.timeline.announce();
    }

    /// Stores a task to wait for at the end.
    pub(crate) fn keep(&self, task: JoinHandle<()>) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    pub(crate) fn take_tasks(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn machine(&self, name: &str) -> Option<Arc<Machine>> {
        self.machines.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub(crate) fn machines(&self) -> Vec<Arc<Machine>> {
        self.machines.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(crate) fn bmc(&self, name: &str) -> Option<Arc<Bmc>> {
        self.bmcs.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub(crate) fn bmcs(&self) -> Vec<Arc<Bmc>> {
        self.bmcs.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Adds a machine, and creates its BMC if necessary.
    pub(crate) fn add(self: &Arc<Self>, config: SystemConfig) -> Result<Arc<Machine>, AddError> {
        let mut machines = self.machines.write().unwrap_or_else(PoisonError::into_inner);
        if machines.contains_key(config.name.as_str()) {
            return Err(AddError::NameTaken(config.name));
        }
        let (bmc, is_new) = self.bmc_for(&config);
        let name: Arc<str> = config.name.as_str().into();
        let id: Arc<str> = match &config.system_id {
            Some(id) => id.as_str().into(),
            None if bmc.shared => Arc::clone(&name),
            None => "1".into(),
        };
        let rules = &bmc.personality;
        let identity = Identity {
            uuid: config.uuid.unwrap_or_else(|| SystemUuid::Real(SystemConfig::default_uuid(&name))),
            serial_number: Some(config.serial_number.unwrap_or_else(|| serial_number(&name))),
            manufacturer: Some(config.manufacturer.unwrap_or_else(|| rules.manufacturer.clone())),
            model: Some(config.model.unwrap_or_else(|| rules.model.clone())),
        };
        let birth = Birth {
            name: Arc::clone(&name),
            id: Arc::clone(&id),
            bmc: Arc::clone(&bmc.name),
            identity,
            power: config.power,
            behaviour: config.behaviour.unwrap_or_else(|| self.defaults.behaviour.clone()),
        };
        let machine = Machine::new(birth, Arc::clone(rules), Arc::clone(&self.timeline));
        if !bmc.adopt(Arc::clone(&machine)) {
            return Err(AddError::IdTaken { bmc: bmc.name.to_string(), id: id.to_string() });
        }
        if is_new {
            self.open(&bmc)?;
        }
        machines.insert(name, Arc::clone(&machine));
        Ok(machine)
    }

    fn bmc_for(&self, config: &SystemConfig) -> (Arc<Bmc>, bool) {
        let shared = config.bmc.is_some() || self.defaults.layout == Layout::SharedBmc;
        let name: Arc<str> = match (&config.bmc, self.defaults.layout) {
            (Some(name), _) => name.as_str().into(),
            (None, Layout::SharedBmc) => SHARED_BMC.into(),
            (None, Layout::BmcPerSystem) => format!("{}-bmc", config.name).into(),
        };
        if let Some(bmc) = self.bmc(&name) {
            return (bmc, false);
        }
        let personality = config.personality.clone().map_or_else(|| Arc::clone(&self.defaults.personality), Arc::new);
        let accounts = Accounts::new(&self.defaults.credentials, self.defaults.any_account);
        let bmc = Bmc::new(name, shared, personality, accounts, self.tls.is_some());
        (bmc, true)
    }

    fn open(self: &Arc<Self>, bmc: &Arc<Bmc>) -> Result<(), AddError> {
        let mut port = self.defaults.next_port.lock().unwrap_or_else(PoisonError::into_inner);
        let address = SocketAddr::new(self.defaults.bind, *port);
        let task = listen(self, bmc, address).map_err(|error| AddError::Listen { bmc: bmc.name.to_string(), error })?;
        if *port != 0 {
            *port += 1;
        }
        self.keep(task);
        self.bmcs.write().unwrap_or_else(PoisonError::into_inner).insert(Arc::clone(&bmc.name), Arc::clone(bmc));
        Ok(())
    }
}

/// Derives a serial number from the name.
fn serial_number(name: &str) -> String {
    let uuid = SystemConfig::default_uuid(name).simple().to_string();
    format!("SIM{}", uuid[..10].to_uppercase())
}
