//! Waiting processes: this program, started as a child, opens the store and executes lines of
//! input.
use std::{process::Stdio, sync::Arc};

use futures_util::StreamExt as _;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::{
    stores::{self, key, runner},
    stores_lock::{admit, finish, join, keep_alive, request},
};

/// Environment variable that turns this program into a waiter: process number and store.
pub const ROLE: &str = "METAL_BENCH_STORE_WORKER";

/// Number of processes that share the waiters.
pub const PROCESSES: usize = 8;

/// Parallel requests per process, the default parallelism of a host.
const AT_ONCE: usize = 10;

/// Nanoseconds of the monotonic clock, which all processes of this machine share.
pub fn monotonic() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Times of an admission and of the release's start and end.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    pub admitted: i64,
    pub ends: i64,
    pub ended: i64,
}

/// Runs in the child: waits as often as ordered, until its input ends.
pub async fn run(task: &str) {
    let (number, url) = task.split_once(' ').unwrap();
    let number: usize = number.parse().unwrap();
    let (store, runner) = (stores::open(url).await, runner(number));
    let _heart = keep_alive(Arc::clone(&store), runner.clone()).await;
    println!("open");
    let mut told = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = told.next_line().await.unwrap() {
        let (name, waiters) = line.split_once(' ').unwrap();
        let (lock, waiters) = (key(name), waiters.parse::<usize>().unwrap());
        let joining = futures_util::stream::iter(0..waiters).map(async |waiter| {
            let place = join(&*store, &lock, &request(&format!("{name}-{number}-{waiter}"), &runner)).await;
            // The wait starts after the request was queued.
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                admit(&store, &place).await;
                let admitted = monotonic();
                let ends = monotonic();
                finish(&*store, &place).await;
                println!("held {admitted} {ends} {}", monotonic());
            });
        });
        joining.buffer_unordered(AT_ONCE).collect::<()>().await;
        println!("joined");
    }
}

/// Handle of a child process. Dropping it ends the child.
pub struct Worker {
    pub child: Child,
    tell: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    async fn start(number: usize, url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, format!("{number} {url}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (tell, said) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
        let mut this = Self { child, tell, said };
        assert_eq!(this.hears().await, "open");
        this
    }

    async fn hears(&mut self) -> String {
        self.said.next_line().await.unwrap().expect("the worker continues")
    }

    /// Starts this many waits.
    async fn wait(&mut self, lock: &str, waiters: usize) {
        self.tell.write_all(format!("{lock} {waiters}\n").as_bytes()).await.unwrap();
        assert_eq!(self.hears().await, "joined");
    }

    /// Returns the next hold.
    async fn held(&mut self) -> Hold {
        let line = self.hears().await;
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some("held"), "{line}");
        let mut number = || words.next().unwrap().parse().unwrap();
        Hold { admitted: number(), ends: number(), ended: number() }
    }
}

pub struct Crowd(pub Vec<Worker>);

impl Crowd {
    pub async fn start(url: &str) -> Self {
        let mut workers = Vec::new();
        for number in 1..=PROCESSES {
            workers.push(Worker::start(number, url).await);
        }
        Self(workers)
    }

    /// Starts waits in all processes for one held lock. `round` rotates the remainder of the
    /// division.
    pub async fn wait(&mut self, lock: &str, waiters: usize, round: usize) {
        let share = |n: usize| waiters / PROCESSES + usize::from((n + round) % PROCESSES < waiters % PROCESSES);
        let all = self.0.iter_mut().enumerate().map(|(n, worker)| worker.wait(lock, share(n)));
        futures_util::future::join_all(all).await;
    }

    /// Returns the next holds of all processes, in order.
    pub async fn holds(&mut self, most: usize) -> Vec<Hold> {
        let mut holds = Vec::new();
        while holds.len() < most {
            let all = self.0.iter_mut().map(|worker| Box::pin(worker.held()));
            holds.push(futures_util::future::select_all(all).await.0);
        }
        holds.sort_unstable_by_key(|hold| hold.admitted);
        holds
    }

    pub fn pids(&self) -> Vec<u32> {
        self.0.iter().map(|worker| worker.child.id().unwrap()).collect()
    }
}
