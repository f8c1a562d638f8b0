//! `window` of a maintenance, and the provider's named `windows`.

use std::{collections::BTreeMap, path::Path, time::Duration};

use jiff::{Timestamp, tz::TimeZone};
use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostics,
    schema::{Attribute, AttributeType},
    value::{Value, ValueList},
};

use crate::provider::{
    shared::block::MayBeUnknown,
    shared::schema::{Attributes, attributes, optional},
    shared::values::{Text, bad, duration, given, is_given, known, one_of, shown_duration},
};
use crate::{
    engine::Engine,
    files::{self, Pipes},
    maintenance::window::{OnClose, Period, WindowError, WindowSpec, freeze_periods},
    shown::OneLine,
};

/// The default time zone.
const TIME_ZONE: &str = "UTC";

/// A `window`, or an entry of `windows`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct WindowModel {
    #[serde(default)]
    name: Text,
    #[serde(default)]
    schedule: Text,
    #[serde(default)]
    duration: Text,
    #[serde(default)]
    time_zone: Text,
    #[serde(default)]
    min_remaining: Text,
    #[serde(default)]
    exclude: ValueList<Text>,
    #[serde(default)]
    exclude_calendar_file: Text,
}

/// Builds the attributes shared by both.
fn parts() -> Attributes {
    use AttributeType::{List, String};
    attributes([
        (
            "schedule",
            optional(
                String,
                "When the window opens: five cron fields (minute, hour, day of month, month, day of week), for example `\"0 22 * * SAT\"`, `\"0 22 * * TUE#2\"` (the second Tuesday) or `\"0 22 * * SAT#L\"` (the last Saturday). A time that daylight saving skips counts when the gap ends. A time that occurs twice counts the first time.",
            ),
        ),
        (
            "duration",
            optional(
                String,
                "How long the window stays open, for example `\"4h\"`. This is elapsed time, even if the clocks change.",
            ),
        ),
        (
            "time_zone",
            optional(String, "The schedule's IANA time zone, for example `\"Europe/Berlin\"`. Default: `\"UTC\"`."),
        ),
        (
            "min_remaining",
            optional(String, "Time that an opening must still last for a start. Default: `\"0s\"`, no minimum."),
        ),
        (
            "exclude",
            optional(
                List(Box::new(String)),
                "Days on which the window does not open: `\"2026-12-24\"`, or an inclusive range, `\"2026-12-20/2027-01-06\"`. An opening belongs to the day on which it starts.",
            ),
        ),
        (
            "exclude_calendar_file",
            optional(
                String,
                "An iCalendar file of at most 4 MiB. Nothing starts during its events, and an opening ends when an event begins. Cancelled events do not count; recurring events are rejected.",
            ),
        ),
    ])
}

/// Builds a maintenance's `window`.
pub(in crate::provider) fn window_attribute() -> Attribute {
    let mut parts = parts();
    parts.insert(
        "name".to_owned(),
        optional(
            AttributeType::String,
            "Name of one of the provider's `windows`, instead of the other attributes here.",
        ),
    );
    optional(
        AttributeType::AttributeSingle(parts),
        "When the maintenance can start. Outside its window it waits, but does not block later waiters. Default: at any time.",
    )
}

/// Builds the provider's `windows`.
pub(in crate::provider) fn windows_attribute() -> Attribute {
    optional(AttributeType::AttributeMap(parts()), "Windows by name, for `window = { name = … }`.")
}

impl MayBeUnknown for WindowModel {
    fn has_unknown(&self) -> bool {
        let Self { name, schedule, duration, time_zone, min_remaining, exclude, exclude_calendar_file } = self;
        let texts = [name, schedule, duration, time_zone, min_remaining, exclude_calendar_file];
        let days = match exclude {
            Value::Value(days) => days.iter().any(Value::is_unknown),
            other => other.is_unknown(),
        };
        days || texts.into_iter().any(Value::is_unknown)
    }
}

impl WindowModel {
    /// Returns true if any attribute other than `name` is set.
    fn is_defined(&self) -> bool {
        let Self { name: _, schedule, duration, time_zone, min_remaining, exclude, exclude_calendar_file } = self;
        let texts = [schedule, duration, time_zone, min_remaining, exclude_calendar_file];
        is_given(exclude) || texts.into_iter().any(is_given)
    }

