//! A complete run: creates the machines, injects faults and collects the checker's input.

use std::time::Duration;

use bmc_simulator::{Behaviour, JournalMode, Simulator, SimulatorConfig, SystemUuid};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::{Instant, timeout},
};
use uuid::Uuid;

use crate::{
    arena::Arena,
    checker::Course,
    epochs::Border,
    journal,
    process::Event,
    scene::Scene,
    sizes::Sizes,
    supervisor::{Hold, Supervisor},
    tally::{Tally, hand_overs},
};

/// Limit for finishing all holds after the faults end.
const PATIENCE: Duration = Duration::from_mins(3);

/// Result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Input of the checker.
    pub course: Course,
    /// Restores of the store.
    pub borders: Vec<Border>,
    pub tally: Tally,
    /// Problems outside the rules: unexpected process exits and unfinished holds.
    pub problems: Vec<String>,
}

/// Runs everything.
pub async fn run(sizes: &Sizes, scene: Scene) -> Outcome {
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
    // Unique machines, because the store can contain earlier runs.
    config.systems.iter_mut().for_each(|system| system.uuid = Some(SystemUuid::Real(Uuid::new_v4())));
    let simulator = Simulator::start(config).await.unwrap();
    let start = journal::states(&simulator);
    let arena = match &sizes.url {
        Some(url) => Arena::given(url),
        None if scene.returns.is_empty() => Arena::new(scene.kind),
        None => Arena::with_past(scene.kind),
    };
    let (events, mut heard) = unbounded_channel();
    let mut supervisor = Supervisor::new(sizes, &simulator, arena, scene, events).await;

    supervisor.all_of_it(&mut heard, sizes).await;
    supervisor.calm().await;
    if timeout(PATIENCE, supervisor.finish(&mut heard)).await.is_err() {
        let unfinished = format!("not over in time: {}", supervisor.unfinished().await);
        supervisor.problems.push(unfinished);
    }
    supervisor.store.close().await;
    let at_rest = || (journal::states(&simulator) == start).then_some(());
    // The checker judges whether this succeeded.
    let _ = simulator.wait_until("machines at rest", Duration::from_secs(5), at_rest).await;

    let asked = supervisor.holds.iter().map(|(number, hold)| (format!("hold-{number}"), hold.server.clone())).collect();
    let course = Course {
        asked,
        start,
        end: journal::states(&simulator),
        lines: journal::lines(&simulator),
        caught: supervisor.caught.clone(),
        failed: supervisor.failed.clone(),
    };
    let borders = std::mem::take(&mut supervisor.borders);
    simulator.stop().await;
    drop(supervisor.processes);
    let mut tally = supervisor.tally;
    tally.mutations = course.lines.len();
    tally.hand_overs = hand_overs(&course);
    tally.seconds = began.elapsed().as_secs_f64();
    Outcome { course, borders, tally, problems: supervisor.problems }
}

impl Supervisor {
    /// Injects faults for the given time, or longer on a slow machine until the scene's events
    /// have happened. Restores of the store are spread over the remaining time.
    async fn all_of_it(&mut self, heard: &mut UnboundedReceiver<Event>, sizes: &Sizes) {
        // A long run repeats them.
        let times = usize::try_from(sizes.chaos.as_secs() / 60).unwrap().max(1);
        let returns = self.scene.returns.repeat(times);
        let part = sizes.chaos / u32::try_from(2 * returns.len() + 1).unwrap();
        for meanwhile in returns {
            self.hammer(heard, part, sizes.processes).await;
            let at_work = |hold: &Hold| hold.uid.is_some() && hold.over.is_none();
            self.calmly_until(heard, sizes.processes, |this| this.holds.values().any(at_work)).await;
            let mut store = self.past.take().expect("a store that supports backups");
            store.keep().await;
            self.past = Some(store);
            let done = self.tally.done;
            self.hammer(heard, part, sizes.processes).await;
            // A network outage can leave nothing to lose.
            self.calmly_until(heard, sizes.processes, |this| this.tally.done > done).await;
            self.tally.undone += self.tally.done - done;
            self.go_back(heard, meanwhile).await;
        }
        self.hammer(heard, part, sizes.processes).await;
        let latest = Instant::now() + PATIENCE;
        while !(self.tally.is_telling() && (self.hand.is_none() || self.tally.steps > 0)) && Instant::now() < latest {
            self.hammer(heard, self.lease, sizes.processes).await;
        }
    }

    /// Runs the processes without faults until a condition is met.
    async fn calmly_until(
        &mut self,
        heard: &mut UnboundedReceiver<Event>,
        processes: usize,
        happened: impl Fn(&Self) -> bool,
    ) {
        let latest = Instant::now() + PATIENCE;
        while !happened(self) && Instant::now() < latest {
            self.calm().await;
            self.work(processes).await;
            self.listen(heard, Instant::now() + self.lease).await;
        }
    }
}
