//! Log lines for the host's log: one JSON object per line on standard error.
//!
//! The four names with `@` come from hclog and go-plugin parses them; every other entry becomes a
//! field. Request bodies are never logged. The libraries below log only warnings and errors,
//! because finer levels print messages.
use std::{
    env,
    fmt::{Debug, Write as _},
    io::Write as _,
};

use serde_json::{Map, Value, json};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer,
    filter::Targets,
    fmt::{
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use shown_text as shown;

/// Logs to standard error in the host's format. Call it once, before [`super::serve`].
///
/// The level comes from `TF_LOG_PROVIDER`, then `TF_LOG`, then defaults to warnings; the host
/// filters again. It applies to the modules in `targets`; all others log warnings and errors. Does
/// nothing if the process already has a subscriber.
pub fn install_logging(targets: &[&'static str]) {
    let level = level(|name| env::var(name).ok());
    let others = level.min(LevelFilter::WARN);
    let filter = Targets::new().with_default(others).with_targets(targets.iter().map(|target| (*target, level)));
    let _ = tracing_subscriber::registry().with(HostLines.with_filter(filter)).try_init();
}

fn level(variable: impl Fn(&str) -> Option<String>) -> LevelFilter {
    let asked = ["TF_LOG_PROVIDER", "TF_LOG"].iter().find_map(|name| variable(name).filter(|value| !value.is_empty()));
    match asked.map(|value| value.to_ascii_uppercase()).as_deref() {
        None | Some("WARN") => LevelFilter::WARN,
        Some("OFF") => LevelFilter::OFF,
        Some("ERROR") => LevelFilter::ERROR,
        Some("INFO") => LevelFilter::INFO,
        Some("DEBUG") => LevelFilter::DEBUG,
        // "JSON" selects trace in another output format. Hosts treat unknown words as trace too.
        Some(_) => LevelFilter::TRACE,
    }
}

/// Writes each event as one line.
struct HostLines;

/// A span's fields, kept for its events.
struct SpanFields(Map<String, Value>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for HostLines {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(SpanFields(fields.0));
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(SpanFields(known)) = span.extensions_mut().get_mut::<SpanFields>()
        {
            let mut fields = Fields::default();
            values.record(&mut fields);
            known.append(&mut fields.0);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut line = Fields::default();
        for span in context.event_scope(event).into_iter().flat_map(tracing_subscriber::registry::Scope::from_root) {
            if let Some(SpanFields(fields)) = span.extensions().get::<SpanFields>() {
                line.0.extend(fields.clone());
            }
        }
        event.record(&mut line);
        let text = host_line(event.metadata(), line.0);
        // One call per line, so that lines from several threads do not mix. A closed standard error
        // means that the host has ended.
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }
}

fn host_line(metadata: &tracing::Metadata<'_>, mut fields: Map<String, Value>) -> String {
    // Hosts print both unescaped.
    for value in fields.values_mut() {
        if let Value::String(text) = value {
            *text = shown::lines(text).replace('\n', "\\n");
        }
    }
    let message = fields.remove("message").unwrap_or_else(|| json!(""));
    let mut timestamp = String::new();
    // RFC 3339 with six digits, the only layout that go-plugin parses.
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    fields.insert("@level".into(), json!(host_level(*metadata.level())));
    fields.insert("@message".into(), message);
    fields.insert("@module".into(), json!(metadata.target().replace("::", ".")));
    fields.insert("@timestamp".into(), json!(timestamp));
    let mut text = Value::Object(fields).to_string();
    text.push('\n');
    text
}

fn host_level(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// Collects fields as JSON.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        self.0.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, json!(value));
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, json!(value));
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, json!(value));
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, json!(value));
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, json!(value));
    }
    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut text = value.to_string();
        let mut source = value.source();
        while let Some(cause) = source {
            let _ = write!(text, ": {cause}");
            source = cause.source();
        }
        self.put(field, json!(text));
    }
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, json!(format!("{value:?}")));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_level_is_the_providers_then_the_hosts() {
        let set = |pairs: &'static [(&str, &str)]| {
            level(|name| {
                let found = pairs.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(set(&[]), LevelFilter::WARN);
        assert_eq!(set(&[("TF_LOG", "debug")]), LevelFilter::DEBUG);
        assert_eq!(set(&[("TF_LOG", "JSON")]), LevelFilter::TRACE);
        assert_eq!(set(&[("TF_LOG", "TRACE"), ("TF_LOG_PROVIDER", "ERROR")]), LevelFilter::ERROR);
        assert_eq!(set(&[("TF_LOG_PROVIDER", "off")]), LevelFilter::OFF);
    }
}
