//! `watch`: the queue as it is, again whenever it changes.

use std::{
    io::{ErrorKind, Write},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use crate::{
    clock::{Clock as _, SystemClock},
    engine::Engine,
    maintenance::queue::shown_time,
    shown,
};

use super::{commands::CommandError, table};

/// The pause between two reads of the store.
const PAUSE: Duration = Duration::from_secs(2);

/// Clears a terminal: cursor home, then everything below it.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Shows the queue until it is stopped. On a terminal in one place; elsewhere once per change, each
/// time with its time.
pub(super) async fn run(
    engine: &Engine,
    server: Option<&str>,
    flags: &str,
    is_terminal: bool,
    stop: &CancellationToken,
    out: &mut (dyn Write + Send),
) -> Result<(), CommandError> {
    let clock = SystemClock::default();
    let mut shown = None;
    loop {
        let mut lines = engine.queue().await?;
        lines.retain(|line| server.is_none_or(|server| line.server == server));
        // What only the time changes is no change of the queue.
        let state: Vec<_> =
            lines.iter().map(|line| (line.id.clone(), line.state, line.waiting_for.clone(), line.process)).collect();
        let text = table::queue(&lines, &engine.store().address(), engine.now(), flags);
        let text = shown::lines(&text);
        let now = shown_time(engine.now());
        let written = if is_terminal {
            write!(out, "{CLEAR}{now}  (Ctrl-C ends)\n\n{text}")
        } else if shown.as_ref() == Some(&state) {
            Ok(())
        } else {
            write!(out, "{now}\n{text}\n")
        };
        match written.and_then(|()| out.flush()) {
            // Its reader has read enough.
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
