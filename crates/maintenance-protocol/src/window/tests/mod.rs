//! Table tests of windows, and a comparison with a simple enumeration.

mod calendar;
mod clocks;
mod oracle;
mod refusals;
mod schedules;

use std::time::Duration;

use jiff::{Timestamp, civil::DateTime};

use super::*;

/// A window without exclusions.
fn spec(schedule: &str, minutes: u64, time_zone: &str) -> WindowSpec {
    WindowSpec {
        schedule: schedule.into(),
        duration: Duration::from_mins(minutes),
        time_zone: time_zone.into(),
        exclude: Vec::new(),
        exclude_periods: Vec::new(),
        min_remaining: Duration::ZERO,
        on_close: OnClose::Finish,
    }
}

fn window(schedule: &str, minutes: u64, time_zone: &str) -> Window {
    spec(schedule, minutes, time_zone).compile().unwrap()
}

fn utc(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Formats an instant in the window's zone with its offset: `2026-03-29T03:00:00+02:00`.
fn shown(window: &Window, at: Timestamp) -> String {
    at.to_zoned(window.time_zone().clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
}

/// Returns the first openings that end after a local time, in the window's zone.
fn openings(window: &Window, from: &str, count: usize) -> Vec<(String, String)> {
    let from: DateTime = from.parse().unwrap();
    let from = from.to_zoned(window.time_zone().clone()).unwrap().timestamp();
    window.openings(from).take(count).map(|it| (shown(window, it.start), shown(window, it.end))).collect()
}

/// Returns the starts of [`openings`].
fn starts(window: &Window, from: &str, count: usize) -> Vec<String> {
    openings(window, from, count).into_iter().map(|(start, _)| start).collect()
}
