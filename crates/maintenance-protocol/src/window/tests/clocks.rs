//! Clock changes by zone and date.

use super::*;

/// Schedule, minutes, zone; local start of the query; the openings in the zone.
type Case = (&'static str, u64, &'static str, &'static str, &'static [(&'static str, &'static str)]);

const CASES: &[Case] = &[
    // The clocks skip 02:00-03:00 on 2026-03-29.
    (
        "30 2 * * *",
        60,
        "Europe/Berlin",
        "2026-03-28T12:00",
        &[
            ("2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"),
            ("2026-03-30T02:30:00+02:00", "2026-03-30T03:30:00+02:00"),
        ],
    ),
    // All starts in the gap and at its end are one opening.
    (
        "*/20 1-3 * * *",
        20,
        "Europe/Berlin",
        "2026-03-29T01:40",
        &[
            ("2026-03-29T01:40:00+01:00", "2026-03-29T03:00:00+02:00"),
            ("2026-03-29T03:00:00+02:00", "2026-03-29T03:20:00+02:00"),
            ("2026-03-29T03:20:00+02:00", "2026-03-29T03:40:00+02:00"),
        ],
    ),
    // Four hours of elapsed time in both the short and the long night.
    (
        "0 1 * * *",
        240,
        "Europe/Berlin",
        "2026-03-29T00:00",
        &[("2026-03-29T01:00:00+01:00", "2026-03-29T06:00:00+02:00")],
    ),
    (
        "0 1 * * *",
        240,
        "Europe/Berlin",
        "2026-10-25T00:00",
        &[("2026-10-25T01:00:00+02:00", "2026-10-25T04:00:00+01:00")],
    ),
    // The clocks go from 03:00 to 02:00 on 2026-10-25: the first occurrence counts.
    (
        "30 2 * * *",
        30,
        "Europe/Berlin",
        "2026-10-25T00:00",
        &[
            ("2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+01:00"),
            ("2026-10-26T02:30:00+01:00", "2026-10-26T03:00:00+01:00"),
        ],
    ),
    // After that night, the next day's opening follows.
    (
        "30 2 * * *",
        30,
        "Europe/Berlin",
        "2026-10-25T03:00",
        &[("2026-10-26T02:30:00+01:00", "2026-10-26T03:00:00+01:00")],
    ),
    // Every hour of the day: the repeated hour does not open again.
    (
        "0 * * * *",
        60,
        "Europe/Berlin",
        "2026-10-25T01:00",
        &[
            ("2026-10-25T01:00:00+02:00", "2026-10-25T02:00:00+02:00"),
            ("2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00"),
            ("2026-10-25T03:00:00+01:00", "2026-10-25T04:00:00+01:00"),
        ],
    ),
    // Whole days: the short day's opening ends at the next start, and the long day has a closed
    // hour.
    (
        "0 0 * * *",
        1440,
        "Europe/Berlin",
        "2026-03-29T00:00",
        &[
            ("2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"),
            ("2026-03-30T00:00:00+02:00", "2026-03-31T00:00:00+02:00"),
        ],
    ),
    (
        "0 0 * * *",
        1440,
        "Europe/Berlin",
        "2026-10-25T00:00",
        &[
            ("2026-10-25T00:00:00+02:00", "2026-10-25T23:00:00+01:00"),
            ("2026-10-26T00:00:00+01:00", "2026-10-27T00:00:00+01:00"),
        ],
    ),
    // 02:00-03:00 is skipped on 2026-03-08, 01:00-02:00 occurs twice on 2026-11-01.
    (
        "15 2 * * SUN",
        90,
        "America/New_York",
        "2026-03-07T00:00",
        &[
            ("2026-03-08T03:00:00-04:00", "2026-03-08T04:30:00-04:00"),
            ("2026-03-15T02:15:00-04:00", "2026-03-15T03:45:00-04:00"),
        ],
    ),
    (
        "15 1 * * SUN",
        90,
        "America/New_York",
        "2026-10-31T00:00",
        &[
            ("2026-11-01T01:15:00-04:00", "2026-11-01T01:45:00-05:00"),
            ("2026-11-08T01:15:00-05:00", "2026-11-08T02:45:00-05:00"),
        ],
    ),
    // The clocks change by half an hour: 02:00-02:30 is skipped on 2026-10-04, 01:30-02:00 occurs
    // twice on 2026-04-05.
    (
        "*/15 2 * * *",
        15,
        "Australia/Lord_Howe",
        "2026-10-04T00:00",
        &[
            ("2026-10-04T02:30:00+11:00", "2026-10-04T02:45:00+11:00"),
            ("2026-10-04T02:45:00+11:00", "2026-10-04T03:00:00+11:00"),
            ("2026-10-05T02:00:00+11:00", "2026-10-05T02:15:00+11:00"),
        ],
    ),
    (
        "45 1 * * *",
        60,
        "Australia/Lord_Howe",
        "2026-04-05T00:00",
        &[
            ("2026-04-05T01:45:00+11:00", "2026-04-05T02:15:00+10:30"),
            ("2026-04-06T01:45:00+10:30", "2026-04-06T02:45:00+10:30"),
        ],
    ),
    // 30 December 2011 does not exist.
    (
        "0 22 * * *",
        60,
        "Pacific/Apia",
        "2011-12-29T00:00",
        &[
            ("2011-12-29T22:00:00-10:00", "2011-12-29T23:00:00-10:00"),
            ("2011-12-31T00:00:00+14:00", "2011-12-31T01:00:00+14:00"),
            ("2011-12-31T22:00:00+14:00", "2011-12-31T23:00:00+14:00"),
        ],
    ),
    (
        "0 0 30 12 *",
        60,
        "Pacific/Apia",
        "2011-06-01T00:00",
        &[
            ("2011-12-31T00:00:00+14:00", "2011-12-31T01:00:00+14:00"),
            ("2012-12-30T00:00:00+14:00", "2012-12-30T01:00:00+14:00"),
        ],
    ),
    // The clocks change around Ramadan: 02:00-03:00 occurs twice on 2025-02-23 and is skipped on
    // 2025-04-06.
    (
        "0 2 * * SUN",
        60,
        "Africa/Casablanca",
        "2025-02-23T00:00",
        &[
            ("2025-02-23T02:00:00+01:00", "2025-02-23T02:00:00+00:00"),
            ("2025-03-02T02:00:00+00:00", "2025-03-02T03:00:00+00:00"),
        ],
    ),
    (
        "30 2 * * SUN",
        60,
        "Africa/Casablanca",
        "2025-04-06T00:00",
        &[
            ("2025-04-06T03:00:00+01:00", "2025-04-06T04:00:00+01:00"),
            ("2025-04-13T02:30:00+01:00", "2025-04-13T03:30:00+01:00"),
        ],
    ),
    // The gap starts the day: midnight of 2018-11-04 does not exist.
    (
        "0 0 * * *",
        60,
        "America/Sao_Paulo",
        "2018-11-03T12:00",
        &[
            ("2018-11-04T01:00:00-02:00", "2018-11-04T02:00:00-02:00"),
            ("2018-11-05T00:00:00-02:00", "2018-11-05T01:00:00-02:00"),
        ],
    ),
    // The gap ends the day: a start at 23:30 moves past midnight.
    (
        "30 23 * * *",
        20,
        "America/Nuuk",
        "2025-03-29T12:00",
        &[
            ("2025-03-30T00:00:00-01:00", "2025-03-30T00:20:00-01:00"),
            ("2025-03-30T23:30:00-01:00", "2025-03-30T23:50:00-01:00"),
        ],
    ),
    // An offset with 45 minutes and without clock changes.
    (
        "0 3 * * *",
        60,
        "Asia/Kathmandu",
        "2026-01-01T00:00",
        &[("2026-01-01T03:00:00+05:45", "2026-01-01T04:00:00+05:45")],
    ),
    // Summer time defined as negative winter time.
    (
        "30 1 * * *",
        60,
        "Europe/Dublin",
        "2026-03-28T12:00",
        &[("2026-03-29T02:00:00+01:00", "2026-03-29T03:00:00+01:00")],
    ),
    // After the last transition that the database lists individually.
    (
        "30 2 * * *",
        60,
        "Europe/Berlin",
        "2090-03-25T12:00",
        &[("2090-03-26T03:00:00+02:00", "2090-03-26T04:00:00+02:00")],
    ),
];

