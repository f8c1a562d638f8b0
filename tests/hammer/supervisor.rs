//! Hands out holds, makes things go wrong, starts again what was broken off, and brings everything to an end.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use bmc_simulator::{
    Behaviour, Fault, HeldQuery, JournalEntry, JournalMode, JournalQuery, Phase, Simulator, SimulatorConfig,
};
use secrecy::ExposeSecret as _;
use terraform_provider_metal::{
    clock::SystemClock,
    maintenance::ids::Uid,
    settings::{Environment, open_store},
    store::{Found, Store},
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, sleep_until, timeout},
};

use crate::{
    chaos::{Gremlin, LostReplies, Rng, of_store},
    checker::Course,
    journal,
    process::{Event, Process},
    sizes::Sizes,
    worker::{self, From, Order},
};

/// How long everything that is unfinished may take once nothing goes wrong any more.
const PATIENCE: Duration = Duration::from_mins(3);

/// A hold that was asked for.
#[derive(Debug)]
struct Hold {
    server: String,
    /// The attempt in force.
    attempt: u64,
    /// Its record, as soon as somebody said it.
    uid: Option<Uid>,
    /// Whether an attempt was told to give the server back.
    releasing: bool,
    /// How it ended.
    over: Option<String>,
    /// The processes that work on it, also those that were replaced.
    by: BTreeSet<u64>,
    /// When the next attempt begins.
    retry_at: Option<Instant>,
}

/// What happened, in numbers.
#[derive(Debug, Default)]
pub struct Tally {
    pub done: usize,
    pub kills: usize,
    pub stops: usize,
    /// Attempts that were begun while an earlier one was stopped.
    pub replaced: usize,
    /// Those that went on in the middle of what the later attempt did.
    pub overtaken: usize,
    /// Attempts after the first, for whatever reason.
    pub retries: usize,
    /// Strikes at what stands between.
    pub strikes: usize,
    pub mutations: usize,
    /// Machines that went from one hold to the next.
    pub hand_overs: usize,
    pub seconds: f64,
    /// How holds ended and why attempts did not go on.
    pub said: BTreeMap<String, usize>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (said, times) in &self.said {
            writeln!(f, "{times:>6} × {said}")?;
        }
        write!(
            f,
            "holds done {}, kills {}, stops {} ({} replaced, {} overtaken), retries {}, strikes {}, mutations {}, hand-overs {}, \
             seconds {:.1}",
            self.done,
            self.kills,
            self.stops,
            self.replaced,
            self.overtaken,
            self.retries,
            self.strikes,
            self.mutations,
            self.hand_overs,
            self.seconds
        )
    }
}

