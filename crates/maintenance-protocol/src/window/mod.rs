//! When a maintenance may start.
//!
//! A window opens at the times of a cron schedule on the clocks of a time zone, and stays open for
//! a duration.
//!
//! - **Duration** is elapsed time: `4h` is four hours, also in the night in which the clocks
//!   change.
//! - **A start that does not exist** (the clocks skip it) happens at the first instant after the
//!   gap. Several starts in one gap are one opening. Where a zone skips a whole day, its starts
//!   happen at the first instant of the next day.
//! - **A start that occurs twice** (the clocks go back over it) happens once, the first time.
//! - **Openings never overlap**: a duration that is longer than the time from one start to the next
//!   on the local clock is refused. Where a change of the clocks brings two starts closer together,
//!   the earlier opening ends when the later starts.
//! - **An opening belongs to the local day on which it starts**, also across midnight, month and
//!   year: an excluded day removes the openings that start on it, whole, and no others. The day
//!   counts on which the opening really starts, so an opening that a gap pushed over midnight
//!   belongs to the later day.
//! - **A freeze** ([`Period`]) removes the starts inside it. An opening that began before ends
//!   where the freeze begins, and does not go on after it: nothing may start during a freeze.
//!
//! [`WindowSpec`] is what is stored, [`Window`] what is asked. Rules only: no clock, and of the
//! outside world nothing but the time zone database, that of the system where it has one, else the
//! one built into the program.

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

/// A time in which something may start; `end` is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opening {
    /// Its first instant.
    pub start: Timestamp,
    /// The first instant after it.
    pub end: Timestamp,
}

impl fmt::Display for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.start, self.end)
    }
}

/// Whether something may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At once, in this opening.
    Now(Opening),
    /// When this opening starts.
    At(Opening),
    /// Not before the end of the calendar.
    Never,
}

/// Exclusions that leave nothing for so long are a mistake. The rarest schedule, 29 February,
/// pauses for eight years.
const LONGEST_PAUSE_YEARS: i16 = 40;

impl WindowSpec {
    /// Checks everything and makes the window that can be asked.
    pub fn compile(&self) -> Result<Window, WindowError> {
        let schedule = &self.schedule;
        let cron =
            Cron::parse(schedule).map_err(|problem| WindowError::Schedule { schedule: schedule.clone(), problem })?;
        if !cron.has_days() {
            return Err(WindowError::NoSuchDay { schedule: schedule.clone() });
        }
        self.check_durations(&cron)?;
        let window = Window {
            cron,
            duration: self.duration,
            time_zone: time_zone(&self.time_zone)?,
            days: ExcludedDays::parse(&self.exclude)?,
            freezes: Freezes::new(&self.exclude_periods)?,
            min_remaining: self.min_remaining,
        };
        window.check_opens(LONGEST_PAUSE_YEARS)?;
        Ok(window)
    }

    /// [`compile`](Self::compile), and refuses a window in which nothing could start any more.
    pub fn check(&self, now: Timestamp) -> Result<Window, WindowError> {
        let window = self.compile()?;
        match window.may_start(now) {
            Start::Never => Err(WindowError::NeverAgain),
            _ => Ok(window),
        }
    }

    /// When a start becomes possible, or impossible.
    #[must_use]
    pub fn changes_at(&self, now: Timestamp) -> Option<Timestamp> {
        match self.compile().ok()?.may_start(now) {
            // A moment later too little is left.
            Start::Now(opening) => {
                opening.end.checked_sub(self.min_remaining).ok()?.checked_add(Duration::from_nanos(1)).ok()
            }
            Start::At(opening) => Some(opening.start),
            Start::Never => None,
        }
    }

    /// When what starts now is to be given back because the window closes; `None` when it may
    /// finish.
    #[must_use]
    pub fn gives_back_at(&self, now: Timestamp) -> Option<Timestamp> {
        match self.on_close {
            OnClose::Finish => None,
            OnClose::Release => Some(self.compile().ok()?.open_at(now)?.end),
        }
    }

    /// In words: `"0 22 * * SAT" Europe/Berlin for 4h`.
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

/// The zone of that name: from the system's database, so that a machine that is kept up to date
/// knows the newest rules, else from the one built into the program.
pub fn time_zone(name: &str) -> Result<TimeZone, WindowError> {
    let found = jiff::tz::db().get(name).or_else(|_| TimeZoneDatabase::bundled().get(name));
    match found {
        Ok(zone) if !zone.is_unknown() => Ok(zone),
        _ => Err(WindowError::TimeZone { name: name.to_owned() }),
    }
}
