//! Calendar files with the windows that they close: a JSON line with the window, then the
//! calendar.
use jiff::Timestamp;
use mutatis::Context;
use serde_json::Value;
use terraform_provider_metal::maintenance::window::{WindowSpec, freeze_periods, time_zone};

use crate::{
    child::{Outcome, Target, kind},
    mutate,
};

const WORDS: [&str; 40] = [
    "BEGIN:VCALENDAR\r\n",
    "END:VCALENDAR\r\n",
    "BEGIN:VEVENT\r\n",
    "END:VEVENT\r\n",
    "BEGIN:VALARM\r\n",
    "DTSTART:",
    "DTEND:",
    "DURATION:",
    "DTSTART;VALUE=DATE:",
    "DTSTART;TZID=Europe/Berlin:",
    "RRULE:FREQ=DAILY\r\n",
    "STATUS:CANCELLED\r\n",
    "SUMMARY:",
    "20260101",
    "20260329T023000",
    "20261025T023000Z",
    "99991231T235959Z",
    "00010101T000000Z",
    "-99991231",
    "P1D",
    "PT9999999999999H",
    "-P1W",
    "P",
    "\r\n ",
    "\r\n\t",
    ";",
    ":",
    "\\n",
    "\"",
    "* * * * *",
    "0 22 * * SAT",
    "0 0 29 2 *",
    "*/7 3-5,9 1-31/2 * MON-FRI",
    "Pacific/Apia",
    "America/St_Johns",
    "Etc/Unknown",
    "2026-12-24",
    "2026-12-20/2027-01-06",
    "-009999-01-01",
    "9999-12-31/9999-12-31",
];

/// Field names of the window, for mutations.
const FIELDS: [&str; 12] = [
    "schedule",
    "duration",
    "time_zone",
    "exclude",
    "exclude_periods",
    "min_remaining",
    "on_close",
    "secs",
    "nanos",
    "start",
    "end",
    "release",
];

pub struct Calendar;

impl Target for Calendar {
    fn begin(&mut self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn mutate(&mut self, context: &mut Context, input: &mut Vec<u8>, others: &[Vec<u8>]) {
        let line = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
        let mut rest = input.split_off(line);
        match (context.rng().gen_bool(), serde_json::from_slice::<Value>(input)) {
            (true, Ok(mut window)) => {
                let words: &[&str] = if context.rng().gen_bool() { &FIELDS } else { &WORDS };
                mutate::tree(context, &mut window, words);
                *input = serde_json::to_vec(&window).unwrap();
            }
            (_, _) => mutate::text(context, &mut rest, others, &WORDS),
        }
        input.append(&mut rest);
    }

    fn run(&mut self, input: &[u8]) -> Outcome {
        let text = String::from_utf8_lossy(input);
        let (window, calendar) = text.split_once('\n').unwrap_or((&text, ""));
        let mut said = Vec::new();
        let spec = serde_json::from_str::<WindowSpec>(window);
        let zone =
            spec.as_ref().ok().and_then(|spec| time_zone(spec.time_zone.raw()).ok()).unwrap_or(jiff::tz::TimeZone::UTC);
        let freezes = freeze_periods(calendar, &zone);
        said.push(freezes.as_ref().map_or_else(ToString::to_string, |freezes| format!("{} freezes", freezes.len())));
        if let Ok(mut spec) = spec {
            spec.exclude_periods.extend(freezes.into_iter().flatten());
            for second in [0, 1_800_000_000, Timestamp::MAX.as_second() - 1, Timestamp::MIN.as_second()] {
                said.push(asked(&spec, Timestamp::from_second(second).unwrap()));
            }
        }
        let said = said.join("; ");
        Outcome { kind: kind(&said), said: said.into_bytes(), broken: None }
    }
}

/// Queries everything about a window.
fn asked(spec: &WindowSpec, now: Timestamp) -> String {
    let window = match spec.check(now) {
        Ok(window) => window,
        Err(problem) => return problem.to_string(),
    };
    let openings = window.openings(now).take(3).count();
    let open = window.open_at(now).is_some();
    let changes = (spec.changes_at(now).is_some(), spec.gives_back_at(now).is_some());
    format!("{openings} {open} {changes:?} {}", spec.summary().len())
}