#[test]
fn changes_of_the_clocks() {
    for (schedule, minutes, zone, from, expected) in CASES {
        let found = openings(&window(schedule, *minutes, zone), from, expected.len());
        let found: Vec<_> = found.iter().map(|(start, end)| (start.as_str(), end.as_str())).collect();
        assert_eq!(found, *expected, "{schedule} in {zone} from {from}");
    }
}

#[test]
fn the_repeated_hour_does_not_open_again() {
    let window = window("30 2 * * *", 30, "Europe/Berlin");
    // The second 02:10 and the second 02:40 of that night.
    for at in ["2026-10-25T01:10:00Z", "2026-10-25T01:40:00Z"] {
        assert_eq!(window.open_at(utc(at)), None);
        assert_eq!(window.next_opening(utc(at)).unwrap().start, utc("2026-10-26T01:30:00Z"));
    }
}

#[test]
fn the_program_knows_zones_without_the_system() {
    for name in ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"] {
        assert!(TimeZoneDatabase::bundled().get(name).is_ok(), "{name}");
    }
}

#[test]
fn an_excluded_day_counts_where_the_opening_really_starts() {
    let exclude = |day: &str| {
        let spec = WindowSpec { exclude: vec![day.into()], ..spec("30 23 * * *", 20, "America/Nuuk") };
        starts(&spec.compile().unwrap(), "2025-03-29T12:00", 1)
    };
    // 23:30 on the 29th does not exist and becomes 00:00 on the 30th.
    assert_eq!(exclude("2025-03-29"), ["2025-03-30T00:00:00-01:00"]);
    assert_eq!(exclude("2025-03-20/2025-03-29"), ["2025-03-30T00:00:00-01:00"]);
    assert_eq!(exclude("2025-03-30"), ["2025-03-31T23:30:00-01:00"]);
}

#[test]
fn a_freeze_that_ends_with_a_gap_leaves_what_the_gap_moved() {
    let freeze = Period { start: utc("2026-03-28T00:00:00Z"), end: utc("2026-03-29T01:00:00Z") };
    let spec = WindowSpec { exclude_periods: vec![freeze], ..spec("30 2 * * *", 60, "Europe/Berlin") };
    assert_eq!(starts(&spec.compile().unwrap(), "2026-03-27T12:00", 1), ["2026-03-29T03:00:00+02:00"]);
}
