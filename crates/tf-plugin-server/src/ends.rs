//! Causes of the process's end: the host's request, a signal, or the host's death.
use std::{pin::pin, time::Duration};

use tokio::{sync::watch, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::PluginError;

/// Hosts kill the process two seconds after their shutdown request.
const AFTER_SHUTDOWN: Duration = Duration::from_millis(1500);
/// How soon a host's death is detected after its connection closes.
const HOST_CHECK: Duration = Duration::from_millis(250);
/// How long the process stays without a connection if the host's death cannot be detected. A live
/// host closes a connection that was idle for half an hour, and opens another for its next request.
#[cfg(any(not(unix), test))]
const LINGER: Duration = Duration::from_hours(24);

/// Sources that can end the process.
pub(super) struct Ends {
    signals: Signals,
    /// Number of open connections.
    pub connections: watch::Sender<usize>,
    /// PID of the process that started this process.
    #[cfg(unix)]
    parent: u32,
    debug: bool,
}

/// A received signal.
enum Received {
    /// From a terminal, which also sends it to the host.
    Terminal(&'static str),
    /// A request for this process to end.
    Terminate(&'static str),
}

impl Ends {
    /// Installs signal handlers.
    pub fn watch(debug: bool) -> Result<Self, PluginError> {
        // A debugged provider does not require a certificate, which requires a socket in a
        // private folder.
        if debug && cfg!(not(unix)) {
            return Err(PluginError::DebugNeedsUnix);
        }
        Ok(Self {
            signals: Signals::handle().map_err(PluginError::Signals)?,
            connections: watch::Sender::new(0),
            #[cfg(unix)]
            parent: std::os::unix::process::parent_id(),
            debug,
        })
    }

    /// Waits for a reason to end. Returns the time limit for running requests.
    pub async fn first(
        &mut self,
        asked: &CancellationToken,
        requests: &TaskTracker,
        finish_within: Duration,
    ) -> Duration {
        let connections = self.connections.subscribe();
        #[cfg(unix)]
        let gone = {
            let _ = requests;
            host_gone(connections, self.parent)
        };
        #[cfg(not(unix))]
        let gone = host_silent(connections, requests);
        let mut gone = pin!(gone);
        loop {
            tokio::select! {
                // While debugging, only the person at the terminal decides.
                () = asked.cancelled(), if !self.debug => return AFTER_SHUTDOWN,
                () = &mut gone, if !self.debug => {
                    tracing::warn!("the host has exited: ending");
                    return finish_within;
                }
                received = self.signals.next() => match received {
                    Received::Terminal(_) if self.debug => return finish_within,
                    Received::Terminal(name) => tracing::debug!("{name} ignored; the host decides"),
                    Received::Terminate(name) => {
                        tracing::info!("{name}: ending");
                        return finish_within;
                    }
                },
            }
        }
    }
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn handle() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> Received {
        tokio::select! {
            _ = self.interrupt.recv() => Received::Terminal("SIGINT"),
            _ = self.hangup.recv() => Received::Terminal("SIGHUP"),
            _ = self.terminate.recv() => Received::Terminate("SIGTERM"),
        }
    }
}

#[cfg(windows)]
struct Signals {
    interrupt: tokio::signal::windows::CtrlC,
    pause: tokio::signal::windows::CtrlBreak,
    close: tokio::signal::windows::CtrlClose,
    shutdown: tokio::signal::windows::CtrlShutdown,
}

#[cfg(windows)]
impl Signals {
    fn handle() -> std::io::Result<Self> {
        use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown};
        Ok(Self { interrupt: ctrl_c()?, pause: ctrl_break()?, close: ctrl_close()?, shutdown: ctrl_shutdown()? })
    }

    async fn next(&mut self) -> Received {
        tokio::select! {
            _ = self.interrupt.recv() => Received::Terminal("Ctrl-C"),
            _ = self.pause.recv() => Received::Terminal("Ctrl-Break"),
            _ = self.close.recv() => Received::Terminate("the console was closed"),
            _ = self.shutdown.recv() => Received::Terminate("the system shuts down"),
        }
    }
}

/// Returns when all connections are closed and the parent process has changed.
///
/// A killed host cannot send a shutdown request. Without this check, a queued create would be
/// admitted for a dead host.
#[cfg(unix)]
async fn host_gone(mut connections: watch::Receiver<usize>, host: u32) {
    loop {
        if connections.wait_for(|open| *open == 0).await.is_err() || std::os::unix::process::parent_id() != host {
            return;
        }
        // Check again after a delay or a new connection.
        let _ = timeout(HOST_CHECK, connections.changed()).await;
    }
}

/// Returns when requests run without a connection for their answers, or after a day without a
/// connection. Used on systems that do not report a parent's death (Windows).
#[cfg(any(not(unix), test))]
async fn host_silent(mut connections: watch::Receiver<usize>, requests: &TaskTracker) {
    loop {
        if connections.wait_for(|open| *open == 0).await.is_err() {
            return;
        }
        let mut silent = Duration::ZERO;
        while timeout(HOST_CHECK, connections.changed()).await.is_err() {
            silent += HOST_CHECK;
            if !requests.is_empty() || silent >= LINGER {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host can close its connection between two requests, but not during a request.
    #[tokio::test(start_paused = true)]
    async fn a_lost_connection_ends_the_process_only_while_a_request_runs() {
        let (connections, requests) = (watch::Sender::new(1), TaskTracker::new());
        let mut silent = pin!(host_silent(connections.subscribe(), &requests));
        let mut ended = async |after| timeout(after, &mut silent).await.is_ok();
        let request = requests.token();
        assert!(!ended(Duration::from_hours(30)).await, "it is connected");
        drop(request);
        connections.send_replace(0);
        assert!(!ended(Duration::from_hours(1)).await, "idle");
        connections.send_replace(1);
        assert!(!ended(Duration::from_hours(30)).await, "connected again");
        connections.send_replace(0);
        assert!(!ended(Duration::from_hours(1)).await, "idle again");
        let _request = requests.token();
        assert!(ended(HOST_CHECK * 2).await, "an answer that no connection will bring");
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_no_host_connects_to_ends_one_day() {
        let (connections, requests) = (watch::Sender::new(0), TaskTracker::new());
        let mut silent = pin!(host_silent(connections.subscribe(), &requests));
        assert!(timeout(LINGER / 2, &mut silent).await.is_err());
        assert!(timeout(LINGER, &mut silent).await.is_ok());
    }
}
