//! Parses the pages of `docs/`.
//!
//! Attributes are described under a level 2 heading with `Schema`, `Argument` or `Attribute` in
//! its title. Each is a list item or table row that begins with its name in backquotes:
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
//! The words `required`, `optional` and `computed` (or `read-only`) are in the parentheses or in a
//! table row's second cell. The test compares them and the text after them, including indented
//! lines, with the schema.

use std::collections::BTreeMap;

use regex::Regex;

use crate::schema::Use;

/// An attribute's description on a page.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Described {
    /// `None` if missing.
    pub how: Option<Use>,
    /// Flags from [`FLAGS`] that the page states.
    pub flags: Vec<&'static str>,
    /// Text on one line, without link URLs.
    pub text: String,
}

/// Words required in the parentheses if the schema sets them.
pub const FLAGS: [&str; 2] = ["sensitive", "write-only"];

/// Returns the attributes that a page describes.
pub fn attributes(text: &str) -> BTreeMap<String, Described> {
    let mut found: BTreeMap<String, Described> = BTreeMap::new();
    let mut last = None;
    let mut inside = false;
    let mut fenced = false;
    let mut prefix = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            last = None;
        }
        if fenced {
            continue;
        }
        let goes_on = line.starts_with(' ') && !line.trim_start().starts_with(['-', '*', '|']);
        if let Some(title) = line.strip_prefix("## ") {
            inside = ["Schema", "Argument", "Attribute"].iter().any(|word| title.contains(word));
            prefix.clear();
        } else if line.starts_with("###") {
            prefix = quoted(line).map(|name| format!("{name}.")).unwrap_or_default();
        } else if inside && let Some((name, rest)) = item(line) {
            let name = format!("{prefix}{name}");
            let (use_of_it, text) = parts(rest);
            let flags = FLAGS.into_iter().filter(|flag| use_of_it.contains(flag)).collect();
            found.insert(name.clone(), Described { how: said(use_of_it), flags, text: one_line(text) });
            last = Some(name);
            continue;
        } else if goes_on && let Some(described) = last.as_ref().and_then(|name| found.get_mut(name)) {
            described.text = format!("{} {}", described.text, one_line(line));
            continue;
        }
        last = None;
    }
    found
}

/// Splits an item into its parentheses, or a row's second cell, and the remaining text.
fn parts(rest: &str) -> (&str, &str) {
    let rest = rest.trim();
    if let Some(cells) = rest.strip_prefix('|') {
        let cells = cells.trim_end_matches('|');
        return (cells.split('|').next().unwrap_or_default(), cells.rsplit('|').next().unwrap_or_default());
    }
    rest.strip_prefix('(').and_then(|open| open.split_once(')')).unwrap_or(("", rest))
}

/// Normalises a text for comparison: single spaces, and links reduced to their text.
pub fn one_line(text: &str) -> String {
    let link = Regex::new(r"\[([^\]]+)\]\([^)]+\)").unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    link.replace_all(&words.join(" "), "$1").into_owned()
}

/// Returns the name and rest of a list item or table row that begins with a name in backquotes.
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

fn said(part: &str) -> Option<Use> {
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
