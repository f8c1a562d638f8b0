//! Openings: from local times to instants.

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

/// A compiled window. Asking costs microseconds, whenever it opens next.
///
/// Made by [`WindowSpec::compile`](super::WindowSpec::compile) only, which makes sure that it
/// opens.
#[derive(Clone, Debug)]
pub struct Window {
    pub(super) cron: Cron,
    pub(super) duration: Duration,
    pub(super) time_zone: TimeZone,
    pub(super) days: ExcludedDays,
    pub(super) freezes: Freezes,
    pub(super) min_remaining: Duration,
}

/// A start: its time in the schedule and its instant, which differ where the clocks change.
#[derive(Clone, Copy, Debug)]
struct Started {
    local: DateTime,
    at: Timestamp,
}

impl Window {
    /// The first opening that ends after `from`: the one that is open then, or else the next.
    #[must_use]
    pub fn next_opening(&self, from: Timestamp) -> Option<Opening> {
        self.openings(from).next()
    }

    /// All openings that end after `from`, ascending and without overlap.
    pub fn openings(&self, from: Timestamp) -> impl Iterator<Item = Opening> {
        // What starts later than this is on a later local time, so nothing that is still open is
        // missed.
        let earliest = from.checked_sub(self.duration).unwrap_or(Timestamp::MIN);
        let mut start = self.next_start(self.time_zone.to_datetime(earliest));
        std::iter::from_fn(move || {
            let this = start?;
            // Within a gap, several times of the schedule are one instant.
            let mut next = self.start_after(this);
            while next.is_some_and(|next| next.at <= this.at) {
                next = next.and_then(|next| self.start_after(next));
            }
            start = next;
            Some(self.opening(this.at, next.map(|next| next.at)))
        })
        .filter(move |opening| opening.end > from)
    }

    /// The opening that is open at that instant.
    #[must_use]
    pub fn open_at(&self, at: Timestamp) -> Option<Opening> {
        self.next_opening(at).filter(|opening| opening.start <= at)
    }

    /// Whether something may start at that instant: the window is open and enough of the opening is
    /// left; else the opening at whose start it may.
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

    /// The zone on whose clocks the window opens.
    #[must_use]
    pub fn time_zone(&self) -> &TimeZone {
        &self.time_zone
    }

    /// A moment for people, on the window's clocks: `Sat 2026-11-21 22:00 CET`.
    #[must_use]
    pub fn shown(&self, at: Timestamp) -> String {
        at.to_zoned(self.time_zone.clone()).strftime("%a %Y-%m-%d %H:%M %Z").to_string()
    }

    /// Refuses exclusions that leave nothing for too long.
    pub(super) fn check_opens(&self, years: i16) -> Result<(), WindowError> {
        let by_day = self.days.firsts().map(|day| (day.at(0, 0, 0, 0), false));
        let by_calendar = self.freezes.starts().map(|start| (self.time_zone.to_datetime(start), true));
        let mut pauses: Vec<(DateTime, bool)> = by_day.chain(by_calendar).collect();
        pauses.sort_unstable();
        // Most are about this year and the next, and need no search.
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
            // What opens after several exclusions is asked once.
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

    /// The opening that starts at `start`, when the next one starts at `next`.
    fn opening(&self, start: Timestamp, next: Option<Timestamp>) -> Opening {
        let whole = start.checked_add(self.duration).unwrap_or(Timestamp::MAX);
        let ends = [next, self.freezes.after(start)].into_iter().flatten();
        Opening { start, end: ends.fold(whole, Timestamp::min) }
    }

    /// The start that follows in the schedule.
    fn start_after(&self, start: Started) -> Option<Started> {
        self.next_start(start.local.checked_add(1.minute()).ok()?)
    }

    /// The first start whose local time is not before `from`, exclusions left out.
    fn next_start(&self, mut from: DateTime) -> Option<Started> {
        loop {
            let local = self.cron.next(from)?;
            let at = self.instant(local)?;
            let Some(end) = self.excluded_until(at) else { return Some(Started { local, at }) };
            // Whatever starts at the end or later is on a later local time than the last excluded
            // instant.
            let last = end.checked_sub(1.nanosecond()).ok()?;
            from = self.time_zone.to_datetime(last).max(local.checked_add(1.minute()).ok()?);
        }
    }

    /// The first instant after the exclusion that the instant is in, or the end of the calendar.
    fn excluded_until(&self, at: Timestamp) -> Option<Timestamp> {
        let day = self.time_zone.to_datetime(at).date();
        let Some(last) = self.days.until(day) else { return self.freezes.until(at) };
        let after = last.tomorrow().ok().and_then(|after| self.instant(after.at(0, 0, 0, 0)));
        Some(after.unwrap_or(Timestamp::MAX))
    }

    /// When a local time happens: the first time that it occurs, or the first instant after the gap
    /// that it is in.
    fn instant(&self, local: DateTime) -> Option<Timestamp> {
        let ambiguous = self.time_zone.to_ambiguous_timestamp(local);
        let in_gap = matches!(ambiguous.offset(), AmbiguousOffset::Gap { .. });
        let earlier = ambiguous.earlier().ok()?;
        if !in_gap {
            return Some(earlier);
        }
        // Read with the offset that comes after it, a time within the gap is an instant before it.
        self.time_zone
            .following(earlier)
            .map(|transition| transition.timestamp())
            .find(|at| self.time_zone.to_datetime(*at) > local)
    }
}
