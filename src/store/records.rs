//! A lock's records as one list of JSON. Records that cannot be read stay unchanged in it.

use serde_json::Value;

use crate::maintenance::{
    quarantine::{Records, Unreadable},
    shared::Shared,
    state::Maintenance,
};

/// Reads a list of records, and keeps unreadable records unchanged.
pub(super) fn parse(plain: &str) -> serde_json::Result<Records> {
    if let Ok(records) = serde_json::from_str(plain) {
        return Ok((records, Vec::new()));
    }
    let each: Vec<Value> = serde_json::from_str(plain)?;
    let uid = |value: &Value| value["uid"].as_str().unwrap_or_default().to_owned();
    Ok(Unreadable::part(each.iter().map(|value| Unreadable::or_record(&uid(value), &value.to_string()))))
}

/// Formats a list of records.
pub(super) fn text(records: &[Shared<Maintenance>], unreadable: &[Unreadable]) -> serde_json::Result<String> {
    let mut plain = serde_json::to_string(records)?;
    for record in unreadable {
        plain.pop();
        let comma = if plain.len() > 1 { "," } else { "" };
        plain.push_str(&format!("{comma}{}]", record.raw));
    }
    Ok(plain)
}
