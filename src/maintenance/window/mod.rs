//! Windows: when a maintenance may start.
//!
//! A window opens at the civil times of a schedule, in a time zone, and stays open for a duration of elapsed time. Its
//! closing stops new starts; what has started goes on, unless the window says `release`.
//!
//! Daylight saving: a start that the clock skips happens at the first moment after the gap (several skipped starts are
//! one); a start that the clock shows twice happens once, the first time. An opening belongs to the day on which it
//! starts, also across midnight and the ends of months and years: an excluded day removes the openings that start on it.
//! A freeze removes the starts inside of it, and an opening that would reach into one ends where it begins.

mod freeze;
mod schedule;

use std::{fmt, time::Duration};

use jiff::{
    SignedDuration, Timestamp, ToSpan as _,
    civil::{Date, DateTime},
    tz::{AmbiguousOffset, TimeZone},
};
use serde::{Deserialize, Serialize};

pub use freeze::{FreezeError, freeze_periods};
pub use schedule::Schedule;

/// How far ahead an opening is searched, in years. A window that does not open within them counts as one that never does.
const HORIZON: i16 = 40;

/// The shortest time that the clock of a store tells apart.
const A_MOMENT: SignedDuration = SignedDuration::from_nanos(1);

/// What closing means for a maintenance that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnClose {
    /// It goes on.
    Finish,
    /// It is overdue: the server is given back, as after `expires_after`.
    Release,
}

impl OnClose {
    /// All values in the spelling of the configuration.
    pub const NAMES: [&'static str; 2] = ["finish", "release"];

    /// The value of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "finish" => Some(Self::Finish),
            "release" => Some(Self::Release),
            _ => None,
        }
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

/// A time without starts; half open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Period {
    /// Its first moment.
    pub start: Timestamp,
    /// The first moment after it.
    pub end: Timestamp,
}

/// A window as it was asked for; what a record stores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSpec {
    /// Five cron fields: when it opens.
    pub schedule: String,
    /// How long an opening lasts.
    pub duration: Duration,
    /// IANA name of the zone of the schedule.
    pub time_zone: String,
    /// Days without openings: `2026-12-24`, or `2026-12-20/2027-01-06` with both days.
    pub exclude: Vec<String>,
    /// Times without starts, from a calendar.
    pub exclude_periods: Vec<Period>,
    /// How much of an opening must be left for a start.
    pub min_remaining: Duration,
    /// What closing means for what runs.
    pub on_close: OnClose,
}

/// Why a window cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// The schedule.
    #[error("{text:?} {problem}")]
    Schedule {
        /// As it was written.
        text: String,
        /// What is wrong.
        problem: String,
    },
    /// The zone.
    #[error("{0:?} is no time zone; write an IANA name such as \"Europe/Berlin\" or \"UTC\"")]
    TimeZone(String),
    /// A day or range of days.
    #[error("{0:?} is no day; write \"2026-12-24\", or a range such as \"2026-12-20/2027-01-06\"")]
    Exclude(String),
    /// The openings would overlap.
    #[error("an opening would last longer than the {} from one to the next", shown(*.0))]
    Overlaps(Duration),
    /// No opening.
    #[error("it never opens: no opening within {HORIZON} years is left")]
    Never,
    /// No start.
    #[error("it is longer than an opening, so that nothing could ever start")]
    NoStart,
}

impl WindowError {
    /// The attribute that is wrong.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::Schedule { .. } | Self::Never => "schedule",
            Self::TimeZone(_) => "time_zone",
            Self::Exclude(_) => "exclude",
            Self::Overlaps(_) => "duration",
            Self::NoStart => "min_remaining",
        }
    }
}

/// One opening; half open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opening {
    /// When it opens.
    pub start: Timestamp,
    /// When it closes.
    pub end: Timestamp,
}

/// Whether something may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Now.
    Now(Opening),
    /// When this one opens.
    At(Opening),
    /// Never.
    Never,
}

