//! Validates configured values. Every diagnostic contains the attribute's path.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostics,
    value::{Value, ValueNumber},
};

use crate::{
    maintenance::{
        ids::{MaintenanceId, check_name},
        limits::{self, LimitError},
        machine::{BootMode, PowerTarget},
    },
    plugin::diagnostic,
    shown,
};

use crate::provider::shared::block::MayBeUnknown as _;

/// A text that can be null or unknown.
pub(in crate::provider) type Text = Value<String>;
/// A map of texts.
pub(in crate::provider) type Texts = Value<BTreeMap<String, Text>>;

/// The block `timeouts`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::provider) struct Timeouts {
    /// For create.
    #[serde(default)]
    pub(in crate::provider) create: Text,
    /// For update.
    #[serde(default)]
    pub(in crate::provider) update: Text,
    /// For delete.
    #[serde(default)]
    pub(in crate::provider) delete: Text,
}

/// Returns a text if it is known and not null.
pub(in crate::provider) fn given(value: &Text) -> Option<&str> {
    match value {
        Value::Value(text) => Some(text),
        _ => None,
    }
}

/// Converts an optional text for the state.
pub(in crate::provider) fn known(text: Option<String>) -> Text {
    text.map_or(Value::Null, Value::Value)
}

/// Replaces `Null` by the default; keeps unknown and set values.
pub(in crate::provider) fn or_default<T>(value: &mut Value<T>, default: T) {
    if value.is_null() {
        *value = Value::Value(default);
    }
}

/// Reports an invalid value.
pub(in crate::provider) fn bad(diags: &mut Diagnostics, path: AttributePath, summary: &str, detail: impl Into<String>) {
    diags.add_error(diagnostic(summary.to_owned(), detail.into(), path));
}

/// Parses a duration such as `90m`, `1h30m` or `2d`; a day has 24 hours.
pub(in crate::provider) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = |why: &str| format!("{text:?} {why}. Write a duration such as \"90m\", \"1h30m\" or \"2d\".");
    let span: jiff::Span = text.parse().map_err(|_| wrong("is not a valid duration"))?;
    let signed =
        span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong("uses months or years"))?;
    match Duration::try_from(signed) {
        Err(_) => Err(wrong("is negative")),
        Ok(duration) if duration.is_zero() => Err(wrong("is zero")),
        Ok(duration) => Ok(duration),
    }
}

/// Formats a duration in the configuration's notation.
pub(in crate::provider) fn shown_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let parts = [(seconds / 3600, "h"), (seconds % 3600 / 60, "m"), (seconds % 60, "s")];
    let text: String = parts.iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n}{unit}")).collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Returns a configured duration; `None` if it is absent, unknown or invalid (which is reported).
pub(in crate::provider) fn duration(diags: &mut Diagnostics, value: &Text, path: AttributePath) -> Option<Duration> {
    match parse_duration(given(value)?) {
        Ok(duration) => Some(duration),
        Err(problem) => {
            bad(diags, path, "Invalid duration", problem);
            None
        }
    }
}

/// Parses an RFC 3339 time.
pub(in crate::provider) fn moment(
    diags: &mut Diagnostics,
    value: &Text,
    path: AttributePath,
) -> Option<jiff::Timestamp> {
    let text = given(value)?;
    let read = text.parse().ok();
    if read.is_none() {
        let detail = format!(
            "{text:?} is not a valid RFC 3339 timestamp. Write it with its offset, such as \"2026-12-24T22:00:00+01:00\"."
        );
        bad(diags, path, "Invalid RFC 3339 timestamp", detail);
    }
    read
}

/// An unknown time limit during planning: longer than any window or queue.
const NOT_KNOWN_YET: Duration = Duration::from_hours(100 * 365 * 24);

/// Returns a configured time limit, or its default.
pub(in crate::provider) fn time_limit(
    timeouts: &Value<Timeouts>,
    pick: impl Fn(&Timeouts) -> &Text,
    default: Duration,
) -> Duration {
    let text = match timeouts {
        Value::Value(timeouts) => pick(timeouts),
        Value::Null => &Value::Null,
        Value::Unknown => &Value::Unknown,
    };
    match text {
        Value::Unknown => NOT_KNOWN_YET,
        text => given(text).and_then(|text| parse_duration(text).ok()).unwrap_or(default),
    }
}

