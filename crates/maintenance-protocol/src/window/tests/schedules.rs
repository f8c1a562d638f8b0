//! Schedules, exclusions and queries without clock changes.

use std::time::Duration;

use shown_text::OneLine;

use super::*;

#[test]
fn schedules() {
    // 2026-01-01 is a Thursday.
    let cases: &[(&str, &[&str])] = &[
        ("0 22 * * SAT", &["2026-01-03T22:00", "2026-01-10T22:00"]),
        ("0 22 * * 6,7", &["2026-01-03T22:00", "2026-01-04T22:00", "2026-01-10T22:00"]),
        ("0 22 * * sat-sun", &["2026-01-03T22:00", "2026-01-04T22:00", "2026-01-10T22:00"]),
        ("0 22 * * 0", &["2026-01-04T22:00", "2026-01-11T22:00"]),
        ("*/25 3 * * *", &["2026-01-01T03:00", "2026-01-01T03:25", "2026-01-01T03:50", "2026-01-02T03:00"]),
        ("5-59/30 */12 * * *", &["2026-01-01T00:05", "2026-01-01T00:35", "2026-01-01T12:05"]),
        ("0 0 31 * *", &["2026-01-31T00:00", "2026-03-31T00:00", "2026-05-31T00:00"]),
        ("0 0 1 JAN-MAR/2 *", &["2026-01-01T00:00", "2026-03-01T00:00", "2027-01-01T00:00"]),
        // With both day fields, either match counts.
        ("0 0 13 * FRI", &["2026-01-02T00:00", "2026-01-09T00:00", "2026-01-13T00:00", "2026-01-16T00:00"]),
        (
            "0 0 29 2 MON",
            &["2026-02-02T00:00", "2026-02-09T00:00", "2026-02-16T00:00", "2026-02-23T00:00", "2027-02-01T00:00"],
        ),
        ("0 0 1-31/10 * WED", &["2026-01-01T00:00", "2026-01-07T00:00", "2026-01-11T00:00", "2026-01-14T00:00"]),
        // A step over * is valid with an unrestricted day field.
        (
            "0 0 */10 * *",
            &["2026-01-01T00:00", "2026-01-11T00:00", "2026-01-21T00:00", "2026-01-31T00:00", "2026-02-01T00:00"],
        ),
        ("0 0 * * */3", &["2026-01-03T00:00", "2026-01-04T00:00", "2026-01-07T00:00"]),
        // The second Tuesday, the last Saturday, the fifth Friday.
        ("0 1 * * TUE#2", &["2026-01-13T01:00", "2026-02-10T01:00", "2026-03-10T01:00"]),
        ("0 1 * * sat#l", &["2026-01-31T01:00", "2026-02-28T01:00", "2026-03-28T01:00"]),
        ("0 1 * * 5#5", &["2026-01-30T01:00", "2026-05-29T01:00"]),
        ("0 1 * * 7#1,MON#1", &["2026-01-04T01:00", "2026-01-05T01:00", "2026-02-01T01:00", "2026-02-02T01:00"]),
    ];
    for (schedule, expected) in cases {
        let found = starts(&window(schedule, 1, "UTC"), "2026-01-01T00:00", expected.len());
        let expected: Vec<String> = expected.iter().map(|start| format!("{start}:00+00:00")).collect();
        assert_eq!(found, expected, "{schedule}");
    }
}

#[test]
fn an_opening_is_half_open() {
    let window = window("0 22 * * *", 240, "UTC");
    let opening = Opening { start: utc("2026-12-31T22:00:00Z"), end: utc("2027-01-01T02:00:00Z") };
    let second = Duration::from_secs(1);
    assert_eq!(window.open_at(opening.start - second), None);
    assert_eq!(window.open_at(opening.start), Some(opening));
    assert_eq!(window.open_at(opening.end - second), Some(opening));
    assert_eq!(window.open_at(opening.end), None);
    assert_eq!(window.next_opening(opening.end - second), Some(opening));
    assert_eq!(window.next_opening(opening.end).map(|next| next.start), Some(utc("2027-01-01T22:00:00Z")));
}

#[test]
fn an_excluded_day_removes_what_starts_on_it_and_nothing_else() {
    let exclude = ["2026-12-31", "2027-01-02/2027-01-03", "2027-01-03/2027-01-04"].map(OneLine::from).to_vec();
    let window = WindowSpec { exclude, ..spec("0 22 * * *", 240, "Europe/Berlin") }.compile().unwrap();
    let expected = [
        // Continues into the excluded day.
        ("2026-12-30T22:00:00+01:00", "2026-12-31T02:00:00+01:00"),
        // The excluded day's opening would have continued into this opening.
        ("2027-01-01T22:00:00+01:00", "2027-01-02T02:00:00+01:00"),
        ("2027-01-05T22:00:00+01:00", "2027-01-06T02:00:00+01:00"),
    ];
    let expected = expected.map(|(start, end)| (start.to_owned(), end.to_owned()));
    assert_eq!(openings(&window, "2026-12-30T12:00", 3), expected);
}

