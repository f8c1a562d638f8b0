//! Freezes from iCalendar files.

use super::*;

fn read(body: &str) -> Result<Vec<(String, String)>, String> {
    let zone = TimeZone::get("Europe/Berlin").unwrap();
    let found = freeze_periods(&format!("BEGIN:VCALENDAR\r\nVERSION:2.0\r\n{body}END:VCALENDAR\r\n"), &zone);
    match found {
        Ok(periods) => Ok(periods.iter().map(|it| (it.start.to_string(), it.end.to_string())).collect()),
        Err(error) => {
            assert_eq!(error.field(), "exclude_calendar");
            Err(error.to_string())
        }
    }
}

fn event(lines: &[&str]) -> String {
    format!("BEGIN:VEVENT\r\nUID:1\r\nSUMMARY:Year end\r\n{}\r\nEND:VEVENT\r\n", lines.join("\r\n"))
}

#[test]
fn events_are_freezes() {
    let cases: &[(&[&str], &str, &str)] = &[
        // Whole days in the window's zone; the end is exclusive.
        (&["DTSTART;VALUE=DATE:20261224", "DTEND;VALUE=DATE:20261227"], "2026-12-23T23:00:00Z", "2026-12-26T23:00:00Z"),
        (&["DTSTART;VALUE=DATE:20261224"], "2026-12-23T23:00:00Z", "2026-12-24T23:00:00Z"),
        (&["DTSTART:20261224"], "2026-12-23T23:00:00Z", "2026-12-24T23:00:00Z"),
        (&["DTSTART;VALUE=DATE:20260328", "DURATION:P2D"], "2026-03-27T23:00:00Z", "2026-03-29T22:00:00Z"),
        (&["dtstart;value=date:20261224", "Duration:P1W"], "2026-12-23T23:00:00Z", "2026-12-30T23:00:00Z"),
        // UTC, a zone, the window's zone.
        (&["DTSTART:20261224T120000Z", "DTEND:20261224T130000Z"], "2026-12-24T12:00:00Z", "2026-12-24T13:00:00Z"),
        (
            &["DTSTART;TZID=America/New_York:20261224T120000", "DTEND;TZID=\"America/New_York\":20261224T130000"],
            "2026-12-24T17:00:00Z",
            "2026-12-24T18:00:00Z",
        ),
        (
            &["DTSTART;X-A=\"a:b;c\";TZID=/example.org/2026a/America/New_York:20261224T120000", "DURATION:PT30M"],
            "2026-12-24T17:00:00Z",
            "2026-12-24T17:30:00Z",
        ),
        (
            &["DTSTART:20261224T120000", "DTEND;VALUE=DATE-TIME:20261224T130000"],
            "2026-12-24T11:00:00Z",
            "2026-12-24T12:00:00Z",
        ),
        // Days follow the calendar, hours the clock.
        (&["DTSTART:20260328T120000", "DURATION:P1DT1H"], "2026-03-28T11:00:00Z", "2026-03-29T11:00:00Z"),
        (&["DTSTART:20260328T120000", "DURATION:+PT24H"], "2026-03-28T11:00:00Z", "2026-03-29T11:00:00Z"),
        (&["DTSTART:20260328T120000", "DURATION:P1D"], "2026-03-28T11:00:00Z", "2026-03-29T10:00:00Z"),
        // In a gap, the offset before it applies; in a fold, the first occurrence.
        (&["DTSTART:20260329T023000", "DTEND:20260329T040000"], "2026-03-29T01:30:00Z", "2026-03-29T02:00:00Z"),
        (&["DTSTART:20261025T023000", "DTEND:20261025T040000"], "2026-10-25T00:30:00Z", "2026-10-25T03:00:00Z"),
        // Folded lines, an alarm, and a transparent event.
        (
            &[
                "DTSTART:2026122",
                " 4T120000",
                "\tZ",
                "TRANSP:TRANSPARENT",
                "BEGIN:VALARM",
                "TRIGGER:-PT15M",
                "DURATION:PT5M",
                "RDATE:1",
                "END:VALARM",
                "DURATION:PT1H",
            ],
            "2026-12-24T12:00:00Z",
            "2026-12-24T13:00:00Z",
        ),
    ];
    for (lines, start, end) in cases {
        assert_eq!(read(&event(lines)), Ok(vec![((*start).to_owned(), (*end).to_owned())]), "{lines:?}");
    }
}

