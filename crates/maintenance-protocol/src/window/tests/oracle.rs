//! Compares windows with a simple enumeration that checks every minute of the local clock.

use std::{collections::BTreeSet, time::Duration};

use jiff::{
    SignedDuration, Timestamp, ToSpan,
    civil::{Date, DateTime},
    tz::TimeZone,
};
use proptest::{collection, option, prelude::*, sample};

use super::*;

/// Zones, each with the first of ten years that contain clock changes.
const ZONES: [(&str, i16); 16] = [
    ("Europe/Berlin", 2020),
    ("America/New_York", 2020),
    // Changes by half an hour.
    ("Australia/Lord_Howe", 2020),
    // Changes by two hours.
    ("Antarctica/Troll", 2020),
    // Abolished summer time, and a skipped day.
    ("Pacific/Apia", 2009),
    // Changes for Ramadan.
    ("Africa/Casablanca", 2018),
    // Changes shortly before, at or after midnight.
    ("America/Sao_Paulo", 2010),
    ("America/Nuuk", 2018),
    ("Africa/Cairo", 2014),
    ("America/Havana", 2020),
    ("Asia/Gaza", 2016),
    ("Asia/Tehran", 2015),
    // Offsets with fractions of an hour.
    ("Pacific/Chatham", 2020),
    ("Asia/Kathmandu", 2020),
    ("Europe/Dublin", 2020),
    ("UTC", 2020),
];

/// A schedule as sets; `None` is `*`.
#[derive(Clone, Debug)]
struct Fields {
    minutes: BTreeSet<i8>,
    hours: Option<BTreeSet<i8>>,
    days: Option<BTreeSet<i8>>,
    months: Option<BTreeSet<i8>>,
    weekdays: Option<BTreeSet<i8>>,
}

impl Fields {
    fn text(&self) -> String {
        let list = |set: &BTreeSet<i8>| set.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let field = |set: &Option<BTreeSet<i8>>| set.as_ref().map_or("*".to_owned(), list);
        let rest = [&self.hours, &self.days, &self.months, &self.weekdays].map(field);
        format!("{} {}", list(&self.minutes), rest.join(" "))
    }

    fn has(&self, at: DateTime) -> bool {
        let is_in = |set: &Option<BTreeSet<i8>>, value| set.as_ref().is_none_or(|set| set.contains(&value));
        let weekday = at.weekday().to_sunday_zero_offset();
        let day = match (&self.days, &self.weekdays) {
            (Some(days), Some(weekdays)) => days.contains(&at.day()) || weekdays.contains(&weekday),
            (days, weekdays) => is_in(days, at.day()) && is_in(weekdays, weekday),
        };
        day && self.minutes.contains(&at.minute()) && is_in(&self.hours, at.hour()) && is_in(&self.months, at.month())
    }
}

#[derive(Clone, Debug)]
struct Case {
    fields: Fields,
    zone: usize,
    /// Position within the ten years: a clock change, or any day.
    place: Result<sample::Index, i32>,
    minutes: u64,
    min_remaining: u64,
    /// Offset from the start in days, number of days.
    exclude: Vec<(i64, i64)>,
    /// Offset from the start in seconds, length in seconds.
    freezes: Vec<(i64, i64)>,
}

/// Number of compared days per case.
const DAYS: i64 = 7;

fn cases() -> impl Strategy<Value = Case> {
    let set = |range: std::ops::RangeInclusive<i8>, most: usize| collection::btree_set(range, 1..=most);
    // Most schedules use the hours of clock changes.
    let hours = prop_oneof![Just(None), set(0..=3, 3).prop_map(Some), set(0..=23, 4).prop_map(Some)];
    let months = option::weighted(0.1, set(1..=12, 8));
    let fields = (set(0..=59, 6), hours, option::weighted(0.2, set(1..=31, 20)), months, option::of(set(0..=6, 5)));
    let fields =
        fields.prop_map(|(minutes, hours, days, months, weekdays)| Fields { minutes, hours, days, months, weekdays });
    let place = prop_oneof![3 => any::<sample::Index>().prop_map(Ok), 1 => (0..3640).prop_map(Err)];
    let minutes = prop_oneof![1..120_u64, 1..3000_u64];
    let exclude = collection::vec((-2..DAYS, 0..3_i64), 0..3);
    let freezes = collection::vec((-86_400..DAYS * 86_400, 1..100_000_i64), 0..3);
    (fields, 0..ZONES.len(), place, minutes, 0..100_u64, exclude, freezes).prop_map(
        |(fields, zone, place, minutes, min_remaining, exclude, freezes)| Case {
            fields,
            zone,
            place,
            minutes,
            min_remaining,
            exclude,
            freezes,
        },
    )
}

/// Returns the first compared minute.
fn beginning(zone: &TimeZone, year: i16, place: &Result<sample::Index, i32>) -> Timestamp {
    let first = Date::constant(year, 1, 1).to_zoned(zone.clone()).unwrap();
    let last = Date::constant(year + 10, 1, 1).to_zoned(zone.clone()).unwrap().timestamp();
    let changes = || zone.following(first.timestamp()).map(|change| change.timestamp()).take_while(|at| *at < last);
    match place {
        Ok(index) if changes().next().is_some() => {
            changes().nth(index.index(changes().count())).unwrap() - SignedDuration::from_hours(2 * 24)
        }
        Ok(index) => first.timestamp() + SignedDuration::from_hours(24 * i64::try_from(index.index(3640)).unwrap()),
        Err(day) => first.checked_add(day.days()).unwrap().timestamp(),
    }
}

