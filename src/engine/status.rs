//! Reports a drive's waits in the log, to listeners and in the record.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::maintenance::{change::RecordChange, state::Progress};

use super::{EngineError, drive::Reconciler};

/// Interval at which a waiter repeats its status.
pub(super) const SAY_AGAIN: Duration = Duration::from_mins(1);
/// How long a step waits before its record shows the cause. Most steps end earlier.
const NOTE_AFTER: Duration = Duration::from_secs(5);
/// Pause between two notes about one step. Each note is a commit.
const NOTE_AGAIN: Duration = Duration::from_secs(15);
/// Maximum length of a note in characters, because stores limit a lock's size.
const NOTED: usize = 400;

/// A drive's last status and its notes.
#[derive(Debug, Default)]
pub(super) struct Status {
    /// The last status.
    said: Option<String>,
    /// When each line was logged, on our monotonic clock.
    logged: Mutex<HashMap<String, Duration>>,
    /// The waiting step, and the earliest time of its next note.
    noting: Option<((usize, jiff::Timestamp), Duration)>,
}

impl Reconciler<'_> {
    /// Logs the current wait when it changes, and once a minute.
    pub(super) fn log_status(&mut self, reason: &str) {
        let changed = self.waits() && self.status.said.as_deref() != Some(reason);
        let is_new = self.is_new(reason);
        self.status.said = Some(reason.to_owned());
        if !is_new && !changed {
            return;
        }
        let id = self.last.as_ref().map_or_else(|| self.uid.to_string(), |record| record.id.to_string());
        let line = format!("{id} on {}: {reason}", self.server);
        tracing::info!("{line}");
        if let Some(record) = &self.last {
            self.engine.listeners.tell(&record.id, &line);
        }
    }

    /// Logs a failed call, at most once a minute.
    pub(super) fn log_failure(&self, line: &str) {
        if self.is_new(line) {
            tracing::warn!("{line}");
        }
    }

    /// Returns true if a line was not logged within the last minute. A retried call repeats several
    /// lines.
    fn is_new(&self, line: &str) -> bool {
        let now = self.engine.parts.clock.monotonic();
        let mut logged = self.status.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.retain(|_, at| now.saturating_sub(*at) < SAY_AGAIN);
        if logged.contains_key(line) {
            return false;
        }
        logged.insert(line.to_owned(), now);
        true
    }

    /// Records the error that ended a drive as its step's cause, for `queue` and `show`. A store
    /// error cannot be recorded there.
    pub(super) async fn note_end(&mut self, error: &EngineError) {
        let Some(record) = self.record() else { return };
        let (Some(progress), false) =
            (record.phase.progress(), matches!(error, EngineError::Store(_) | EngineError::StoreLost { .. }))
        else {
            return;
        };
        let text = error.to_string();
        let why = self.engine.addresses.without_secrets_of(record.checked_spec(), waited_for(&text, progress));
        if let Err(error) = self.apply(&RecordChange::NoteWait(why)).await {
            tracing::debug!(%error, "the cause could not be recorded");
        }
    }

    /// Records the current step's wait if it changed and lasts. A failed note is retried; the log
    /// has it.
    pub(super) async fn note_wait(&mut self) {
        let (Some(reason), Some(record)) = (&self.status.said, self.record()) else { return };
        let Some(progress) = record.phase.progress() else { return };
        let why = self.engine.addresses.without_secrets_of(record.checked_spec(), waited_for(reason, progress));
        let step = (progress.current, progress.since);
        let known = progress.waits_for.as_ref().is_some_and(|known| *known == why);
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
            tracing::debug!(%error, "the reason for the wait could not be recorded");
        }
    }
}

/// Removes the step from a wait's reason, because the record already shows it.
fn waited_for(reason: &str, progress: &Progress) -> String {
    let why = reason.split_once(&format!("{}: ", progress.text())).map_or(reason, |(_, why)| why);
    match why.char_indices().nth(NOTED) {
        Some((end, _)) => format!("{}…", &why[..end]),
        None => why.to_owned(),
    }
}
