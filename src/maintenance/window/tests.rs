//! Tables of the hard cases, and a comparison with a slow, obviously right enumeration.

use proptest::prelude::*;

use super::*;

fn spec(schedule: &str, hours: u64, zone: &str) -> WindowSpec {
    WindowSpec {
        schedule: schedule.into(),
        duration: Duration::from_hours(hours),
        time_zone: zone.into(),
        exclude: Vec::new(),
        exclude_periods: Vec::new(),
        min_remaining: Duration::ZERO,
        on_close: OnClose::Finish,
    }
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn openings(spec: &WindowSpec, from: &str, count: usize) -> Vec<String> {
    spec.compile().unwrap().openings(at(from)).take(count).map(|opening| opening.to_string()).collect()
}

#[test]
fn daylight_saving_is_decided() {
    for (zone, schedule, from, expected) in [
        // Skipped 02:30: at the first moment after the gap, 03:00 CEST.
        ("Europe/Berlin", "30 2 * * *", "2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z"),
        ("Europe/Berlin", "30 3 * * *", "2026-03-29T00:00:00Z", "2026-03-29T01:30:00Z"),
        // Shown twice: the first time, 02:30 CEST; not again an hour later.
        ("Europe/Berlin", "30 2 * * *", "2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z"),
        ("Europe/Berlin", "30 2 * * *", "2026-10-25T01:31:00Z", "2026-10-26T01:30:00Z"),
        ("America/New_York", "15 2 8 3 *", "2026-03-08T00:00:00Z", "2026-03-08T07:00:00Z"),
        ("America/New_York", "30 1 1 11 *", "2026-11-01T00:00:00Z", "2026-11-01T05:30:00Z"),
        // Half an hour only: 02:15 becomes 02:30.
        ("Australia/Lord_Howe", "15 2 4 10 *", "2026-10-03T00:00:00Z", "2026-10-03T15:30:00Z"),
        // The gap lies at midnight: the day begins at 01:00.
        ("Asia/Beirut", "0 0 29 3 *", "2026-03-28T00:00:00Z", "2026-03-28T22:00:00Z"),
        ("America/Santiago", "30 0 6 9 *", "2026-09-05T12:00:00Z", "2026-09-06T04:00:00Z"),
        // A day that Samoa never had: what was to start on it starts when the next one begins.
        ("Pacific/Apia", "0 12 30 12 *", "2011-12-29T00:00:00Z", "2011-12-30T10:00:00Z"),
        // No daylight saving at all.
        ("Asia/Kolkata", "30 2 * * *", "2026-03-29T00:00:00Z", "2026-03-29T21:00:00Z"),
        ("UTC", "30 2 * * *", "2026-03-29T00:00:00Z", "2026-03-29T02:30:00Z"),
    ] {
        let minutes = WindowSpec { duration: Duration::from_mins(1), ..spec(schedule, 1, zone) };
        let found = minutes.compile().unwrap().next_opening(at(from)).unwrap();
        assert_eq!(found.start, at(expected), "{zone} {schedule:?} from {from}");
    }
}

#[test]
fn an_opening_lasts_as_long_as_it_says_whatever_the_clock_does() {
    let night = spec("0 0 * * *", 4, "Europe/Berlin");
    // 00:00 CET to 05:00 CEST, and 00:00 CEST to 03:00 CET: four hours each.
    assert_eq!(openings(&night, "2026-03-28T23:30:00Z", 1), ["2026-03-28T23:00:00Z/2026-03-29T03:00:00Z"]);
    assert_eq!(openings(&night, "2026-10-24T22:30:00Z", 1), ["2026-10-24T22:00:00Z/2026-10-25T02:00:00Z"]);
    // Every quarter of an hour; four starts fall into the gap, and it opens once when it ends.
    let often = WindowSpec { duration: Duration::from_mins(10), ..spec("*/15 * * * *", 1, "Europe/Berlin") };
    assert_eq!(
        openings(&often, "2026-03-29T00:45:00Z", 3),
        [
            "2026-03-29T00:45:00Z/2026-03-29T00:55:00Z",
            "2026-03-29T01:00:00Z/2026-03-29T01:10:00Z",
            "2026-03-29T01:15:00Z/2026-03-29T01:25:00Z"
        ]
    );
}

#[test]
fn an_opening_belongs_to_the_day_it_starts_on() {
    let mut new_year = spec("0 22 * * *", 8, "Europe/Berlin");
    new_year.exclude = vec!["2027-01-01".into()];
    // Into the excluded day it stays open; on it none begins; the next day is as usual.
    assert_eq!(
        openings(&new_year, "2026-12-31T12:00:00Z", 2),
        ["2026-12-31T21:00:00Z/2027-01-01T05:00:00Z", "2027-01-02T21:00:00Z/2027-01-03T05:00:00Z"]
    );
    new_year.exclude = vec!["2026-12-20/2027-01-06".into()];
    assert_eq!(openings(&new_year, "2026-12-20T12:00:00Z", 1), ["2027-01-07T21:00:00Z/2027-01-08T05:00:00Z"]);
    // Open since the evening before, across the end of a month.
    let month = spec("0 23 28 2 *", 4, "UTC").compile().unwrap();
    assert!(month.open_at(at("2027-03-01T02:59:59Z")).is_some());
    assert!(month.open_at(at("2027-03-01T03:00:00Z")).is_none());
}

#[test]
fn a_freeze_removes_starts_and_ends_what_would_reach_into_it() {
    let mut nightly = spec("0 22 * * *", 4, "UTC");
    nightly.exclude_periods = vec![Period { start: at("2026-12-24T00:00:00Z"), end: at("2026-12-26T22:00:00Z") }];
    assert_eq!(
        openings(&nightly, "2026-12-23T12:00:00Z", 2),
        ["2026-12-23T22:00:00Z/2026-12-24T00:00:00Z", "2026-12-26T22:00:00Z/2026-12-27T02:00:00Z"]
    );
    // Two hours are left of the first: too few for three.
    nightly.min_remaining = Duration::from_hours(3);
    let Start::At(next) = nightly.compile().unwrap().may_start(at("2026-12-23T12:00:00Z")) else { panic!() };
    assert_eq!(next.start, at("2026-12-26T22:00:00Z"));
}

#[test]
fn a_start_needs_enough_of_the_opening() {
    let mut window = spec("0 22 * * *", 4, "UTC");
    window.min_remaining = Duration::from_hours(1);
    let window = window.compile().unwrap();
    let opening = |day: u8| Opening {
        start: at(&format!("2026-11-{day}T22:00:00Z")),
        end: at(&format!("2026-11-{}T02:00:00Z", day + 1)),
    };
    for (now, expected) in [
        ("2026-11-21T21:59:59Z", Start::At(opening(21))),
        ("2026-11-21T22:00:00Z", Start::Now(opening(21))),
        ("2026-11-22T01:00:00Z", Start::Now(opening(21))),
        ("2026-11-22T01:00:00.000000001Z", Start::At(opening(22))),
        ("2026-11-22T02:00:00Z", Start::At(opening(22))),
    ] {
        assert_eq!(window.may_start(at(now)), expected, "{now}");
    }
}

#[test]
fn what_could_never_start_is_refused_with_its_attribute() {
    let now = at("2026-11-21T12:00:00Z");
    let usual = || spec("0 22 * * SAT", 4, "Europe/Berlin");
    assert!(usual().check(now).is_ok());
    for (spec, field, says) in [
        (spec("0 22 * *", 4, "UTC"), "schedule", "has 4 fields"),
        (spec("0 22 30 2 *", 4, "UTC"), "schedule", "never opens"),
        (spec("0 22 * * *", 4, "Europe/Berlim"), "time_zone", "\"Europe/Berlim\" is no time zone"),
        (spec("0 22 * * *", 25, "UTC"), "duration", "longer than the 24h from one to the next"),
        (spec("0,30 22 * * *", 1, "UTC"), "duration", "longer than the 30m from one to the next"),
        (spec("0 22 * * MON,TUE,FRI", 30, "UTC"), "duration", "longer than the 24h"),
        (WindowSpec { min_remaining: Duration::from_hours(5), ..usual() }, "min_remaining", "longer than an opening"),
        (WindowSpec { exclude: vec!["24.12.2026".into()], ..usual() }, "exclude", "is no day"),
        (WindowSpec { exclude: vec!["2026-12-24T10:00:00".into()], ..usual() }, "exclude", "is no day"),
        (WindowSpec { exclude: vec!["2027-01-06/2026-12-20".into()], ..usual() }, "exclude", "is no day"),
        (WindowSpec { exclude: vec!["2026-01-01/2090-01-01".into()], ..usual() }, "schedule", "never opens"),
    ] {
        let error = spec.check(now).unwrap_err();
        assert_eq!(error.field(), field, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    // As long as its period: always open.
    assert!(spec("0 0 * * *", 24, "UTC").check(now).is_ok());
}

const ZONES: [&str; 10] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "Africa/Casablanca",
    "Pacific/Chatham",
    "Pacific/Apia",
    "America/St_Johns",
];

/// Whether a minute of the clock is a start, by nothing but the fields themselves.
fn fits(fields: &(Vec<i8>, Vec<i8>, Vec<i8>, Vec<i8>), at: DateTime) -> bool {
    let (minutes, hours, months, weekdays) = fields;
    minutes.contains(&at.minute())
        && hours.contains(&at.hour())
        && months.contains(&at.month())
        && weekdays.contains(&at.weekday().to_sunday_zero_offset())
}

/// Walks through time minute by minute and looks at the clock on the wall.
fn slow(
    fields: &(Vec<i8>, Vec<i8>, Vec<i8>, Vec<i8>),
    excluded: Date,
    zone: &TimeZone,
    from: Timestamp,
    until: Timestamp,
) -> Vec<Timestamp> {
    let minute = SignedDuration::from_mins(1);
    let mut starts = Vec::new();
    // The furthest that the clock has shown: what it shows again does not count, what it skips counts at once.
    let mut seen = zone.to_datetime(from - minute);
    let mut now = from;
    while now < until {
        let shown = zone.to_datetime(now);
        if shown > seen {
            let mut skipped = seen.checked_add(minute).unwrap();
            let mut start = false;
            while skipped <= shown {
                start |= fits(fields, skipped) && skipped.date() != excluded;
                skipped = skipped.checked_add(minute).unwrap();
            }
            if start {
                starts.push(now);
            }
            seen = shown;
        }
        now += minute;
    }
    starts
}

fn list(values: &[i8]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Distinct values in order.
fn some_of(range: std::ops::RangeInclusive<i8>, most: usize) -> impl Strategy<Value = Vec<i8>> {
    proptest::collection::btree_set(range, 1..=most).prop_map(|set| set.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// A fortnight around a moment in ten years, half of them around a change of the clocks.
    #[test]
    fn the_fast_search_finds_what_a_slow_one_does(
        zone in proptest::sample::select(ZONES.to_vec()),
        day in 0_i64..3650,
        near_change in any::<bool>(),
        minutes in some_of(0..=59, 3),
        hours in some_of(0..=23, 4),
        months in some_of(1..=12, 12),
        weekdays in some_of(0..=6, 7),
        excluded in 0_i64..14,
    ) {
        let text = format!("{} {} * {} {}", list(&minutes), list(&hours), list(&months), list(&weekdays));
        let zone_of = TimeZone::get(zone).unwrap();
        let mut middle = at("2021-01-01T00:00:00Z") + SignedDuration::from_hours(24 * day);
        let ten_years = at("2021-01-01T00:00:00Z")..at("2031-01-01T00:00:00Z");
        // Zones without changes have a last entry in 2038, which is none.
        let change = zone_of.following(middle).next().filter(|change| ten_years.contains(&change.timestamp()));
        if near_change && let Some(change) = change {
            middle = change.timestamp();
        }
        let from = middle - SignedDuration::from_hours(24 * 7);
        let until = middle + SignedDuration::from_hours(24 * 7);
        let excluded = zone_of.to_datetime(from).date() + (excluded).days();
        let spec = WindowSpec {
            exclude: vec![excluded.to_string()],
            duration: Duration::from_nanos(1),
            ..spec(&text, 1, zone)
        };
        let window = spec.compile().unwrap();
        let fast: Vec<Timestamp> =
            window.openings(from).map(|opening| opening.start).take_while(|start| *start < until).collect();
        let expected = slow(&(minutes, hours, months, weekdays), excluded, &zone_of, from, until);
        prop_assert_eq!(fast, expected, "{} {}", text, zone);
    }

    /// Whatever is asked, `may_start` and the openings agree.
    #[test]
    fn a_start_is_inside_of_an_opening(
        zone in proptest::sample::select(ZONES.to_vec()),
        minute in 0_i64..5_256_000,
        hours in some_of(0..=23, 4),
        duration in 1_u64..180,
        remaining in 0_u64..180,
    ) {
        let spec = WindowSpec {
            duration: Duration::from_mins(duration),
            min_remaining: Duration::from_mins(remaining.min(duration)),
            ..spec(&format!("7 {} * * *", list(&hours)), 1, zone)
        };
        let window = spec.compile().unwrap();
        let now = at("2021-01-01T00:00:00Z") + SignedDuration::from_mins(minute);
        let left = |opening: Opening| opening.end.duration_since(now.max(opening.start));
        let enough = SignedDuration::try_from(spec.min_remaining).unwrap();
        match window.may_start(now) {
            Start::Now(opening) => {
                prop_assert!(opening.start <= now && now < opening.end && left(opening) >= enough);
            }
            Start::At(opening) => {
                prop_assert!(opening.start > now && left(opening) >= enough);
                let open = window.open_at(now);
                prop_assert!(open.is_none_or(|open| left(open) < enough), "it could have started at once");
                prop_assert_eq!(window.may_start(opening.start), Start::Now(opening));
            }
            Start::Never => prop_assert!(false, "daily windows open"),
        }
    }
}
