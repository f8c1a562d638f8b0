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

use super::{commands::CommandError, table};

/// The pause between two reads of the store.
const PAUSE: Duration = Duration::from_secs(2);

/// Clears a terminal: cursor home, then everything below it.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Shows the queue until it is stopped: in place on a terminal, elsewhere once per change with a
/// timestamp.
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
        // A different time alone is not a queue change.
        let state: Vec<_> =
            lines.iter().map(|line| (line.id.clone(), line.state, line.waiting_for.clone(), line.process)).collect();
        let text = table::queue(&lines, &engine.store().address(), engine.now(), flags);
        let now = shown_time(engine.now());
        let written = if is_terminal {
            write!(out, "{CLEAR}{now}  (Ctrl-C ends)\n\n{text}")
        } else if shown.as_ref() == Some(&state) {
            Ok(())
        } else {
            write!(out, "{now}\n{text}\n")
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
