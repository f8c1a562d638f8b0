//! Resets that a BMC accepts but ignores, executes only on repetition, or replaces with another
//! reset. Covers each power request from each power state, released by a new process.
//!
//! A fault-free run's resets form the rows. `On` and `ForceOff` lead to a defined state, so an
//! ignored one is sent once more and the run succeeds. A restart is never sent twice.

use std::collections::BTreeSet;

use bmc_simulator::{Fault, PowerState};
use futures_util::{StreamExt as _, stream};

use crate::{
    bench::{Bench, reached},
    flows::Flow,
    judge,
};

/// Cases in parallel. They spend most of their time waiting.
const AT_ONCE: usize = 24;

const STATES: [PowerState; 5] =
    [PowerState::On, PowerState::Off, PowerState::Paused, PowerState::PoweringOn, PowerState::PoweringOff];

/// Resets that hit a server again each time.
const RESTARTS: [&str; 4] = ["ForceRestart", "GracefulRestart", "PowerCycle", "Nmi"];

/// A BMC's handling of an accepted reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accepts {
    /// Ignores it once.
    IgnoresOnce,
    /// Always ignores it.
    Ignores,
    /// Executes it only on repetition.
    IgnoresFirst,
    /// Executes another reset once.
    Instead(&'static str),
}

impl Accepts {
    const ALL: [Self; 6] = [
        Self::IgnoresOnce,
        Self::Ignores,
        Self::IgnoresFirst,
        Self::Instead("ForceRestart"),
        Self::Instead("ForceOff"),
        Self::Instead("GracefulShutdown"),
    ];

    fn fault(self, reset: &str) -> Fault {
        let fault = match self {
            Self::IgnoresOnce => Fault::ignore().times(1),
            Self::Ignores => Fault::ignore(),
            Self::IgnoresFirst => Fault::ignore_first(),
            Self::Instead(other) => Fault::alter("/ResetType", other).times(1),
        };
        fault.on_request("POST", "*/Actions/ComputerSystem.Reset").with_body(&format!("\"{reset}\""))
    }

    /// Returns true if the BMC obeys a repeated reset.
    fn obeys_the_second_time(self) -> bool {
        matches!(self, Self::IgnoresOnce | Self::IgnoresFirst)
    }
}

#[derive(Clone, Debug)]
struct Cell {
    flow: Flow,
    power: PowerState,
    reset: String,
    accepts: Accepts,
}

/// Returns one request's cells from one power state: each reset that it sends meets each fault.
async fn cells(flow: Flow, power: PowerState) -> Vec<Cell> {
    let bench = Bench::in_state(flow, power).await;
    let (held, problems) = bench.play_to_end().await;
    let refused = problems.iter().all(|problem| problem.starts_with(judge::MISSED)) && !reached(&held);
    assert!(problems.is_empty() || refused, "{flow:?} from {power} without a fault: {problems:?}\n{}", bench.story());
    let (before, release) = bench.resets_sent();
    assert!(!refused || before.is_empty(), "{flow:?} from {power} was refused after {before:?}");
    let sent: BTreeSet<String> = before.into_iter().chain(release).collect();
    let every = |reset: String| Accepts::ALL.map(|accepts| Cell { flow, power, reset: reset.clone(), accepts });
    // A BMC shows the same after each kind of restart.
    let same = |other: &str, reset: &str| other == reset || [other, reset].iter().all(|it| RESTARTS.contains(it));
    let differs = |cell: &Cell| !matches!(cell.accepts, Accepts::Instead(other) if same(other, &cell.reset));
    sent.into_iter().flat_map(every).filter(differs).collect()
}

async fn play(cell: Cell) -> Option<String> {
    let bench = Bench::in_state(cell.flow, cell.power).await;
    let _ = bench.simulator.inject(cell.accepts.fault(&cell.reset));
    let (held, mut problems) = bench.play_to_end().await;
    problems.retain(|problem| !problem.starts_with(judge::MISSED));
    let (before, _) = bench.resets_sent();
    for restart in RESTARTS {
        let times = before.iter().filter(|sent| *sent == restart).count();
        if times > 1 {
            problems.push(format!("{restart} was sent {times} times"));
        }
    }
    if cell.accepts.obeys_the_second_time() && ["On", "ForceOff"].contains(&cell.reset.as_str()) {
        if !reached(&held) {
            problems.push(format!("an ignored {} fails the run: {held:?}", cell.reset));
        }
        // They are removed after a failed release.
        if bench.simulator.faults().is_empty() {
            problems.push(format!("an ignored {} fails the release", cell.reset));
        }
    }
    if std::env::var("FAULT_CASE").is_ok() {
        println!("{cell:?}\n  {}\n{}", problems.join("\n  "), bench.story());
    }
    (!problems.is_empty()).then(|| format!("{cell:?}\n  {}\n{}", problems.join("\n  "), bench.story()))
}

async fn matrix(picked: impl Fn(usize, &Cell) -> bool) {
    let requests = Flow::POWER.into_iter().flat_map(|flow| STATES.map(|power| (flow, power)));
    let found: Vec<Vec<Cell>> = stream::iter(requests)
        .map(|(flow, power)| async move { tokio::spawn(cells(flow, power)).await.unwrap() })
        .buffered(AT_ONCE)
        .collect()
        .await;
    let only = std::env::var("FAULT_CASE").ok();
    let all: Vec<Cell> = found
        .into_iter()
        .flatten()
        .enumerate()
        .filter(|(n, cell)| picked(*n, cell))
        .map(|(_, cell)| cell)
        .filter(|cell| only.as_ref().is_none_or(|only| format!("{cell:?}").contains(only.as_str())))
        .collect();
    let count = all.len();
    let wrong: Vec<String> = stream::iter(all)
        .map(|cell| async move { tokio::spawn(play(cell)).await.unwrap() })
        .buffer_unordered(AT_ONCE)
        .filter_map(|problem| async { problem })
        .collect()
        .await;
    println!("{count} cells");
    let shown: Vec<&str> = wrong.iter().take(8).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} of {count} cells went wrong:\n{}", wrong.len(), shown.join("\n"));
    assert!(count > 0 || only.is_some(), "the matrix is empty");
}

/// Every reset that is ignored once, and some other cells.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_accepted_reset_without_effect_is_repeated_only_where_that_is_safe() {
    matrix(|n, cell| cell.accepts == Accepts::IgnoresOnce || n.is_multiple_of(5)).await;
}

/// All cells, for the soak test.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "takes minutes: `make soak` runs it"]
async fn every_accepted_reset_with_another_effect() {
    matrix(|_, _| true).await;
}
