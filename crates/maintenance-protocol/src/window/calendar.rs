//! Freezes from an iCalendar file (RFC 5545).
//!
//! Every `VEVENT` is a freeze regardless of `TRANSP`, except with `STATUS:CANCELLED`. A `DATE`
//! event covers whole days in the window's zone. A `DATE-TIME` event uses UTC, the zone in `TZID`,
//! or the window's zone. Times in a gap or fold follow section 3.3.5: the offset before a gap, the
//! first occurrence in a fold. Entries that cannot be interpreted, such as repetitions and zones
//! defined in the file, are rejected with the event's name and line.

use jiff::{
    Span, Timestamp, Zoned,
    civil::{Date, DateTime},
    tz::TimeZone,
};

use super::{Period, WindowError, time_zone as zone_of};

/// Unsupported properties that change an event's time.
const REPEATS: [&str; 5] = ["RRULE", "RDATE", "EXDATE", "EXRULE", "RECURRENCE-ID"];

/// Returns the calendar's freezes in file order. `time_zone` is the window's.
pub fn freeze_periods(ics: &str, time_zone: &TimeZone) -> Result<Vec<Period>, WindowError> {
    let mut periods = Vec::new();
    // The open components, outermost first, each with its first line.
    let mut within: Vec<(String, usize)> = Vec::new();
    let mut event = Event::default();
    let mut calendars = 0;
    for (number, line) in unfolded(ics) {
        let property =
            Property::read(&line).ok_or_else(|| not_one(calendars, format!("line {number} is not a property")))?;
        match property.name.as_str() {
            "BEGIN" => {
                let name = property.value.to_ascii_uppercase();
                match within.last() {
                    None if name != "VCALENDAR" => {
                        return Err(not_one(calendars, format!("line {number} begins {name:?} outside a VCALENDAR")));
                    }
                    None => calendars += 1,
                    Some(_) if name == "VEVENT" => event = Event { line: number, ..Event::default() },
                    Some(_) => {}
                }
                within.push((name, number));
            }
            "END" => {
                let ended = within.pop().filter(|(name, _)| name.eq_ignore_ascii_case(&property.value));
                match ended.as_ref().map(|(name, _)| name.as_str()) {
                    None => return Err(wrong(format!("line {number} ends {:?}, which is not open", property.value))),
                    Some("VEVENT") => periods.extend(std::mem::take(&mut event).period(time_zone)?),
                    Some(_) => {}
                }
            }
            _ => match within.last() {
                None => return Err(not_one(calendars, format!("line {number} is outside a VCALENDAR"))),
                // Alarms within an event have their own DURATION.
                Some((component, _)) if component == "VEVENT" => event.add(property)?,
                Some(_) => {}
            },
        }
    }
    if let Some((name, line)) = within.last() {
        return Err(wrong(format!("it is cut off: the {name} of line {line} does not end")));
    }
    if calendars == 0 {
        return Err(not_one(calendars, "BEGIN:VCALENDAR is missing".to_owned()));
    }
    Ok(periods)
}

fn wrong(problem: String) -> WindowError {
    WindowError::Calendar { problem }
}

/// A problem before the first calendar means that the file has a different format.
fn not_one(calendars: usize, problem: String) -> WindowError {
    if calendars == 0 { wrong(format!("it is not an iCalendar file: {problem}")) } else { wrong(problem) }
}

/// Joins continuation lines, which start with a space or a tab. Line numbers start with 1.
fn unfolded(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        match (line.strip_prefix([' ', '\t']), lines.last_mut()) {
            (Some(more), Some((_, before))) => before.push_str(more),
            _ if line.trim().is_empty() => {}
            _ => lines.push((index + 1, line.to_owned())),
        }
    }
    lines
}

/// `NAME;PARAMETER=value:value`.
#[derive(Debug)]
struct Property {
    /// In upper case.
    name: String,
    /// Names in upper case; several values stay comma-separated.
    parameters: Vec<(String, String)>,
    value: String,
}

