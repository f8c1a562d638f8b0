//! Five-field cron schedules as bit sets, and their next local time.
//!
//! The fields are minute (0-59), hour (0-23), day of month (1-31), month (1-12 or JAN-DEC) and day
//! of week (0-7 or SUN-SAT; 0 and 7 are Sunday). A field is `*`, or a list of values, ranges `a-b`
//! and steps `*/n`, `a-b/n`. A day of week can include its number within the month: `TUE#2` is the
//! second Tuesday, `FRI#L` the last Friday.
//!
//! If both day fields are restricted, a day that matches **either** counts, as in POSIX.
//! Implementations disagree if `*/2` is a restriction, so it is rejected together with a restricted
//! other day field. `1-31/2` is unambiguous.
//!
//! Steps greater than their range (`*/90` minutes) are also rejected, because they never have the
//! intended meaning.

use jiff::civil::{Date, DateTime};

/// A field: its name for people, its range, and its value names.
struct Field {
    name: &'static str,
    min: u8,
    max: u8,
    names: &'static [&'static str],
}

const MINUTE: Field = Field { name: "minute", min: 0, max: 59, names: &[] };
const HOUR: Field = Field { name: "hour", min: 0, max: 23, names: &[] };
const DAY: Field = Field { name: "day of month", min: 1, max: 31, names: &[] };
const MONTH: Field = Field {
    name: "month",
    min: 1,
    max: 12,
    names: &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
};
const WEEKDAY: Field = Field {
    name: "day of week",
    min: 0,
    // Sunday has the numbers 0 and 7.
    max: 7,
    names: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
};

/// A set of values 0-63.
type Bits = u64;

/// A parsed schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cron {
    minutes: Bits,
    hours: Bits,
    /// `None` if unrestricted.
    days: Option<Bits>,
    months: Bits,
    /// `None` if unrestricted.
    weekdays: Option<Weekdays>,
}

/// Weekdays; bit 0 is Sunday.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Weekdays {
    every: Bits,
    /// The first to the fifth occurrence in the month.
    nth: [Bits; 5],
    /// The last occurrence in the month.
    last: Bits,
}

/// Minutes of a day.
const DAY_MINUTES: i64 = 24 * 60;

