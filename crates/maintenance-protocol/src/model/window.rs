//! When a maintenance may start, as it is configured and stored; `window/` has the rules.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What closing means for a maintenance that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnClose {
    /// It goes on to its end.
    Finish,
    /// It gives the server back.
    Release,
}

impl OnClose {
    /// Both in the spelling of the configuration.
    pub const NAMES: [&'static str; 2] = ["finish", "release"];

    /// The one of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "finish" => Self::Finish,
            "release" => Self::Release,
            _ => return None,
        })
    }

    /// The name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Finish => "finish",
            Self::Release => "release",
        }
    }
}

/// A time in which nothing starts; `end` is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Period {
    /// Its first instant.
    pub start: Timestamp,
    /// The first instant after it.
    pub end: Timestamp,
}

/// A window as it was asked for. Complete in itself: what a record stores means the same on every
/// machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSpec {
    /// Five-field cron, on the clocks of `time_zone`: the starts of the openings.
    pub schedule: String,
    /// How long an opening lasts, in elapsed time.
    pub duration: Duration,
    /// A name of the IANA time zone database.
    pub time_zone: String,
    /// Days (`2026-12-24`) and ranges of days (`2026-12-20/2027-01-06`, both included) on which no
    /// opening starts.
    pub exclude: Vec<String>,
    /// Freezes, as an iCalendar file told them (`window::freeze_periods`). In any order; may
    /// overlap.
    pub exclude_periods: Vec<Period>,
    /// What must be left of an opening for a start.
    pub min_remaining: Duration,
    /// What closing means for a maintenance that runs.
    pub on_close: OnClose,
}
