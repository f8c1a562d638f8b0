//! The processes as the supervisor sees them: started, told, listened to, stopped, killed.

use std::{
    process::{Command as Program, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, Command},
    sync::mpsc::UnboundedSender,
    time::Instant,
};

use crate::worker::{LOOK, Order};

/// What a process did.
#[derive(Debug)]
pub enum Event {
    /// It said `<word>`, and more.
    Said(u64, String, String),
    /// Its output ended.
    Gone(u64),
    /// It is stopped, and another one has begun to change the machine in its place.
    Overtaken(u64),
}

/// A process and what it works on.
#[derive(Debug)]
pub struct Process {
    pub pid: u32,
    pub order: Option<Order>,
    /// Until when it is stopped.
    pub stopped: Option<Instant>,
    /// Since when it is stopped, or was stopped last.
    pub stopped_at: Option<Instant>,
    /// When it is told to give its server back.
    pub release_at: Option<Instant>,
    /// Whether it was asked to look and did not say yet that it did.
    pub looks: bool,
    /// Whether it was killed by us.
    pub killed: bool,
    child: Child,
    input: Option<ChildStdin>,
}

impl Process {
    /// Starts a test binary, mostly this one again, as a worker.
    pub fn start(number: u64, program: Program, settings: &[(&str, String)], events: UnboundedSender<Event>) -> Self {
        let mut child = Command::from(program)
            .args(["--exact", "a_worker", "--ignored", "--nocapture", "--test-threads=1"])
            .envs(settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                // The test harness writes the test's name without a line end before the first word.
                if let Some((word, rest)) = line.split_once('<').and_then(|(_, rest)| rest.split_once('>')) {
                    let _ = events.send(Event::Said(number, word.to_owned(), rest.trim().to_owned()));
                }
            }
            let _ = events.send(Event::Gone(number));
        });
        Self {
            pid: child.id().unwrap(),
            order: None,
            stopped: None,
            stopped_at: None,
            release_at: None,
            looks: false,
            killed: false,
            input: child.stdin.take(),
            child,
        }
    }

    /// Tells it one line. One that is dead hears nothing, which its end tells.
    pub async fn tell(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            let _ = input.write_all(format!("{line}\n").as_bytes()).await;
        }
    }

    /// Gives it an order.
    pub async fn order(&mut self, order: Order) {
        self.tell(&order.text()).await;
        self.order = Some(order);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid.try_into().unwrap()).unwrap();
        // It is our child and nobody waited for it yet, so its number is its own.
        kill_process(pid, signal).unwrap();
    }

    pub fn kill(&mut self) {
        self.killed = true;
        self.signal(Signal::KILL);
    }

    /// Stops it and returns when it stands still, with all its threads.
    pub async fn stop(&mut self, until: Instant) {
        self.signal(Signal::STOP);
        self.stopped = Some(until);
        self.stopped_at = Some(Instant::now());
        let pid = Pid::from_raw(self.pid.try_into().unwrap()).unwrap();
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        tokio::task::spawn_blocking(move || waitid(WaitId::Pid(pid), options)).await.unwrap().unwrap();
    }

    /// Asks it to read everything in the store, and to say so.
    pub async fn look(&mut self) {
        self.looks = true;
        self.tell(LOOK).await;
    }

    pub fn go_on(&mut self) {
        self.stopped = None;
        self.signal(Signal::CONT);
    }

    /// Tells it that nothing more comes; it ends by itself.
    pub fn dismiss(&mut self) {
        self.input = None;
    }

    /// Whether more may be told.
    pub fn is_dismissed(&self) -> bool {
        self.input.is_none()
    }

    /// Waits for its end; what is wrong with it, if it was not our doing.
    pub async fn end(mut self) -> Option<String> {
        let status = tokio::time::timeout(Duration::from_secs(20), self.child.wait()).await;
        match status {
            Ok(Ok(status)) if self.killed || status.success() => None,
            other => {
                Some(format!("process {} ended by itself while it worked on {:?}: {other:?}", self.pid, self.order))
            }
        }
    }
}
