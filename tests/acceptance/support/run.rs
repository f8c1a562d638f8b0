//! A host run and its output.

use std::{
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    task::JoinHandle,
    time::timeout,
};

use super::{
    process::{self, Signal},
    provider,
    wait::eventually,
};

/// A finished run.
#[derive(Debug)]
pub struct Run {
    /// Command line, for messages.
    pub command: String,
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Standard output and standard error, interleaved by arrival.
    pub output: String,
    /// Host log with the provider's lines (INFO and above).
    pub log: String,
    /// Duration from start to exit.
    pub took: Duration,
}

impl Run {
    /// # Panics
    /// If the run failed. The message contains the whole output.
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert!(self.status.success(), "{} ended with {}:\n{}", self.command, self.status, self.output);
        self
    }

    /// # Panics
    /// If the run succeeded.
    #[track_caller]
    pub fn failed(self) -> Self {
        assert!(!self.status.success(), "{} succeeded unexpectedly:\n{}", self.command, self.output);
        self
    }

    /// Returns the output as one line of words, because hosts frame and wrap diagnostics. All of
    /// stdout precedes stderr, so that the two streams never split a sentence.
    pub fn words(&self) -> String {
        [words(&self.stdout), words(&self.stderr)].join(" ")
    }

    /// # Panics
    /// If the output lacks the sentence. Line breaks and frames are ignored.
    #[track_caller]
    pub fn says(&self, sentence: &str) -> &Self {
        assert!(self.words().contains(&words(sentence)), "{} lacks {sentence:?}:\n{}", self.command, self.output);
        self
    }

    /// # Panics
    /// If the output contains the sentence.
    #[track_caller]
    pub fn is_silent_about(&self, sentence: &str) -> &Self {
        assert!(!self.words().contains(&words(sentence)), "{} said {sentence:?}:\n{}", self.command, self.output);
        self
    }
}

