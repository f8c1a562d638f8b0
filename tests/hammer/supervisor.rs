//! Hands out holds, makes things go wrong, starts again what was broken off, and brings everything to an end.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bmc_simulator::{Behaviour, JournalMode, Simulator, SimulatorConfig, SystemUuid};
use secrecy::ExposeSecret as _;
use terraform_provider_metal::{
    clock::SystemClock,
    maintenance::ids::Uid,
    settings::{Environment, open_store},
    store::Store,
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, sleep_until, timeout},
};
use uuid::Uuid;

use crate::{
    arena::{Arena, Kind},
    chaos::{Gremlin, LostReplies, Rng},
    checker::Course,
    journal,
    process::{Event, Process},
    sizes::Sizes,
    tally::{Tally, hand_overs, shortened},
    wall::Hand,
    worker::{self, From, Order},
};

/// How long everything that is unfinished may take once nothing goes wrong any more.
const PATIENCE: Duration = Duration::from_mins(3);

/// A hold that was asked for.
#[derive(Debug)]
pub struct Hold {
    pub server: String,
    /// The attempt in force.
    pub attempt: u64,
    /// Its record, as soon as somebody said it.
    pub uid: Option<Uid>,
    /// Whether an attempt was told to give the server back.
    releasing: bool,
    /// How it ended.
    pub over: Option<String>,
    /// The processes that work on it, also those that were replaced.
    by: BTreeSet<u64>,
    /// When the next attempt begins.
    retry_at: Option<Instant>,
}

/// Everything that a run needs to know while it runs.
pub struct Supervisor {
    pub simulator: Simulator,
    pub chance: Rng,
    pub lease: Duration,
    pub processes: BTreeMap<u64, Process>,
    settings: Vec<(&'static str, String)>,
    servers: Vec<String>,
    pub holds: BTreeMap<u64, Hold>,
    pub store: Arc<dyn Store>,
    pub gremlins: Vec<Box<dyn Gremlin>>,
    _arena: Arena,
    _wall: tempfile::TempDir,
    pub events: UnboundedSender<Event>,
    started: u64,
    pub tally: Tally,
    /// See [`Outcome`].
    problems: Vec<String>,
    /// What [`Course::caught`] tells the checker.
    pub caught: BTreeSet<String>,
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// For the checker.
    pub course: Course,
    pub tally: Tally,
    /// What went wrong beside the rules: processes that ended in a way that nobody meant, holds that did not end.
    pub problems: Vec<String>,
}

/// A whole run.
pub async fn run(sizes: &Sizes, kind: Kind) -> Outcome {
    let began = Instant::now();
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let millis = Duration::from_millis;
    let behaviour = Behaviour {
        power_on: millis(4),
        power_off: millis(3),
        graceful_shutdown: millis(8),
        boot: millis(5),
        ..Behaviour::instant()
    };
    let mut config = SimulatorConfig {
        any_account: true,
        journal: JournalMode::KeepChanges(usize::MAX),
        ..SimulatorConfig::with_systems(sizes.servers).without_tls().with_behaviour(behaviour)
    };
    // Machines of their own, for a store that has seen other runs.
    config.systems.iter_mut().for_each(|system| system.uuid = Some(SystemUuid::Real(Uuid::new_v4())));
    let simulator = Simulator::start(config).await.unwrap();
    let start = journal::states(&simulator);
    let members = if sizes.processes > 32 { 3 } else { 1 };
    let arena = sizes.url.as_ref().map_or_else(|| Arena::new(kind, members), |url| Arena::given(url));
    let (events, mut heard) = unbounded_channel();
    let mut supervisor = Supervisor::new(sizes, &simulator, arena, events).await;

    supervisor.hammer(&mut heard, sizes).await;
    supervisor.calm().await;
    if timeout(PATIENCE, supervisor.finish(&mut heard)).await.is_err() {
        let unfinished = format!("not over in time: {}", supervisor.unfinished().await);
        supervisor.problems.push(unfinished);
    }
    supervisor.store.close().await;
    let at_rest = || (journal::states(&simulator) == start).then_some(());
    // Whether it is so is the checker's business.
    let _ = simulator.wait_until("machines at rest", Duration::from_secs(5), at_rest).await;

    let asked = supervisor.holds.iter().map(|(number, hold)| (format!("hold-{number}"), hold.server.clone())).collect();
    let course = Course {
        asked,
        start,
        end: journal::states(&simulator),
        lines: journal::lines(&simulator),
        caught: supervisor.caught.clone(),
    };
    simulator.stop().await;
    drop(supervisor.processes);
    let mut tally = supervisor.tally;
    tally.mutations = course.lines.len();
    tally.hand_overs = hand_overs(&course);
    tally.seconds = began.elapsed().as_secs_f64();
    Outcome { course, tally, problems: supervisor.problems }
}

impl Supervisor {
    async fn new(sizes: &Sizes, simulator: &Simulator, mut arena: Arena, events: UnboundedSender<Event>) -> Self {
        let servers = simulator.systems();
        let addresses: Vec<_> = servers.iter().map(|name| format!("{name}={}", simulator.url(name).unwrap())).collect();
        // The supervisor looks from the same machine, at a clock that is right: it judges nothing by it.
        let clock = Arc::new(SystemClock::default());
        let (store, _) = open_store(Some(&arena.direct), &Environment::default(), clock).await.unwrap();
        let mut gremlins = std::mem::take(&mut arena.gremlins);
        gremlins.push(Box::new(LostReplies(simulator.clone())));
        let wall = tempfile::tempdir().unwrap();
        let file = wall.path().join("wrong-by");
        gremlins.push(Box::new(Hand::on(file.clone(), sizes.lease)));
        Self {
            simulator: simulator.clone(),
            chance: Rng::new(sizes.seed),
            lease: sizes.lease,
            processes: BTreeMap::new(),
            settings: vec![
                (worker::URL, arena.url.clone()),
                (worker::RUN, format!("hammer-{}", &Uuid::new_v4().simple().to_string()[..12])),
                (worker::SERVERS, addresses.join(" ")),
                (worker::PASSWORD, simulator.credentials().password.expose_secret().to_owned()),
                (worker::LEASE, sizes.lease.as_millis().to_string()),
                (worker::WALL, file.display().to_string()),
            ],
            servers,
            holds: BTreeMap::new(),
            store,
            gremlins,
            _arena: arena,
            _wall: wall,
            events,
            started: 0,
            tally: Tally::default(),
            problems: Vec::new(),
            caught: BTreeSet::new(),
        }
    }

