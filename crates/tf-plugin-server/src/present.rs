//! Which values of a configuration are set, without the values.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize,
    de::{Deserializer, IgnoredAny, Visitor},
};

/// A value of a configuration, or what is in it.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Present {
    Object(BTreeMap<String, Present>),
    List(Vec<Present>),
    Null(()),
    Set(Known),
    /// Not known yet: an extension type of MessagePack.
    Unknown(IgnoredAny),
}

impl Present {
    /// Whether something is known to be set at a dotted path, in any element of the lists on the
    /// way.
    pub(super) fn has(&self, path: &str) -> bool {
        let (name, rest) = path.split_once('.').unwrap_or((path, ""));
        match self {
            Self::Null(()) | Self::Unknown(_) => false,
            _ if path.is_empty() => true,
            Self::Object(of) => of.get(name).is_some_and(|value| value.has(rest)),
            Self::List(items) => items.iter().any(|item| item.has(path)),
            Self::Set(Known) => false,
        }
    }
}

/// A truth value, a number or a text.
pub(super) struct Known;

impl<'de> Deserialize<'de> for Known {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyKnown)
    }
}

struct AnyKnown;

impl Visitor<'_> for AnyKnown {
    type Value = Known;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a truth value, a number or a text")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Known, E> {
        Ok(Known)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Known, E> {
        Ok(Known)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Known, E> {
        Ok(Known)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Known, E> {
        Ok(Known)
    }

    fn visit_str<E>(self, _: &str) -> Result<Known, E> {
        Ok(Known)
    }
}