fn words(text: &str) -> String {
    text.split(|c: char| c.is_whitespace() || "│╷╵".contains(c))
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

#[derive(Debug, Default)]
struct Said {
    stdout: String,
    stderr: String,
    output: String,
}

/// A running host in its own process group. Dropping it kills the group.
#[derive(Debug)]
pub struct Running {
    child: Child,
    pid: u32,
    command: String,
    log: PathBuf,
    said: Arc<Mutex<Said>>,
    readers: Vec<JoinHandle<()>>,
    since: Instant,
    /// Counts the user's running hosts.
    _of_user: Arc<()>,
}

impl Running {
    /// Starts `command`, with `log` as the host's log file.
    pub(super) fn start(mut command: Command, log: PathBuf, of_user: Arc<()>) -> Self {
        let name = format!("{:?}", command.as_std());
        let since = Instant::now();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let pid = child.id().expect("just started");
        let said = Arc::new(Mutex::new(Said::default()));
        let stdout = child.stdout.take().expect("piped");
        let stderr = child.stderr.take().expect("piped");
        let readers = vec![
            tokio::spawn(collect(stdout, Arc::clone(&said), true)),
            tokio::spawn(collect(stderr, Arc::clone(&said), false)),
        ];
        Self { child, pid, command: name, log, said, readers, since, _of_user: of_user }
    }

    /// Returns the process ID of the host, which is also its group ID.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the output so far.
    pub fn output(&self) -> String {
        lock(&self.said).output.clone()
    }

    /// Returns the current log of host and provider.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the output contains `text`.
    pub async fn until_it_says(&self, text: &str, limit: Duration) {
        self.until("output", text, limit, || self.output()).await;
    }

    /// Waits until the log contains `text`, and returns the first matching line.
    pub async fn until_it_logs(&self, text: &str, limit: Duration) -> String {
        self.until("log", text, limit, || self.log()).await;
        let log = self.log();
        let line = log.lines().find(|line| line.contains(text));
        line.unwrap_or_default().to_owned()
    }

    /// Waits until the log contains one of these texts or the run ends. A run about to be killed
    /// can overtake the test.
    pub async fn until_it_logs_one_of_or_ends(&self, texts: &[&str], limit: Duration) {
        let reached = || texts.iter().any(|text| self.log().contains(text));
        eventually(&format!("one of {texts:?} in the log"), limit, async || {
            (reached() || !process::is_alive(self.pid)).then_some(())
        })
        .await;
    }

    async fn until(&self, place: &str, text: &str, limit: Duration, read: impl Fn() -> String) {
        let end = Instant::now() + limit;
        eventually(&format!("{text:?} in the {place}"), limit + Duration::from_secs(1), async || {
            if read().contains(text) {
                return Some(());
            }
            let over = !process::is_alive(self.pid) || Instant::now() > end;
            // Read again, because the text can arrive between the last read and the exit.
            assert!(
                !over || read().contains(text),
                "{} did not write {text:?} to its {place}:\n{}\nlog:\n{}",
                self.command,
                self.output(),
                self.log()
            );
            None
        })
        .await;
    }

    /// Returns this run's live provider processes.
    pub fn providers(&self) -> Vec<u32> {
        let ours = provider::binary();
        let mut found = process::descendants(self.pid);
        found.retain(|pid| process::program(*pid).is_some_and(|program| program == ours));
        found
    }

    /// Sends SIGINT to the host alone, like a CI runner that stops a job.
    pub fn interrupt(&self) {
        process::signal(self.pid, Signal::INT);
    }

    /// Sends SIGINT to the host and its children, like Ctrl-C in a terminal.
    pub fn interrupt_from_terminal(&self) {
        process::signal_group(self.pid, Signal::INT);
    }

    /// Sends SIGTERM to the host.
    pub fn terminate(&self) {
        process::signal(self.pid, Signal::TERM);
    }

    /// Kills the host with SIGKILL; its children continue.
    pub fn kill_host(&self) {
        process::signal(self.pid, Signal::KILL);
    }

    /// Kills only the provider processes. Returns their number.
    pub fn kill_providers(&self) -> usize {
        let providers = self.providers();
        let killed = providers.iter().copied();
        killed.filter(|p| process::signal(*p, Signal::KILL)).count()
    }

    /// Kills the host and all its children together, as if the machine failed.
    ///
    /// Returns after the host has exited and thereby released its state lock.
    pub fn kill_everything(&self) {
        process::signal_group(self.pid, Signal::KILL);
        process::wait_for_end(self.pid);
    }

    /// Waits for the exit.
    ///
    /// # Panics
    /// If the run does not end within `limit`.
    pub async fn wait(mut self, limit: Duration) -> Run {
        let Ok(status) = timeout(limit, self.child.wait()).await else {
            panic!("{} still runs after {limit:?}:\n{}\nlog:\n{}", self.command, self.output(), self.log());
        };
        let status = status.expect("a child can be waited for");
        let took = self.since.elapsed();
        for reader in &mut self.readers {
            // A child that outlives the killed host can keep the pipe open; use the output read so
            // far.
            if timeout(Duration::from_secs(10), &mut *reader).await.is_err() {
                reader.abort();
            }
        }
        let said = std::mem::take(&mut *lock(&self.said));
        let Said { stdout, stderr, output } = said;
        Run { command: self.command.clone(), status, stdout, stderr, output, log: self.log(), took }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The group belongs to this run alone. After a clean exit it is empty unless a child
        // survived.
        process::signal_group(self.pid, Signal::KILL);
    }
}

fn lock(said: &Mutex<Said>) -> MutexGuard<'_, Said> {
    said.lock().expect("no reader panics")
}

async fn collect(from: impl AsyncRead + Unpin, said: Arc<Mutex<Said>>, is_stdout: bool) {
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).await.is_ok_and(|n| n > 0) {
        let text = String::from_utf8_lossy(&line);
        let mut said = lock(&said);
        said.output.push_str(&text);
        if is_stdout { &mut said.stdout } else { &mut said.stderr }.push_str(&text);
        drop(said);
        line.clear();
    }
}