impl Property {
    fn read(line: &str) -> Option<Self> {
        let mut quoted = false;
        let mut parts = vec![String::new()];
        let mut characters = line.chars();
        loop {
            match characters.next()? {
                '"' => quoted = !quoted,
                ':' if !quoted => break,
                ';' if !quoted => parts.push(String::new()),
                other => parts.last_mut()?.push(other),
            }
        }
        let mut parts = parts.into_iter();
        let name = parts.next().filter(|name| !name.is_empty())?.to_ascii_uppercase();
        let parameters = parts
            .map(|part| part.split_once('=').map(|(name, value)| (name.to_ascii_uppercase(), value.to_owned())))
            .collect::<Option<_>>()?;
        Some(Self { name, parameters, value: characters.as_str().trim_end().to_owned() })
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// The parsed properties of a `VEVENT`.
#[derive(Debug, Default)]
struct Event {
    line: usize,
    summary: Option<String>,
    start: Option<Property>,
    end: Option<Property>,
    duration: Option<Property>,
    cancelled: bool,
    repeats: Option<String>,
}

/// The start or end of an event.
enum Moment {
    /// A whole day.
    Day(Date),
    At(Zoned),
}

impl Event {
    fn add(&mut self, property: Property) -> Result<(), WindowError> {
        let place = match property.name.as_str() {
            "SUMMARY" => {
                self.summary = Some(unescaped(&property.value));
                return Ok(());
            }
            "STATUS" => {
                self.cancelled = property.value.eq_ignore_ascii_case("CANCELLED");
                return Ok(());
            }
            name if REPEATS.contains(&name) => {
                self.repeats = Some(property.name);
                return Ok(());
            }
            "DTSTART" => &mut self.start,
            "DTEND" => &mut self.end,
            "DURATION" => &mut self.duration,
            _ => return Ok(()),
        };
        match place.replace(property) {
            Some(before) => Err(self.wrong(&format!("has {} twice", before.name))),
            None => Ok(()),
        }
    }

    /// Returns the freeze; `None` for a cancelled event.
    fn period(self, zone: &TimeZone) -> Result<Option<Period>, WindowError> {
        if self.cancelled {
            return Ok(None);
        }
        if let Some(how) = &self.repeats {
            return Err(
                self.wrong(&format!("repeats ({how}), which is not supported: write one event for each occurrence"))
            );
        }
        let start = self.start.as_ref().ok_or_else(|| self.wrong("lacks DTSTART"))?;
        let start = self.moment(start, zone)?;
        let end = match (&self.end, &self.duration) {
            (Some(_), Some(_)) => return Err(self.wrong("has a DTEND and a DURATION; only one is allowed")),
            (Some(end), None) => self.moment(end, zone)?,
            (None, Some(duration)) => self.after(&start, &duration.value)?,
            (None, None) => match &start {
                Moment::Day(day) => Moment::Day(day.tomorrow().map_err(|_| self.wrong("is too late"))?),
                Moment::At(_) => return Err(self.wrong("has neither DTEND nor DURATION, so its duration is zero")),
            },
        };
        let (start, end) = match (start, end) {
            (Moment::Day(_), Moment::At(_)) | (Moment::At(_), Moment::Day(_)) => {
                return Err(self.wrong("begins with a day and ends with a time, or vice versa"));
            }
            (start, end) => (self.instant(start, zone)?, self.instant(end, zone)?),
        };
        if start >= end {
            return Err(self.wrong("ends before it begins, or when it begins"));
        }
        Ok(Some(Period { start, end }))
    }

    /// Parses the value of `DTSTART` or `DTEND`.
    fn moment(&self, property: &Property, zone: &TimeZone) -> Result<Moment, WindowError> {
        let (name, value) = (&property.name, &property.value);
        let wrong =
            || self.wrong(&format!("has the {name} {value:?}, which is not a valid date or time of the calendar"));
        let is_date = match property.parameter("VALUE").map(str::to_ascii_uppercase).as_deref() {
            Some("DATE") => true,
            Some("DATE-TIME") => false,
            Some(_) => return Err(wrong()),
            // RFC 5545 requires VALUE for a date, but its form is unambiguous.
            None => !value.contains('T'),
        };
        if is_date {
            return Date::strptime("%Y%m%d", value).map(Moment::Day).map_err(|_| wrong());
        }
        let (local, utc) = value.strip_suffix('Z').map_or((value.as_str(), false), |local| (local, true));
        let local = DateTime::strptime("%Y%m%dT%H%M%S", local).map_err(|_| wrong())?;
        let zone = match property.parameter("TZID") {
            _ if utc => TimeZone::UTC,
            Some(id) => self.zone(id)?,
            None => zone.clone(),
        };
        local.to_zoned(zone).map(Moment::At).map_err(|_| wrong())
    }

    /// Returns the zone of a `TZID`. Some programs add a path before the name, such as
    /// `/example.org/Europe/Berlin`.
    fn zone(&self, id: &str) -> Result<TimeZone, WindowError> {
        let ends = id.match_indices('/').map(|(at, _)| id.get(at + 1..).unwrap_or_default());
        std::iter::once(id).chain(ends.filter(|_| id.starts_with('/'))).find_map(|name| zone_of(name).ok()).ok_or_else(
            || {
                self.wrong(&format!(
                    "is in the zone {id:?}, which is not a name of the IANA database; write UTC, or a name such as \
                     \"Europe/Berlin\""
                ))
            },
        )
    }

    fn after(&self, start: &Moment, duration: &str) -> Result<Moment, WindowError> {
        let wrong = || self.wrong(&format!("has the DURATION {duration:?}, which is not a valid duration"));
        let span: Span = duration.parse().map_err(|_| wrong())?;
        // RFC 5545 durations contain weeks, days and times; days are calendar days.
        if !duration.trim_start_matches('+').starts_with('P') || span.get_years() != 0 || span.get_months() != 0 {
            return Err(wrong());
        }
        match start {
            Moment::Day(_) if duration.contains('T') => {
                return Err(self.wrong("begins with a day and lasts hours"));
            }
            Moment::Day(day) => day.checked_add(span).map(Moment::Day),
            Moment::At(at) => at.checked_add(span).map(Moment::At),
        }
        .map_err(|_| wrong())
    }

    fn instant(&self, moment: Moment, zone: &TimeZone) -> Result<Timestamp, WindowError> {
        match moment {
            Moment::At(at) => Ok(at.timestamp()),
            Moment::Day(day) => {
                day.to_zoned(zone.clone()).map(|at| at.timestamp()).map_err(|_| self.wrong("is too early or too late"))
            }
        }
    }

    fn wrong(&self, problem: &str) -> WindowError {
        let name = self.summary.as_deref().map_or_else(|| "without a summary".to_owned(), |text| format!("{text:?}"));
        wrong(format!("the event {name} on line {} {problem}", self.line))
    }
}

/// Unescapes a text value (section 3.3.11).
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some('n' | 'N') => plain.push(' '),
                Some(other) => plain.push(other),
                None => {}
            },
            other => plain.push(other),
        }
    }
    plain
}
