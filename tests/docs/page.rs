//! How a page of `docs/` is read.
//!
//! Under a heading of level 2 whose title holds `Schema`, `Argument` or `Attribute`, every list
//! item or table row that begins with a name in backquotes describes that attribute:
//!
//! ```text
//! ## Arguments
//! - `server` (String, required) The machine ...
//! - `boot_configuration.method` (String, required) ...
//! | `reason` | String, optional | ... |
//! ### `window`
//! - `schedule` (String, required) ...          means window.schedule
//! ```
//!
//! The words `required`, `optional` and `computed` (or `read-only`), in the parentheses after the
//! name or anywhere in a table row's second cell, are compared with the schema.

use std::collections::BTreeMap;

use crate::schema::Use;

/// The attributes a page describes, with what it says of each.
pub fn attributes(text: &str) -> BTreeMap<String, Option<Use>> {
    let mut found = BTreeMap::new();
    let mut inside = false;
    let mut fenced = false;
    let mut prefix = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        if let Some(title) = line.strip_prefix("## ") {
            inside = ["Schema", "Argument", "Attribute"].iter().any(|word| title.contains(word));
            prefix.clear();
        } else if line.starts_with("###") {
            prefix = quoted(line).map(|name| format!("{name}.")).unwrap_or_default();
        } else if inside && let Some((name, rest)) = item(line) {
            found.insert(format!("{prefix}{name}"), said(rest));
        }
    }
    found
}

/// Name and rest of a list item or table row that begins with a name in backquotes.
fn item(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let begin = ["- `", "* `", "| `"].iter().find_map(|begin| line.strip_prefix(begin))?;
    let (name, rest) = begin.split_once('`')?;
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '.';
    (!name.is_empty() && name.chars().all(is_name)).then_some((name, rest))
}

fn quoted(line: &str) -> Option<&str> {
    line.split('`').nth(1)
}

fn said(rest: &str) -> Option<Use> {
    let rest = rest.trim_start();
    let part = if let Some(open) = rest.strip_prefix('(') {
        open.split(')').next()?
    } else if let Some(cells) = rest.strip_prefix('|') {
        cells.split('|').next()?
    } else {
        return None;
    };
    let part = part.to_lowercase();
    let computed = part.contains("computed") || part.contains("read-only");
    match (part.contains("required"), part.contains("optional"), computed) {
        (true, _, _) => Some(Use::Required),
        (_, true, true) => Some(Use::OptionalComputed),
        (_, true, false) => Some(Use::Optional),
        (_, _, true) => Some(Use::Computed),
        _ => None,
    }
}
