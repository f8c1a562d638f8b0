//! What a drive tells of its waits: in the log, to listeners, and in the record for the queue.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::maintenance::{change::RecordChange, state::Progress};

use super::{EngineError, drive::Reconciler};

/// Once a minute a waiter says what it waits for, also when nothing changed.
pub(super) const SAY_AGAIN: Duration = Duration::from_mins(1);
/// A step that waits for so long is noted in the record with what it waits for: most end before.
const NOTE_AFTER: Duration = Duration::from_secs(5);
/// The pause between two notes of one step. Each is a commit.
const NOTE_AGAIN: Duration = Duration::from_secs(15);
/// So much of a wait is recorded. Locks have a greatest size.
const NOTED: usize = 400;

/// The last status of a drive, and its notes.
#[derive(Debug, Default)]
pub(super) struct Status {
    /// The last status.
    said: Option<String>,
    /// When each line was logged, on our monotonic clock.
    logged: Mutex<HashMap<String, Duration>>,
    /// The step that waits, and when what it waits for may be noted.
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

    /// Logs a failed call, once a minute if it fails again and again.
    pub(super) fn log_failure(&self, line: &str) {
        if self.is_new(line) {
            tracing::warn!("{line}");
        }
    }

    /// Returns true if a line was not logged within the last minute: a call that is retried repeats
    /// several lines in turn.
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

    /// Notes in the record what the step under way waits for, as it was said last: when it changed,
    /// and only of waits that last. What cannot be noted is tried again later; the log has it.
    pub(super) async fn note_wait(&mut self) {
        let (Some(reason), Some(record)) = (&self.status.said, self.record()) else { return };
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