/// Returns all openings that end after `from` and start before `until`. All times are multiples of
/// `step` minutes.
fn enumerated(
    step: i64,
    fields: &Fields,
    zone: &TimeZone,
    spec: &WindowSpec,
    days: &BTreeSet<Date>,
    (from, until): (Timestamp, Timestamp),
) -> Vec<Opening> {
    let mut at = from - spec.duration - SignedDuration::from_hours(2 * 24);
    let mut shown = zone.to_datetime(at);
    let mut starts = Vec::new();
    while at < until + spec.duration {
        at += SignedDuration::from_mins(step);
        let now = zone.to_datetime(at);
        // Each local time counts when it is first reached or skipped.
        let mut starts_now = false;
        while shown < now {
            shown = shown.checked_add(step.minutes()).unwrap();
            starts_now |= fields.has(shown);
        }
        let frozen = spec.exclude_periods.iter().any(|freeze| freeze.start <= at && at < freeze.end);
        if starts_now && !days.contains(&now.date()) && !frozen {
            starts.push(at);
        }
    }
    let freezes: Vec<Timestamp> = spec.exclude_periods.iter().map(|freeze| freeze.start).collect();
    let nexts = starts.iter().skip(1).copied().map(Some).chain([None]);
    let openings = starts.iter().copied().zip(nexts).map(|(start, next)| {
        let freezes = freezes.iter().copied().filter(|freeze| *freeze > start);
        Opening { start, end: next.into_iter().chain(freezes).fold(start + spec.duration, Timestamp::min) }
    });
    openings.filter(|opening| opening.end > from && opening.start < until).collect()
}

/// Covers all clock changes in ten years, with steps that keep the test fast.
#[test]
fn ten_years_of_every_zone() {
    let set = |values: &[i8]| values.iter().copied().collect::<BTreeSet<i8>>();
    let nights = set(&[0, 1, 2, 3, 23]);
    let fields = Fields { minutes: set(&[0, 45]), hours: Some(nights), days: None, months: None, weekdays: None };
    for (name, year) in ZONES {
        let spec = spec(&fields.text(), 15, name);
        let window = spec.compile().unwrap();
        let zone = window.time_zone();
        let new_year = |year| Date::constant(year, 1, 1).to_zoned(zone.clone()).unwrap().timestamp();
        let (from, until) = (new_year(year), new_year(year + 10));
        let expected = enumerated(15, &fields, zone, &spec, &BTreeSet::new(), (from, until));
        assert!(expected.len() > 36_000, "{name}: {}", expected.len());
        assert!(window.openings(from).take_while(|opening| opening.start < until).eq(expected), "{name}");
    }
}

fn expected_start(openings: &[Opening], at: Timestamp, min_remaining: Duration) -> Option<Start> {
    let left = |opening: &Opening, from: Timestamp| opening.end - min_remaining >= from;
    openings.iter().find_map(|opening| {
        if opening.end <= at {
            None
        } else if opening.start <= at {
            left(opening, at).then_some(Start::Now(*opening))
        } else {
            left(opening, opening.start).then_some(Start::At(*opening))
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 320, ..ProptestConfig::default() })]

    #[test]
    fn windows_open_as_enumerated(case in cases(), asked in collection::vec(0..DAYS * 86_400, 12)) {
        let (name, year) = ZONES[case.zone];
        let zone = TimeZone::get(name).unwrap();
        let from = beginning(&zone, year, &case.place);
        let until = from + SignedDuration::from_hours(24 * DAYS);
        let first = zone.to_datetime(from).date();
        let ranges = case.exclude.iter().map(|(day, more)| {
            let start = first.checked_add(day.days()).unwrap();
            (start, start.checked_add(more.days()).unwrap())
        });
        let ranges: Vec<(Date, Date)> = ranges.collect();
        let days = ranges.iter().flat_map(|(start, end)| start.series(1.day()).take_while(move |day| day <= end)).collect();
        let second = |n: i64| from + SignedDuration::from_secs(n);
        let mut spec = WindowSpec {
            schedule: case.fields.text().into(),
            duration: Duration::from_mins(case.minutes),
            time_zone: name.into(),
            exclude: ranges.iter().map(|(start, end)| format!("{start}/{end}").into()).collect(),
            exclude_periods: case.freezes.iter().map(|(at, lasts)| Period { start: second(*at), end: second(at + lasts) }).collect(),
            min_remaining: Duration::ZERO,
            on_close: OnClose::Finish,
        };
        // If openings overlap, use the longest valid duration.
        if let Err(WindowError::Overlap { period, .. }) = spec.compile() {
            spec.duration = period;
        }
        spec.min_remaining = Duration::from_mins(case.min_remaining).min(spec.duration);
        let window = match spec.compile() {
            Ok(window) => window,
            Err(WindowError::NoSuchDay { .. }) => return Ok(()),
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };

        let expected = enumerated(1, &case.fields, &zone, &spec, &days, (from, until));
        let found: Vec<Opening> = window.openings(from).take_while(|opening| opening.start < until).collect();
        prop_assert_eq!(&found, &expected);

        for asked in asked {
            let at = second(asked);
            let open = expected.iter().copied().find(|opening| opening.start <= at && at < opening.end);
            prop_assert_eq!(window.open_at(at), open);
            prop_assert_eq!(window.openings(at).next(), window.next_opening(at));
            match expected_start(&expected, at, spec.min_remaining) {
                Some(start) => prop_assert_eq!(window.may_start(at), start),
                None => match window.may_start(at) {
                    Start::At(opening) => prop_assert!(opening.start >= until),
                    other => prop_assert!(false, "{:?}", other),
                },
            }
        }
    }
}
