//! How a process ends its work on a record.

use shown_text::OneLine;

use super::update::Undone;

/// The reason why a process stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The external system rejected the request permanently, for this reason.
    Refused(OneLine),
    /// The requested state is reached.
    Reached,
    /// The record has ended and contains the result.
    Over,
    /// The request left the queue.
    Withdrawn,
    /// The time limit passed while the request waited for the server.
    TimedOut(OneLine),
    /// The process was stopped; the record contains the progress.
    Interrupted,
    /// The release failed and the lock is still held.
    Stuck(OneLine),
    /// A change in place failed. The server stays locked.
    NotUpdated {
        /// The cause, for people.
        cause: OneLine,
        /// State of the server after the rollback.
        undone: Undone,
    },
    /// Another process controls the record, or the record was deleted.
    Lost,
}

impl Finish {
    /// The name in machine-readable output (`finish` of `complete --json` and `release --json`).
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Refused(_) => "Refused",
            Self::Reached => "Reached",
            Self::Over => "Over",
            Self::Withdrawn => "Withdrawn",
            Self::TimedOut(_) => "TimedOut",
            Self::Interrupted => "Interrupted",
            Self::Stuck(_) => "Stuck",
            Self::NotUpdated { .. } => "NotUpdated",
            Self::Lost => "Lost",
        }
    }

    /// The name with its reason, if any, for people.
    #[must_use]
    pub fn told(&self) -> String {
        match self {
            Self::Refused(why) | Self::TimedOut(why) | Self::Stuck(why) | Self::NotUpdated { cause: why, .. } => {
                format!("{}: {why}", self.name())
            }
            _ => self.name().to_owned(),
        }
    }
}