/// Checks every configured time limit.
pub(in crate::provider) fn check_timeouts(diags: &mut Diagnostics, timeouts: &Value<Timeouts>) {
    if let Value::Value(timeouts) = timeouts {
        for (name, value) in [("create", &timeouts.create), ("update", &timeouts.update), ("delete", &timeouts.delete)]
        {
            duration(diags, value, AttributePath::new("timeouts").attribute(name));
        }
    }
}

/// Checks a value against a fixed list.
pub(in crate::provider) fn one_of<T>(
    diags: &mut Diagnostics,
    value: &Text,
    path: AttributePath,
    words: &[&str],
    pick: impl Fn(&str) -> Option<T>,
) -> Option<T> {
    let text = given(value)?;
    let picked = pick(text);
    if picked.is_none() {
        let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
        bad(diags, path, "Invalid value", format!("{text:?} is not one of {}.", words.join(", ")));
    }
    picked
}

/// Parses `On` or `Off`.
pub(in crate::provider) fn power(diags: &mut Diagnostics, value: &Text, path: AttributePath) -> Option<PowerTarget> {
    one_of(diags, value, path, &["On", "Off"], |text| match text {
        "On" => Some(PowerTarget::On),
        "Off" => Some(PowerTarget::Off),
        _ => None,
    })
}

/// Parses `UEFI` or `Legacy`.
pub(in crate::provider) fn boot_mode(diags: &mut Diagnostics, value: &Text, path: AttributePath) -> Option<BootMode> {
    one_of(diags, value, path, &["UEFI", "Legacy"], |text| match text {
        "UEFI" => Some(BootMode::Uefi),
        "Legacy" => Some(BootMode::Legacy),
        _ => None,
    })
}

/// Checks an `http` or `https` URL.
pub(in crate::provider) fn web_url(diags: &mut Diagnostics, value: &Text, path: AttributePath) -> Option<String> {
    let text = given(value)?;
    within_limit(diags, limits::check_length(text, limits::URL), path.clone());
    let problem = match url::Url::parse(text) {
        Ok(url) if !matches!(url.scheme(), "http" | "https") => {
            format!("It has the scheme {scheme:?}; only http and https are supported.", scheme = url.scheme())
        }
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            "It contains a user name or password, which the state would store. Serve the image without credentials, \
             or sign its address."
                .to_owned()
        }
        Ok(_) => return Some(text.to_owned()),
        Err(error) => format!("It is not a URL: {error}."),
    };
    bad(diags, path, "Invalid URL", problem);
    None
}

/// Checks that a value is not empty and contains no control characters.
pub(in crate::provider) fn not_empty(diags: &mut Diagnostics, value: &Text, path: AttributePath) {
    if given(value).is_some_and(|text| text.trim().is_empty()) {
        bad(diags, path, "Must not be empty", "Remove the attribute instead of setting an empty text.");
    } else if given(value).is_some_and(|text| !shown::is_plain(text)) {
        let detail = "It contains a line end or another invisible character, which other readers would see \
                      differently. Write it in one line; chomp() removes a heredoc's line end.";
        bad(diags, path, "Not plain text", detail);
    }
}

/// Parses the id `namespace/name` of the object `of`. `hint` shows where to find the id.
pub(in crate::provider) fn read_id(
    diags: &mut Diagnostics,
    text: &str,
    at: AttributePath,
    of: &str,
    hint: &str,
) -> Option<MaintenanceId> {
    match text.parse() {
        Ok(id) => Some(id),
        Err(problem) => {
            bad(diags, at, &format!("Not the id of {of}"), format!("{text:?}: it {problem}.{hint}"));
            None
        }
    }
}

/// Checks that a value is not empty and has at most `most` characters.
pub(in crate::provider) fn short(diags: &mut Diagnostics, value: &Text, path: AttributePath, most: usize) {
    not_empty(diags, value, path.clone());
    if let Some(text) = given(value) {
        within_limit(diags, limits::check_length(text, most), path);
    }
}

/// Reports an exceeded limit.
fn within_limit(diags: &mut Diagnostics, checked: Result<(), LimitError>, path: AttributePath) {
    if let Err(problem) = checked {
        bad(diags, path, "Limit exceeded", format!("It {problem}."));
    }
}

