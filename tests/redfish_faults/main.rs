//! Fault matrix: injects every fault into every request of every flow.
//!
//! A fault-free run of each flow generates the rows, one per request. The real engine and backend
//! run against the simulator with shortened timeouts. Only the simulator's journal is judged: no
//! repeated reset, no repeated media insert, and at the end either the prior machine state or a
//! held server.
#![allow(clippy::large_futures, reason = "each case runs a whole maintenance")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::disallowed_methods, reason = "the simulated machines and the matrix run in real time")]

mod bench;
mod economy;
mod faults;
mod flows;
mod judge;
#[path = "../support/parts.rs"]
mod parts;
mod personalities;
mod power;
mod siblings;
#[path = "../support/simulated.rs"]
mod simulated;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bmc_simulator::{Personality, PowerState};
use futures_util::{StreamExt as _, stream};

use crate::{
    bench::{Bench, Row},
    faults::Kind,
    flows::Flow,
    simulated::personalities,
};

/// Cases in parallel. They spend most of their time waiting.
const AT_ONCE: usize = 24;

/// Maximum repetitions of a case until its request occurs.
const TRIES: usize = 5;

/// A recorded BMC type, or `None` for a BMC with all features.
type Bmc = Option<Arc<Personality>>;

/// One matrix cell.
#[derive(Clone, Debug)]
struct Case {
    flow: Flow,
    bmc: Bmc,
    row: Row,
    kind: Kind,
    /// True if the fault persists; false if it hits one request.
    stays: bool,
    /// Initial machine state: see [`Bench::in_use`].
    in_use: bool,
}

impl Case {
    fn name(&self) -> String {
        let often = if self.stays { "always" } else { "once" };
        let Row { method, path, occurrence } = &self.row;
        let bmc = self.bmc.as_ref().map(|bmc| format!(" on {}", bmc.name)).unwrap_or_default();
        format!("{:?}{bmc}: {:?} {often} at {method} {path} #{occurrence}", self.flow, self.kind)
    }
}

/// BMC types with different requests: writable drives, boot menu, Settings object, redirects,
/// tasks.
const OTHER_REQUESTS: [&str; 5] = ["lenovo-xcc1", "boot-menu-only", "nvidia-gh200", "hpe-ilo5", "ami-gigabyte"];

fn others() -> Vec<Bmc> {
    let all = personalities().into_iter().filter(|one| OTHER_REQUESTS.contains(&one.name.as_str()));
    let found: Vec<Bmc> = all.map(|one| Some(Arc::new(one))).collect();
    assert_eq!(found.len(), OTHER_REQUESTS.len());
    found
}

async fn bench(flow: Flow, bmc: &Bmc, in_use: bool) -> Bench {
    let bench = match bmc {
        Some(personality) => Bench::of(flow, personality.as_ref().clone(), PowerState::On).await,
        None => Bench::new(flow).await,
    };
    if in_use { bench.in_use() } else { bench }
}

/// Returns a flow's rows: its requests in a fault-free run.
async fn rows(flow: Flow, bmc: &Bmc, in_use: bool) -> Vec<Row> {
    for _ in 0..TRIES {
        let bench = bench(flow, bmc, in_use).await;
        let problems = bench.play().await;
        if problems.is_empty() {
            return bench.rows();
        }
        println!("{flow:?} without any fault: {problems:?}\n{}", bench.story());
    }
    panic!("{flow:?} fails without any fault");
}

fn cases(flow: Flow, bmc: &Bmc, rows: &[Row], wanted: impl Fn(&Row, Kind, bool) -> bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for row in rows {
        for kind in Kind::ALL {
            for stays in [false, true] {
                if wanted(row, kind, stays) {
                    cases.push(Case { flow, bmc: bmc.clone(), row: row.clone(), kind, stays, in_use: false });
                }
            }
        }
    }
    cases
}

async fn check(case: Case) -> Option<String> {
    let (mut played_on, mut problems) = (bench(case.flow, &case.bmc, case.in_use).await, Vec::new());
    for _ in 0..TRIES {
        played_on.inject(&case.row, case.kind, case.stays);
        let played = tokio::time::timeout(Duration::from_mins(2), played_on.play()).await;
        problems = played.unwrap_or_else(|_| vec!["did not end".to_owned()]);
        // On a busy computer a timeout can end the case before its request occurs. Such a run
        // proves nothing.
        if !problems.iter().any(|problem| problem.starts_with(judge::MISSED)) {
            break;
        }
        played_on = bench(case.flow, &case.bmc, case.in_use).await;
    }
    if std::env::var("FAULT_CASE").is_ok() {
        println!("{}\n  {}\n{}", case.name(), problems.join("\n  "), played_on.story());
    }
    (!problems.is_empty()).then(|| format!("{}\n  {}\n{}", case.name(), problems.join("\n  "), played_on.story()))
}

