//! Rejected windows and their messages.

use std::time::Duration;

use super::*;

#[track_caller]
fn refused(spec: &WindowSpec) -> (&'static str, String) {
    let error = spec.compile().expect_err("was accepted");
    (error.field(), error.to_string())
}

#[test]
fn wrong_schedules() {
    for (schedule, why) in [
        ("", "it has 0 fields"),
        ("0 22 * *", "it has 4 fields"),
        ("0 0 22 * * SAT", "it has 6 fields; seconds and years are not supported"),
        ("@daily", "@daily is an abbreviation"),
        ("60 * * * *", "\"60\" is not a valid minute (0 to 59)"),
        ("* 24 * * *", "\"24\" is not a valid hour (0 to 23)"),
        ("* * 0 * *", "\"0\" is not a valid day of month (1 to 31)"),
        ("* * * 13 *", "\"13\" is not a valid month (1 to 12, JAN to DEC)"),
        ("* * * SAT *", "\"SAT\" is not a valid month"),
        ("* * * * 8", "\"8\" is not a valid day of week (0 to 7, SUN to SAT)"),
        ("* * * * SATURDAY", "\"SATURDAY\" is not a valid day of week"),
        ("* * L * *", "\"L\" is not a valid day of month"),
        ("* * ? * SAT", "write * for any"),
        ("-5 * * * *", "\"\" is not a valid minute"),
        ("+5 * * * *", "\"+5\" is not a valid minute"),
        ("1,,2 * * * *", "\"\" is not a valid minute"),
        ("1, * * * *", "\"\" is not a valid minute"),
        ("30-10 * * * *", "the range \"30-10\" (minute) is reversed"),
        ("0 22 * * FRI-MON", "the range \"FRI-MON\" (day of week) is reversed"),
        ("*/0 * * * *", "\"0\" is not a valid step of * (minute)"),
        ("*/90 * * * *", "\"90\" is not a valid step of * (minute)"),
        ("5/10 * * * *", "has a step without a range; write 5-59/n"),
        ("*/5/5 * * * *", "\"5/5\" is not a valid step of * (minute)"),
        ("0 0 */2 * MON", "both day fields are restricted and the day of month has a step over *"),
        ("0 0 13 * */2", "both day fields are restricted and the day of week has a step over *"),
        ("0 0 * * MON#6", "must end in #1 to #5"),
        ("0 0 * * MON#0", "must end in #1 to #5"),
        ("0 0 * * MON#", "must end in #1 to #5"),
        ("0 0 * * MON-FRI#1", "\"MON-FRI\" is not a valid day of week"),
        ("999999999999999999999 * * * *", "is not a valid minute"),
        ("٣ * * * *", "is not a valid minute"),
    ] {
        let (field, text) = refused(&spec(schedule, 1, "UTC"));
        assert_eq!(field, "schedule", "{schedule}");
        assert!(text.contains(why), "{schedule}: {text}");
        assert!(text.contains("Write five fields"), "{text}");
    }
}

#[test]
fn windows_that_never_open() {
    for schedule in ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 30,31 2 *"] {
        let (field, text) = refused(&spec(schedule, 60, "UTC"));
        assert_eq!(field, "schedule");
        assert_eq!(text, format!("The window never opens: no month of the schedule {schedule:?} has such a day"));
    }
    let excluding = |exclude: &[&str]| WindowSpec {
        exclude: exclude.iter().map(|&day| day.into()).collect(),
        ..spec("0 0 29 2 *", 60, "Europe/Berlin")
    };
    let all = "The window never opens: from 2026-01-01 on, everything is excluded for more than 40 years";
    for exclude in [
        &["2026-01-01/9999-12-31"][..],
        &["2026-01-01/2066-01-01"],
        &["2026-01-01/2050-01-01", "2040-01-01/2067-01-01"],
    ] {
        assert_eq!(refused(&excluding(exclude)), ("exclude", all.to_owned()), "{exclude:?}");
    }
    // All occurrences of 29 February, individually.
    let days: Vec<String> = (2028..=2068).step_by(4).map(|year| format!("{year}-02-29")).collect();
    let days: Vec<&str> = days.iter().map(String::as_str).collect();
    assert_eq!(refused(&excluding(&days)).0, "exclude");
    assert!(excluding(&days[1..]).compile().is_ok(), "2028 is not excluded");
    assert!(excluding(&["2026-01-01/2040-01-01"]).compile().is_ok());
    let freeze = Period { start: utc("2026-01-01T00:00:00Z"), end: utc("2126-01-01T00:00:00Z") };
    let (field, _) = refused(&WindowSpec { exclude_periods: vec![freeze], ..excluding(&[]) });
    assert_eq!(field, "exclude_calendar");
}

