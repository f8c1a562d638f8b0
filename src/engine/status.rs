//! What a drive tells of its waits: in the log, to listeners, and in the record for the queue.

use std::time::Duration;

use crate::maintenance::{change::RecordChange, state::Progress};

use super::drive::Reconciler;

/// Once a minute a waiter says what it waits for, also when nothing changed.
pub(super) const SAY_AGAIN: Duration = Duration::from_mins(1);
/// A step that waits for so long is noted in the record with what it waits for: most end before.
const NOTE_AFTER: Duration = Duration::from_secs(5);
/// The pause between two notes of one step. Each is a commit.
const NOTE_AGAIN: Duration = Duration::from_secs(15);
/// So much of a wait is recorded. Locks have a greatest size.
const NOTED: usize = 400;

/// The last words of a drive, and its notes.
#[derive(Debug, Default)]
pub(super) struct Status {
    /// What was logged last, and when on our monotonic clock.
    said: Option<(String, Duration)>,
    /// The step that waits, and when what it waits for may be noted.
    noting: Option<((usize, jiff::Timestamp), Duration)>,
}

impl Reconciler<'_> {
    /// Says what is waited for: when it changed, and once a minute.
    pub(super) fn log_status(&mut self, reason: &str) {
        let now = self.engine.parts.clock.monotonic();
        let said = &self.status.said;
        let fresh = said.as_ref().is_none_or(|(said, at)| said != reason || now.saturating_sub(*at) >= SAY_AGAIN);
        if !fresh {
            return;
        }
        let id = self.last.as_ref().map_or_else(|| self.uid.to_string(), |record| record.id.to_string());
        let line = format!("{id} on {}: {reason}", self.server);
        tracing::info!("{line}");
        if let Some(record) = &self.last {
            self.engine.listeners.tell(&record.id, &line);
        }
        self.status.said = Some((reason.to_owned(), now));
    }

    /// Notes in the record what the step under way waits for, as it was said last: when it changed,
    /// and only of waits that last. What cannot be noted is tried again later; the log has it.
    pub(super) async fn note_wait(&mut self) {
        let (Some((reason, _)), Some(record)) = (&self.status.said, self.record()) else { return };
        let Some(progress) = record.phase.progress() else { return };
        let why = self.engine.addresses.without_secrets_of(record.checked_spec(), waited_for(reason, progress));
        let step = (progress.current, progress.since);
        let known = progress.waits_for.as_ref() == Some(&why);
        let now = self.engine.parts.clock.monotonic();
        match self.status.noting {
            Some((noted, at)) if noted == step => {
                if known || now < at {
                    return;
                }
            }
            _ => {
                self.status.noting = Some((step, now + NOTE_AFTER));
                return;
            }
        }
        self.status.noting = Some((step, now + NOTE_AGAIN));
        if let Err(error) = self.apply(&RecordChange::NoteWait(why)).await {
            tracing::debug!(%error, "what is waited for could not be recorded");
        }
    }
}

/// The reason of a wait without the step, which the record tells anyway.
fn waited_for(reason: &str, progress: &Progress) -> String {
    let why = reason.split_once(&format!("{}: ", progress.text())).map_or(reason, |(_, why)| why);
    match why.char_indices().nth(NOTED) {
        Some((end, _)) => format!("{}…", &why[..end]),
        None => why.to_owned(),
    }
}