#[test]
fn a_freeze_removes_starts_and_ends_what_began_before() {
    let freeze = |start, end| Period { start: utc(start), end: utc(end) };
    let exclude_periods = vec![
        freeze("2026-12-22T00:00:00Z", "2026-12-23T22:00:00Z"),
        freeze("2026-12-20T23:00:00Z", "2026-12-21T22:00:01Z"),
        freeze("2026-12-21T10:00:00Z", "2026-12-21T12:00:00Z"),
    ];
    let window = WindowSpec { exclude_periods, ..spec("0 22 * * *", 240, "UTC") }.compile().unwrap();
    let expected = [
        ("2026-12-20T22:00:00+00:00", "2026-12-20T23:00:00+00:00"),
        ("2026-12-23T22:00:00+00:00", "2026-12-24T02:00:00+00:00"),
    ];
    assert_eq!(
        openings(&window, "2026-12-20T12:00", 2),
        expected.map(|(start, end)| (start.to_owned(), end.to_owned()))
    );
    assert_eq!(window.open_at(utc("2026-12-20T23:00:00Z")), None);
}

#[test]
fn a_start_needs_enough_of_the_opening() {
    let exclude_periods = vec![Period { start: utc("2026-06-03T22:30:00Z"), end: utc("2026-06-04T00:00:00Z") }];
    let min_remaining = Duration::from_hours(1);
    let window = WindowSpec { exclude_periods, min_remaining, ..spec("0 22 * * *", 120, "UTC") }.compile().unwrap();
    let opening = |day: &str, end: &str| Opening { start: utc(&format!("{day}T22:00:00Z")), end: utc(end) };
    let first = opening("2026-06-01", "2026-06-02T00:00:00Z");
    let second = opening("2026-06-02", "2026-06-03T00:00:00Z");
    let after_freeze = opening("2026-06-04", "2026-06-05T00:00:00Z");
    assert_eq!(window.may_start(utc("2026-06-01T12:00:00Z")), Start::At(first));
    assert_eq!(window.may_start(utc("2026-06-01T22:00:00Z")), Start::Now(first));
    assert_eq!(window.may_start(utc("2026-06-01T23:00:00Z")), Start::Now(first));
    assert_eq!(window.may_start(utc("2026-06-01T23:00:01Z")), Start::At(second));
    // The third opening has half an hour before the freeze.
    assert_eq!(window.may_start(utc("2026-06-03T12:00:00Z")), Start::At(after_freeze));
    assert_eq!(window.may_start(Timestamp::MAX), Start::Never);
}

#[test]
fn the_ends_of_the_calendar_do_not_panic() {
    for zone in ["UTC", "Pacific/Kiritimati", "America/Los_Angeles"] {
        let window = window("0 0 * * *", 1440, zone);
        assert!(window.next_opening(Timestamp::MIN).is_some());
        assert!(window.openings(Timestamp::MAX).count() < 3);
    }
}

#[test]
fn a_stored_window_reads_back() {
    let freeze = Period { start: utc("2026-12-22T00:00:00Z"), end: utc("2026-12-23T22:00:00Z") };
    let spec = WindowSpec {
        exclude: vec!["2026-12-24".into()],
        exclude_periods: vec![freeze],
        on_close: OnClose::Release,
        ..spec("0 22 * * SAT", 240, "Europe/Berlin")
    };
    let text = serde_json::to_string(&spec).unwrap();
    assert!(text.contains("\"on_close\":\"release\""), "{text}");
    assert_eq!(serde_json::from_str::<WindowSpec>(&text).unwrap(), spec);
    for name in OnClose::NAMES {
        assert_eq!(OnClose::from_name(name).unwrap().name(), name);
    }
}

#[test]
fn a_record_asks_when_something_changes() {
    let at = |text: &str| utc(&format!("2026-11-{text}Z"));
    let finish = WindowSpec { min_remaining: Duration::from_hours(1), ..spec("0 22 * * SAT", 240, "UTC") };
    assert_eq!(finish.summary(), "\"0 22 * * SAT\" UTC for 4h");
    assert_eq!(finish.changes_at(at("21T12:00:00")), Some(at("21T22:00:00")));
    assert_eq!(finish.changes_at(at("21T22:00:00")), Some(at("22T01:00:00.000000001")));
    assert_eq!(finish.changes_at(at("22T01:00:00.000000001")), Some(at("28T22:00:00")));
    assert_eq!(finish.gives_back_at(at("21T23:00:00")), None);
    let release = WindowSpec { on_close: OnClose::Release, ..finish };
    assert_eq!(release.gives_back_at(at("21T23:00:00")), Some(at("22T02:00:00")));
    assert_eq!(release.gives_back_at(at("22T02:00:00")), None);
    let window = window("0 22 * * SAT", 240, "Europe/Berlin");
    assert_eq!(window.shown(at("21T21:00:00")), "Sat 2026-11-21 22:00 CET");
}
