//! A backend with a real Ironic.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bmc_simulator::{Simulator, SimulatorConfig, TlsMode};
use secrecy::ExposeSecret as _;
use terraform_provider_metal::{
    backend::{
        Backend as _, BackendError, Machine,
        ironic::{IronicAccess, IronicBackend, IronicSettings},
    },
    clock::SystemClock,
    maintenance::{
        gate::{Asks, ExternalRequest, ExternalState, GateView},
        machine::PowerState,
    },
};

use crate::support::ironic::{Ironic, Options};

pub struct Bench {
    pub ironic: Ironic,
    pub backend: IronicBackend,
}

pub fn backend(url: &str, access: IronicAccess, change: impl Fn(&mut IronicSettings)) -> IronicBackend {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut settings = IronicSettings::new(Some(url.parse().unwrap()), access);
    settings.lock_patience = Duration::from_secs(2);
    change(&mut settings);
    IronicBackend::new(settings, &(Arc::new(SystemClock::default()) as _)).unwrap()
}

impl Bench {
    pub async fn new(options: Options) -> Self {
        let ironic = Ironic::start(options).await;
        let backend = backend(&ironic.url(), IronicAccess::Open, |_| {});
        Self { ironic, backend }
    }

    /// Starts with one deployed fake node that is powered on.
    pub async fn active() -> Self {
        let bench = Self::new(Options::default()).await;
        bench.ironic.active_node("n1").await;
        bench
    }

    pub fn machine(&self) -> Arc<dyn Machine> {
        self.backend.machine("n1").unwrap()
    }

    /// Returns the maintenance's state. Waits while the node is locked, like a run.
    pub async fn look(&self, wish: &ExternalRequest) -> GateView {
        let until = std::time::Instant::now() + Duration::from_mins(1);
        loop {
            match self.machine().maintenance_system().unwrap().look(wish, true).await {
                Ok(view) => return view,
                Err(error) => assert!(error.is_transient() && std::time::Instant::now() < until, "{error}"),
            }
        }
    }

    pub async fn standing(&self, wish: &ExternalRequest) -> ExternalState {
        self.look(wish).await.standing
    }

    pub async fn enter(&self, wish: &ExternalRequest) -> Result<(), BackendError> {
        self.machine().maintenance_system().unwrap().enter(wish).await
    }

    pub async fn leave(&self, wish: &ExternalRequest) -> Result<(), BackendError> {
        self.machine().maintenance_system().unwrap().leave(wish).await
    }

    /// Returns the data to record, read while the node is unreserved: Ironic's own power sync
    /// reserves a node briefly.
    pub async fn memory(&self, wish: &ExternalRequest) -> BTreeMap<String, String> {
        let until = std::time::Instant::now() + Duration::from_mins(1);
        loop {
            let seen = self.look(wish).await;
            if seen.standing == ExternalState::Absent {
                return seen.memory;
            }
            assert!(std::time::Instant::now() < until, "{seen:?}");
        }
    }

    /// Returns the machine under a granted request.
    pub async fn held(&self, wish: &ExternalRequest) -> Arc<dyn Machine> {
        let memory = self.memory(wish).await;
        self.enter(wish).await.unwrap();
        let entered = ExternalRequest { memory, ..entered(wish) };
        assert_eq!(self.standing(&entered).await, ExternalState::Granted);
        self.machine().maintenance_system().unwrap().under(&entered)
    }
}

/// A redfish node with a simulated BMC.
pub struct RedfishBench {
    pub bench: Bench,
    pub simulator: Simulator,
    pub system: String,
}

impl RedfishBench {
    pub async fn new() -> Self {
        Self::with(Options::default()).await
    }

    pub async fn with(options: Options) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let config = SimulatorConfig { tls: TlsMode::Off, ..SimulatorConfig::with_systems(1) };
        let simulator = Simulator::start(config).await.unwrap();
        let system = simulator.systems()[0].clone();
        let bench = Bench::new(options).await;
        let account = simulator.credentials();
        let account = (account.username.as_str(), account.password.expose_secret());
        let url = simulator.url(&system).unwrap();
        bench.ironic.redfish_node("n1", url.trim_end_matches('/'), "/redfish/v1/Systems/1", account).await;
        bench.ironic.power("n1", "power on").await;
        Self { bench, simulator, system }
    }

    pub fn simulated_power(&self) -> bmc_simulator::PowerState {
        self.simulator.system(&self.system).unwrap().power
    }
}

pub fn wish() -> ExternalRequest {
    ExternalRequest {
        store: "store-1".into(),
        uid: "0190a1b2-uid".into(),
        id: "ops/bios".into(),
        owner: "team-storage".into(),
        run: "run ci-1 (alice)".into(),
        asks: Asks::Nobody,
        priority: 0,
        reason: Some("BIOS 2.19".into()),
        ticket: Some("https://tickets/7".into()),
        asked: false,
        entered: false,
        enters: true,
        leaving: false,
        namespace: None,
        memory: BTreeMap::new(),
        outer: Vec::new(),
    }
}

pub fn asked(wish: &ExternalRequest) -> ExternalRequest {
    ExternalRequest { asked: true, ..wish.clone() }
}

pub fn entered(wish: &ExternalRequest) -> ExternalRequest {
    ExternalRequest { asked: true, entered: true, ..wish.clone() }
}

/// Waits until the machine reports a power state.
pub async fn settled(machine: &Arc<dyn Machine>, wanted: PowerState) {
    let until = std::time::Instant::now() + Duration::from_mins(1);
    loop {
        // A locked node answers some reads with 409. Retry, like the engine.
        let seen = match machine.observe().await {
            Ok(view) => Ok(view.power),
            Err(error) if error.is_transient() => Err(error),
            Err(error) => panic!("{error}"),
        };
        if matches!(seen, Ok(power) if power == wanted) {
            return;
        }
        assert!(std::time::Instant::now() < until, "{wanted} not in time: {seen:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
