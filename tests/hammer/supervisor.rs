//! Starts holds, injects faults, restarts aborted attempts and drives every hold to its end.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    process::Command,
    sync::Arc,
    time::Duration,
};

use bmc_simulator::{BootOverride, Simulator};
use secrecy::ExposeSecret as _;
use terraform_provider_metal::{clock::SystemClock, maintenance::ids::Uid, settings::open_store, store::Store};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender},
    time::{Instant, sleep_until},
};
use uuid::Uuid;

use crate::{
    arena::Arena,
    chaos::{Gremlin, LostReplies, Rng},
    checker::State,
    epochs::Border,
    hidden, journal,
    past::Past,
    process::{Event, Process},
    scene::Scene,
    sizes::Sizes,
    support::bucket::environment,
    tally::{Tally, shortened},
    wall::Hand,
    worker::{self, From, Order},
};

/// A requested hold.
#[derive(Debug)]
pub struct Hold {
    pub server: String,
    /// Number of the current attempt.
    pub attempt: u64,
    /// Record uid, once reported.
    pub uid: Option<Uid>,
    /// True after an attempt received the release order.
    pub releasing: bool,
    /// True if it ended although the store lists it as active, and so must end there too.
    pub known_over: bool,
    /// Final state.
    pub over: Option<String>,
    /// Processes with an order for this hold, including replaced ones.
    by: BTreeSet<u64>,
    /// Start of the next attempt.
    pub retry_at: Option<Instant>,
}

/// State of a run.
pub struct Supervisor {
    pub simulator: Simulator,
    pub chance: Rng,
    pub lease: Duration,
    pub pause: Duration,
    pub processes: BTreeMap<u64, Process>,
    settings: Vec<(&'static str, String)>,
    pub servers: Vec<String>,
    /// State of every server before the run.
    pub home: BTreeMap<String, (State, BootOverride)>,
    pub scene: Scene,
    /// Scope for all names.
    pub run: String,
    /// Store URL without the fault-injecting proxy.
    pub direct: String,
    pub holds: BTreeMap<u64, Hold>,
    pub store: Arc<dyn Store>,
    pub gremlins: Vec<Box<dyn Gremlin>>,
    pub past: Option<Box<dyn Past>>,
    pub borders: Vec<Border>,
    /// True while neither holds nor attempts are started.
    pub frozen: bool,
    pub hand: Option<Hand>,
    _arena: Arena,
    _wall: tempfile::TempDir,
    pub events: UnboundedSender<Event>,
    started: u64,
    pub tally: Tally,
    /// See [`crate::run::Outcome`].
    pub problems: Vec<String>,
    /// Input for [`Course::caught`].
    pub caught: BTreeSet<String>,
    /// Input for [`Course::failed`]. A hold that failed before the store lost it can end twice.
    pub failed: BTreeSet<String>,
}

impl Supervisor {
    pub async fn new(
        sizes: &Sizes,
        simulator: &Simulator,
        mut arena: Arena,
        scene: Scene,
        events: UnboundedSender<Event>,
    ) -> Self {
        let servers = simulator.systems();
        let addresses: Vec<_> = servers.iter().map(|name| format!("{name}={}", simulator.url(name).unwrap())).collect();
        // The supervisor uses the correct clock on the same machine, and judges nothing by it.
        let clock = Arc::new(SystemClock::default());
        let (store, _) = open_store(Some(&arena.direct), &environment(), clock).await.unwrap();
        let mut gremlins = std::mem::take(&mut arena.gremlins);
        gremlins.push(Box::new(LostReplies(simulator.clone())));
        let wall = tempfile::tempdir().unwrap();
        let file = wall.path().join("wrong-by");
        // The other scenes end before timestamps of the wrong clock matter.
        let hand = scene.is_plain().then(|| Hand::on(file.clone(), sizes.lease));
        let run = format!("hammer-{}", &Uuid::new_v4().simple().to_string()[..12]);
        let state = |name: &String| (journal::states(simulator)[name].clone(), simulator.system(name).unwrap().boot);
        if scene.hidden.is_some() {
            arena.open_to_all();
        }
        Self {
            simulator: simulator.clone(),
            chance: Rng::new(sizes.seed),
            lease: sizes.lease,
            pause: sizes.pause,
            processes: BTreeMap::new(),
            settings: vec![
                (worker::URL, arena.url.clone()),
                (worker::RUN, run.clone()),
                (worker::SERVERS, addresses.join(" ")),
                (worker::PASSWORD, simulator.credentials().password.expose_secret().to_owned()),
                (worker::LEASE, sizes.lease.as_millis().to_string()),
                (worker::WALL, file.display().to_string()),
            ],
            home: servers.iter().map(|name| (name.clone(), state(name))).collect(),
            servers,
            scene,
            run,
            direct: arena.direct.clone(),
            holds: BTreeMap::new(),
            store,
            gremlins,
            past: arena.past.take(),
            borders: Vec::new(),
            frozen: false,
            hand,
            _arena: arena,
            _wall: wall,
            events,
            started: 0,
            tally: Tally::default(),
            problems: Vec::new(),
            caught: BTreeSet::new(),
            failed: BTreeSet::new(),
        }
    }

