//! The fault matrix: every request of every flow meets every fault, and what reached the machine is judged.
//!
//! The matrix is generated: a flow runs once without faults, and the requests that it made are its rows. The real engine
//! and the real backend run against the simulator, on a scale of time of their own. Judged is only what the simulator saw:
//! no reset twice, no medium twice, and at the end the machine as before, or the server still held.
#![allow(clippy::large_futures, reason = "each case runs a whole maintenance")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::disallowed_methods, reason = "the machines' time is real, and so is what the matrix takes")]

mod bench;
mod economy;
mod faults;
mod flows;
mod judge;
mod personalities;
#[path = "../support/simulated.rs"]
mod simulated;

use std::time::Duration;

use futures_util::{StreamExt as _, stream};

use crate::{
    bench::{Bench, Row},
    faults::Kind,
    flows::Flow,
};

/// Cases under way at once: most of their time they wait.
const AT_ONCE: usize = 24;

/// How often a case is played until the request that it is about was made.
const TRIES: usize = 5;

/// One cell of the matrix.
#[derive(Clone, Debug)]
struct Case {
    flow: Flow,
    row: Row,
    kind: Kind,
    /// Whether the fault stays, or meets one request.
    stays: bool,
}

impl Case {
    fn name(&self) -> String {
        let often = if self.stays { "always" } else { "once" };
        let Row { method, path, occurrence } = &self.row;
        format!("{:?}: {:?} {often} at {method} {path} #{occurrence}", self.flow, self.kind)
    }
}

/// The rows of a flow: what it asks a BMC when nothing goes wrong.
async fn rows(flow: Flow) -> Vec<Row> {
    let bench = Bench::new(flow).await;
    let mut problems = bench.play().await;
    let mut bench = bench;
    for _ in 1..TRIES {
        if problems.is_empty() {
            break;
        }
        bench = Bench::new(flow).await;
        problems = bench.play().await;
    }
    assert!(problems.is_empty(), "{flow:?} without any fault: {problems:?}");
    bench.rows()
}

fn cases(flow: Flow, rows: &[Row], wanted: impl Fn(&Row, Kind, bool) -> bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for row in rows {
        for kind in Kind::ALL {
            for stays in [false, true] {
                if wanted(row, kind, stays) {
                    cases.push(Case { flow, row: row.clone(), kind, stays });
                }
            }
        }
    }
    cases
}

async fn check(case: Case) -> Option<String> {
    let (mut bench, mut problems) = (Bench::new(case.flow).await, Vec::new());
    for _ in 0..TRIES {
        bench.inject(&case.row, case.kind, case.stays);
        let played = tokio::time::timeout(Duration::from_mins(2), bench.play()).await;
        problems = played.unwrap_or_else(|_| vec!["did not end".to_owned()]);
        // On a computer that is busy, a limit may end before the request that the case is about. That shows nothing.
        if !problems.iter().any(|problem| problem.starts_with(judge::MISSED)) {
            break;
        }
        bench = Bench::new(case.flow).await;
    }
    if std::env::var("FAULT_CASE").is_ok() {
        println!("{}\n  {}\n{}", case.name(), problems.join("\n  "), bench.story());
    }
    (!problems.is_empty()).then(|| format!("{}\n  {}\n{}", case.name(), problems.join("\n  "), bench.story()))
}

async fn hold(flows: &[Flow], wanted: impl Fn(&Row, Kind, bool) -> bool) {
    let only = std::env::var("FAULT_CASE").ok();
    let mut all = Vec::new();
    for flow in flows {
        all.extend(cases(*flow, &rows(*flow).await, &wanted));
    }
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
    assert!(count > 0 || only.is_some(), "an empty matrix shows nothing");
}

/// Every change meets every fault once: the form for each run of the tests.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_change_is_made_twice_whatever_the_bmc_answers() {
    hold(&Flow::ALL, |row, kind, stays| row.changes() && !stays && kind.is_common()).await;
}

/// What a BMC answers for ever to a reset: one that was carried out is not sent again.
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

/// All of it; `make soak`.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "takes minutes: make soak"]
async fn the_whole_matrix() {
    hold(&Flow::ALL, |row, kind, _| row.changes() || kind.meets_reads()).await;
}
