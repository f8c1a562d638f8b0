//! One case: a machine with its own BMC, and engines that hold and release it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use bmc_simulator::{
    Accepted, BootOverride, BootTarget, EventKind, InsertChange, JournalQuery, OverrideEnabled, Personality,
    PowerState, Simulator, SimulatorConfig, SystemChange, SystemStatus,
};
use secrecy::{ExposeSecret as _, SecretString};
use terraform_provider_metal::{
    backend::redfish::{
        Authentication, MediaSettings, Patience, RedfishBackend, RedfishSettings, ServerSettings, Trust,
    },
    clock::{Clock, SystemClock},
    engine::{Control, Engine, EngineError, MaintenanceRequest, Parts, ReconcileResult, Tuning},
    maintenance::{
        decide::Finish,
        ids::{MaintenanceId, Uid},
        power::Limits,
        spec::WaitFor,
        state::{Ending, Phase},
    },
    store::{MemoryStore, Store},
};
use tokio_util::sync::CancellationToken;

use crate::{faults::Kind, flows::Flow, judge, parts::parts};

/// Timeout of one request.
pub const REQUEST: Duration = Duration::from_millis(400);

/// One request in a flow, and so one matrix row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub method: String,
    pub path: String,
    /// Number of earlier requests with this method and path.
    pub occurrence: u64,
}

impl Row {
    /// Returns true if the request can change state.
    pub fn changes(&self) -> bool {
        self.method != "GET"
    }

    /// Returns true if it opens or closes a session.
    pub fn is_of_sessions(&self) -> bool {
        self.path.contains("/Sessions")
    }
}

/// One case.
pub struct Bench {
    pub flow: Flow,
    pub simulator: Arc<Simulator>,
    pub name: String,
    /// Machine state before the case.
    pub before: SystemStatus,
    system_id: Option<String>,
    owner: &'static str,
    /// Sequence number of the hold's last request.
    held_until: std::sync::atomic::AtomicU64,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
}

impl Bench {
    pub async fn new(flow: Flow) -> Self {
        let mut personality = Personality::generic();
        // A response with a body, so that it can be truncated.
        personality.power.accepted = Accepted::Ok;
        personality.media.insert_needs_eject = true;
        Self::of(flow, personality, PowerState::On).await
    }