    /// Holds, kills, stops and injects faults for the given time.
    pub async fn hammer(&mut self, heard: &mut UnboundedReceiver<Event>, time: Duration, processes: usize) {
        let end = Instant::now() + time;
        let half = Instant::now() + time / 2;
        let mut next_strike = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end {
            self.work(processes).await;
            if Instant::now() >= next_strike {
                if self.tally.steps == 0 && Instant::now() > half {
                    self.set_the_clock();
                }
                self.strike().await;
                next_strike = Instant::now() + self.chance.between(self.pause / 17, self.pause);
            }
            self.listen(heard, next_strike.min(end)).await;
        }
    }

    /// Runs due actions and keeps the given number of processes busy.
    pub async fn work(&mut self, processes: usize) {
        self.do_what_is_due().await;
        while self.working() < processes {
            self.ask_anew().await;
        }
    }

    /// Ends all injected faults.
    pub async fn soothe(&self) {
        for gremlin in &self.gremlins {
            gremlin.calm().await;
        }
    }

    /// Ends all injected faults and continues stopped processes.
    pub async fn calm(&mut self) {
        self.soothe().await;
        if let Some(hand) = &mut self.hand {
            hand.calm();
        }
        for process in self.processes.values_mut().filter(|process| process.stopped.is_some()) {
            process.go_on();
        }
    }

    /// Waits until every hold and every process has ended.
    pub async fn finish(&mut self, heard: &mut UnboundedReceiver<Event>) {
        loop {
            self.do_what_is_due().await;
            self.processes.values_mut().filter(|process| process.order.is_none()).for_each(Process::dismiss);
            if self.processes.is_empty() && self.holds.values().all(|hold| hold.over.is_some()) {
                return;
            }
            self.listen(heard, Instant::now() + Duration::from_secs(1)).await;
        }
    }

    /// Counts running processes with an order.
    fn working(&self) -> usize {
        let working = |process: &&Process| process.stopped.is_none() && process.order.is_some();
        self.processes.values().filter(working).count()
    }

    /// Returns an idle process, or starts one.
    fn idle(&mut self) -> u64 {
        let idle = |process: &Process| process.order.is_none() && process.stopped.is_none() && !process.is_dismissed();
        let found =
            self.processes.iter().find(|(_, process)| idle(process) && !process.killed).map(|(number, _)| *number);
        found.unwrap_or_else(|| {
            self.started += 1;
            let program = self.program();
            let process = Process::start(self.started, program, &self.settings, self.events.clone());
            self.processes.insert(self.started, process);
            self.started
        })
    }

    /// Returns the next process's command.
    fn program(&mut self) -> Command {
        if let Some(hidden) = &self.scene.hidden {
            let user = *self.chance.pick(&hidden::USERS).unwrap();
            return hidden.command(user).unwrap();
        }
        Command::new(env::current_exe().unwrap())
    }