/// A window that can be asked.
#[derive(Clone, Debug)]
pub struct Window {
    schedule: Schedule,
    duration: SignedDuration,
    zone: TimeZone,
    excluded: Vec<(Date, Date)>,
    frozen: Vec<Period>,
    min_remaining: SignedDuration,
}

impl WindowSpec {
    /// Reads it.
    pub fn compile(&self) -> Result<Window, WindowError> {
        let schedule = Schedule::parse(&self.schedule)
            .map_err(|problem| WindowError::Schedule { text: self.schedule.clone(), problem })?;
        let zone = TimeZone::get(&self.time_zone).map_err(|_| WindowError::TimeZone(self.time_zone.clone()))?;
        let excluded = self.exclude.iter().map(|text| days(text)).collect::<Result<_, _>>()?;
        let signed = |duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        Ok(Window {
            schedule,
            duration: signed(self.duration),
            zone,
            excluded,
            frozen: self.exclude_periods.clone(),
            min_remaining: signed(self.min_remaining),
        })
    }

    /// Reads it, and refuses one in which nothing could ever start.
    pub fn check(&self, now: Timestamp) -> Result<Window, WindowError> {
        let window = self.compile()?;
        if self.min_remaining > self.duration {
            return Err(WindowError::NoStart);
        }
        if let Some(period) = window.shortest_period(now).filter(|period| *period < window.duration) {
            return Err(WindowError::Overlaps(period.unsigned_abs()));
        }
        if window.may_start(now) == Start::Never {
            return Err(WindowError::Never);
        }
        Ok(window)
    }

    /// When a start becomes possible, or impossible.
    #[must_use]
    pub fn changes_at(&self, now: Timestamp) -> Option<Timestamp> {
        let window = self.compile().ok()?;
        match window.may_start(now) {
            // A moment later too little is left.
            Start::Now(opening) => opening.end.checked_sub(window.min_remaining).ok()?.checked_add(A_MOMENT).ok(),
            Start::At(opening) => Some(opening.start),
            Start::Never => None,
        }
    }

    /// When what starts now is to be given back because the window closes; `None` when it may finish.
    #[must_use]
    pub fn gives_back_at(&self, now: Timestamp) -> Option<Timestamp> {
        if self.on_close == OnClose::Finish {
            return None;
        }
        Some(self.compile().ok()?.open_at(now)?.end)
    }

    /// In words: `"0 22 * * SAT" Europe/Berlin for 4h`.
    #[must_use]
    pub fn summary(&self) -> String {
        format!("{:?} {} for {}", self.schedule, self.time_zone, shown(self.duration))
    }
}

/// A day, or the first and last of a range.
fn days(text: &str) -> Result<(Date, Date), WindowError> {
    let wrong = || WindowError::Exclude(text.to_owned());
    // Only the plain form: a longer text would be read too, and its time ignored.
    let day = |text: &str| if text.len() == 10 { text.parse::<Date>().map_err(|_| wrong()) } else { Err(wrong()) };
    let (first, last) = match text.split_once('/') {
        Some((first, last)) => (day(first)?, day(last)?),
        None => (day(text)?, day(text)?),
    };
    if first <= last { Ok((first, last)) } else { Err(wrong()) }
}