    /// Holds, kills, stops and strikes until the time is over.
    async fn hammer(&mut self, heard: &mut UnboundedReceiver<Event>, sizes: &Sizes) {
        let end = Instant::now() + sizes.chaos;
        let mut next_strike = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end {
            self.do_what_is_due().await;
            while self.working() < sizes.processes {
                self.ask_anew().await;
            }
            if Instant::now() >= next_strike {
                self.strike().await;
                next_strike =
                    Instant::now() + self.chance.between(Duration::from_millis(20), Duration::from_millis(350));
            }
            self.listen(heard, next_strike.min(end)).await;
        }
    }

    /// Ends all harm: whoever is stopped goes on.
    async fn calm(&mut self) {
        for gremlin in &self.gremlins {
            gremlin.calm().await;
        }
        for process in self.processes.values_mut().filter(|process| process.stopped.is_some()) {
            process.go_on();
        }
    }

    /// Until every hold is over and every process has ended.
    async fn finish(&mut self, heard: &mut UnboundedReceiver<Event>) {
        loop {
            self.do_what_is_due().await;
            self.processes.values_mut().filter(|process| process.order.is_none()).for_each(Process::dismiss);
            if self.processes.is_empty() && self.holds.values().all(|hold| hold.over.is_some()) {
                return;
            }
            self.listen(heard, Instant::now() + Duration::from_secs(1)).await;
        }
    }

    /// How many processes work and were not replaced.
    fn working(&self) -> usize {
        let working = |process: &&Process| process.stopped.is_none() && process.order.is_some();
        self.processes.values().filter(working).count()
    }

    /// A process that has nothing to do; a new one when there is none.
    fn idle(&mut self) -> u64 {
        let idle = |process: &Process| process.order.is_none() && process.stopped.is_none() && !process.is_dismissed();
        let found =
            self.processes.iter().find(|(_, process)| idle(process) && !process.killed).map(|(number, _)| *number);
        found.unwrap_or_else(|| {
            self.started += 1;
            let process = Process::start(self.started, &self.settings, self.events.clone());
            self.processes.insert(self.started, process);
            self.started
        })
    }

    async fn ask_anew(&mut self) {
        let number = u64::try_from(self.holds.len()).unwrap() + 1;
        let server = self.chance.pick(&self.servers).unwrap().clone();
        let hold =
            Hold { server, attempt: 0, uid: None, releasing: false, over: None, by: BTreeSet::new(), retry_at: None };
        self.holds.insert(number, hold);
        let from = if self.chance.percent(60) { From::Ask } else { From::Hold };
        self.begin(number, from).await;
    }

    /// The next attempt at a hold.
    async fn begin(&mut self, number: u64, from: From) {
        let by = self.idle();
        let elsewhere = self.chance.percent(50);
        let hold = self.holds.get_mut(&number).unwrap();
        hold.attempt += 1;
        hold.retry_at = None;
        hold.by.insert(by);
        let order = Order {
            number,
            attempt: hold.attempt,
            server: hold.server.clone(),
            from,
            uid: hold.uid.clone(),
            elsewhere,
        };
        self.processes.get_mut(&by).unwrap().order(order).await;
    }

