//! How the work of a process at a record ends.

use super::update::Undone;

/// Why the process is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The server's own maintenance system will never grant it, and why.
    Refused(String),
    /// The state that was asked for is reached.
    Reached,
    /// The record is over; it tells how.
    Over,
    /// Left the queue.
    Withdrawn,
    /// The time limit passed while waiting for the server.
    TimedOut(String),
    /// Stopped; the record tells how far it got.
    Interrupted,
    /// Giving back could not be finished; the slot is held.
    Stuck(String),
    /// A change in place failed. The server stays held.
    NotUpdated {
        /// The cause, for people.
        cause: String,
        /// What became of the server.
        undone: Undone,
    },
    /// Somebody else has the record now, or it is gone.
    Lost,
}

impl Finish {
    /// Its name, as scripts read it (`finish` of `complete --json` and `release --json`).
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

    /// Its name, with the reason where it has one, for people.
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
