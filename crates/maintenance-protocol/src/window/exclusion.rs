//! Days and periods that a schedule excludes.

use jiff::{Timestamp, civil::Date};
use shown_text::OneLine;

use super::{Period, WindowError};

/// Inclusive ranges of local days; ascending and disjoint.
#[derive(Clone, Debug)]
pub(super) struct ExcludedDays(Vec<(Date, Date)>);

impl ExcludedDays {
    pub(super) fn parse(texts: &[OneLine]) -> Result<Self, WindowError> {
        let mut ranges = texts.iter().map(|text| range(text.raw())).collect::<Result<Vec<_>, _>>()?;
        ranges.sort_unstable();
        let mut merged: Vec<(Date, Date)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                // Also merge adjacent ranges.
                Some(before) if first <= before.1.tomorrow().unwrap_or(Date::MAX) => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Ok(Self(merged))
    }

    /// Returns the last day of the excluded range that contains `day`.
    pub(super) fn until(&self, day: Date) -> Option<Date> {
        let next = self.0.partition_point(|(first, _)| *first <= day);
        let (_, last) = self.0.get(next.checked_sub(1)?)?;
        (day <= *last).then_some(*last)
    }

    /// Returns the last excluded day.
    pub(super) fn end(&self) -> Option<Date> {
        self.0.last().map(|(_, last)| *last)
    }

    /// Returns the first day of every range.
    pub(super) fn firsts(&self) -> impl Iterator<Item = Date> {
        self.0.iter().map(|(first, _)| *first)
    }
}

/// Freezes; ascending and disjoint.
#[derive(Clone, Debug)]
pub(super) struct Freezes(Vec<Period>);

impl Freezes {
    pub(super) fn new(periods: &[Period]) -> Result<Self, WindowError> {
        let mut periods = periods.to_vec();
        if let Some(Period { start, end }) = periods.iter().find(|period| period.start >= period.end) {
            return Err(WindowError::Calendar { problem: format!("a freeze from {start} to {end} is empty") });
        }
        periods.sort_unstable_by_key(|period| period.start);
        let mut merged: Vec<Period> = Vec::with_capacity(periods.len());
        for period in periods {
            match merged.last_mut() {
                Some(before) if period.start <= before.end => before.end = before.end.max(period.end),
                _ => merged.push(period),
            }
        }
        Ok(Self(merged))
    }

    /// Returns when the freeze that contains the instant ends.
    pub(super) fn until(&self, at: Timestamp) -> Option<Timestamp> {
        let next = self.0.partition_point(|period| period.start <= at);
        let period = self.0.get(next.checked_sub(1)?)?;
        (at < period.end).then_some(period.end)
    }

    /// Returns when the first freeze after the instant starts.
    pub(super) fn after(&self, at: Timestamp) -> Option<Timestamp> {
        self.0.get(self.0.partition_point(|period| period.start <= at)).map(|period| period.start)
    }

    /// Returns when the last freeze ends.
    pub(super) fn end(&self) -> Option<Timestamp> {
        self.0.last().map(|period| period.end)
    }

    /// Returns the start of every freeze.
    pub(super) fn starts(&self) -> impl Iterator<Item = Timestamp> {
        self.0.iter().map(|period| period.start)
    }
}

/// Parses `2026-12-24` or `2026-12-20/2027-01-06`.
fn range(text: &str) -> Result<(Date, Date), WindowError> {
    let wrong = |problem: String| WindowError::Exclude { text: text.to_owned(), problem };
    let day = |day: &str| day_of(day).ok_or_else(|| wrong(format!("{day:?} is not a valid day of the calendar")));
    let (first, last) = match text.split_once('/') {
        Some((first, last)) => (day(first)?, day(last)?),
        None => (day(text)?, day(text)?),
    };
    if first > last {
        return Err(wrong("it ends before it begins".to_owned()));
    }
    Ok((first, last))
}

/// Accepts only the ISO 8601 form with dashes, without trailing text.
fn day_of(text: &str) -> Option<Date> {
    let dashed = text.len() == 10 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    text.parse().ok().filter(|_| dashed)
}
