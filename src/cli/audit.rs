//! `audit export`: the audit log as JSON lines, for a log shipper.

use std::{
    io::{ErrorKind, Write},
    time::Duration,
};

use clap::Subcommand;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::{Clock as _, SystemClock},
    engine::Engine,
    shown,
    store::{AuditLine, AuditStart, StoreError},
};

use super::commands::{CommandError, duration};

/// The pause before an export looks for new lines.
const PAUSE: Duration = Duration::from_secs(2);

/// The number of lines that are read at a time.
const BATCH: u32 = 1000;

/// A command about the audit log.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// Print the audit log as JSON lines, oldest first. Each line has a permanent id
    Export {
        /// Start after the line with this id, or with lines of this age: 24h, 7d [default: the
        /// oldest line]
        #[arg(long, value_name = "ID|DURATION")]
        since: Option<String>,
        /// Continue with new lines until the command is stopped or its reader ends
        #[arg(long)]
        follow: bool,
    },
}

/// Returns the first line for `--since`.
fn start(since: Option<&str>) -> AuditStart {
    match since {
        None => AuditStart::Oldest,
        // An id does not end with a unit of time.
        Some(text) => duration(text).map_or_else(|_| AuditStart::AfterId(text.to_owned()), AuditStart::Age),
    }
}

/// Writes the log's lines, and new lines with `follow`.
pub(super) async fn export(
    engine: &Engine,
    since: Option<&str>,
    follow: bool,
    stop: &CancellationToken,
    out: &mut (dyn Write + Send),
) -> Result<(), CommandError> {
    let (store, clock) = (engine.store(), SystemClock::default());
    let (mut start, mut last) = (start(since), None);
    loop {
        let lines = match store.export_audit(&start, BATCH).await {
            // A store that restarts does not end the export.
            Err(error @ StoreError::Unavailable { .. }) if follow => {
                tracing::warn!(%error, "the export continues when the store answers");
                Vec::new()
            }
            lines => lines?,
        };
        for line in &lines {
            let text = shown::json(&format!("{}\n", as_json(store.id(), line))).into_owned();
            if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
                return if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(incomplete(&error, last)) };
            }
            last = Some(line.id.clone());
        }
        if let Some(line) = lines.last() {
            start = AuditStart::After(line.position.clone());
            continue;
        }
        if !follow || has_no_reader() {
            return Ok(());
        }
        tokio::select! {
            () = clock.sleep(PAUSE) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

/// Builds the error for a failed output, for example on a full disk.
fn incomplete(error: &std::io::Error, last: Option<String>) -> CommandError {
    let next = last.map_or_else(
        || "audit export".to_owned(),
        |id| format!("remove the incomplete last line, then audit export --since {id}"),
    );
    CommandError::Other(format!("the audit log was not written completely: {error}. Next: {next}"))
}

/// Returns true if the output's reader has ended: an export without new lines would not notice it.
fn has_no_reader() -> bool {
    #[cfg(unix)]
    {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let out = std::io::stdout();
        let mut polled = [PollFd::new(&out, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::ERR)
    }
    #[cfg(not(unix))]
    false
}

fn as_json(store: &str, line: &AuditLine) -> Value {
    let mut shown = json!({ "store": store, "id": line.id });
    let more = match &line.event {
        Ok(event) => json!({
            "at": event.at, "maintenance": event.id, "uid": event.uid, "generation": event.generation, "by": event.by,
            "what": event.what, "detail": event.detail,
        }),
        Err(text) => json!({ "unreadable": text }),
    };
    let stamp = line.stamp.as_ref().map(|(role, at)| json!({ "role": role, "recorded_at": at }));
    for part in std::iter::once(more).chain(stamp) {
        if let (Value::Object(shown), Value::Object(part)) = (&mut shown, part) {
            shown.extend(part);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit_and_an_id_has_none() {
        assert_eq!(start(None), AuditStart::Oldest);
        assert_eq!(start(Some("36h")), AuditStart::Age(Duration::from_hours(36)));
        assert_eq!(start(Some("7d")), AuditStart::Age(Duration::from_hours(7 * 24)));
        for id in ["42", "0191f3d27c1e4b0c-0", "7d0191f3-1"] {
            assert_eq!(start(Some(id)), AuditStart::AfterId(id.to_owned()));
        }
    }
}
