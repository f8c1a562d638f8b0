//! When a window opens, on the wall clock: five cron fields.
//!
//! Minute, hour, day of month, month, day of week, with lists, ranges, steps and English names; 0 and 7 are Sunday. As in
//! crontab(5), a day fits when it fits both day fields, but when neither of them begins with `*`, one is enough.

use jiff::civil::{Date, DateTime, Time};

/// Which civil times a schedule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Neither day field begins with `*`.
    either_day: bool,
}

/// One field: its name, its bounds, and names for its values.
struct Field {
    name: &'static str,
    low: u8,
    high: u8,
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

const FIELDS: [Field; 5] = [
    Field { name: "minute", low: 0, high: 59, names: &[] },
    Field { name: "hour", low: 0, high: 23, names: &[] },
    Field { name: "day of month", low: 1, high: 31, names: &[] },
    Field { name: "month", low: 1, high: 12, names: &MONTHS },
    Field { name: "day of week", low: 0, high: 7, names: &WEEKDAYS },
];

impl Schedule {
    /// Reads the five fields.
    pub fn parse(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = words[..] else {
            return Err(format!(
                "has {} fields; five are needed: minute, hour, day of month, month, day of week, for example \"0 22 * * SAT\"",
                words.len()
            ));
        };
        let weekdays = FIELDS[4].parse(weekday)?;
        Ok(Self {
            minutes: FIELDS[0].parse(minute)?,
            hours: FIELDS[1].parse(hour)?,
            days: FIELDS[2].parse(day)?,
            months: FIELDS[3].parse(month)?,
            // 7 is another name of 0.
            weekdays: (weekdays | (weekdays >> 7)) & 0x7f,
            either_day: !day.starts_with('*') && !weekday.starts_with('*'),
        })
    }

    /// Whether a window opens on this day.
    #[must_use]
    pub fn fits(&self, date: Date) -> bool {
        let day = has(self.days, date.day());
        let weekday = has(self.weekdays, date.weekday().to_sunday_zero_offset());
        has(self.months, date.month()) && if self.either_day { day || weekday } else { day && weekday }
    }

    /// The times of day at which it opens, in order; never empty.
    pub fn times(&self) -> impl Iterator<Item = Time> + '_ {
        let hours = (0..24).filter(|hour| has(self.hours, *hour));
        hours.flat_map(|hour| {
            let minutes = (0..60).filter(|minute| has(self.minutes, *minute));
            minutes.map(move |minute| Time::constant(hour, minute, 0, 0))
        })
    }

    /// The first day, from `from` to `until`, on which it opens.
    #[must_use]
    pub fn next_day(&self, from: Date, until: Date) -> Option<Date> {
        let mut date = from;
        while date <= until {
            if !has(self.months, date.month()) {
                // Straight to the next month: a day in ten years is found as fast as tomorrow.
                date = date.last_of_month().tomorrow().ok()?;
            } else if self.fits(date) {
                return Some(date);
            } else {
                date = date.tomorrow().ok()?;
            }
        }
        None
    }

    /// The civil times at which it opens, from the beginning of a day on, to the end of another.
    pub fn starts(&self, from: Date, until: Date) -> impl Iterator<Item = DateTime> + '_ {
        let days =
            std::iter::successors(self.next_day(from, until), move |day| self.next_day(day.tomorrow().ok()?, until));
        days.flat_map(|day| self.times().map(move |time| day.to_datetime(time)))
    }
}

fn has(set: u64, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|value| set >> value & 1 == 1)
}

impl Field {
    /// The set of values as bits.
    fn parse(&self, text: &str) -> Result<u64, String> {
        let mut set = 0;
        for part in text.split(',') {
            let (range, step) = match part.split_once('/') {
                Some((range, step)) => (range, Some(self.step(part, step)?)),
                None => (part, None),
            };
            let (first, last) = match range.split_once('-') {
                _ if range == "*" => {
                    (self.low, self.high.min(if self.low == 0 && self.high == 7 { 6 } else { self.high }))
                }
                Some((first, last)) => (self.value(part, first)?, self.value(part, last)?),
                // `5/10` means from 5 on, as in most crons.
                None => (self.value(part, range)?, if step.is_some() { self.high } else { self.value(part, range)? }),
            };
            if first > last {
                return Err(self.wrong(part, "ends before it begins"));
            }
            for value in (first..=last).step_by(step.unwrap_or(1)) {
                set |= 1 << value;
            }
        }
        Ok(set)
    }

