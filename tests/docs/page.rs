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
//! name or anywhere in a table row's second cell, are compared with the schema, and so is the text
//! after them, which goes on in the lines that are indented.

use std::collections::BTreeMap;

use regex::Regex;

use crate::schema::Use;

/// What a page says of an attribute.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Described {
    /// `None`: nothing.
    pub how: Option<Use>,
    /// Which of [`FLAGS`] it says.
    pub flags: Vec<&'static str>,
    /// On one line, without the addresses of links.
    pub text: String,
}

/// What else may stand in the parentheses, and has to where the schema says it.
pub const FLAGS: [&str; 2] = ["sensitive", "write-only"];

/// The attributes a page describes, with what it says of each.
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

/// What an item has in its parentheses, a row in its second cell, and the text after that.
fn parts(rest: &str) -> (&str, &str) {
    let rest = rest.trim();
    if let Some(cells) = rest.strip_prefix('|') {
        let cells = cells.trim_end_matches('|');
        return (cells.split('|').next().unwrap_or_default(), cells.rsplit('|').next().unwrap_or_default());
    }
    rest.strip_prefix('(').and_then(|open| open.split_once(')')).unwrap_or(("", rest))
}

/// A text as it is compared: one space between words, and of a link its words alone.
pub fn one_line(text: &str) -> String {
    let link = Regex::new(r"\[([^\]]+)\]\([^)]+\)").unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    link.replace_all(&words.join(" "), "$1").into_owned()
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
