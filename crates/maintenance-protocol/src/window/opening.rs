//! Openings: conversion of local times to instants.

use std::time::Duration;

use jiff::{
    Timestamp, ToSpan,
    civil::DateTime,
    tz::{AmbiguousOffset, TimeZone},
};

use super::{
    Opening, Start, WindowError,
    cron::Cron,
    exclusion::{ExcludedDays, Freezes},
};

/// A compiled window. Queries take microseconds, regardless of the next opening.
///
/// [`WindowSpec::compile`](super::WindowSpec::compile) creates it and ensures that it opens.
#[derive(Clone, Debug)]
pub struct Window {
    pub(super) cron: Cron,
    pub(super) duration: Duration,
    pub(super) time_zone: TimeZone,
    pub(super) days: ExcludedDays,
    pub(super) freezes: Freezes,
    pub(super) min_remaining: Duration,
}

/// A start: its scheduled local time and its instant, which differ around clock changes.
#[derive(Clone, Copy, Debug)]
struct Started {
    local: DateTime,
    at: Timestamp,
}

impl Window {
    /// Returns the first opening that ends after `from`.
    #[must_use]
    pub fn next_opening(&self, from: Timestamp) -> Option<Opening> {
        self.openings(from).next()
    }

    /// Returns all openings that end after `from`, ascending and disjoint.
    pub fn openings(&self, from: Timestamp) -> impl Iterator<Item = Opening> {
        // Later starts also have a later local time, so every opening that is still open is found.
        let earliest = from.checked_sub(self.duration).unwrap_or(Timestamp::MIN);
        let mut start = self.next_start(self.time_zone.to_datetime(earliest));
        std::iter::from_fn(move || {
            let this = start?;
            // Several scheduled times within a gap share one instant.
            let mut next = self.start_after(this);
            while next.is_some_and(|next| next.at <= this.at) {
                next = next.and_then(|next| self.start_after(next));
            }
            start = next;
            Some(self.opening(this.at, next.map(|next| next.at)))
        })
        .filter(move |opening| opening.end > from)
    }

    /// Returns the opening at this instant, if any.
    #[must_use]
    pub fn open_at(&self, at: Timestamp) -> Option<Opening> {
        self.next_opening(at).filter(|opening| opening.start <= at)
    }

    /// Returns the opening at this instant if its remaining time is sufficient. Otherwise returns
    /// the next opening with a possible start.
    #[must_use]
    pub fn may_start(&self, at: Timestamp) -> Start {
        let enough = |opening: &Opening, from: Timestamp| {
            Duration::try_from(opening.end.duration_since(from)).is_ok_and(|left| left >= self.min_remaining)
        };
        self.openings(at)
            .find_map(|opening| {
                let (start, from) =
                    if opening.start <= at { (Start::Now(opening), at) } else { (Start::At(opening), opening.start) };
                enough(&opening, from).then_some(start)
            })
            .unwrap_or(Start::Never)
    }

    /// Returns the window's time zone.
    #[must_use]
    pub fn time_zone(&self) -> &TimeZone {
        &self.time_zone
    }

    /// Formats a time in the window's zone: `Sat 2026-11-21 22:00 CET`.
    #[must_use]
    pub fn shown(&self, at: Timestamp) -> String {
        at.to_zoned(self.time_zone.clone()).strftime("%a %Y-%m-%d %H:%M %Z").to_string()
    }

    /// Rejects exclusions that cover too many years.
    pub(super) fn check_opens(&self, years: i16) -> Result<(), WindowError> {
        let by_day = self.days.firsts().map(|day| (day.at(0, 0, 0, 0), false));
        let by_calendar = self.freezes.starts().map(|start| (self.time_zone.to_datetime(start), true));
        let mut pauses: Vec<(DateTime, bool)> = by_day.chain(by_calendar).collect();
        pauses.sort_unstable();
        // Typical exclusions cover this year and the next, and do not require a search.
        let ends = [
            self.days.end().map(|day| day.at(0, 0, 0, 0)),
            self.freezes.end().map(|at| self.time_zone.to_datetime(at)),
        ];
        let end = ends.into_iter().flatten().max();
        let brief = |(first, _): &(DateTime, bool)| end <= first.checked_add((years / 4).years()).ok();
        if pauses.first().is_none_or(brief) {
            return Ok(());
        }
        let mut opens = DateTime::MIN;
        for (from, by_calendar) in pauses {
            // Exclusions before the same opening need only one search.
            if from <= opens {
                continue;
            }
            let limit = from.checked_add(years.years()).unwrap_or(DateTime::MAX);
            match self.next_start(from) {
                Some(start) if start.local <= limit => opens = start.local,
                _ => return Err(WindowError::AllExcluded { from: from.date().to_string(), years, by_calendar }),
            }
        }
        Ok(())
    }

    /// Returns the opening that starts at `start` and is followed by a start at `next`.
    fn opening(&self, start: Timestamp, next: Option<Timestamp>) -> Opening {
        let whole = start.checked_add(self.duration).unwrap_or(Timestamp::MAX);
        let ends = [next, self.freezes.after(start)].into_iter().flatten();
        Opening { start, end: ends.fold(whole, Timestamp::min) }
    }

    /// Returns the following start in the schedule.
    fn start_after(&self, start: Started) -> Option<Started> {
        self.next_start(start.local.checked_add(1.minute()).ok()?)
    }

    /// Returns the first start whose local time is at or after `from`, without exclusions.
    fn next_start(&self, mut from: DateTime) -> Option<Started> {
        loop {
            let local = self.cron.next(from)?;
            let at = self.instant(local)?;
            let Some(end) = self.excluded_until(at) else { return Some(Started { local, at }) };
            // Starts at or after the end have a later local time than the last excluded instant.
            let last = end.checked_sub(1.nanosecond()).ok()?;
            from = self.time_zone.to_datetime(last).max(local.checked_add(1.minute()).ok()?);
        }
    }

    /// Returns the first instant after the exclusion that contains `at`, or the end of the
    /// calendar.
    fn excluded_until(&self, at: Timestamp) -> Option<Timestamp> {
        let day = self.time_zone.to_datetime(at).date();
        let Some(last) = self.days.until(day) else { return self.freezes.until(at) };
        let after = last.tomorrow().ok().and_then(|after| self.instant(after.at(0, 0, 0, 0)));
        Some(after.unwrap_or(Timestamp::MAX))
    }

    /// Returns a local time's instant: its first occurrence, or the first instant after its gap.
    fn instant(&self, local: DateTime) -> Option<Timestamp> {
        let ambiguous = self.time_zone.to_ambiguous_timestamp(local);
        let in_gap = matches!(ambiguous.offset(), AmbiguousOffset::Gap { .. });
        let earlier = ambiguous.earlier().ok()?;
        if !in_gap {
            return Some(earlier);
        }
        // With the offset after the gap, a skipped time is an instant before the gap.
        self.time_zone
            .following(earlier)
            .map(|transition| transition.timestamp())
            .find(|at| self.time_zone.to_datetime(*at) > local)
    }
}
