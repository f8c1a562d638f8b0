//! `watch`: prints the queue again whenever it changes.

use std::{
    io::{ErrorKind, Write},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use crate::{
    clock::{Clock as _, SystemClock},
    engine::Engine,
    maintenance::queue::shown_time,
};

use super::{commands::CommandError, shape, table};

/// The pause between two reads of the store.
const PAUSE: Duration = Duration::from_secs(2);

/// Clears a terminal: cursor home, then everything below it.
const CLEAR: &str = "\x1b[H\x1b[J";

/// How `watch` prints the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchOutput {
    /// In place on a terminal.
    Terminal,
    /// A table with a timestamp per change.
    Log,
    /// A JSON line per change.
    JsonLines,
}

/// Shows the queue until it is stopped.
pub(super) async fn run(
    engine: &Engine,
    server: Option<&str>,
    flags: &str,
    output: WatchOutput,
    stop: &CancellationToken,
    out: &mut (dyn Write + Send),
) -> Result<(), CommandError> {
    let clock = SystemClock::default();
    let mut shown = None;
    loop {
        let mut lines = engine.queue().await?;
        lines.retain(|line| server.is_none_or(|server| line.server == server));
        // A different time alone is not a queue change.
        let state: Vec<_> =
            lines.iter().map(|line| (line.id.clone(), line.state, line.waiting_for.clone(), line.process)).collect();
        let (store, now) = (engine.store().address(), engine.now());
        let table = || table::queue(&lines, &store, now, flags);
        let written = match output {
            WatchOutput::Terminal => write!(out, "{CLEAR}{}  (Ctrl-C ends)\n\n{}", shown_time(now), table()),
            _ if shown.as_ref() == Some(&state) => Ok(()),
            WatchOutput::Log => write!(out, "{}\n{}\n", shown_time(now), table()),
            WatchOutput::JsonLines => write!(out, "{}", shape::document_line(shape::queue(&lines, &store))),
        };
        match written.and_then(|()| out.flush()) {
            // The reader has ended.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(|error| CommandError::Other(format!("standard output: {error}")))?,
        }
        shown = Some(state);
        tokio::select! {
            () = clock.sleep(PAUSE) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}