impl Cron {
    /// Parses a schedule. The error continues a sentence and names the field.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let fields: Vec<&str> = text.split_whitespace().collect();
        let &[minute, hour, day, month, weekday] = fields.as_slice() else {
            return Err(match fields.as_slice() {
                [one] if one.starts_with('@') => format!("{one} is an abbreviation, which is not supported"),
                [_, _, _, _, _, _, ..] => {
                    format!("it has {} fields; seconds and years are not supported", fields.len())
                }
                _ => format!("it has {} fields", fields.len()),
            });
        };
        let (over_days, over_weekdays) = (day.contains("*/"), weekday.contains("*/"));
        if (over_days && weekday != "*") || (over_weekdays && day != "*") {
            let (step, instead) = if over_days { ("day of month", "1-31") } else { ("day of week", "0-6") };
            return Err(format!(
                "both day fields are restricted and the {step} has a step over *, which cron programs interpret \
                 differently; write {instead} instead of that *"
            ));
        }
        Ok(Self {
            minutes: MINUTE.set(minute)?,
            hours: HOUR.set(hour)?,
            days: (day != "*").then(|| DAY.set(day)).transpose()?,
            months: MONTH.set(month)?,
            weekdays: (weekday != "*").then(|| Weekdays::parse(weekday)).transpose()?,
        })
    }

    /// Returns the schedule's first local time at or after `from`.
    pub(super) fn next(&self, from: DateTime) -> Option<DateTime> {
        let mut day = from.date();
        let started = from.second() > 0 || from.subsec_nanosecond() > 0;
        let mut minute = i64::from(from.hour()) * 60 + i64::from(from.minute()) + i64::from(started);
        loop {
            let found = self.next_day(day)?;
            if found > day {
                minute = 0;
            }
            if let Some((hour, minute)) = self.next_time(minute) {
                return Some(found.at(hour, minute, 0, 0));
            }
            (day, minute) = (found.tomorrow().ok()?, 0);
        }
    }

    /// Returns true if the schedule matches any calendar day.
    pub(super) fn has_days(&self) -> bool {
        self.months_of_a_cycle().any(|(year, month)| self.days_of(year, month) != 0)
    }

    /// Returns the shortest local time between two starts if it is below `than`; both in minutes.
    pub(super) fn period_shorter(&self, than: i64) -> Option<i64> {
        let times: Vec<i64> = values(self.hours)
            .flat_map(|hour| values(self.minutes).map(move |minute| i64::from(hour) * 60 + i64::from(minute)))
            .collect();
        let within = times.windows(2).filter_map(|pair| Some(pair.get(1)? - pair.first()?)).min();
        let over_night = times.first()? - times.last()?;
        // Scanning the calendar costs more, and most openings are shorter than a night.
        let over_days = (DAY_MINUTES + over_night < than).then(|| self.shortest_days() * DAY_MINUTES + over_night);
        within.into_iter().chain(over_days).min().filter(|period| *period < than)
    }

    /// Returns the smallest number of days between two matching days.
    fn shortest_days(&self) -> i64 {
        let (mut shortest, mut before, mut month_start) = (i64::MAX, None, 0);
        for (year, month) in self.months_of_a_cycle() {
            for day in values(self.days_of(year, month)) {
                let day = month_start + i64::from(day);
                if let Some(before) = before {
                    shortest = shortest.min(day - before);
                }
                if shortest == 1 {
                    return 1;
                }
                before = Some(day);
            }
            month_start += Date::new(year, month, 1).map_or(0, |first| i64::from(first.days_in_month()));
        }
        shortest
    }

    /// Weekdays and leap days repeat after 28 years; another year closes the cycle. Exception:
    /// around a century without a leap day, rarer days can be closer to each other.
    #[expect(clippy::unused_self, reason = "reads as a question to the schedule")]
    fn months_of_a_cycle(&self) -> impl Iterator<Item = (i16, i8)> + use<> {
        (2000..=2028).flat_map(|year| (1..=12).map(move |month| (year, month)))
    }

    /// Returns the first matching day at or after `from`.
    fn next_day(&self, from: Date) -> Option<Date> {
        let (mut year, mut month) = (from.year(), from.month());
        let mut not_before = Bits::MAX << from.day();
        loop {
            let days = self.days_of(year, month) & not_before;
            if days != 0 {
                return Date::new(year, month, low(days)).ok();
            }
            not_before = Bits::MAX;
            (year, month) = if month == 12 { (year.checked_add(1)?, 1) } else { (year, month + 1) };
            if year > Date::MAX.year() {
                return None;
            }
        }
    }

    /// Returns the first matching hour and minute at or after `from`, in minutes since midnight.
    fn next_time(&self, from: i64) -> Option<(i8, i8)> {
        let (hour, minute) = (from / 60, from % 60);
        if self.hours >> hour & 1 == 1 {
            let minutes = self.minutes & (Bits::MAX << minute);
            if minutes != 0 {
                return Some((i8::try_from(hour).ok()?, low(minutes)));
            }
        }
        let hours = self.hours & (Bits::MAX << (hour + 1));
        (hours != 0).then(|| (low(hours), low(self.minutes)))
    }

    /// Returns the matching days of one month.
    fn days_of(&self, year: i16, month: i8) -> Bits {
        if self.months >> month & 1 == 0 {
            return 0;
        }
        let Ok(first) = Date::new(year, month, 1) else { return 0 };
        let all = ((1 << first.days_in_month()) - 1) << 1;
        let days = match (self.days, &self.weekdays) {
            (None, None) => all,
            (Some(days), None) => days,
            (None, Some(weekdays)) => weekdays.days(first, all),
            (Some(days), Some(weekdays)) => days | weekdays.days(first, all),
        };
        days & all
    }
}