#[test]
fn what_is_no_event_is_passed_over() {
    let zone = "BEGIN:VTIMEZONE\r\nTZID:Europe/Berlin\r\nBEGIN:STANDARD\r\nDTSTART:19701025T030000\r\n\
                RRULE:FREQ=YEARLY;BYMONTH=10;BYDAY=-1SU\r\nEND:STANDARD\r\nEND:VTIMEZONE\r\n";
    let todo = "BEGIN:VTODO\r\nDTSTART:20261224T120000Z\r\nEND:VTODO\r\n";
    let cancelled = event(&["DTSTART:20261224", "RRULE:FREQ=YEARLY", "STATUS:Cancelled"]);
    assert_eq!(read(&format!("{zone}{todo}{cancelled}")), Ok(Vec::new()));
    let both = event(&["DTSTART:20270101"]) + &event(&["DTSTART:20261224", "STATUS:CONFIRMED"]);
    assert_eq!(read(&both).unwrap().len(), 2);
}

#[test]
fn line_ends_and_a_byte_order_mark_do_not_matter() {
    let text = "\u{feff}BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART:20261224\n\nEND:VEVENT\nEND:VCALENDAR";
    assert_eq!(freeze_periods(text, &TimeZone::UTC).unwrap().len(), 1);
}

#[test]
fn what_cannot_be_followed_is_refused() {
    let cases: &[(&[&str], &str)] = &[
        (&["DTSTART:20261224", "RRULE:FREQ=YEARLY"], "repeats (RRULE), which is not supported"),
        (&["DTSTART:20261224", "RDATE:20271224"], "repeats (RDATE)"),
        (&["DTSTART:20261224", "EXDATE:20271224"], "repeats (EXDATE)"),
        (&["DTSTART:20261224", "RECURRENCE-ID:20271224"], "repeats (RECURRENCE-ID)"),
        (&["DTEND:20261224"], "lacks DTSTART"),
        (&["DTSTART:20261224T120000Z"], "has neither DTEND nor DURATION"),
        (&["DTSTART:20261224", "DTEND:20261225", "DURATION:P1D"], "has a DTEND and a DURATION"),
        (&["DTSTART:20261224", "DTSTART:20261225"], "has DTSTART twice"),
        (&["DTSTART:20261224", "DTEND:20261224"], "ends before it begins, or when it begins"),
        (&["DTSTART:20261224T120000Z", "DURATION:-PT1H"], "has the DURATION \"-PT1H\", which is not a valid duration"),
        (&["DTSTART:20261224", "DTEND:20261225T120000Z"], "begins with a day and ends with a time"),
        (&["DTSTART:20261224", "DURATION:PT8H"], "begins with a day and lasts hours"),
        (&["DTSTART:20261224T120000Z", "DURATION:8 hours"], "has the DURATION \"8 hours\""),
        (&["DTSTART:20261224T120000Z", "DURATION:P1M"], "has the DURATION \"P1M\""),
        (&["DTSTART:20261324"], "has the DTSTART \"20261324\", which is not a valid date or time"),
        (&["DTSTART:20260229"], "is not a valid date or time"),
        (&["DTSTART:2026-12-24T12:00:00Z"], "is not a valid date or time"),
        (&["DTSTART;VALUE=DATE:20261224T120000"], "is not a valid date or time"),
        (&["DTSTART;VALUE=PERIOD:20261224T120000Z/PT1H"], "is not a valid date or time"),
        (&["DTSTART;TZID=W. Europe Standard Time:20261224T120000"], "is in the zone \"W. Europe Standard Time\""),
        (&["DTSTART;TZID=/a/b:20261224T120000"], "is in the zone \"/a/b\""),
    ];
    for (lines, why) in cases {
        let text = read(&event(lines)).expect_err("was accepted");
        let begin = "The freeze calendar cannot be used: the event \"Year end\" on line 3 ";
        assert!(text.starts_with(begin) && text.contains(why), "{lines:?}: {text}");
    }
    let unnamed = read("BEGIN:VEVENT\r\nEND:VEVENT\r\n").expect_err("was accepted");
    assert_eq!(unnamed, "The freeze calendar cannot be used: the event without a summary on line 3 lacks DTSTART");
}

#[test]
fn what_is_no_calendar_is_refused() {
    for (text, why) in [
        ("", "it is not an iCalendar file: BEGIN:VCALENDAR is missing"),
        ("<html>", "it is not an iCalendar file: line 1 is not a property"),
        ("{\"a\": 1}", "line 1 is outside a VCALENDAR"),
        ("BEGIN:VEVENT\nDTSTART:20261224\nEND:VEVENT", "it is not an iCalendar file: line 1 begins \"VEVENT\" outside"),
        ("BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART:20261224", "it is cut off: the VEVENT of line 2 does not end"),
        ("BEGIN:VCALENDAR\nBEGIN:VEVENT\nEND:VCALENDAR", "line 3 ends \"VCALENDAR\", which is not open"),
        ("BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART\n", "line 3 is not a property"),
    ] {
        let error = freeze_periods(text, &TimeZone::UTC).expect_err(text);
        assert!(error.to_string().contains(why), "{text}: {error}");
    }
}
