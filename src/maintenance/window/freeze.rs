//! Times without starts from an iCalendar file (RFC 5545): every event of it is one.

use jiff::{
    Timestamp, ToSpan as _,
    civil::{Date, DateTime},
    tz::TimeZone,
};

use super::Period;

/// Why a calendar cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FreezeError {
    /// It is something else.
    #[error("it is no iCalendar file: it has no BEGIN:VCALENDAR")]
    NoCalendar,
    /// An event cannot be read.
    #[error("its event {event:?} {problem}")]
    Event {
        /// Its summary, or its number.
        event: String,
        /// What is wrong.
        problem: String,
    },
}

/// One line: name, parameters, value.
struct Line<'a> {
    name: String,
    parameters: Vec<(String, &'a str)>,
    value: &'a str,
}

/// What is known of an event that is being read.
#[derive(Default)]
struct Event {
    summary: String,
    start: Option<(Moment, bool)>,
    end: Option<Moment>,
    duration: Option<String>,
    cancelled: bool,
    repeats: Option<String>,
}

type Moment = Timestamp;

/// The events of a calendar as periods, in the order of the file. Cancelled events are left out. Times without a zone of
/// their own, and whole days, are read in `zone`. Events that repeat are refused rather than read as one.
pub fn freeze_periods(text: &str, zone: &TimeZone) -> Result<Vec<Period>, FreezeError> {
    // RFC 5545, 3.1: a line that begins with a blank goes on with the one before.
    let unfolded = text.replace("\r\n", "\n").replace("\n ", "").replace("\n\t", "");
    if !unfolded.lines().any(|line| line.trim_end().eq_ignore_ascii_case("BEGIN:VCALENDAR")) {
        return Err(FreezeError::NoCalendar);
    }
    let mut periods = Vec::new();
    let mut event: Option<Event> = None;
    // Alarms and the like lie inside of events and have times of their own.
    let mut inside = 0_usize;
    let mut number = 0;
    for line in unfolded.lines().filter_map(parse) {
        match (line.name.as_str(), &mut event) {
            ("BEGIN", None) if line.value.eq_ignore_ascii_case("VEVENT") => {
                number += 1;
                event = Some(Event { summary: format!("number {number}"), ..Event::default() });
            }
            ("BEGIN", Some(_)) => inside += 1,
            ("END", Some(_)) if inside > 0 => inside -= 1,
            ("END", Some(_)) => {
                if let Some(period) = event.take().and_then(|event| period(&event, zone).transpose()) {
                    periods.push(period?);
                }
            }
            (_, Some(event)) if inside == 0 => event.take_line(&line, zone)?,
            _ => {}
        }
    }
    Ok(periods)
}

fn parse(line: &str) -> Option<Line<'_>> {
    let (head, value) = line.trim_end().split_once(':')?;
    let mut words = head.split(';');
    let name = words.next()?.to_ascii_uppercase();
    let parameters = words.filter_map(|word| word.split_once('='));
    let parameters = parameters.map(|(name, value)| (name.to_ascii_uppercase(), value.trim_matches('"'))).collect();
    Some(Line { name, parameters, value })
}

impl Event {
    fn wrong(&self, problem: impl Into<String>) -> FreezeError {
        FreezeError::Event { event: self.summary.clone(), problem: problem.into() }
    }

    fn take_line(&mut self, line: &Line<'_>, zone: &TimeZone) -> Result<(), FreezeError> {
        match line.name.as_str() {
            "SUMMARY" => line.value.clone_into(&mut self.summary),
            "DTSTART" => self.start = Some(self.moment(line, zone)?),
            "DTEND" => self.end = Some(self.moment(line, zone)?.0),
            "DURATION" => self.duration = Some(line.value.to_owned()),
            "STATUS" => self.cancelled = line.value.eq_ignore_ascii_case("CANCELLED"),
            "RRULE" | "RDATE" => self.repeats = Some(line.name.clone()),
            _ => {}
        }
        Ok(())
    }

    /// A date or a time, and whether it is a whole day. RFC 5545, 3.3.4 and 3.3.5.
    fn moment(&self, line: &Line<'_>, zone: &TimeZone) -> Result<(Moment, bool), FreezeError> {
        let wrong = || self.wrong(format!("has the {} {:?}, which is no date or time", line.name, line.value));
        let named = line.parameters.iter().find(|(name, _)| name == "TZID").map(|(_, value)| *value);
        let zone = match named {
            Some(name) => TimeZone::get(name).map_err(|_| self.wrong(format!("has the unknown time zone {name:?}")))?,
            None => zone.clone(),
        };
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if line.value.len() == 8 && digits(line.value) {
            let day = Date::strptime("%Y%m%d", line.value).map_err(|_| wrong())?;
            return Ok((day.to_zoned(zone).map_err(|_| wrong())?.timestamp(), true));
        }
        let (text, zone) = match line.value.strip_suffix('Z') {
            Some(text) => (text, TimeZone::UTC),
            None => (line.value, zone),
        };
        let at = DateTime::strptime("%Y%m%dT%H%M%S", text).map_err(|_| wrong())?;
        Ok((at.to_zoned(zone).map_err(|_| wrong())?.timestamp(), false))
    }
}