struct Supervisor {
    simulator: Simulator,
    chance: Rng,
    lease: Duration,
    processes: BTreeMap<u64, Process>,
    settings: Vec<(&'static str, String)>,
    servers: Vec<String>,
    holds: BTreeMap<u64, Hold>,
    store: Arc<dyn Store>,
    gremlins: Vec<Box<dyn Gremlin>>,
    events: UnboundedSender<Event>,
    started: u64,
    tally: Tally,
    /// See [`Outcome`].
    problems: Vec<String>,
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
pub async fn run(sizes: &Sizes) -> Outcome {
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
    let config = SimulatorConfig {
        any_account: true,
        journal: JournalMode::KeepChanges(usize::MAX),
        ..SimulatorConfig::with_systems(sizes.servers).without_tls().with_behaviour(behaviour)
    };
    let simulator = Simulator::start(config).await.unwrap();
    let start = journal::states(&simulator);
    let folder = tempfile::tempdir().unwrap();
    let own = format!("sqlite://{}", folder.path().join("coordination.sqlite").display());
    let url = sizes.url.clone().unwrap_or(own);
    let (events, mut heard) = unbounded_channel();
    let mut supervisor = Supervisor::new(sizes, &simulator, &url, events).await;

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
    let course = Course { asked, start, end: journal::states(&simulator), lines: journal::lines(&simulator) };
    simulator.stop().await;
    drop(supervisor.processes);
    let mut tally = supervisor.tally;
    tally.mutations = course.lines.len();
    tally.hand_overs = hand_overs(&course);
    tally.seconds = began.elapsed().as_secs_f64();
    Outcome { course, tally, problems: supervisor.problems }
}

/// How often a machine went from one hold to another.
fn hand_overs(course: &Course) -> usize {
    let mut last: BTreeMap<&str, &str> = BTreeMap::new();
    course
        .lines
        .iter()
        .filter(|line| {
            let hold = line.account.split('.').next().unwrap_or_default();
            last.insert(&line.system, hold).is_some_and(|before| before != hold)
        })
        .count()
}

impl Supervisor {
    async fn new(sizes: &Sizes, simulator: &Simulator, url: &str, events: UnboundedSender<Event>) -> Self {
        let servers = simulator.systems();
        let addresses: Vec<_> = servers.iter().map(|name| format!("{name}={}", simulator.url(name).unwrap())).collect();
        let clock = Arc::new(SystemClock::default());
        let (store, _) = open_store(Some(url), &Environment::default(), clock).await.unwrap();
        let mut gremlins = of_store(url);
        gremlins.push(Box::new(LostReplies(simulator.clone())));
        Self {
            simulator: simulator.clone(),
            chance: Rng::new(sizes.seed),
            lease: sizes.lease,
            processes: BTreeMap::new(),
            settings: vec![
                (worker::URL, url.to_owned()),
                (worker::SERVERS, addresses.join(" ")),
                (worker::PASSWORD, simulator.credentials().password.expose_secret().to_owned()),
                (worker::LEASE, sizes.lease.as_millis().to_string()),
            ],
            servers,
            holds: BTreeMap::new(),
            store,
            gremlins,
            events,
            started: 0,
            tally: Tally::default(),
            problems: Vec::new(),
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
    async fn begin_again(&mut self, number: u64) {
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

    /// Something goes wrong.
    async fn strike(&mut self) {
        let busy = |process: &Process| process.order.is_some() && !process.killed;
        let all: Vec<u64> = self.processes.iter().filter(|(_, process)| busy(process)).map(|(by, _)| *by).collect();
        let stopped = self.processes.values().filter(|process| process.stopped.is_some()).count();
        let kind = self.chance.below(100);
        if kind >= 80 {
            self.tally.strikes += 1;
            let which = self.chance.below(self.gremlins.len());
            self.gremlins[which].strike(&mut self.chance).await;
            return;
        }
        // Most processes wait for their turn; those that have a server are where it hurts.
        let holders = self.holders().await;
        let holding = self.chance.percent(70) && !holders.is_empty();
        let victim = if holding { self.chance.pick(&holders) } else { self.chance.pick(&all) };
        let Some(&victim) = victim else { return };
        if kind < 25 {
            self.tally.kills += 1;
            self.processes.get_mut(&victim).unwrap().kill();
        } else if stopped <= all.len() / 3 && self.processes[&victim].stopped.is_none() {
            let ambush = if holding && self.chance.percent(70) { self.ambush(victim).await } else { None };
            self.stop(victim).await;
            if let Some(fault) = ambush {
                let _ = self.simulator.remove_fault(fault);
                self.simulator.release_all();
            }
        }
    }

    /// The processes that have the right to act on a server now, by the store.
    async fn holders(&self) -> Vec<u64> {
        let views = self.store.view_all().await.unwrap_or_default();
        let acting = views.iter().filter_map(|view| view.lock.holder()?.attachment.as_ref());
        let pids: BTreeSet<u32> = acting.map(|attachment| attachment.runner.pid).collect();
        let works = |process: &Process| process.order.is_some() && !process.killed && process.stopped.is_none();
        let holds = |process: &Process| works(process) && pids.contains(&process.pid);
        self.processes.iter().filter(|(_, process)| holds(process)).map(|(by, _)| *by).collect()
    }

    /// Waits a moment until a process is in the middle of asking its machine something, and lets the machine keep the
    /// answer: where a change follows a look, the worst moment to be stopped.
    async fn ambush(&self, victim: u64) -> Option<u64> {
        let system = self.processes[&victim].order.as_ref()?.server.clone();
        let fault = Fault::hold(Phase::Before).on_system(&system).on_request("GET", "*/Systems/1").times(1);
        let fault = self.simulator.inject(fault);
        let held = HeldQuery { system: Some(system), ..HeldQuery::default() };
        let _ = self.simulator.wait_held(&held, Duration::from_millis(300)).await;
        Some(fault)
    }

    /// Stops a process, mostly for longer than its lease, and begins its hold anew meanwhile, where it can be told that
    /// it is in the middle of it.
    async fn stop(&mut self, victim: u64) {
        self.tally.stops += 1;
        let time = if self.chance.percent(85) {
            self.chance.between(self.lease * 13 / 10, self.lease * 5 / 2)
        } else {
            self.chance.between(Duration::from_millis(10), self.lease)
        };
        let process = self.processes.get_mut(&victim).unwrap();
        process.stop(Instant::now() + time).await;
        let (pid, order) = (process.pid, process.order.clone().unwrap());
        let hold = &self.holds[&order.number];
        let in_force = hold.attempt == order.attempt && hold.over.is_none();
        let Some(uid) = hold.uid.clone().filter(|_| in_force) else { return };
        // Only whoever has the right to act now can lose it. One that stands before the moment when it takes the right
        // takes it when it goes on, and is later than the other attempt then, whatever its number.
        let Ok(Some(Found::Active(record))) = self.store.find_uid(&uid).await else { return };
        if record.attachment.is_some_and(|attachment| attachment.runner.pid == pid) {
            self.tally.replaced += 1;
            self.begin_again(order.number).await;
            if self.chance.percent(70) {
                self.await_overtaking(victim, &order);
            }
        }
    }

    /// Tells when another attempt at the same hold changes the machine: then the one that is stopped goes on, right into
    /// the other one's work.
    fn await_overtaking(&mut self, victim: u64, order: &Order) {
        self.processes.get_mut(&victim).unwrap().stopped = Some(Instant::now() + self.lease * 5);
        let (simulator, events) = (self.simulator.clone(), self.events.clone());
        let (any, own) = (format!("{}.", order.hold()), order.account());
        let since = JournalQuery::system(&order.server).since(simulator.sequence());
        let theirs =
            move |line: &JournalEntry| line.account.as_ref().is_some_and(|by| by.starts_with(&any) && *by != own);
        let longest = self.lease * 5;
        tokio::spawn(async move {
            let look = || simulator.journal(&since).iter().any(&theirs).then_some(());
            if simulator.wait_until("another attempt", longest, look).await.is_ok() {
                let _ = events.send(Event::Overtaken(victim));
            }
        });
    }

    fn overtaken(&mut self, by: u64) {
        let pause = Duration::from_millis(self.chance.below(120) as u64);
        if let Some(process) = self.processes.get_mut(&by).filter(|process| process.stopped.is_some()) {
            self.tally.overtaken += 1;
            process.stopped = Some(Instant::now() + pause);
        }
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

/// The beginning of what somebody said, without the names in it: equal causes are counted together.
fn shortened(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_ascii_digit()).collect();
    plain.chars().take(110).collect()
}
