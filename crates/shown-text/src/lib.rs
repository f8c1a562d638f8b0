//! Displays untrusted text: names, reasons and contacts from other teams, and messages from BMCs.
//!
//! Terminals, CI logs and comments interpret text. An escape sequence clears a screen or creates a
//! link. A line break forges a table row or a CI command. A direction mark reorders a sentence.
//! This crate shows such characters in escaped form.
#![deny(clippy::print_stdout, clippy::print_stderr, reason = "these macros panic when the output cannot be written")]

use std::borrow::Cow;

pub use one_line::{AsRaw, OneLine};

mod one_line;

/// Maximum length of untrusted text in one place, in characters.
const LONGEST: usize = 2000;

/// Returns true if a display interprets the character: control characters, format characters
/// (Unicode categories Cc and Cf, the latter if invisible or changing direction), and line and
/// paragraph separators.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns true if the text contains no interpreted characters.
#[must_use]
pub fn is_plain(text: &str) -> bool {
    !text.chars().any(acts)
}

/// Escapes an untrusted text for a single line, and limits its length.
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    let mut shown = escaped(text, acts, of_rust);
    if let Some((end, _)) = shown.char_indices().nth(LONGEST) {
        let mut short = shown.into_owned();
        short.truncate(end);
        short.push('…');
        shown = Cow::Owned(short);
    }
    shown
}

/// Escapes a multi-line text that contains untrusted text.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\n' && acts(c), of_rust)
}

/// Escapes the texts of a JSON document, which stays the same document for a parser.
#[must_use]
pub fn json(document: &str) -> Cow<'_, str> {
    escaped(
        document,
        |c| c != '\n' && acts(c),
        |c| c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
    )
}

/// Quotes a text as one shell word, for commands that can be pasted.
#[must_use]
pub fn shell_word(text: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:#@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) && !text.starts_with(['-', '#']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("'{}'", text.replace('\'', "'\\''")))
}

fn of_rust(c: char) -> String {
    c.escape_default().to_string()
}

fn escaped(text: &str, acts: impl Fn(char) -> bool, escape: impl Fn(char) -> String) -> Cow<'_, str> {
    if !text.chars().any(&acts) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if acts(c) {
            shown.push_str(&escape(c));
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_where_a_shell_would_split_it() {
        assert_eq!(shell_word("serial:maker/42"), "serial:maker/42");
        assert_eq!(shell_word("serial:dell inc./42"), "'serial:dell inc./42'");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
        assert_eq!(shell_word("$HOME `id`"), "'$HOME `id`'");
        assert_eq!(shell_word(""), "''");
    }

    #[test]
    fn nothing_that_acts_is_left_and_everything_else_is() {
        for (text, shown) in [
            ("BIOS 2.19, Müller & 田中 (#db-oncall) 🔧", "BIOS 2.19, Müller & 田中 (#db-oncall) 🔧"),
            ("\u{1b}[2J\u{1b}]8;;http://x\u{7}link", "\\u{1b}[2J\\u{1b}]8;;http://x\\u{7}link"),
            ("a\nInMaintenance  b\r\n::add-mask::x\t", "a\\nInMaintenance  b\\r\\n::add-mask::x\\t"),
            ("\u{202e}evorppa\u{2066}\u{200b}\u{feff}", "\\u{202e}evorppa\\u{2066}\\u{200b}\\u{feff}"),
            ("\u{9b}31m\u{2028}", "\\u{9b}31m\\u{2028}"),
        ] {
            assert_eq!((line(text).as_ref(), is_plain(text)), (shown, text == shown));
        }
        assert_eq!(lines("one\ntwo\u{1b}\r"), "one\ntwo\\u{1b}\\r");
        let document = serde_json::json!({ "text": "\u{202e}\u{e0041}\u{9b}\r\n" });
        let text = format!("{document:#}");
        assert!(!is_plain(&text) && json(&text).chars().all(|c| c == '\n' || !acts(c)), "{}", json(&text));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json(&text)).unwrap(), document);
        assert_eq!(line(&"x".repeat(5000)).chars().count(), LONGEST + 1);
    }
}
