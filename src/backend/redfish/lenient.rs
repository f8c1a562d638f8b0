//! Reads JSON that violates RFC 8259 in an unused field.
//!
//! BMCs copy bytes from EEPROMs, sensors and neighbors into their answers. Such a byte must not
//! disable a server, so the text is repaired and parsed again. The repair does not change valid
//! JSON, and never closes a truncated document.

use std::fmt::Write as _;

use serde_json::{Number, Value};

use super::message;

/// A parsed body.
#[derive(Debug, PartialEq)]
pub(super) struct Document {
    pub(super) body: Value,
    /// Why the body is not valid JSON, if it is not.
    pub(super) flaw: Option<String>,
    /// True if the body is an error with another document behind it.
    pub(super) is_refusal: bool,
}

/// Parses a body. Uses the first of several documents, and skips success messages before a
/// resource.
pub(super) fn parse(bytes: &[u8]) -> Result<Document, serde_json::Error> {
    let strict = match serde_json::from_slice(bytes) {
        Ok(body) => return Ok(Document { body, flaw: None, is_refusal: false }),
        Err(error) => error,
    };
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_start_matches(|c: char| c == '\u{feff}' || c.is_control() || c.is_whitespace());
    if !text.starts_with(['{', '[']) {
        return Err(strict);
    }
    let repaired = repair(text);
    let read = serde_json::Deserializer::from_str(&repaired).into_iter::<Value>();
    let mut documents = read.map_while(Result::ok).filter(|document| document.is_object() || document.is_array());
    let Some(first) = documents.next() else { return Err(strict) };
    let second = documents.next();
    let flaw = Some(match &second {
        Some(_) => "it holds several JSON documents".to_owned(),
        None => strict.to_string(),
    });
    let is_refusal = second.is_some() && message::is_error(&first);
    let body = match second {
        Some(resource) if !is_refusal && message::is_note(&first) => resource,
        _ => first,
    };
    Ok(Document { body, flaw, is_refusal })
}

/// Writes a text again as JSON. Replaces raw control characters, wrong escapes and quotes inside
/// strings, words and numbers that JSON does not have, and missing or superfluous commas.
fn repair(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut depth) = (text, 0_usize);
    // The last token: a bracket, `:`, `,`, or `v` for a value.
    let mut last = ' ';
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let begins_value = !matches!(c, '}' | ']' | ':' | ',') && !is_ignored(c);
        if begins_value && depth > 0 && matches!(last, 'v' | '}' | ']') {
            out.push(',');
        }
        rest = after;
        match c {
            '{' | '[' => {
                depth += 1;
                out.push(c);
                last = c;
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                match last {
                    ',' => drop(out.pop()),
                    ':' => out.push_str("null"),
                    _ => {}
                }
                out.push(c);
                last = c;
            }
            ',' if matches!(last, ',' | '{' | '[') => {}
            ',' | ':' => {
                if last == ':' {
                    out.push_str("null");
                }
                out.push(c);
                last = c;
            }
            '"' => {
                rest = string(after, &mut out);
                last = 'v';
            }
            c if is_ignored(c) => {
                // Separates two documents that are bare numbers or words.
                if depth == 0 {
                    out.push(' ');
                }
            }
            c => {
                let ends = |c: char| is_ignored(c) || matches!(c, '{' | '}' | '[' | ']' | ':' | ',' | '"');
                let end = after.find(ends).unwrap_or(after.len());
                out.push_str(&word(&format!("{c}{}", &after[..end])));
                rest = &after[end..];
                last = 'v';
            }
        }
    }
    out
}

/// Returns true for characters between tokens.
fn is_ignored(c: char) -> bool {
    c.is_whitespace() || c.is_control() || matches!(c, '\u{feff}' | '\u{fffd}')
}

/// Normalizes a word outside strings. A word that is not JSON becomes `null`.
fn word(word: &str) -> String {
    if let Some(known) = ["true", "false", "null"].into_iter().find(|known| word.eq_ignore_ascii_case(known)) {
        return known.to_owned();
    }
    if serde_json::from_str::<Number>(word).is_ok() {
        return word.to_owned();
    }
    let number = word.parse::<f64>().ok().and_then(Number::from_f64);
    number.map_or_else(|| "null".to_owned(), |number| number.to_string())
}

/// Writes the string that begins in front of `text`, and returns what follows it.
fn string<'a>(text: &'a str, out: &mut String) -> &'a str {
    out.push('"');
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = after;
        match c {
            '"' if ends_string(after) => {
                out.push('"');
                return after;
            }
            '"' => out.push_str("\\\""),
            '\\' => rest = escape(after, out),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    // Truncated: the parser rejects it.
    rest
}

/// Returns true if a quote in front of `text` ends its string: valid JSON follows.
fn ends_string(text: &str) -> bool {
    let next = text.trim_start_matches(is_ignored);
    match next.chars().next() {
        // A member without the comma in front of it; two quotes in a row are part of the string.
        Some('"') => next.len() < text.len(),
        next => next.is_none_or(|c| matches!(c, ',' | ':' | '}' | ']')),
    }
}

