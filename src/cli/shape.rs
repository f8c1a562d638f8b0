//! The documented `--json` format, separate from the stored format: renaming a stored field does
//! not break scripts.
//!
//! `docs/guides/command-line.md` describes it. A new field does not change the version; a removed
//! or renamed field does.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    engine::Forbidden,
    maintenance::{ids::Runner, lock::AuditEvent, report::QueueRow, restrictions::Block},
    shown,
};

/// The format's version. Its first number increases when a field is removed or changes its meaning.
pub(super) const FORMAT_VERSION: &str = "1.0";

/// A maintenance in `queue`, in addition to `by`.
pub(super) const LINE: &[&str] = &[
    "server",
    "lock_key",
    "id",
    "state",
    "position",
    "waiting_for",
    "waiting_briefly",
    "stuck",
    "requested_at",
    "admitted_at",
    "attended",
    "process",
    "step",
    "doing",
    "owner",
    "reason",
    "ticket",
    "priority",
    "expires_at",
    "place_kept_until",
    "hand_over",
    "generation",
];
/// A process, as `by` and `requester`.
pub(super) const PROCESS: &[&str] = &["user", "host", "pid", "run", "url", "commit"];
/// A history entry.
pub(super) const EVENT: &[&str] = &["at", "id", "uid", "generation", "by", "what", "detail"];
/// A claim.
pub(super) const CLAIM: &[&str] = &["id", "uid", "server", "owner", "contact", "since"];
/// An approval.
pub(super) const APPROVAL: &[&str] = &["uid", "scope", "not_before", "expires", "at", "by", "used_by"];
/// A pending maintenance of a claimed server.
pub(super) const PENDING: &[&str] = &[
    "id",
    "policy",
    "by",
    "requested_at",
    "reason",
    "ticket",
    "priority",
    "digest",
    "allowed",
    "escalates_at",
    "effect",
    "window",
];
/// A released name.
pub(super) const RELEASED: &[&str] = &["id", "uid", "at", "by", "reason", "generation"];
/// A server's block, in addition to `by`.
pub(super) const BLOCK: &[&str] = &["id", "server", "owner", "since", "until", "reason", "generation"];
/// A maintenance's location.
pub(super) const LOCATION: &[&str] = &["backend", "cluster", "namespace", "system"];

/// Formats a document: an object with its version.
pub(super) fn document(value: Value) -> String {
    shown::json(&format!("{:#}\n", versioned(value))).into_owned()
}

/// Formats a document as one line.
pub(super) fn document_line(value: Value) -> String {
    shown::json(&format!("{}\n", versioned(value))).into_owned()
}

fn versioned(value: Value) -> Value {
    let mut all = Map::from_iter([("format_version".to_owned(), json!(FORMAT_VERSION))]);
    if let Value::Object(fields) = value {
        all.extend(fields);
    }
    Value::Object(all)
}

/// Returns the queue of a store.
pub(super) fn queue(rows: &[QueueRow], store: &str) -> Value {
    json!({ "store": store, "queue": rows.iter().map(line).collect::<Vec<_>>() })
}

/// Selects exactly these fields of a value; missing fields are null.
pub(super) fn pick(value: &impl Serialize, fields: &[&str]) -> Value {
    let value = json!(value);
    if value.is_null() {
        return value;
    }
    fields.iter().map(|name| ((*name).to_owned(), value[*name].clone())).collect()
}

/// Formats a process.
pub(super) fn process(runner: &Runner) -> Value {
    pick(runner, PROCESS)
}

/// Formats a queue entry.
pub(super) fn line(line: &QueueRow) -> Value {
    let mut shown = pick(line, LINE);
    shown["by"] = process(&line.by);
    shown
}

/// Formats history entries.
pub(super) fn events(events: &[AuditEvent]) -> Vec<Value> {
    events.iter().map(|event| pick(event, EVENT)).collect()
}

/// Formats a forced release's restrictions.
pub(super) fn forbidden(forbidden: &Forbidden) -> (Value, Value) {
    (pick(&forbidden.released, RELEASED), block(forbidden.block.as_ref()))
}

/// Formats a server's block; null without a block.
pub(super) fn block(block: Option<&Block>) -> Value {
    block.map_or(Value::Null, |block| {
        let mut shown = pick(block, BLOCK);
        shown["by"] = process(&block.by);
        shown
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_on_the_page() {
        let page = include_str!("../../docs/guides/command-line.md");
        assert!(page.contains(&format!("\"format_version\": \"{FORMAT_VERSION}\"")));
        for fields in [LINE, PROCESS, EVENT, CLAIM, APPROVAL, PENDING, RELEASED, BLOCK, LOCATION] {
            for field in fields {
                assert!(page.contains(&format!("`{field}`")), "{field} is not described");
            }
        }
    }

    #[test]
    fn a_process_shows_nothing_that_is_kept_for_the_protocol() {
        let shown = process(&Runner::new("one", "ada", "desk", 1));
        assert_eq!(shown.as_object().unwrap().len(), PROCESS.len());
        assert!(shown["id"].is_null() && shown["user"] == "ada");
    }

    #[test]
    fn a_document_has_its_version() {
        assert!(document(json!({ "a": 1 })).contains("\"format_version\": \"1.0\""));
    }
}
