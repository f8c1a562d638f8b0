//! The embedded store between real processes: this test binary starts itself again.

use std::{env, path::Path, process::Stdio, sync::Arc};

use jiff::Timestamp;
use terraform_provider_metal::{
    clock::SystemClock,
    maintenance::{
        ids::Uid,
        queue::{Turn, turn},
        state::Phase,
    },
    store::{Found, SqliteOptions, SqliteStore, Store},
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use crate::{
    bench::{apply, finish, join, soon, try_admit},
    records::{AGING, key, request},
};

const PATH: &str = "STORE_TEST_PATH";
const NUMBER: &str = "STORE_TEST_NUMBER";

/// Starts one of the ignored tests below as a process of its own.
fn process(role: &str, path: &Path, number: u32) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", &format!("processes::{role}"), "--ignored", "--nocapture", "--test-threads=1"])
        .env(PATH, path)
        .env(NUMBER, number.to_string())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

async fn open(path: &Path) -> SqliteStore {
    SqliteStore::open(path, Arc::new(SystemClock::default()), SqliteOptions::default()).await.unwrap()
}

/// The store and the number that this process was started with; `None` when nobody started it on purpose.
async fn started_with() -> Option<(SqliteStore, u32)> {
    let path = env::var_os(PATH)?;
    Some((open(Path::new(&path)).await, env::var(NUMBER).unwrap().parse().unwrap()))
}

/// What a process says on its lines with `<word>`.
struct Said(Lines<BufReader<ChildStdout>>);

impl Said {
    fn by(child: &mut Child) -> Self {
        Self(BufReader::new(child.stdout.take().unwrap()).lines())
    }

    /// The next such line; `None` when it ended.
    async fn next(&mut self, word: &str) -> Option<Vec<String>> {
        while let Some(line) = self.0.next_line().await.unwrap() {
            // The test harness writes the test's name without a line end before it.
            if let Some((_, rest)) = line.split_once(&format!("<{word}>")) {
                return Some(rest.split_whitespace().map(str::to_owned).collect());
            }
        }
        None
    }

    async fn all(mut self, word: &str) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        while let Some(words) = self.next(word).await {
            found.push(words);
        }
        found
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process that the other tests start"]
async fn writer() {
    let Some((store, number)) = started_with().await else { return };
    for n in 0.. {
        let wish = request(&format!("m{number}-{n}"), number);
        let (uid, generation) = join(&store, &key("k"), &wish).await.unwrap();
        println!("<joined> {uid} {generation}");
        if try_admit(&store, &key("k"), &uid, generation).await.unwrap() {
            finish(&store, &key("k"), &uid, generation).await.unwrap();
            println!("<finished> {uid} {generation}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_killed_in_the_middle_leaves_a_whole_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordination.sqlite");
    let mut last_generation = 0;
    for round in 0..6 {
        let mut child = process("writer", &path, round);
        // Killed at another moment each time.
        let mut said = Said::by(&mut child);
        let mut committed = Vec::new();
        for _ in 0..3 + 7 * round {
            committed.push(soon("writing", said.next("joined")).await.unwrap());
        }
        child.kill().await.unwrap();

        let store = open(&path).await;
        let view = store.view(&key("k")).await.unwrap();
        for line in &committed {
            // What was said to be stored is stored.
            let uid = Uid(line[0].clone());
            let generation: u64 = line[1].parse().unwrap();
            let found = store.find_uid(&uid).await.unwrap().expect("a committed record is gone");
            assert!(matches!(&found, Found::Past(_)) || view.lock.get(&uid).is_some());
            assert!(generation > last_generation && generation <= view.lock.generation);
            last_generation = generation;
        }
        // The slot is that of an active record, and only the last request can be unfinished.
        if let Some(slot) = &view.lock.slot {
            assert!(view.lock.get(&slot.uid).is_some_and(|record| matches!(record.phase, Phase::InMaintenance { .. })));
        }
        last_generation = view.lock.generation;
        // Nothing keeps it locked, and it can be cleaned up: the dead process is gone for good.
        for record in view.lock.active.clone() {
            store.resign(&record.attachment.as_ref().unwrap().runner.id).await.unwrap();
            let next = crate::records::runner(1000 + round);
            store.renew(&next, crate::records::TTL).await.unwrap();
            apply(&store, &key("k"), |lock, leases, now| {
                let generation = lock.attach(&record.uid, next.clone(), leases, now)?;
                lock.finish(&record.uid, generation, &Phase::Failed { at: now, cause: "killed".into() }, now)
            })
            .await
            .unwrap();
            last_generation += 1;
        }
        store.close().await;
    }
    let mut db = {
        use sqlx::ConnectOptions as _;
        sqlx::sqlite::SqliteConnectOptions::new().filename(&path).connect().await.unwrap()
    };
    let check: String = sqlx::query_scalar("PRAGMA integrity_check").fetch_one(&mut db).await.unwrap();
    assert_eq!(check, "ok");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process that the other tests start"]
async fn opener() {
    let Some((store, number)) = started_with().await else { return };
    println!("<opened> {}", store.id());
    for n in 0..5 {
        let wish = request(&format!("m{number}-{n}"), number);
        join(&store, &key("k"), &wish).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_may_open_it_for_the_first_time_at_once() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let path = folder.path().join(format!("{round}/coordination.sqlite"));
        let mut children: Vec<_> = (0..8).map(|n| process("opener", &path, n)).collect();
        let mut ids = Vec::new();
        for child in &mut children {
            ids.extend(soon("opening", Said::by(child).all("opened")).await);
            assert!(soon("the end of a process", child.wait()).await.unwrap().success());
        }
        ids.dedup();
        assert_eq!((ids.len(), ids[0].len()), (1, 1), "one store: {ids:?}");
        let view = open(&path).await.view(&key("k")).await.unwrap();
        let mut tickets: Vec<_> = view.lock.active.iter().map(|record| record.ticket_number).collect();
        tickets.sort_unstable();
        assert_eq!(tickets, (1..=40).collect::<Vec<_>>());
        assert_eq!((view.lock.generation, view.leases.0.len()), (40, 8));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process that the other tests start"]
async fn holder() {
    let Some((store, number)) = started_with().await else { return };
    let key = key("k");
    let mut changes = store.changes(&key);
    for n in 0..4 {
        let (uid, generation) = join(&store, &key, &request(&format!("m{number}-{n}"), number)).await.unwrap();
        loop {
            changes.mark_unchanged();
            let view = store.view(&key).await.unwrap();
            let mine = turn(&view.lock, &view.leases, &uid, AGING, view.now) == Turn::Yours;
            if mine && try_admit(&store, &key, &uid, generation).await.unwrap() {
                break;
            }
            changes.changed().await.unwrap();
        }
        let from = Timestamp::now();
        tokio::task::yield_now().await;
        println!("<held> {} {}", from.as_nanosecond(), Timestamp::now().as_nanosecond());
        finish(&store, &key, &uid, generation).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_hold_one_server_strictly_one_after_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordination.sqlite");
    let mut children: Vec<_> = (0..4).map(|n| process("holder", &path, n)).collect();
    let mut holds: Vec<(i128, i128)> = Vec::new();
    for child in &mut children {
        for line in soon("holding", Said::by(child).all("held")).await {
            holds.push((line[0].parse().unwrap(), line[1].parse().unwrap()));
        }
        assert!(soon("the end of a process", child.wait()).await.unwrap().success());
    }
    holds.sort_unstable();
    assert_eq!(holds.len(), 16);
    for pair in holds.windows(2) {
        assert!(pair[0].1 < pair[1].0, "two held at once: {pair:?}");
    }
    let hand_over: Vec<_> = holds.windows(2).map(|pair| (pair[1].0 - pair[0].1) / 1_000_000).collect();
    println!("hand-over in ms: {hand_over:?}");
}