    /// Creates a machine whose BMC has this personality.
    pub async fn of(flow: Flow, personality: Personality, power: PowerState) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut config = SimulatorConfig::with_systems(1).without_tls().with_personality(personality);
        config.systems[0].power = power;
        let simulator = Arc::new(Simulator::start(config).await.unwrap());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        Self::behind(flow, &simulator, "node1", &(Arc::new(MemoryStore::new(Arc::clone(&clock))) as _), &clock)
    }

    /// Creates a server on a BMC with several systems, in a shared store.
    pub fn behind(
        flow: Flow,
        simulator: &Arc<Simulator>,
        name: &str,
        store: &Arc<dyn Store>,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        Self {
            flow,
            simulator: Arc::clone(simulator),
            name: name.to_owned(),
            before: simulator.system(name).unwrap(),
            system_id: None,
            owner: "tests",
            held_until: std::sync::atomic::AtomicU64::default(),
            store: Arc::clone(store),
            clock: Arc::clone(clock),
        }
    }

    /// Sets `system_id` to the server's own name, and sets the owner.
    pub fn of_owner(mut self, owner: &'static str) -> Self {
        (self.system_id, self.owner) = (Some(self.name.clone()), owner);
        self
    }

    /// Creates a machine in this power state. For `Paused` the BMC behaves like those of Arm
    /// servers.
    pub async fn in_state(flow: Flow, power: PowerState) -> Self {
        let mut personality = Personality::generic();
        personality.power.accepted = Accepted::Ok;
        personality.power.shutdown_pauses = power == PowerState::Paused;
        let at_first = match power {
            PowerState::PoweringOn => PowerState::Off,
            PowerState::PoweringOff => PowerState::On,
            settled => settled,
        };
        let mut bench = Self::of(flow, personality, at_first).await;
        if at_first != power {
            let change = SystemChange { power: Some(power), ..SystemChange::default() };
            bench.simulator.change_system(&bench.name, change).unwrap();
            bench.before.power = power;
        }
        bench
    }

    /// Returns the accepted reset types of the hold and of the release.
    pub fn resets_sent(&self) -> (Vec<String>, Vec<String>) {
        let until = self.held_until.load(std::sync::atomic::Ordering::Relaxed);
        let journal = self.simulator.journal(&JournalQuery::default()).into_iter();
        let sent = journal
            .filter(|entry| entry.path.ends_with("ComputerSystem.Reset") && matches!(entry.status, Some(200..=299)));
        let (hold, release): (Vec<_>, Vec<_>) = sent.partition(|entry| entry.sequence <= until);
        let types = |entries: Vec<bmc_simulator::JournalEntry>| {
            let types = entries.into_iter().filter_map(|entry| entry.body);
            types.filter_map(|body| body["ResetType"].as_str().map(str::to_owned)).collect()
        };
        (types(hold), types(release))
    }

    /// Adds another user's leftovers: a boot override and a virtual medium.
    pub fn in_use(mut self) -> Self {
        let boot =
            BootOverride { enabled: OverrideEnabled::Continuous, target: BootTarget::Pxe, ..BootOverride::default() };
        let insert =
            InsertChange { device: "UsbStick".to_owned(), image: "http://images.example/theirs.iso".to_owned() };
        let change = SystemChange { boot: Some(boot), insert: Some(insert), ..SystemChange::default() };
        self.simulator.change_system(&self.name, change).unwrap();
        self.before = self.simulator.system(&self.name).unwrap();
        self
    }

    /// Injects a fault into one request, or also into all later requests of its kind.
    pub fn inject(&self, row: &Row, kind: Kind, stays: bool) {
        let fault = kind.fault().on_request(&row.method, &row.path).skip(row.occurrence);
        let _ = self.simulator.inject(if stays { fault } else { fault.times(1) });
    }

    /// Returns the requests so far: every change, and the first two reads per resource.
    pub fn rows(&self) -> Vec<Row> {
        let mut seen: HashMap<(String, String), u64> = HashMap::new();
        let mut rows = Vec::new();
        for entry in self.simulator.journal(&JournalQuery::default()) {
            let path = match entry.path.strip_prefix("/redfish/v1/SessionService/Sessions/") {
                Some(_) => "/redfish/v1/SessionService/Sessions/*".to_owned(),
                None => entry.path,
            };
            let count = seen.entry((entry.method.clone(), path.clone())).or_default();
            let row = Row { method: entry.method, path, occurrence: *count };
            *count += 1;
            if row.changes() || row.occurrence < 2 {
                rows.push(row);
            }
        }
        rows
    }

    /// Creates an engine without any cached data about the BMC, like a new process.
    fn process(&self) -> Engine {
        let account = self.simulator.credentials();
        let server = ServerSettings {
            endpoint: self.simulator.url(&self.name).unwrap().parse().unwrap(),
            system_id: self.system_id.clone(),
            lock_key: None,
            media: MediaSettings::default(),
            labels: BTreeMap::new(),
            username: account.username.clone(),
            password: SecretString::from(account.password.expose_secret()),
            // Without TLS; avoids loading the system's authorities.
            trust: Trust::Fingerprint([0; 32]),
        };
        let settings = RedfishSettings {
            servers: [("node".to_owned(), server)].into(),
            inventory: BTreeMap::new(),
            request_timeout: REQUEST,
            read_timeout: REQUEST,
            authentication: Authentication::Session,
            patience: Patience { away: Duration::from_millis(600), doubt: Duration::from_millis(300) },
        };
        Engine::new(Parts {
            owner: self.owner.to_owned(),
            tuning: Tuning {
                limits: Limits {
                    graceful_shutdown: Duration::from_millis(1200),
                    power_change: Duration::from_millis(1100),
                    boot_progress: Duration::from_millis(500),
                    settle: Duration::from_millis(900),
                    attempts: 3,
                    retry_pause: Duration::from_millis(50),
                    media: Duration::from_millis(900),
                    busy: Duration::from_millis(400),
                    post: Duration::from_millis(400),
                    call: Duration::from_millis(500),
                },
                poll: Duration::from_millis(60),
                ..Tuning::default()
            },
            ..parts(&self.store, Arc::new(RedfishBackend::new(settings, &self.clock).unwrap()), &self.clock)
        })
    }

    fn control() -> Control {
        Control {
            stop: CancellationToken::new(),
            timeout: Duration::from_secs(8),
            release_timeout: Duration::from_secs(8),
        }
    }

    /// Runs from the request to the release, including the destroy after a failure. Returns
    /// problems.
    pub async fn play(&self) -> Vec<String> {
        self.play_to_end().await.1
    }

    /// Runs without faults. Returns the sequence number at which the hold ended.
    pub async fn play_and_mark(&self) -> u64 {
        let (_, problems) = self.play_to_end().await;
        assert!(problems.is_empty(), "{problems:?}");
        self.held_until.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Same as `play`, with the hold's result first.
    pub async fn play_to_end(&self) -> (Result<ReconcileResult, EngineError>, Vec<String>) {
        let wish = MaintenanceRequest {
            id: MaintenanceId::new("ops", &self.name).unwrap(),
            spec: self.flow.spec("node"),
            wait_for: WaitFor::InMaintenance,
            asking: terraform_provider_metal::maintenance::lock::AskingState::default(),
        };
        let engine = self.process();
        let held = engine.hold(&wish, &Self::control()).await;
        if std::env::var("FAULT_CASE").is_ok() {
            println!("{held:#?}");
        }
        let mut problems = judge::held(self, &held);
        engine.close().await;
        self.held_until.store(self.simulator.sequence(), std::sync::atomic::Ordering::Relaxed);
        let missed = self.simulator.faults().iter().all(|fault| fault.met == 0);
        let Some(uid) = self.active(&wish.id).await else {
            if missed && !reached(&held) {
                problems.push(format!("{}: {held:?}", judge::MISSED));
            }
            problems.extend(judge::over(self));
            return (held, problems);
        };
        // A new process destroys, and can meet the fault too.
        let engine = self.process();
        let released = engine.release(&uid, "node", Ending::Completed, &Self::control()).await;
        engine.close().await;
        if self.active(&wish.id).await.is_some() {
            // If the destroy failed, the server is still held. The next destroy has a working BMC.
            self.simulator.clear_faults();
            let engine = self.process();
            let again = engine.release(&uid, "node", Ending::Completed, &Self::control()).await;
            engine.close().await;
            if self.active(&wish.id).await.is_some() {
                problems.push(format!("still held after all faults ended: {released:?}, then {again:?}"));
                return (held, problems);
            }
        }
        problems.extend(judge::over(self));
        (held, problems)
    }

    async fn active(&self, id: &MaintenanceId) -> Option<Uid> {
        let found = self.store.find(id).await.unwrap();
        found.map(|found| found.record().clone()).filter(|record| !record.phase.is_over()).map(|record| record.uid)
    }

    /// Describes the run; includes every read if a single case is selected.
    pub fn story(&self) -> String {
        let whole = std::env::var("FAULT_CASE").is_ok();
        let mut lines: Vec<(u64, String)> = self
            .simulator
            .journal(&JournalQuery::default())
            .into_iter()
            .filter(|entry| entry.method != "GET" || !entry.faults.is_empty() || whole)
            .map(|entry| {
                let body = entry.body.map(|body| body.to_string()).unwrap_or_default();
                let done = if entry.applied { "applied" } else { "" };
                let line =
                    format!("{} {} {body} -> {:?} {done} {:?}", entry.method, entry.path, entry.status, entry.faults);
                (entry.sequence, line)
            })
            .collect();
        let events = self.simulator.events(&self.name, 0).unwrap().into_iter();
        lines.extend(
            events
                .filter(|event| !matches!(event.kind, EventKind::Progress { .. }))
                .map(|event| (event.sequence, format!("        {:?}", event.kind))),
        );
        lines.sort();
        lines.into_iter().map(|(_, line)| format!("    {line}")).collect::<Vec<_>>().join("\n")
    }
}

pub fn reached(held: &Result<ReconcileResult, EngineError>) -> bool {
    held.as_ref().is_ok_and(|driven| {
        driven.finish == Finish::Reached && matches!(driven.record.phase, Phase::InMaintenance { .. })
    })
}