    /// An attempt after the first. An earlier one may live only where the record is known: whoever asks by name may make
    /// a new one.
    pub async fn begin_again(&mut self, number: u64) {
        self.tally.retries += 1;
        let hold = &self.holds[&number];
        let from = match (&hold.uid, hold.by.is_empty()) {
            (Some(_), _) if hold.releasing => From::Release,
            (Some(_), true) if self.chance.percent(50) => From::Hold,
            (Some(_), _) => From::Resume,
            (None, true) => From::Hold,
            (None, false) => unreachable!("hold-{number} is worked on, and nobody knows its record"),
        };
        self.begin(number, from).await;
    }

    async fn do_what_is_due(&mut self) {
        let now = Instant::now();
        for process in self.processes.values_mut() {
            if process.stopped.is_some_and(|until| until <= now) {
                process.go_on();
            }
        }
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let release: Vec<u64> =
            self.processes.iter().filter(|(_, process)| due(process.release_at)).map(|(by, _)| *by).collect();
        for by in release {
            let process = self.processes.get_mut(&by).unwrap();
            process.release_at = None;
            let Some(order) = process.order.clone() else { continue };
            let hold = self.holds.get_mut(&order.number).unwrap();
            let in_force = hold.attempt == order.attempt;
            hold.releasing |= in_force;
            process.tell(if in_force { "release" } else { "leave" }).await;
        }
        let again: Vec<u64> = self.holds.iter().filter(|(_, hold)| due(hold.retry_at)).map(|(n, _)| *n).collect();
        for number in again {
            self.begin_again(number).await;
        }
    }

    /// The next thing that somebody does, but not longer than until something is due.
    async fn listen(&mut self, heard: &mut UnboundedReceiver<Event>, until: Instant) {
        let processes = self.processes.values().flat_map(|process| [process.stopped, process.release_at]);
        let holds = self.holds.values().map(|hold| hold.retry_at);
        let until = processes.chain(holds).flatten().fold(until, Instant::min);
        tokio::select! {
            event = heard.recv() => match event.unwrap() {
                Event::Said(by, word, rest) => self.said(by, &word, &rest),
                Event::Gone(by) => self.gone(by).await,
                Event::Overtaken(by) => self.overtaken(by),
            },
            () = sleep_until(until) => {}
        }
    }

    fn said(&mut self, by: u64, word: &str, rest: &str) {
        let process = self.processes.get_mut(&by).unwrap();
        let Some(order) = process.order.clone() else { return };
        let hold = self.holds.get_mut(&order.number).unwrap();
        match word {
            "asked" | "held" => {
                let uid = Uid(rest.to_owned());
                // One record for each name, whoever works on it: the whole run is built on that.
                if hold.uid.get_or_insert_with(|| uid.clone()) != &uid {
                    self.problems.push(format!("{} has two records: {:?} and {uid}", order.hold(), hold.uid));
                }
                if word == "held" {
                    let pause = if self.chance.percent(70) { 0 } else { self.chance.below(300) };
                    process.release_at = Some(Instant::now() + Duration::from_millis(pause as u64));
                }
                return;
            }
            "over" => {
                if hold.over.is_none() {
                    self.tally.done += 1;
                    hold.over = Some(rest.to_owned());
                    hold.retry_at = None;
                    *self.tally.said.entry(shortened(&format!("over {rest}"))).or_default() += 1;
                }
            }
            "failed" => *self.tally.said.entry(shortened(rest)).or_default() += 1,
            _ => return,
        }
        process.order = None;
        process.release_at = None;
        self.left(by, &order);
    }

    /// A process does nothing more for a hold.
    fn left(&mut self, by: u64, order: &Order) {
        let pause = self.chance.between(Duration::from_millis(50), Duration::from_millis(400));
        let hold = self.holds.get_mut(&order.number).unwrap();
        hold.by.remove(&by);
        if hold.over.is_none() && hold.attempt == order.attempt {
            hold.retry_at = Some(Instant::now() + pause);
        }
    }

    async fn gone(&mut self, by: u64) {
        let Some(process) = self.processes.remove(&by) else { return };
        if let Some(order) = process.order.clone() {
            self.left(by, &order);
        }
        self.problems.extend(process.end().await);
    }

    /// What is not over, for people.
    async fn unfinished(&self) -> String {
        let mut text = String::new();
        for (number, hold) in self.holds.iter().filter(|(_, hold)| hold.over.is_none() || !hold.by.is_empty()) {
            let record = match &hold.uid {
                Some(uid) => format!("{:?}", self.store.find_uid(uid).await),
                None => "no record".to_owned(),
            };
            text += &format!("\nhold-{number}: {hold:?}\n  {record}");
        }
        for (number, process) in &self.processes {
            text += &format!("\nprocess {number}: {process:?}");
        }
        text
    }
}