    async fn ask_anew(&mut self) {
        let number = u64::try_from(self.holds.len()).unwrap() + 1;
        let server = self.chance.pick(&self.servers).unwrap().clone();
        let hold = Hold {
            server,
            attempt: 0,
            uid: None,
            releasing: false,
            known_over: false,
            over: None,
            by: BTreeSet::new(),
            retry_at: None,
        };
        self.holds.insert(number, hold);
        let from = if self.chance.percent(60) { From::Ask } else { From::Hold };
        self.begin(number, from).await;
    }

    /// Starts the next attempt for a hold.
    async fn begin(&mut self, number: u64, from: From) {
        let by = self.idle();
        // Hidden workers cannot check each other anyway, so pretending is unnecessary.
        let elsewhere = self.chance.percent(50) && self.scene.hidden.is_none();
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

    /// Starts a later attempt. An earlier one can be alive only if the record is known, because a
    /// request by name alone could create a second record.
    pub async fn begin_again(&mut self, number: u64) {
        self.tally.retries += 1;
        let hold = &self.holds[&number];
        let from = match (&hold.uid, hold.by.is_empty()) {
            (Some(_), _) if hold.releasing => From::Release,
            (Some(_), true) if self.chance.percent(50) => From::Hold,
            (Some(_), _) => From::Resume,
            (None, true) => From::Hold,
            (None, false) => unreachable!("hold-{number} has a process but no known record"),
        };
        self.begin(number, from).await;
    }

    pub async fn do_what_is_due(&mut self) {
        let now = Instant::now();
        for process in self.processes.values_mut() {
            if process.stopped.is_some_and(|until| until <= now) {
                self.tally.outlasted += usize::from(process.stopped_at.is_some_and(|since| now - since > self.lease));
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
        let due = |hold: &Hold| due(hold.retry_at) && !self.frozen;
        let again: Vec<u64> = self.holds.iter().filter(|(_, hold)| due(hold)).map(|(n, _)| *n).collect();
        for number in again {
            self.begin_again(number).await;
        }
    }

    /// Waits for the next event, but not past the next due action.
    pub async fn listen(&mut self, heard: &mut UnboundedReceiver<Event>, until: Instant) {
        let processes = self.processes.values().flat_map(|process| [process.stopped, process.release_at]);
        let holds = self.holds.values().map(|hold| hold.retry_at.filter(|_| !self.frozen));
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
        self.tally.hidden += usize::from(word == "ready" && rest == worker::HIDDEN);
        let Some(order) = process.order.clone() else { return };
        let hold = self.holds.get_mut(&order.number).unwrap();
        match word {
            "looked" => return process.looks = false,
            "asked" | "held" => {
                let uid = Uid::new(rest);
                // Invariant: each name has exactly one record.
                if hold.uid.get_or_insert_with(|| uid.clone()) != &uid {
                    self.problems.push(format!("{} has two records: {:?} and {uid}", order.hold(), hold.uid));
                }
                if word == "held" {
                    let pause = if self.chance.percent(70) { 0 } else { self.chance.below(300) };
                    process.release_at = Some(Instant::now() + Duration::from_millis(pause as u64));
                }
                return;
            }
            _ if word == "over" || (hold.known_over && ["Withdrawn", "record not found"].contains(&rest)) => {
                if hold.over.is_none() {
                    if rest.starts_with("Failed") {
                        self.failed.insert(order.hold());
                    }
                    self.tally.done += 1;
                    hold.over = Some(rest.to_owned());
                    hold.retry_at = None;
                    *self.tally.said.entry(shortened(&format!("over {rest}"))).or_default() += 1;
                }
            }
            "failed" => {
                let gone = ["went back in time", "another file replaced it"];
                self.tally.noticed += usize::from(self.frozen && gone.iter().any(|words| rest.contains(words)));
                *self.tally.said.entry(shortened(rest)).or_default() += 1;
            }
            _ => return,
        }
        process.order = None;
        process.release_at = None;
        self.left(by, &order);
    }

    /// Ends a process's work on a hold.
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

    /// Describes unfinished holds for the failure message.
    pub async fn unfinished(&self) -> String {
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
