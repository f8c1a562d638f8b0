//! Shows which configuration values are set or null, without the values.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize,
    de::{Deserializer, IgnoredAny, Visitor},
};
use tf_provider::AttributePath;

use super::shape::Shape;

/// A configuration value or a part of it.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Present {
    Object(BTreeMap<String, Present>),
    List(Vec<Present>),
    Null(()),
    Set(Known),
    /// An unknown value: a MessagePack extension type.
    Unknown(IgnoredAny),
}

impl Present {
    /// Returns true if a value is set at a dotted path, in any element of the lists on the path.
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

    /// Returns the paths of null elements in lists, sets and maps.
    pub(super) fn null_elements(&self, shape: &Shape) -> Vec<AttributePath> {
        let mut found = Vec::new();
        self.find_null_elements(Some(shape), &AttributePath::root(), &mut found);
        found
    }

    fn find_null_elements(&self, shape: Option<&Shape>, at: &AttributePath, found: &mut Vec<AttributePath>) {
        let mut element = |item: &Self, of: &Shape, at: AttributePath| {
            if matches!(item, Self::Null(())) {
                found.push(at);
            } else {
                item.find_null_elements(Some(of), &at, found);
            }
        };
        match (self, shape) {
            (Self::List(items), Some(Shape::Elements(of))) => {
                for (index, item) in (0..).zip(items) {
                    element(item, of, at.clone().index(index));
                }
            }
            (Self::Object(fields), Some(Shape::Map(of))) => {
                for (key, item) in fields {
                    element(item, of, at.clone().key(key.clone()));
                }
            }
            (Self::Object(fields), Some(shape)) => {
                for (name, item) in fields {
                    item.find_null_elements(shape.under(name), &at.clone().attribute(name.clone()), found);
                }
            }
            _ => {}
        }
    }
}

/// A boolean, a number or a string.
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
