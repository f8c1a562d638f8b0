//! Invalid windows.

use std::time::Duration;

use thiserror::Error;

use crate::model::shown_time::shown_duration;

/// The reason why a window is invalid. Messages are sentences without a full stop, for the author
/// of the configuration. [`WindowError::field`] returns the attribute.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WindowError {
    /// The schedule has a syntax error.
    #[error(
        "The schedule {schedule:?} is wrong: {problem}. Write five fields: minute, hour, day of month, month, day of week, such as \"0 22 * * SAT\""
    )]
    Schedule {
        /// The configured text.
        schedule: String,
        /// The invalid part and the reason.
        problem: String,
    },
    /// The schedule does not match any calendar day.
    #[error("The window never opens: no month of the schedule {schedule:?} has such a day")]
    NoSuchDay {
        /// The configured text.
        schedule: String,
    },
    /// The duration is zero.
    #[error("The window's duration is zero: set a duration such as \"4h\"")]
    NoDuration,
    /// Openings would overlap.
    #[error("An opening of {} is longer than the {} between two starts, so openings would overlap", shown_duration(*.duration), shown_duration(*.period))]
    Overlap {
        /// Duration of an opening.
        duration: Duration,
        /// Shortest time between two starts.
        period: Duration,
    },
    /// The time zone does not exist.
    #[error(
        "{name:?} is not a valid time zone. Write a name of the IANA database, such as \"Europe/Berlin\" or \"UTC\""
    )]
    TimeZone {
        /// The configured text.
        name: String,
    },
    /// An exclusion has a syntax error.
    #[error(
        "The exclusion {text:?} is wrong: {problem}. Write a day such as \"2026-12-24\", or the first and the last day of a range such as \"2026-12-20/2027-01-06\""
    )]
    Exclude {
        /// The configured text.
        text: String,
        /// The problem, for people.
        problem: String,
    },
    /// The exclusions cover all openings.
    #[error("The window never opens: from {from} on, everything is excluded for more than {years} years")]
    AllExcluded {
        /// The first excluded time, for people.
        from: String,
        /// The searched number of years.
        years: i16,
        /// True if the freeze calendar alone covers all openings.
        by_calendar: bool,
    },
    /// The calendar ends before the next opening.
    #[error("The window does not open again before the year 9999, when the calendar ends")]
    NeverAgain,
    /// No opening is long enough for a start.
    #[error("{} must remain of an opening that lasts {}, so no maintenance could ever start", shown_duration(*.min_remaining), shown_duration(*.duration))]
    MinRemaining {
        /// Time that a start requires.
        min_remaining: Duration,
        /// Duration of an opening.
        duration: Duration,
    },
    /// The freeze calendar is invalid, or contains an unsupported entry.
    #[error("The freeze calendar cannot be used: {problem}")]
    Calendar {
        /// The problem, with the event's summary and line.
        problem: String,
    },
}

impl WindowError {
    /// Returns the invalid attribute: `schedule`, `duration`, `time_zone`, `exclude`,
    /// `min_remaining` or `exclude_calendar`.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::Schedule { .. } | Self::NoSuchDay { .. } | Self::NeverAgain => "schedule",
            Self::NoDuration | Self::Overlap { .. } => "duration",
            Self::TimeZone { .. } => "time_zone",
            Self::Exclude { .. } | Self::AllExcluded { by_calendar: false, .. } => "exclude",
            Self::MinRemaining { .. } => "min_remaining",
            Self::Calendar { .. } | Self::AllExcluded { by_calendar: true, .. } => "exclude_calendar",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_has_a_full_stop_which_its_reader_adds() {
        let text = || "x".to_owned();
        let (hour, day) = (Duration::from_hours(1), Duration::from_hours(24));
        for error in [
            WindowError::Schedule { schedule: text(), problem: text() },
            WindowError::NoSuchDay { schedule: text() },
            WindowError::NoDuration,
            WindowError::Overlap { duration: day, period: hour },
            WindowError::TimeZone { name: text() },
            WindowError::Exclude { text: text(), problem: text() },
            WindowError::AllExcluded { from: text(), years: 40, by_calendar: false },
            WindowError::NeverAgain,
            WindowError::MinRemaining { min_remaining: day, duration: hour },
            WindowError::Calendar { problem: text() },
        ] {
            assert!(!error.to_string().ends_with('.'), "{error}");
        }
    }
}