fn period(event: &Event, zone: &TimeZone) -> Result<Option<Period>, FreezeError> {
    if event.cancelled {
        return Ok(None);
    }
    if let Some(how) = &event.repeats {
        return Err(event.wrong(format!("repeats ({how}); write every one of its times as an event of its own")));
    }
    let Some((start, whole_day)) = event.start else { return Err(event.wrong("has no DTSTART")) };
    let end = match (event.end, &event.duration) {
        (Some(end), _) => end,
        (None, Some(text)) => {
            let span: jiff::Span = text.parse().map_err(|_| event.wrong(format!("has the duration {text:?}")))?;
            let end = start.to_zoned(zone.clone()).checked_add(span);
            end.map_err(|_| event.wrong(format!("has the duration {text:?}")))?.timestamp()
        }
        (None, None) if whole_day => {
            let next = start.to_zoned(zone.clone()).checked_add(1.day());
            next.map_err(|_| event.wrong("lies at the end of time"))?.timestamp()
        }
        (None, None) => return Err(event.wrong("has neither DTEND nor DURATION")),
    };
    if end <= start {
        return Err(event.wrong("ends before it begins"));
    }
    Ok(Some(Period { start, end }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(events: &str) -> Result<Vec<String>, String> {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let text = format!("BEGIN:VCALENDAR\r\nVERSION:2.0\r\n{}END:VCALENDAR\r\n", events.replace('\n', "\r\n"));
        let periods = freeze_periods(&text, &zone).map_err(|error| error.to_string())?;
        Ok(periods.iter().map(|period| format!("{}/{}", period.start, period.end)).collect())
    }

    #[test]
    fn days_times_zones_and_durations_are_read() {
        let event = |body: &str| read(&format!("BEGIN:VEVENT\nSUMMARY:freeze\n{body}\nEND:VEVENT\n"));
        for (body, period) in [
            ("DTSTART;VALUE=DATE:20261224\nDTEND;VALUE=DATE:20261227", "2026-12-23T23:00:00Z/2026-12-26T23:00:00Z"),
            ("DTSTART;VALUE=DATE:20261224", "2026-12-23T23:00:00Z/2026-12-24T23:00:00Z"),
            ("DTSTART:20261224T100000Z\nDTEND:20261224T120000Z", "2026-12-24T10:00:00Z/2026-12-24T12:00:00Z"),
            ("DTSTART:20261224T100000\nDURATION:PT2H", "2026-12-24T09:00:00Z/2026-12-24T11:00:00Z"),
            (
                "DTSTART;TZID=\"America/New_York\":20261224T100000\nDURATION:P1D",
                "2026-12-24T15:00:00Z/2026-12-25T15:00:00Z",
            ),
            // A line may be folded anywhere, and an alarm has times of its own.
            (
                "DTSTART;VALUE=DATE:2026\n 1224\nBEGIN:VALARM\nTRIGGER:-PT15M\nDURATION:PT1H\nEND:VALARM",
                "2026-12-23T23:00:00Z/2026-12-24T23:00:00Z",
            ),
        ] {
            assert_eq!(event(body).unwrap(), [period], "{body}");
        }
        assert_eq!(event("DTSTART:20261224T100000Z\nDURATION:PT2H\nSTATUS:CANCELLED").unwrap(), [""; 0]);
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_name() {
        let event = |body: &str| read(&format!("BEGIN:VEVENT\nSUMMARY:freeze\n{body}\nEND:VEVENT\n")).unwrap_err();
        for (body, says) in [
            ("DTSTART:20261224T100000Z\nDURATION:PT2H\nRRULE:FREQ=YEARLY", "\"freeze\" repeats (RRULE)"),
            ("DTEND:20261224T100000Z", "has no DTSTART"),
            ("DTSTART:20261224T100000Z", "neither DTEND nor DURATION"),
            ("DTSTART:20261224T100000Z\nDTEND:20261223T100000Z", "ends before it begins"),
            ("DTSTART;TZID=Mars/Olympus:20261224T100000\nDURATION:PT1H", "unknown time zone"),
            ("DTSTART:20261301\nDURATION:PT1H", "is no date or time"),
        ] {
            let problem = event(body);
            assert!(problem.contains(says), "{body}: {problem}");
        }
        assert_eq!(freeze_periods("<html>", &TimeZone::UTC), Err(FreezeError::NoCalendar));
    }
}
