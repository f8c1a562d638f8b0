//! A whole run, from the first machine to what the checker is given.

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

/// How long everything that is unfinished may take once nothing goes wrong any more.
const PATIENCE: Duration = Duration::from_mins(3);

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// For the checker.
    pub course: Course,
    /// Where the store went back in time.
    pub borders: Vec<Border>,
    pub tally: Tally,
    /// What went wrong beside the rules: processes that ended in a way that nobody meant, holds
    /// that did not end.
    pub problems: Vec<String>,
}

/// A whole run.
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
    // Machines of their own, for a store that has seen other runs.
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
    // Whether it is so is the checker's business.
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
    /// Hammers until the time is over and what a run is about has happened, however slow the
    /// machine is. Where the store goes back in time, it does so in the middle of what remains of
    /// it.
    async fn all_of_it(&mut self, heard: &mut UnboundedReceiver<Event>, sizes: &Sizes) {
        // A long run has more than one of each.
        let times = usize::try_from(sizes.chaos.as_secs() / 60).unwrap().max(1);
        let returns = self.scene.returns.repeat(times);
        let part = sizes.chaos / u32::try_from(2 * returns.len() + 1).unwrap();
        for meanwhile in returns {
            self.hammer(heard, part, sizes.processes).await;
            let at_work = |hold: &Hold| hold.uid.is_some() && hold.over.is_none();
            self.calmly_until(heard, sizes.processes, |this| this.holds.values().any(at_work)).await;
            let mut store = self.past.take().expect("a store whose moment can be kept");
            store.keep().await;
            self.past = Some(store);
            let done = self.tally.done;
            self.hammer(heard, part, sizes.processes).await;
            // A network that is down may have let nothing happen that could be lost.
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

    /// Lets the processes work undisturbed until something has happened that the run is about.
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
