//! A text from others that is always printed as one harmless line.

use std::{
    borrow::{Borrow, Cow},
    cmp::Ordering,
    fmt, hash,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::line;

/// A text from a store, a cluster, a BMC or the environment.
///
/// Every format shows the escaped line. Only [`OneLine::raw`] and serialization return the raw
/// text, so that a record that is read and written again does not change. Comparisons use the raw
/// text, so that two different texts never count as one.
#[derive(Clone, Default)]
pub struct OneLine(Box<Text>);

#[derive(Clone, Default)]
struct Text {
    raw: String,
    /// The escaped text. `None` if it equals the raw text.
    shown: Option<Box<str>>,
}

impl OneLine {
    /// Returns the raw text, to send it back or to compare it. Never print it.
    #[must_use]
    pub fn raw(&self) -> &str {
        &self.0.raw
    }

    /// Returns the raw text as a value. See [`OneLine::raw`].
    #[must_use]
    pub fn into_raw(self) -> String {
        self.0.raw
    }

    /// Returns the text that people see.
    #[must_use]
    pub fn shown(&self) -> &str {
        self.0.shown.as_deref().unwrap_or(&self.0.raw)
    }

    /// Returns true if the text is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.raw.is_empty()
    }
}

impl From<String> for OneLine {
    fn from(raw: String) -> Self {
        let shown = match line(&raw) {
            Cow::Owned(shown) => Some(shown.into_boxed_str()),
            Cow::Borrowed(_) => None,
        };
        Self(Box::new(Text { raw, shown }))
    }
}

impl From<&str> for OneLine {
    fn from(raw: &str) -> Self {
        Self::from(raw.to_owned())
    }
}

impl From<&String> for OneLine {
    fn from(raw: &String) -> Self {
        Self::from(raw.clone())
    }
}

/// Returns the raw text of an optional [`OneLine`]. See [`OneLine::raw`].
pub trait AsRaw {
    /// Returns the raw text, to send it back or to compare it. Never print it.
    fn as_raw(&self) -> Option<&str>;
}

impl AsRaw for Option<OneLine> {
    fn as_raw(&self) -> Option<&str> {
        self.as_ref().map(OneLine::raw)
    }
}

/// Allows to look up a raw text in a map or a set.
impl Borrow<str> for OneLine {
    fn borrow(&self) -> &str {
        &self.0.raw
    }
}

impl fmt::Display for OneLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.shown(), f)
    }
}

/// Quotes the raw text, because quoting escapes it already.
impl fmt::Debug for OneLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0.raw, f)
    }
}

impl PartialEq for OneLine {
    fn eq(&self, other: &Self) -> bool {
        self.0.raw == other.0.raw
    }
}

impl Eq for OneLine {}

impl PartialOrd for OneLine {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OneLine {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.raw.cmp(&other.0.raw)
    }
}

impl hash::Hash for OneLine {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.0.raw.hash(state);
    }
}

impl PartialEq<str> for OneLine {
    fn eq(&self, other: &str) -> bool {
        self.0.raw == other
    }
}

impl PartialEq<&str> for OneLine {
    fn eq(&self, other: &&str) -> bool {
        self.0.raw == *other
    }
}

impl PartialEq<String> for OneLine {
    fn eq(&self, other: &String) -> bool {
        self.0.raw == *other
    }
}

impl PartialEq<Cow<'_, str>> for OneLine {
    fn eq(&self, other: &Cow<'_, str>) -> bool {
        self.0.raw == *other
    }
}

impl PartialEq<OneLine> for str {
    fn eq(&self, other: &OneLine) -> bool {
        self == other.0.raw
    }
}

impl PartialEq<OneLine> for &str {
    fn eq(&self, other: &OneLine) -> bool {
        *self == other.0.raw
    }
}

impl PartialEq<OneLine> for String {
    fn eq(&self, other: &OneLine) -> bool {
        *self == other.0.raw
    }
}

impl Serialize for OneLine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.raw)
    }
}

impl<'de> Deserialize<'de> for OneLine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "\n::error title=x::y\r\u{1b}[31m\u{202e}\u{ad}\u{e0041}\u{feff}";

    #[test]
    fn every_format_is_one_harmless_line() {
        let text = OneLine::from(HOSTILE);
        for shown in [format!("{text}"), format!("{text:?}"), format!("{text:>80}"), text.to_string()] {
            assert!(super::super::is_plain(&shown) && shown.contains("\\n::error"), "{shown:?}");
        }
    }

    #[test]
    fn the_raw_text_is_stored_and_compared() {
        let text = OneLine::from(HOSTILE);
        let stored = serde_json::to_string(&text).unwrap();
        assert_eq!(stored, serde_json::to_string(HOSTILE).unwrap());
        assert_eq!(serde_json::from_str::<OneLine>(&stored).unwrap(), text);
        assert_eq!(text, *HOSTILE);
        assert_ne!(OneLine::from(text.shown()), text, "a text that looks alike is another text");
    }
}