async fn hold(flows: &[Flow], wanted: impl Fn(&Row, Kind, bool) -> bool) {
    hold_on(&[None], flows, wanted).await;
}

async fn hold_on(bmcs: &[Bmc], flows: &[Flow], wanted: impl Fn(&Row, Kind, bool) -> bool) {
    let mut all = Vec::new();
    for bmc in bmcs {
        for flow in flows {
            all.extend(cases(*flow, bmc, &rows(*flow, bmc, false).await, &wanted));
        }
    }
    check_all(all).await;
}

async fn check_all(mut all: Vec<Case>) {
    let only = std::env::var("FAULT_CASE").ok();
    all.retain(|case| only.as_ref().is_none_or(|only| case.name().contains(only.as_str())));
    let count = all.len();
    let began = std::time::Instant::now();
    let wrong: Vec<String> = stream::iter(all)
        .map(|case| tokio::spawn(check(case)))
        .buffer_unordered(AT_ONCE)
        .filter_map(|checked| async { checked.unwrap_or_else(|died| Some(died.to_string())) })
        .collect()
        .await;
    println!("{count} cases in {:.1} s", began.elapsed().as_secs_f32());
    let shown: Vec<&str> = wrong.iter().take(12).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} of {count} cases went wrong:\n{}", wrong.len(), shown.join("\n"));
    assert!(count > 0 || only.is_some(), "the matrix is empty");
}

/// Short form for every test run: combines each change with one fault per class, and each fault
/// with some changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_change_is_made_twice_whatever_the_bmc_answers() {
    let turn = AtomicUsize::new(0);
    hold(&Flow::ALL, |row, kind, stays| {
        let picked = kind.is_common() || turn.fetch_add(1, Ordering::Relaxed).is_multiple_of(12);
        row.changes() && !stays && picked
    })
    .await;
}

/// The same for BMC types with different requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_change_is_made_twice_on_bmcs_that_are_asked_in_other_ways() {
    let turn = AtomicUsize::new(0);
    hold_on(&others(), &[Flow::VirtualMedia], |row, _, stays| {
        row.changes() && !stays && !row.is_of_sessions() && turn.fetch_add(1, Ordering::Relaxed).is_multiple_of(6)
    })
    .await;
}

/// Persistent error responses to resets: an executed reset must not be repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_reset_is_repeated_while_its_outcome_is_unknown() {
    hold(&Flow::OPERATIONS, |row, kind, stays| row.changes() && stays && kind.leaves_unknown()).await;
}

/// Reads that fail once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_read_that_fails_leaves_the_machine_as_before_or_held() {
    hold(&[Flow::VirtualMedia, Flow::ForceRestart], |row, kind, stays| {
        !row.changes() && !stays && kind.meets_reads() && row.occurrence == 0
    })
    .await;
}

/// The same for BMC types with different requests, including reads during the release.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_read_of_drives_that_fails_leaves_no_medium_on_bmcs_that_are_asked_in_other_ways() {
    hold_on(&others(), &[Flow::VirtualMedia], |row, kind, stays| {
        !row.changes() && !stays && row.path.contains("VirtualMedia") && matches!(kind, Kind::Status(404) | Kind::Busy)
    })
    .await;
}

/// Wrong BMC state for a machine in use, once or permanently.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_bmc_does_not_show_is_neither_lost_nor_taken_for_something_else() {
    let mut all = Vec::new();
    for flow in [Flow::PowerOff, Flow::VirtualMedia, Flow::Pxe] {
        for row in rows(flow, &None, true).await.into_iter().filter(|row| !row.changes()) {
            let kinds = Kind::SHOWN.into_iter().filter(|(end, _)| match end.strip_suffix("/*") {
                Some(folder) => row.path.rsplit_once('/').is_some_and(|(before, _)| before.ends_with(folder)),
                None => row.path.ends_with(end),
            });
            for (_, kind) in kinds {
                all.extend([false, true].map(|stays| Case {
                    flow,
                    bmc: None,
                    row: row.clone(),
                    kind,
                    stays,
                    in_use: true,
                }));
            }
        }
    }
    check_all(all).await;
}

/// The complete matrix, for the soak test.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "takes minutes: `make soak` runs it"]
async fn the_whole_matrix() {
    hold(&Flow::ALL, |row, kind, _| row.changes() || kind.meets_reads()).await;
}

/// The complete matrix for BMC types with different requests, for the soak test.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "takes minutes: `make soak` runs it"]
async fn the_whole_matrix_of_other_bmcs() {
    hold_on(&others(), &[Flow::VirtualMedia, Flow::Disk], |row, kind, _| {
        !row.is_of_sessions() && (row.changes() || kind.meets_reads())
    })
    .await;
}