impl Weekdays {
    fn parse(text: &str) -> Result<Self, String> {
        let mut all = Self::default();
        for item in text.split(',') {
            let Some((weekday, number)) = item.split_once('#') else {
                all.every |= WEEKDAY.item(item)?;
                continue;
            };
            let weekday = 1 << (WEEKDAY.value(weekday)? % 7);
            let set = match number.parse::<usize>() {
                _ if number.eq_ignore_ascii_case("L") => Some(&mut all.last),
                Ok(number @ 1..) => all.nth.get_mut(number - 1),
                _ => None,
            };
            *set.ok_or_else(|| format!("{item:?} must end in #1 to #5, or in #L for the month's last"))? |= weekday;
        }
        // Both Sunday numbers map to bit 0.
        all.every = (all.every | all.every >> 7) & 0x7f;
        Ok(all)
    }

    /// Returns the matching days in the month that starts on `first` and has the days `all`.
    fn days(&self, first: Date, all: Bits) -> Bits {
        let offset = first.weekday().to_sunday_zero_offset();
        let mut days = 0;
        for weekday in 0..7 {
            let day = (weekday - offset).rem_euclid(7) + 1;
            let is_in = |set: Bits| set >> weekday & 1 == 1;
            let each = (1 | 1 << 7 | 1 << 14 | 1 << 21 | 1 << 28) << day & all;
            if is_in(self.every) {
                days |= each;
            }
            for (week, set) in (0..).zip(self.nth) {
                if is_in(set) {
                    days |= 1 << (day + 7 * week) & all;
                }
            }
            if is_in(self.last) {
                days |= 1 << each.ilog2();
            }
        }
        days
    }
}

impl Field {
    /// Parses a field's list.
    fn set(&self, text: &str) -> Result<Bits, String> {
        text.split(',').try_fold(0, |all, item| Ok(all | self.item(item)?))
    }

    /// Parses `*`, `a`, `a-b`, `*/n` or `a-b/n`.
    fn item(&self, text: &str) -> Result<Bits, String> {
        let (range, step) = match text.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (text, None),
        };
        let (from, to) = match range.split_once('-') {
            // A step over the whole week must not count Sunday twice.
            _ if range == "*" => (self.min, if self.max == 7 { 6 } else { self.max }),
            Some((from, to)) => (self.value(from)?, self.end(from, to)?),
            None if step.is_some() => {
                return Err(format!(
                    "{text:?} ({}) has a step without a range; write {range}-{}/n",
                    self.name, self.max
                ));
            }
            None => (self.value(range)?, self.value(range)?),
        };
        if from > to {
            return Err(format!("the range {range:?} ({}) is reversed", self.name));
        }
        let step = match step {
            None => 1,
            Some(step) => match number(step) {
                Some(step) if step > 0 && step <= to - from => step,
                _ => {
                    return Err(format!("{step:?} is not a valid step of {range} ({})", self.name));
                }
            },
        };
        Ok((from..=to).step_by(usize::from(step)).fold(0, |all, value| all | 1 << value))
    }

    /// Parses a range's end; `FRI-SUN` ends on the second Sunday.
    fn end(&self, from: &str, to: &str) -> Result<u8, String> {
        let (from, end) = (self.value(from)?, self.value(to)?);
        Ok(if end == 0 && from > 0 && to.eq_ignore_ascii_case("SUN") { 7 } else { end })
    }

    fn value(&self, text: &str) -> Result<u8, String> {
        let index = self.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let value = match index {
            Some(index) => u8::try_from(index).ok().map(|index| index + self.min),
            None => number(text),
        };
        value.filter(|value| (self.min..=self.max).contains(value)).ok_or_else(|| {
            let names = match (self.names.first(), self.names.last()) {
                (Some(first), Some(last)) => format!(", {first} to {last}"),
                _ => String::new(),
            };
            let why = if text == "?" { "; write * for any" } else { "" };
            format!("{text:?} is not a valid {} ({} to {}{names}){why}", self.name, self.min, self.max)
        })
    }
}

/// Parses one or two digits; rejects `+5`.
fn number(text: &str) -> Option<u8> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Returns the smallest value of a non-empty set.
fn low(set: Bits) -> i8 {
    i8::try_from(set.trailing_zeros()).unwrap_or(i8::MAX)
}

/// Returns a set's values, ascending.
fn values(set: Bits) -> impl Iterator<Item = u8> {
    (0..64).filter(move |value| set >> value & 1 == 1)
}
