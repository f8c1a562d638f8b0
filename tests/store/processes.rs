//! Store tests across real processes: this test binary starts itself as a child.

use std::{
    env,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use terraform_provider_metal::{
    clock::SystemClock,
    maintenance::{
        ids::Uid,
        lock::{Leases, ServerLock},
        queue::{Turn, turn},
        state::Phase,
    },
    settings::open_store,
    store::{RecordLookup, Store},
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use crate::{
    bench::{apply, finish, join, soon, try_admit},
    records::{AGING, key, request},
    support::{
        bucket::{self, Bucket},
        kubernetes::Kubernetes,
        postgres::Postgres,
    },
};

const URL: &str = "STORE_TEST_URL";
const NUMBER: &str = "STORE_TEST_NUMBER";

/// Starts an ignored test below as a separate process.
pub fn process(role: &str, url: &str, number: u32) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", &format!("processes::{role}"), "--ignored", "--nocapture", "--test-threads=1"])
        .env(URL, url)
        .env(NUMBER, number.to_string())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

async fn open(url: &str) -> Arc<dyn Store> {
    // As in `main`.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    open_store(Some(url), &bucket::environment(), Arc::new(SystemClock::default())).await.unwrap().0
}

/// Returns the store and number of a child process, or `None` outside a child.
async fn started_with() -> Option<(Arc<dyn Store>, u32)> {
    let url = env::var(URL).ok()?;
    Some((open(&url).await, env::var(NUMBER).unwrap().parse().unwrap()))
}

/// Creates an empty store of each shareable type, with the guards that keep it.
fn shared_stores() -> Vec<(String, Option<tempfile::TempDir>)> {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite://{}", folder.path().join("state/coordination.sqlite").display());
    let server = Postgres::shared();
    let database = server.url("postgres", &server.database());
    let cluster = Kubernetes::shared();
    let namespace = cluster.store(&cluster.namespace());
    let bucket = Bucket::shared().url(&Bucket::prefix());
    vec![(file, Some(folder)), (database, None), (namespace, None), (bucket, None)]
}

/// Lines with `<word>` in a process's output.
pub struct Said(Lines<BufReader<ChildStdout>>);

impl Said {
    pub fn by(child: &mut Child) -> Self {
        Self(BufReader::new(child.stdout.take().unwrap()).lines())
    }

    /// Returns the next such line, or `None` at the end.
    pub async fn next(&mut self, word: &str) -> Option<Vec<String>> {
        while let Some(line) = self.0.next_line().await.unwrap() {
            // The test harness prints the test's name before it, without a line break.
            if let Some((_, rest)) = line.split_once(&format!("<{word}>")) {
                return Some(rest.split_whitespace().map(str::to_owned).collect());
            }
        }
        None
    }

    pub async fn all(mut self, word: &str) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        while let Some(words) = self.next(word).await {
            found.push(words);
        }
        found
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by other tests"]
async fn writer() {
    let Some((store, number)) = started_with().await else { return };
    for n in 0.. {
        let wish = request(&format!("m{number}-{n}"), number);
        let (uid, generation) = join(&*store, &key("k"), &wish).await.unwrap();
        println!("<joined> {uid} {}", generation.generation);
        if try_admit(&*store, &key("k"), &uid, generation).await.unwrap() {
            finish(&*store, &key("k"), &uid, generation).await.unwrap();
            println!("<finished> {uid} {}", generation.generation);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_killed_in_the_middle_leaves_a_whole_store() {
    for (url, _folder) in shared_stores() {
        survives_killed_writers(&url).await;
    }
}

async fn survives_killed_writers(url: &str) {
    let mut last_generation = 0;
    for round in 0..6 {
        let mut child = process("writer", url, round);
        // Killed at a different time in each round.
        let mut said = Said::by(&mut child);
        let mut committed = Vec::new();
        for _ in 0..3 + 7 * round {
            committed.push(soon("writing", said.next("joined")).await.unwrap());
        }
        child.kill().await.unwrap();

        let store = open(url).await;
        let view = store.view(&key("k")).await.unwrap();
        for line in &committed {
            // Every reported commit is in the store.
            let uid = Uid::new(line[0].clone());
            let generation: u64 = line[1].parse().unwrap();
            let found = store.find_uid(&uid).await.unwrap().expect("a committed record is missing");
            assert!(matches!(&found, RecordLookup::Past(_)) || view.lock.get(&uid).is_some());
            assert!(generation > last_generation && generation <= view.lock.generation);
            last_generation = generation;
        }
        // The holder is an active record, and only the last request can be unfinished.
        if let Some(slot) = &view.lock.slot {
            assert!(view.lock.get(&slot.uid).is_some_and(|record| matches!(record.phase, Phase::InMaintenance { .. })));
        }
        last_generation = view.lock.generation;
        // The dead process left no lock behind, and its records can be cleaned up.
        for record in view.lock.active.clone() {
            store.resign(&record.attachment.as_ref().unwrap().runner.id).await.unwrap();
            let next = crate::records::runner(1000 + round);
            store.renew(&next, crate::records::TTL).await.unwrap();
            apply(&*store, &key("k"), |lock, leases, now| {
                let generation = lock.attach(&record.uid, next.clone(), crate::records::token(), leases, now)?;
                lock.finish(&record.uid, generation, &Phase::Failed { at: now, cause: "killed".into() }, now)
            })
            .await
            .unwrap();
            last_generation += 1;
        }
        store.close().await;
    }
    assert_eq!(open(url).await.contents().await.unwrap().violations(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by other tests"]
async fn opener() {
    let Some((store, number)) = started_with().await else { return };
    println!("<opened> {}", store.id());
    for n in 0..5 {
        let wish = request(&format!("m{number}-{n}"), number);
        join(&*store, &key("k"), &wish).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_may_open_it_for_the_first_time_at_once() {
    for (url, _folder) in shared_stores().into_iter().chain(shared_stores()) {
        let mut children: Vec<_> = (0..8).map(|n| process("opener", &url, n)).collect();
        let mut ids = Vec::new();
        for child in &mut children {
            ids.extend(soon("opening", Said::by(child).all("opened")).await);
            assert!(soon("a process exit", child.wait()).await.unwrap().success());
        }
        ids.dedup();
        assert_eq!((ids.len(), ids[0].len()), (1, 1), "the processes opened different stores: {ids:?}");
        let view = open(&url).await.view(&key("k")).await.unwrap();
        let mut tickets: Vec<_> = view.lock.active.iter().map(|record| record.ticket_number).collect();
        tickets.sort_unstable();
        assert_eq!(tickets, (1..=40).collect::<Vec<_>>());
        assert_eq!((view.lock.generation, view.leases.0.len()), (40, 8));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by other tests"]
async fn holder() {
    let Some((store, number)) = started_with().await else { return };
    let key = key("k");
    let mut changes = store.changes(&key);
    for n in 0..4 {
        let (uid, generation) = join(&*store, &key, &request(&format!("m{number}-{n}"), number)).await.unwrap();
        loop {
            changes.mark_unchanged();
            let view = store.view(&key).await.unwrap();
            let mine = turn(&view.lock, &view.leases, &uid, AGING, view.now) == Turn::Yours;
            if mine && try_admit(&*store, &key, &uid, generation).await.unwrap() {
                break;
            }
            changes.changed().await.unwrap();
        }
        let from = Timestamp::now();
        tokio::task::yield_now().await;
        println!("<held> {} {}", from.as_nanosecond(), Timestamp::now().as_nanosecond());
        finish(&*store, &key, &uid, generation).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_hold_one_server_strictly_one_after_the_other() {
    for (url, _folder) in shared_stores() {
        strictly_one_after_the_other(&url).await;
    }
}

async fn strictly_one_after_the_other(url: &str) {
    let mut children: Vec<_> = (0..4).map(|n| process("holder", url, n)).collect();
    let mut holds: Vec<(i128, i128)> = Vec::new();
    for child in &mut children {
        for line in soon("holding", Said::by(child).all("held")).await {
            holds.push((line[0].parse().unwrap(), line[1].parse().unwrap()));
        }
        assert!(soon("a process exit", child.wait()).await.unwrap().success());
    }
    holds.sort_unstable();
    assert_eq!(holds.len(), 16);
    for pair in holds.windows(2) {
        assert!(pair[0].1 < pair[1].0, "two holders at the same time: {pair:?}");
    }
    let hand_over: Vec<_> = holds.windows(2).map(|pair| (pair[1].0 - pair[0].1) / 1_000_000).collect();
    println!("{url}: hand-over in ms: {hand_over:?}");
}

/// A stopped process never blocks a shared store, wherever it stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_writer_holds_up_nobody() {
    for (url, _folder) in shared_stores().into_iter().filter(|(url, _)| !url.starts_with("sqlite")) {
        let store = open(&url).await;
        let mut child = process("writer", &url, 1);
        let mut said = Said::by(&mut child);
        soon("writing", said.next("joined")).await.unwrap();
        let pid = rustix::process::Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
        let mut slowest = Duration::ZERO;
        for n in 0..40 {
            rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
            let began = Instant::now();
            let change = |lock: &mut ServerLock, _: &Leases, _| {
                lock.generation += 1;
                Ok(())
            };
            soon("a transaction while another process is stopped", apply(&*store, &key("k"), change)).await.unwrap();
            slowest = slowest.max(began.elapsed());
            rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
            // It continues, to be stopped elsewhere.
            for _ in 0..n % 4 {
                soon("writing", said.next("joined")).await.unwrap();
            }
        }
        println!("{url}: the slowest took {slowest:?}");
        child.kill().await.unwrap();
    }
}
