//! Maintenance windows as configured and stored; `window/` contains the rules.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use shown_text::OneLine;

/// How a running maintenance reacts when its window closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnClose {
    /// It continues to its end.
    Finish,
    /// It releases the server.
    Release,
}

impl OnClose {
    /// All names, as spelled in the configuration.
    pub const NAMES: [&'static str; 2] = ["finish", "release"];

    /// Parses a configured name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "finish" => Self::Finish,
            "release" => Self::Release,
            _ => return None,
        })
    }

    /// Returns the configured name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Finish => "finish",
            Self::Release => "release",
        }
    }
}

/// A period without starts. It excludes `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Period {
    /// Its first instant.
    pub start: Timestamp,
    /// The first instant after the period.
    pub end: Timestamp,
}

/// A configured window. It is self-contained, so a stored window has the same meaning on every
/// machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSpec {
    /// Five-field cron schedule of the openings, in `time_zone`.
    pub schedule: OneLine,
    /// An opening's elapsed duration.
    pub duration: Duration,
    /// Name in the IANA time zone database.
    pub time_zone: OneLine,
    /// Days (`2026-12-24`) and inclusive ranges (`2026-12-20/2027-01-06`) on which no opening
    /// starts.
    pub exclude: Vec<OneLine>,
    /// Freezes from an iCalendar file (`window::freeze_periods`), unordered and possibly
    /// overlapping.
    pub exclude_periods: Vec<Period>,
    /// Minimum remaining time for a start.
    pub min_remaining: Duration,
    /// How a running maintenance reacts when the window closes.
    pub on_close: OnClose,
}