    fn step(&self, part: &str, text: &str) -> Result<usize, String> {
        match text.parse::<u8>() {
            Ok(step) if step > 0 => Ok(usize::from(step)),
            _ => Err(self.wrong(part, "has no usable step")),
        }
    }

    fn value(&self, part: &str, text: &str) -> Result<u8, String> {
        if let Some(at) = self.names.iter().position(|name| name.eq_ignore_ascii_case(text)) {
            return Ok(self.low + u8::try_from(at).unwrap_or(0));
        }
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse::<u8>() {
            Ok(value) if digits && (self.low..=self.high).contains(&value) => Ok(value),
            _ => Err(self.wrong(part, &format!("is not within {} to {}", self.low, self.high))),
        }
    }

    fn wrong(&self, part: &str, why: &str) -> String {
        format!("has the {} {part:?}, which {why}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn days(text: &str, from: &str, count: usize) -> Vec<String> {
        let schedule = Schedule::parse(text).unwrap();
        let from: Date = from.parse().unwrap();
        let starts = schedule.starts(from, Date::MAX);
        starts.take(count).map(|at| at.to_string()).collect()
    }

    #[test]
    fn fields_are_read_as_crontab_does() {
        assert_eq!(days("0 22 * * SAT", "2026-11-16", 2), ["2026-11-21T22:00:00", "2026-11-28T22:00:00"]);
        assert_eq!(days("30 1,13 1 * *", "2026-11-16", 2), ["2026-12-01T01:30:00", "2026-12-01T13:30:00"]);
        assert_eq!(
            days("*/20 3 * * *", "2026-11-16", 4)[..3],
            ["2026-11-16T03:00:00", "2026-11-16T03:20:00", "2026-11-16T03:40:00"]
        );
        // 0 and 7 are Sunday, also in ranges.
        assert_eq!(days("0 0 * * 7", "2026-11-16", 1), days("0 0 * * sun", "2026-11-16", 1));
        assert_eq!(
            days("0 0 * * 5-7", "2026-11-16", 3),
            ["2026-11-20T00:00:00", "2026-11-21T00:00:00", "2026-11-22T00:00:00"]
        );
        assert_eq!(days("0 0 29 2 *", "2026-11-16", 2), ["2028-02-29T00:00:00", "2032-02-29T00:00:00"]);
    }

    #[test]
    fn two_day_fields_are_either_or_unless_one_begins_with_a_star() {
        // The 13th, or a Friday.
        assert_eq!(days("0 0 13 * FRI", "2026-11-09", 2), ["2026-11-13T00:00:00", "2026-11-20T00:00:00"]);
        // An odd day that is a Friday.
        assert_eq!(days("0 0 */2 * FRI", "2026-11-14", 2), ["2026-11-27T00:00:00", "2026-12-11T00:00:00"]);
    }

    #[test]
    fn what_is_no_schedule_is_said_to_be_none() {
        for (text, says) in [
            ("", "has 0 fields"),
            ("0 22 * *", "has 4 fields"),
            ("0 0 22 * * SAT", "has 6 fields"),
            ("60 * * * *", "minute \"60\""),
            ("0 24 * * *", "hour \"24\""),
            ("0 0 0 * *", "day of month \"0\""),
            ("0 0 * 13 *", "month \"13\""),
            ("0 0 * * 8", "day of week \"8\""),
            ("0 0 * * FRIDAY", "day of week \"FRIDAY\""),
            ("0 22-20 * * *", "ends before it begins"),
            ("*/0 * * * *", "no usable step"),
            ("*/x * * * *", "no usable step"),
            ("+5 * * * *", "minute \"+5\""),
            ("1,,2 * * * *", "minute \"\""),
        ] {
            let problem = Schedule::parse(text).unwrap_err();
            assert!(problem.contains(says), "{text:?}: {problem}");
        }
    }
}
