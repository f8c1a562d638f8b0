//! Stress test: real processes share one coordination store and simulated BMCs, and are killed and
//! stopped at random. An independent checker judges the requests that reached the BMCs.
//!
//! Some runs also restore an old store and repair it like an operator, or isolate workers from
//! each other.
//!
//! `HAMMER_SECONDS`, `HAMMER_PROCESSES`, `HAMMER_SERVERS`, `HAMMER_SEED`, `HAMMER_LEASE_MS`,
//! `HAMMER_PAUSE_MS` and `HAMMER_URL` scale it, for example in the soak test. `HAMMER_LOG=info`
//! shows the workers' logs.
#![cfg(unix)]
#![allow(
    clippy::disallowed_methods,
    clippy::unchecked_time_subtraction,
    clippy::duration_suboptimal_units,
    reason = "tests measure real time"
)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod arena;
mod chaos;
mod checker;
mod epochs;
mod hidden;
mod journal;
mod past;
mod process;
mod restored;
mod run;
mod samples;
mod scene;
mod sizes;
mod strikes;
mod supervisor;
#[path = "../support/mod.rs"]
mod support;
mod tally;
mod wall;
mod worker;

use std::collections::{BTreeMap, BTreeSet};

use arena::Kind;
use checker::{Course, Rule, judge};
use epochs::judge_parts;
use scene::{Meanwhile, Scene};
use tally::Tally;
use tokio::sync::Semaphore;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the hammer"]
async fn a_worker() {
    Box::pin(worker::work()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_does_what_it_has_no_right_to_do_sqlite() {
    hammer(Kind::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_does_what_it_has_no_right_to_do_postgres() {
    hammer(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_does_what_it_has_no_right_to_do_kubernetes() {
    hammer(Kind::Kubernetes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_does_what_it_has_no_right_to_do_s3() {
    hammer(Kind::Bucket).await;
}

/// A lagging standby is promoted as the primary dies, so recent commits are lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_puts_lost_commits_in_order_postgres() {
    let tally = Box::pin(hammer_in(Scene { returns: vec![Meanwhile::Run], ..Scene::on(Kind::Postgres) })).await;
    assert!(tally.noticed > 0 && tally.marked > 0 && tally.undone > 0, "nothing was lost: {tally}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_puts_a_backup_in_order_sqlite() {
    let returns = vec![Meanwhile::Run, Meanwhile::Ended];
    let tally = Box::pin(hammer_in(Scene { returns, ..Scene::on(Kind::Sqlite) })).await;
    // `noticed` can be zero: a process with the old file open waits for it and is then killed.
    assert!(tally.marked > 0 && tally.undone > 0, "nothing was lost: {tally}");
}

/// A process that cannot be observed must not count as dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_takes_what_it_cannot_see_for_dead_sqlite() {
    let hidden = match hidden::Hidden::possible() {
        Ok(hidden) => hidden,
        Err(why) => {
            println!("skipped: hiding processes needs root and a separate mount namespace: {why}");
            return;
        }
    };
    let tally = Box::pin(hammer_in(Scene { hidden: Some(hidden), ..Scene::on(Kind::Sqlite) })).await;
    assert!(tally.hidden > 0, "no process was hidden: {tally}");
}

async fn hammer(kind: Kind) {
    let tally = Box::pin(hammer_in(Scene::on(kind))).await;
    assert!(tally.steps > 0, "the clock was never set: {tally}");
}

async fn hammer_in(scene: Scene) -> Tally {
    // With more parallel runs, slow leases expire and no live process remains to be killed.
    static AT_ONCE: Semaphore = Semaphore::const_new(2);
    let _permit = AT_ONCE.acquire().await.unwrap();
    // As in `main`.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let sizes = sizes::Sizes::from_environment().on(scene.kind);
    let (kind, plain) = (scene.kind, scene.is_plain());
    println!("HAMMER_SEED={}", sizes.seed);
    let run::Outcome { course, borders, tally, problems } = Box::pin(run::run(&sizes, scene)).await;
    println!("{kind:?}: {tally}");
    let faults: String = judge_parts(&course, &borders).iter().map(ToString::to_string).collect();
    assert!(faults.is_empty() && problems.is_empty(), "HAMMER_SEED={}\n{faults}{}", sizes.seed, problems.join("\n"));
    assert!(tally.is_telling(), "nothing happened: {tally}");
    if plain {
        the_checker_would_have_found_it(&course);
    }
    tally
}

/// The same run with swapped or missing lines must fail.
fn the_checker_would_have_found_it(course: &Course) {
    // Ignore the exceptions for stopped processes here.
    let course = &Course { caught: BTreeSet::new(), ..course.clone() };
    let rules = |course: &Course| judge(course).into_iter().map(|fault| fault.rule).collect::<Vec<_>>();
    let mut machines: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (place, line) in course.lines.iter().enumerate() {
        machines.entry(&line.system).or_default().push(place);
    }
    let hold = |place: usize| course.lines[place].account.rsplit_once('.').unwrap().0;
    let neighbours = || machines.values().flat_map(|places| places.windows(2)).map(|pair| (pair[0], pair[1]));
    let accepted = |place: usize| course.lines[place].accepted;
    let border = |(one, next): &(usize, usize)| hold(*one) != hold(*next) && accepted(*one) && accepted(*next);
    let (last, first) = neighbours().find(border).unwrap();
    let mut swapped = course.clone();
    (swapped.lines[last].at, swapped.lines[first].at) = (course.lines[first].at, course.lines[last].at);
    assert!(rules(&swapped).contains(&Rule::Exclusivity), "{:#?}", judge(&swapped));

    let mut forgotten = course.clone();
    forgotten.lines.remove(last);
    assert!(rules(&forgotten).contains(&Rule::Restore), "{:#?}", judge(&forgotten));

    let taken_over = |(one, next): &(usize, usize)| {
        hold(*one) == hold(*next) && course.lines[*one].account != course.lines[*next].account
    };
    if let Some((before, after)) = neighbours().find(taken_over) {
        let mut fenced = course.clone();
        (fenced.lines[before].at, fenced.lines[after].at) = (course.lines[after].at, course.lines[before].at);
        assert!(rules(&fenced).contains(&Rule::Fencing), "{:#?}", judge(&fenced));
    }
}