impl Window {
    /// The openings that end after `from`, in order.
    pub fn openings(&self, from: Timestamp) -> impl Iterator<Item = Opening> + '_ {
        let earliest = from.saturating_sub(self.duration).unwrap_or(Timestamp::MIN);
        // One day more, because a gap may move a start over midnight.
        let first = self.zone.to_datetime(earliest).date();
        let first = first.yesterday().unwrap_or(first);
        let until = first.checked_add(HORIZON.years()).unwrap_or(Date::MAX);
        let mut last = None;
        let starts = self.schedule.starts(first, until).filter(|at| !self.is_excluded(at.date()));
        starts
            .filter_map(|at| self.instant(at))
            .filter(move |start| {
                // The starts that a gap skips are one.
                let again = last.is_some_and(|last| *start <= last);
                last = Some(*start);
                !again
            })
            .filter_map(|start| self.opening(start))
            .filter(move |opening| opening.end > from)
    }

    /// The first opening that ends after `from`: the one that is open, or the next.
    #[must_use]
    pub fn next_opening(&self, from: Timestamp) -> Option<Opening> {
        self.openings(from).next()
    }

    /// The opening at a moment.
    #[must_use]
    pub fn open_at(&self, at: Timestamp) -> Option<Opening> {
        self.next_opening(at).filter(|opening| opening.start <= at)
    }

    /// Whether something may start.
    #[must_use]
    pub fn may_start(&self, at: Timestamp) -> Start {
        let enough = |opening: &Opening| opening.end.duration_since(opening.start.max(at)) >= self.min_remaining;
        match self.openings(at).find(enough) {
            Some(opening) if opening.start <= at => Start::Now(opening),
            Some(opening) => Start::At(opening),
            None => Start::Never,
        }
    }

    /// The zone of the schedule.
    #[must_use]
    pub fn time_zone(&self) -> &TimeZone {
        &self.zone
    }

    /// A moment for people, in the window's zone: `Sat 2026-11-21 22:00 CET`.
    #[must_use]
    pub fn shown(&self, at: Timestamp) -> String {
        at.to_zoned(self.zone.clone()).strftime("%a %Y-%m-%d %H:%M %Z").to_string()
    }

    fn is_excluded(&self, day: Date) -> bool {
        self.excluded.iter().any(|(first, last)| (*first..=*last).contains(&day))
    }

    /// When the clock shows a civil time: the first time, or, if it never does, when the gap has passed.
    fn instant(&self, at: DateTime) -> Option<Timestamp> {
        let ambiguous = self.zone.to_ambiguous_timestamp(at);
        match ambiguous.offset() {
            AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
                offset.to_timestamp(at).ok()
            }
            AmbiguousOffset::Gap { before, .. } => {
                // By the old clock this moment lies behind the change.
                let behind = before.to_timestamp(at).ok()?;
                let just_behind = behind.checked_add(SignedDuration::from_nanos(1)).ok()?;
                self.zone.preceding(just_behind).next().map(|change| change.timestamp())
            }
        }
    }

    fn opening(&self, start: Timestamp) -> Option<Opening> {
        let mut end = start.saturating_add(self.duration).unwrap_or(Timestamp::MAX);
        for frozen in &self.frozen {
            if frozen.start <= start && start < frozen.end {
                return None;
            }
            if start < frozen.start {
                end = end.min(frozen.start);
            }
        }
        Some(Opening { start, end })
    }

    /// The shortest time on the wall clock from one opening to the next. The calendar repeats after 28 years, but for
    /// years without a leap day.
    fn shortest_period(&self, now: Timestamp) -> Option<SignedDuration> {
        let times: Vec<_> = self.schedule.times().collect();
        let within = times.windows(2).map(|pair| pair[0].duration_until(pair[1])).min();
        let (first, last) = (times.first()?, times.last()?);
        let from = self.zone.to_datetime(now).date();
        let until = from.checked_add(28.years()).unwrap_or(Date::MAX);
        let mut between: Option<SignedDuration> = None;
        let mut day = self.schedule.next_day(from, until);
        while let Some(today) = day {
            day = today.tomorrow().ok().and_then(|tomorrow| self.schedule.next_day(tomorrow, until));
            if let Some(next) = day {
                let period = today.to_datetime(*last).duration_until(next.to_datetime(*first));
                between = Some(between.map_or(period, |known| known.min(period)));
                if next == today.tomorrow().unwrap_or(next) {
                    // No two days are nearer.
                    break;
                }
            }
        }
        [within, between].into_iter().flatten().min()
    }
}

/// `4h`, `1h 30m`.
fn shown(duration: Duration) -> String {
    let friendly = jiff::fmt::friendly::SpanPrinter::new();
    friendly.duration_to_string(&SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX))
}

impl fmt::Display for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.start, self.end)
    }
}

#[cfg(test)]
mod tests;
