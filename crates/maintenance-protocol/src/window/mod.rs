//! Maintenance windows: when a maintenance can start.
//!
//! A window opens by a cron schedule in a time zone and stays open for a duration.
//!
//! - **Duration** is elapsed time: `4h` is four hours, even in a night with a clock change.
//! - **A skipped start time** moves to the first instant after the gap. Several starts in one gap
//!   are one opening. If a zone skips a whole day, its starts move to the next day's first instant.
//! - **A repeated start time** counts once, at its first occurrence.
//! - **Openings never overlap**: a duration longer than the local time between two starts is
//!   rejected. If a clock change moves two starts closer together, the earlier opening ends at the
//!   later start.
//! - **An opening belongs to the local day of its start**, even across midnight. An excluded day
//!   removes exactly the openings that start on it. The actual start counts, so an opening that a
//!   gap moved past midnight belongs to the later day.
//! - **A freeze** ([`Period`]) removes the starts within it. An earlier opening ends when the
//!   freeze starts and does not resume after it.
//!
//! [`WindowSpec`] is the stored form, [`Window`] the compiled form. The module contains rules
//! without a clock. Its only external input is the time zone database: the system's if available,
//! otherwise the built-in copy.

mod calendar;
mod cron;
mod error;
mod exclusion;
mod opening;
#[cfg(test)]
mod tests;

use std::{fmt, time::Duration};

use jiff::{
    Timestamp,
    tz::{TimeZone, TimeZoneDatabase},
};
use serde::{Deserialize, Serialize};

pub use super::model::window::{OnClose, Period, WindowSpec};
pub use calendar::freeze_periods;
pub use error::WindowError;
pub use opening::Window;

use super::model::shown_time::shown_duration;
use cron::Cron;
use exclusion::{ExcludedDays, Freezes};

/// A period in which a maintenance can start. It excludes `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opening {
    /// Its first instant.
    pub start: Timestamp,
    /// The first instant after the opening.
    pub end: Timestamp,
}

impl fmt::Display for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.start, self.end)
    }
}

/// The next possible start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Immediately, in this opening.
    Now(Opening),
    /// When this opening starts.
    At(Opening),
    /// Not before the calendar ends.
    Never,
}

/// Exclusions that cover this many years are rejected as a mistake. The rarest schedule, 29
/// February, can pause for eight years.
const LONGEST_PAUSE_YEARS: i16 = 40;

impl WindowSpec {
    /// Validates the window and compiles it.
    pub fn compile(&self) -> Result<Window, WindowError> {
        let schedule = &self.schedule;
        let cron = Cron::parse(schedule.raw())
            .map_err(|problem| WindowError::Schedule { schedule: schedule.clone().into_raw(), problem })?;
        if !cron.has_days() {
            return Err(WindowError::NoSuchDay { schedule: schedule.clone().into_raw() });
        }
        self.check_durations(&cron)?;
        let window = Window {
            cron,
            duration: self.duration,
            time_zone: time_zone(self.time_zone.raw())?,
            days: ExcludedDays::parse(&self.exclude)?,
            freezes: Freezes::new(&self.exclude_periods)?,
            min_remaining: self.min_remaining,
        };
        window.check_opens(LONGEST_PAUSE_YEARS)?;
        Ok(window)
    }

    /// Compiles the window, and rejects it if no start is possible after `now`.
    pub fn check(&self, now: Timestamp) -> Result<Window, WindowError> {
        let window = self.compile()?;
        match window.may_start(now) {
            Start::Never => Err(WindowError::NeverAgain),
            _ => Ok(window),
        }
    }

    /// Returns when a start becomes possible or impossible.
    #[must_use]
    pub fn changes_at(&self, now: Timestamp) -> Option<Timestamp> {
        match self.compile().ok()?.may_start(now) {
            // One instant later, the remaining time is too short.
            Start::Now(opening) => {
                opening.end.checked_sub(self.min_remaining).ok()?.checked_add(Duration::from_nanos(1)).ok()
            }
            Start::At(opening) => Some(opening.start),
            Start::Never => None,
        }
    }

    /// Returns when a maintenance that starts now must release the server because the window
    /// closes. `None` if it is allowed to finish.
    #[must_use]
    pub fn gives_back_at(&self, now: Timestamp) -> Option<Timestamp> {
        match self.on_close {
            OnClose::Finish => None,
            OnClose::Release => Some(self.compile().ok()?.open_at(now)?.end),
        }
    }

    /// Returns a summary for people: `"0 22 * * SAT" Europe/Berlin for 4h`.
    #[must_use]
    pub fn summary(&self) -> String {
        format!("{:?} {} for {}", self.schedule, self.time_zone, shown_duration(self.duration))
    }

    fn check_durations(&self, cron: &Cron) -> Result<(), WindowError> {
        let Self { duration, min_remaining, .. } = *self;
        if duration.is_zero() {
            return Err(WindowError::NoDuration);
        }
        let minutes = duration.as_nanos().div_ceil(Duration::from_mins(1).as_nanos());
        if let Some(period) = cron.period_shorter(i64::try_from(minutes).unwrap_or(i64::MAX)) {
            let period = Duration::from_secs(60 * u64::try_from(period).unwrap_or_default());
            return Err(WindowError::Overlap { duration, period });
        }
        if min_remaining > duration {
            return Err(WindowError::MinRemaining { min_remaining, duration });
        }
        Ok(())
    }
}

/// Returns the zone with this name. The system's database takes precedence over the built-in copy,
/// because updates keep it current.
pub fn time_zone(name: &str) -> Result<TimeZone, WindowError> {
    let found = jiff::tz::db().get(name).or_else(|_| TimeZoneDatabase::bundled().get(name));
    match found {
        Ok(zone) if !zone.is_unknown() => Ok(zone),
        _ => Err(WindowError::TimeZone { name: name.to_owned() }),
    }
}