#[test]
fn durations_that_overlap() {
    for (schedule, longest) in [
        ("* * * * *", 1),
        ("*/15 * * * *", 15),
        ("0,50 * * * *", 10),
        ("0 22 * * *", 24 * 60),
        ("0 22,2 * * *", 4 * 60),
        ("0 0 * * SAT", 7 * 24 * 60),
        ("0 0 * * SAT,SUN", 24 * 60),
        ("0 22 * * FRI,SUN", 2 * 24 * 60),
        ("0 0 1 * *", 28 * 24 * 60),
        ("0 0 31 * *", 31 * 24 * 60),
        ("0 0 1,31 * *", 24 * 60),
        ("0 6 1 1 *", 365 * 24 * 60),
        ("0 0 29 2 *", 1461 * 24 * 60),
        ("0 0 13 * FRI", 24 * 60),
        ("0 0 * * TUE#2", 28 * 24 * 60),
        ("0 0 * * TUE#1,TUE#L", 7 * 24 * 60),
    ] {
        assert!(spec(schedule, longest, "UTC").compile().is_ok(), "{schedule}: {longest} minutes were refused");
        let (field, text) = refused(&spec(schedule, longest + 1, "UTC"));
        assert_eq!(field, "duration", "{schedule}");
        assert!(text.contains("openings would overlap"), "{text}");
    }
    let (_, text) = refused(&spec("0 */4 * * *", 300, "UTC"));
    assert_eq!(text, "An opening of 5h is longer than the 4h between two starts, so openings would overlap");
    let nanosecond = Duration::from_mins(1) + Duration::from_nanos(1);
    assert_eq!(refused(&WindowSpec { duration: nanosecond, ..spec("* * * * *", 1, "UTC") }).0, "duration");
    assert_eq!(refused(&WindowSpec { duration: Duration::MAX, ..spec("* * * * *", 1, "UTC") }).0, "duration");
}

#[test]
fn other_fields() {
    let good = || spec("0 22 * * SAT", 240, "Europe/Berlin");
    assert_eq!(refused(&WindowSpec { duration: Duration::ZERO, ..good() }).0, "duration");
    for zone in ["Europe/Bonn", "", "CEST", "Etc/Unknown", "+02:00", "../etc/passwd"] {
        let (field, text) = refused(&spec("0 22 * * SAT", 240, zone));
        assert_eq!(field, "time_zone");
        assert!(text.contains(&format!("{zone:?} is not a valid time zone")), "{text}");
    }
    let (field, text) = refused(&WindowSpec { min_remaining: Duration::from_mins(241), ..good() });
    assert_eq!(field, "min_remaining");
    assert_eq!(text, "4h 1m must remain of an opening that lasts 4h, so no maintenance could ever start");
    assert!(WindowSpec { min_remaining: Duration::from_hours(4), ..good() }.compile().is_ok());
    for (exclude, why) in [
        ("2026-02-29", "\"2026-02-29\" is not a valid day of the calendar"),
        ("24.12.2026", "is not a valid day"),
        ("20261224", "is not a valid day"),
        ("2026-12-24T00:00", "is not a valid day"),
        ("", "\"\" is not a valid day"),
        ("2026-12-24/", "\"\" is not a valid day"),
        ("2026-12-24/2026-12-23", "it ends before it begins"),
        ("2026-12-24/2026-12-25/2026-12-26", "is not a valid day"),
    ] {
        let (field, text) = refused(&WindowSpec { exclude: vec![exclude.into()], ..good() });
        assert_eq!(field, "exclude");
        assert!(text.contains(why), "{exclude}: {text}");
    }
    let at = utc("2026-12-24T00:00:00Z");
    let empty = WindowSpec { exclude_periods: vec![Period { start: at, end: at }], ..good() };
    assert_eq!(refused(&empty).0, "exclude_calendar");
}

#[test]
fn what_can_start_no_more_is_refused_at_its_time() {
    let spec = spec("0 22 * * SAT", 240, "UTC");
    assert!(spec.check(utc("2026-11-21T12:00:00Z")).is_ok());
    assert_eq!(spec.check(Timestamp::MAX).expect_err("was accepted"), WindowError::NeverAgain);
}