/// Writes the escape whose backslash is in front of `text`, and returns what follows it.
fn escape<'a>(text: &'a str, out: &mut String) -> &'a str {
    let unit = |text: &str| {
        let digits = text.get(..4).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        u16::from_str_radix(digits, 16).ok()
    };
    match text.chars().next() {
        Some(c @ ('"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't')) => {
            out.push('\\');
            out.push(c);
            &text[1..]
        }
        Some('u') => {
            let Some(first) = unit(&text[1..]) else {
                out.push_str("\\\\");
                return text;
            };
            let low = text.get(5..7).filter(|escape| *escape == "\\u").and_then(|_| unit(text.get(7..)?));
            let units: Vec<u16> = std::iter::once(first).chain(low).collect();
            let pair = (0xd800..0xdc00).contains(&first) && low.is_some_and(|low| (0xdc00..0xe000).contains(&low));
            let (units, length) = if pair { (&units[..], 11) } else { (&units[..1], 5) };
            // Half a surrogate pair is not a character.
            match String::from_utf16(units) {
                Ok(_) => units.iter().for_each(|unit| {
                    let _ = write!(out, "\\u{unit:04x}");
                }),
                Err(_) => out.push('\u{fffd}'),
            }
            &text[length..]
        }
        // A single backslash, as in a path of Windows.
        _ => {
            out.push_str("\\\\");
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn lenient(bytes: &[u8]) -> Option<Value> {
        parse(bytes).ok().filter(|document| document.flaw.is_some()).map(|document| document.body)
    }

    #[test]
    fn flaws_outside_of_the_used_fields_are_repaired() {
        let begin = b"{\"Id\":\"1\",\"Model\":".to_vec();
        let end = b",\"PowerState\":\"On\",\"Boot\":{\"Target\":\"None\"}}".to_vec();
        let flawed: [&[u8]; 25] = [
            b"\"FW\xff\xff\"",
            b"\"Rack B\xfcro\"",
            b"\"\xed\xa0\x80\"",
            b"\"FW\r\"",
            b"\"FW\0\x01\x1f\"",
            b"\"3.5\" drive\"",
            b"\"C:\\Windows\"",
            b"\"\\x41\"",
            b"\"\\ud800\"",
            b"\"\\ud800\\u0041\"",
            b"\"\\u12\"",
            b"NaN",
            b"nan",
            b"-Infinity",
            b"1e999",
            b"007",
            b"+1",
            b".5",
            b"0x1F",
            b"True",
            b"undefined",
            b"",
            b"[1,2,]",
            b"[1 2]",
            b"{\"a\":1,}",
        ];
        for flaw in flawed {
            let bytes = [begin.as_slice(), flaw, end.as_slice()].concat();
            let shown = String::from_utf8_lossy(&bytes).into_owned();
            let read = lenient(&bytes).unwrap_or_else(|| panic!("{shown}"));
            assert_eq!((read["Id"].as_str(), read["PowerState"].as_str()), (Some("1"), Some("On")), "{shown}");
            assert_eq!(read["Boot"]["Target"], "None", "{shown}");
        }
    }

    #[test]
    fn bytes_around_a_document_are_ignored() {
        let document = json!({"Id": "1", "Name": "a\u{e9}\u{1f600}\"\\"});
        let text = document.to_string();
        for (before, after) in [
            ("\u{feff}", ""),
            ("\0\r\n", ""),
            ("", "\0"),
            ("", "\0\0\0\n"),
            ("", "<html>\"x\"</html>"),
            ("", "garbage"),
            ("", "}"),
            ("\u{feff}", "\u{feff}"),
        ] {
            assert_eq!(
                lenient(format!("{before}{text}{after}").as_bytes()),
                Some(document.clone()),
                "{before:?} {after:?}"
            );
        }
    }

    #[test]
    fn of_several_documents_an_error_in_front_is_a_refusal() {
        let resource = json!({"@odata.id": "/redfish/v1/Systems/1", "Id": "1"});
        let error = json!({"error": {"code": "Base.1.0.InternalError", "message": "no licence"}});
        let note = json!({"@Message.ExtendedInfo": [{"MessageId": "Base.1.0.Success"}]});
        let of = |first: &Value, second: &Value| {
            let read = parse(format!("{first}\r\n{second}").as_bytes()).unwrap();
            assert!(read.flaw.is_some());
            (read.body, read.is_refusal)
        };
        assert_eq!(of(&error, &resource), (error.clone(), true));
        assert_eq!(of(&resource, &error), (resource.clone(), false));
        assert_eq!(of(&note, &resource), (resource.clone(), false));
        assert_eq!(of(&resource, &resource), (resource.clone(), false));
    }

    #[test]
    fn what_is_cut_off_or_another_format_stays_an_error() {
        for text in
            ["", "{", "{\"Id\":\"1\"", "{\"Id\":\"1", "{\"Id\":\"1\\", "<html></html>", "null x", "{a:1}", "[1,"]
        {
            assert!(parse(text.as_bytes()).is_err(), "{text:?}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::hash_map(any::<String>(), inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_repair_leaves_valid_json_unchanged(value in any_json(), pretty: bool) {
            let text = if pretty { serde_json::to_string_pretty(&value).unwrap() } else { value.to_string() };
            let strict: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(serde_json::from_str::<Value>(&repair(&text)).unwrap(), strict);
        }

        #[test]
        fn one_wrong_byte_in_an_unused_string_hides_nothing(byte: u8, at in 0_usize..8) {
            let mut text = b"ABCDEFGH".to_vec();
            text[at] = byte;
            let bytes = [b"{\"Model\":\"".as_slice(), &text, b"\",\"PowerState\":\"Off\"}"].concat();
            // A backslash in front of the end is an escaped quote.
            prop_assume!(!(byte == b'\\' && at == 7));
            let read = parse(&bytes).unwrap();
            prop_assert_eq!(read.body["PowerState"].as_str(), Some("Off"));
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, text: String) {
            let _ = parse(&bytes);
            let _ = parse(text.as_bytes());
            let _ = parse(format!("{{\"a\":\"{text}\"}}").as_bytes());
            let _ = parse(&[b"{\"a\":".as_slice(), &bytes, b"}"].concat());
        }
    }
}