    /// Checks the known values, and returns the window if it is valid and complete. `now` rejects a
    /// window that never opens; `named` resolves its name.
    pub(in crate::provider) fn check(
        &self,
        diags: &mut Diagnostics,
        at: &AttributePath,
        on_close: OnClose,
        now: Option<Timestamp>,
        named: Option<&BTreeMap<String, WindowSpec>>,
    ) -> Option<WindowSpec> {
        let path = |name: &'static str| at.clone().attribute(name);
        if let Some(name) = given(&self.name) {
            if self.is_defined() {
                let detail = "The provider defines named windows; set either name or the other attributes.";
                bad(diags, path("name"), "A name and a definition", detail);
                return None;
            }
            let named = named?;
            let Some(window) = named.get(name) else {
                let known: Vec<&str> = named.keys().map(String::as_str).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                bad(
                    diags,
                    path("name"),
                    "No such window",
                    format!("The provider does not define the window {name:?}. Its windows: {known}."),
                );
                return None;
            };
            let window = WindowSpec { on_close, ..window.clone() };
            if let Some(problem) = now.and_then(|now| window.check(now).err()) {
                bad(diags, path("name"), "Invalid window", format!("{name}: {problem}."));
                return None;
            }
            return Some(window);
        }
        for (name, value) in [("schedule", &self.schedule), ("duration", &self.duration)] {
            if value.is_null() && !self.name.is_unknown() {
                bad(
                    diags,
                    path(name),
                    "Attribute is required in a window",
                    format!("Set {name}, or name one of the provider's windows."),
                );
            }
        }
        let errors = diags.errors.len();
        let lasts = duration(diags, &self.duration, path("duration"));
        let min_remaining = match given(&self.min_remaining) {
            Some("0s") => Some(Duration::ZERO),
            _ => duration(diags, &self.min_remaining, path("min_remaining")),
        };
        let exclude = match &self.exclude {
            Value::Value(days) => days.iter().filter_map(given).map(OneLine::from).collect(),
            _ => Vec::new(),
        };
        if diags.errors.len() > errors || self.has_unknown() {
            return None;
        }
        let time_zone = given(&self.time_zone).unwrap_or(TIME_ZONE).into();
        let mut spec = WindowSpec {
            schedule: given(&self.schedule)?.into(),
            duration: lasts?,
            time_zone,
            exclude,
            exclude_periods: Vec::new(),
            min_remaining: min_remaining.unwrap_or_default(),
            on_close,
        };
        let read = spec.compile().and_then(|window| {
            spec.exclude_periods = self.frozen(diags, at, window.time_zone());
            match now {
                Some(now) => spec.check(now),
                None => spec.compile(),
            }
        });
        if let Err(problem) = read {
            let field = match problem.field() {
                "exclude_calendar" => "exclude_calendar_file",
                field => field,
            };
            let at = match &problem {
                WindowError::Exclude { text, .. } => {
                    let index = spec.exclude.iter().position(|day| day == text).and_then(|n| i64::try_from(n).ok());
                    index.map_or_else(|| path(field), |index| path(field).index(index))
                }
                _ => path(field),
            };
            bad(diags, at, "Invalid window", format!("{problem}."));
        }
        (diags.errors.len() == errors).then_some(spec)
    }

    /// Reads the calendar file's periods.
    fn frozen(&self, diags: &mut Diagnostics, at: &AttributePath, zone: &TimeZone) -> Vec<Period> {
        let Some(file) = given(&self.exclude_calendar_file) else { return Vec::new() };
        let read =
            files::read_text(Path::new(file), files::CALENDAR, Pipes::Refused).map_err(|error| error.to_string());
        let read = read.and_then(|text| freeze_periods(&text, zone).map_err(|error| format!("{file}: {error}")));
        match read {
            Ok(periods) => periods,
            Err(problem) => {
                let path = at.clone().attribute("exclude_calendar_file");
                bad(diags, path, "Invalid calendar", format!("{problem}."));
                Vec::new()
            }
        }
    }

    /// Converts a record's window for import. A calendar file becomes its periods, because its path
    /// is not recorded.
    pub(in crate::provider) fn of(spec: &WindowSpec) -> Self {
        Self {
            schedule: Value::Value(spec.schedule.clone().into_raw()),
            duration: Value::Value(shown_duration(spec.duration)),
            time_zone: Value::Value(spec.time_zone.clone().into_raw()),
            min_remaining: known((!spec.min_remaining.is_zero()).then(|| shown_duration(spec.min_remaining))),
            exclude: if spec.exclude.is_empty() {
                Value::Null
            } else {
                Value::Value(spec.exclude.iter().map(|day| Value::Value(day.raw().to_owned())).collect())
            },
            ..Self::default()
        }
    }
}

/// Returns the requested window. The engine provides named windows and the time. Outer `None`:
/// invalid or unknown, so the request is unknown too. Inner `None`: no window.
#[allow(clippy::option_option, reason = "invalid and absent are different answers")]
pub(in crate::provider) fn asked(
    diags: &mut Diagnostics,
    window: &Value<WindowModel>,
    on_close: OnClose,
    engine: Option<&Engine>,
) -> Option<Option<WindowSpec>> {
    match window {
        Value::Null => Some(None),
        Value::Unknown => None,
        Value::Value(window) => {
            let (now, named) = (engine.map(Engine::now), engine.map(Engine::windows));
            window.check(diags, &AttributePath::new("window"), on_close, now, named).map(Some)
        }
    }
}

/// Parses `on_window_close`.
pub(in crate::provider) fn on_close(diags: &mut Diagnostics, value: &Text, windowed: bool) -> OnClose {
    let at = || AttributePath::new("on_window_close");
    if !windowed && !value.is_null() && !value.is_unknown() {
        bad(diags, at(), "Only with a window", "It only applies with a window.");
    }
    one_of(diags, value, at(), &OnClose::NAMES, OnClose::from_name).unwrap_or(OnClose::Finish)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_that_is_not_known_yet_is_not_left_out() {
        let day = Value::Value("2026-12-24".to_owned());
        let mut window = WindowModel { exclude: Value::Value(vec![day.clone()]), ..WindowModel::default() };
        assert!(!window.has_unknown());
        window.exclude = Value::Value(vec![day, Value::Unknown]);
        assert!(window.has_unknown());
    }
}