/// Checks a priority.
pub(in crate::provider) fn check_priority(diags: &mut Diagnostics, value: &ValueNumber, path: AttributePath) {
    if let Value::Value(priority) = value {
        within_limit(diags, limits::check_priority(*priority), path);
    }
}

/// Checks `triggers`, whose changes start a new run.
pub(in crate::provider) fn check_triggers(diags: &mut Diagnostics, value: &Texts) {
    if let Err((part, problem)) = limits::check_triggers(&texts(value)) {
        let at = AttributePath::new("triggers");
        let at = match part {
            limits::TriggerPart::Map => at,
            limits::TriggerPart::Name(name) | limits::TriggerPart::Value(name) => at.key(name.to_owned()),
        };
        bad(diags, at, "Limit exceeded", format!("{part} {problem}."));
    }
}

/// Checks the namespace and name of a record.
pub(in crate::provider) fn check_names(diags: &mut Diagnostics, namespace: &Text, name: &Text) {
    for (attribute, value) in [("namespace", namespace), ("name", name)] {
        if let Some(text) = given(value)
            && let Err(problem) = check_name(text)
        {
            bad(diags, AttributePath::new(attribute), "Invalid name", format!("{text:?}: it {problem}."));
        }
    }
}

/// Returns a map's known texts without nulls.
pub(in crate::provider) fn texts(value: &Texts) -> BTreeMap<String, String> {
    match value {
        Value::Value(map) => {
            map.iter().filter_map(|(name, text)| Some((name.clone(), given(text)?.to_owned()))).collect()
        }
        _ => BTreeMap::new(),
    }
}

/// Returns true if a value is known and not null. An unknown value could turn out to be absent.
pub(in crate::provider) fn is_given<T>(value: &Value<T>) -> bool {
    value_of(value).is_some()
}

/// Returns true if two maps are equal, ignoring nulls. Maps with unknown parts are equal only if
/// identical.
pub(in crate::provider) fn same_texts(one: &Texts, other: &Texts) -> bool {
    one == other || (!one.has_unknown() && !other.has_unknown() && texts(one) == texts(other))
}

/// Returns a value if it is known and not null.
pub(in crate::provider) fn value_of<T>(value: &Value<T>) -> Option<&T> {
    match value {
        Value::Value(value) => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        for (text, seconds) in [("90m", 5400), ("1h30m", 5400), ("2d", 172_800), ("1h 30m", 5400), ("45s", 45)] {
            assert_eq!(parse_duration(text).unwrap().as_secs(), seconds, "{text}");
        }
        for text in ["", "90", "-5m", "0s", "soon", "1mo", "5 bananas"] {
            assert!(parse_duration(text).is_err(), "{text:?} was accepted");
        }
        assert_eq!(shown_duration(Duration::from_mins(90)), "1h30m");
        assert_eq!(shown_duration(Duration::from_secs(59)), "59s");
        assert_eq!(parse_duration(&shown_duration(Duration::from_secs(93_784))).unwrap().as_secs(), 93_784);
    }

    #[test]
    fn maps_say_the_same_without_their_nulls_once_they_are_known() {
        let map = |name: &str, value: Text| Value::Value(BTreeMap::from([(name.to_owned(), value)]));
        let one = |text: &str| map("run", Value::Value(text.to_owned()));
        let empty = [Value::Null, Value::Value(BTreeMap::new()), map("run", Value::Null)];
        for (before, now) in empty.iter().flat_map(|before| empty.iter().map(move |now| (before, now))) {
            assert!(same_texts(before, now), "{before:?} {now:?}");
        }
        assert!(same_texts(&one("1"), &one("1")) && !same_texts(&one("1"), &one("2")));
        for unknown in [Value::Unknown, map("run", Value::Unknown)] {
            assert!(empty.iter().all(|before| !same_texts(before, &unknown)), "{unknown:?}");
        }
    }

    #[test]
    fn a_url_with_a_password_is_refused_without_repeating_it() {
        let mut diags = Diagnostics::default();
        let url = Value::Value("https://user:hunter2@images.example/a.iso".to_owned());
        assert_eq!(web_url(&mut diags, &url, AttributePath::new("image")), None);
        assert!(!format!("{diags:?}").contains("hunter2"));
        assert_eq!(diags.errors[0].attribute, AttributePath::new("image"));
    }
}
