//! Worker processes from the supervisor's side: start, orders, output, stop, kill.

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

/// A process event.
#[derive(Debug)]
pub enum Event {
    /// It printed `<word>` with further text.
    Said(u64, String, String),
    /// Its output ended.
    Gone(u64),
    /// It is stopped, and another process has started to change the machine.
    Overtaken(u64),
}

/// A process and its order.
#[derive(Debug)]
pub struct Process {
    pub pid: u32,
    pub order: Option<Order>,
    /// End of the current stop.
    pub stopped: Option<Instant>,
    /// Start of the current or last stop.
    pub stopped_at: Option<Instant>,
    /// Time of its release order.
    pub release_at: Option<Instant>,
    /// True while a `look` order is pending.
    pub looks: bool,
    /// True if the supervisor killed it.
    pub killed: bool,
    child: Child,
    input: Option<ChildStdin>,
}

impl Process {
    /// Starts a test binary as a worker, usually this binary.
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
                // The test harness prints the test's name before the first word, without a line
                // break.
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

    /// Sends one line. A dead process is detected when its output ends.
    pub async fn tell(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            let _ = input.write_all(format!("{line}\n").as_bytes()).await;
        }
    }

    /// Sends an order.
    pub async fn order(&mut self, order: Order) {
        self.tell(&order.text()).await;
        self.order = Some(order);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid.try_into().unwrap()).unwrap();
        // The child was not waited for, so its process ID cannot have been reused.
        kill_process(pid, signal).unwrap();
    }

    pub fn kill(&mut self) {
        self.killed = true;
        self.signal(Signal::KILL);
    }

    /// Stops the process and returns after all its threads have stopped.
    pub async fn stop(&mut self, until: Instant) {
        self.signal(Signal::STOP);
        self.stopped = Some(until);
        self.stopped_at = Some(Instant::now());
        let pid = Pid::from_raw(self.pid.try_into().unwrap()).unwrap();
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        tokio::task::spawn_blocking(move || waitid(WaitId::Pid(pid), options)).await.unwrap().unwrap();
    }

    /// Orders it to read everything in the store and to confirm.
    pub async fn look(&mut self) {
        self.looks = true;
        self.tell(LOOK).await;
    }

    pub fn go_on(&mut self) {
        self.stopped = None;
        self.signal(Signal::CONT);
    }

    /// Closes its input, after which it exits.
    pub fn dismiss(&mut self) {
        self.input = None;
    }

    /// Returns true if its input is closed.
    pub fn is_dismissed(&self) -> bool {
        self.input.is_none()
    }

    /// Waits for its exit. Returns the error if it failed without being killed.
    pub async fn end(mut self) -> Option<String> {
        let status = tokio::time::timeout(Duration::from_secs(20), self.child.wait()).await;
        match status {
            Ok(Ok(status)) if self.killed || status.success() => None,
            other => {
                Some(format!("process {} exited unexpectedly while it worked on {:?}: {other:?}", self.pid, self.order))
            }
        }
    }
}
