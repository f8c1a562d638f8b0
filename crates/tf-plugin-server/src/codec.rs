//! Converts host values to Rust types and back.
use prost::bytes::Bytes;
use serde::{Deserialize, Serialize};
use tf_provider::{AttributePath, Diagnostics};

use super::{bounds, diagnostics::diagnostic, numbers, present::Present, proto::tfplugin6::DynamicValue, shape::Shape};

const NULL: &[u8] = &[0xc0];
/// The user's configuration.
const CONFIGURATION: &str = "configuration";
/// Shape of values without a schema: private state, metadata, identities.
static OWN: Shape = Shape::Opaque;

/// Returns a null value as hosts send it.
pub(super) fn null() -> DynamicValue {
    DynamicValue { msgpack: Bytes::from_static(NULL), json: Bytes::new() }
}

/// Returns true if a value is null or absent.
pub(super) fn is_null(value: Option<&DynamicValue>) -> bool {
    value.is_none_or(|value| match (&*value.msgpack, &*value.json) {
        ([], json) => json.is_empty() || json == b"null",
        (msgpack, _) => msgpack == NULL,
    })
}

/// A received value before decoding; decoded types can borrow from it.
#[derive(Debug)]
pub(super) struct Received<'s> {
    bytes: Bytes,
    json: bool,
    too_large: Option<bounds::TooLarge>,
    shape: &'s Shape,
    /// The value's name in error messages: "configuration", "prior state" …
    what: &'static str,
}

impl<'s> Received<'s> {
    /// Wraps a value whose schema has this shape. An absent value is null.
    pub fn new(value: Option<&DynamicValue>, shape: &'s Shape, what: &'static str) -> Self {
        let value = value.cloned().unwrap_or_default();
        let json = value.msgpack.is_empty() && !value.json.is_empty();
        let bytes = if json { value.json } else { Self::filled(value.msgpack) };
        let too_large = if json { bounds::json(&bytes) } else { bounds::msgpack(&bytes) }.err();
        if too_large.is_some() {
            return Self { bytes, json, too_large, shape, what };
        }
        let bytes = match numbers::inbound(&bytes, shape).filter(|_| !json) {
            Some(Ok(rewritten)) => rewritten.into(),
            // Decoding a malformed value describes the error better.
            Some(Err(_)) | None => bytes,
        };
        Self { bytes, json, too_large, shape, what }
    }

    /// Wraps bytes that only this provider reads and writes.
    pub fn own(bytes: &Bytes, what: &'static str) -> Self {
        let too_large = bounds::msgpack(bytes).err();
        Self { bytes: Self::filled(bytes.clone()), json: false, too_large, shape: &OWN, what }
    }

    /// Wraps provider metadata, which can have a schema.
    pub fn meta(value: Option<&DynamicValue>) -> Self {
        Self::new(value, &OWN, "provider metadata")
    }

    /// Wraps a resource identity.
    pub fn identity(value: Option<&DynamicValue>) -> Self {
        Self::new(value, &OWN, "resource identity")
    }

    /// Returns true if the host sent nothing, or null.
    pub fn is_null(&self) -> bool {
        &*self.bytes == NULL
    }

    fn filled(bytes: Bytes) -> Bytes {
        if bytes.is_empty() { Bytes::from_static(NULL) } else { bytes }
    }

    /// Decodes the value; `None` after an error with the attribute's path.
    pub fn decode<'de, T: Deserialize<'de>>(&'de self, diags: &mut Diagnostics) -> Option<T> {
        if let Some(why) = self.too_large {
            let summary = format!("The {} is too large", self.what);
            diags.add_error(diagnostic(summary, format!("It was not read: {why}."), AttributePath::root()));
            return None;
        }
        if self.refuse_null_elements(diags) {
            return None;
        }
        self.read()
            .map_err(|(path, reason)| {
                // Types cannot express it: for a host every number is a decimal.
                if self.what.ends_with(CONFIGURATION)
                    && let Some(path) = numbers::not_whole(&self.bytes, self.shape)
                {
                    let detail = "Write a whole number of at most 18 digits, without a fraction.";
                    diags.add_error(diagnostic("Not a whole number", detail, path));
                    return;
                }
                diags.add_error(diagnostic(
                    format!("The {} does not fit the provider", self.what),
                    format!("{reason}\nThis is a bug in the provider; please report it."),
                    path,
                ));
            })
            .ok()
    }

    fn read<'de, T: Deserialize<'de>>(&'de self) -> Result<T, (AttributePath, String)> {
        if self.json {
            let mut json = serde_json::Deserializer::from_slice(&self.bytes);
            serde_path_to_error::deserialize(&mut json).map_err(|error| self.place(&error))
        } else {
            let mut msgpack = rmp_serde::Deserializer::from_read_ref(&*self.bytes);
            serde_path_to_error::deserialize(&mut msgpack).map_err(|error| self.place(&error))
        }
    }

    /// Rejects a configuration with a null element in a list, set or map, because it would count as
    /// an element. Unknown elements pass: the host validates again with their values.
    fn refuse_null_elements(&self, diags: &mut Diagnostics) -> bool {
        if !self.what.ends_with(CONFIGURATION) {
            return false;
        }
        let found = self.read::<Present>().map(|present| present.null_elements(self.shape)).unwrap_or_default();
        for path in &found {
            let detail = "An element of a list, set or map cannot be null. Set a value, or remove the element.";
            diags.add_error(diagnostic("An element is null", detail, path.clone()));
        }
        !found.is_empty()
    }

    fn place<E: std::fmt::Display>(&self, error: &serde_path_to_error::Error<E>) -> (AttributePath, String) {
        let path = self.shape.path(error.path());
        let at = if path.steps.is_empty() { String::new() } else { format!("{path}: ") };
        (path, format!("{at}{}.", without_values(&error.inner().to_string())))
    }
}

/// Strips values from a serde error, because they can be secrets.
fn without_values(message: &str) -> &str {
    const SAFE: [&str; 5] =
        ["missing field", "unknown field", "duplicate field", "invalid length", "data did not match"];
    if SAFE.iter().any(|start| message.starts_with(start)) {
        message
    } else if let Some((_, expected)) = message.rsplit_once(", ")
        && expected.starts_with("expected ")
    {
        expected
    } else if message.starts_with("wrong msgpack marker") {
        "the value has another type"
    } else {
        "the value was refused"
    }
}

/// Encodes a value for the host; `None` after an error.
pub(super) fn send<T: Serialize>(diags: &mut Diagnostics, value: &T) -> Option<DynamicValue> {
    let encoded = pack(diags, value)?;
    let rewritten = numbers::outbound(&encoded);
    rewritten
        .map(|msgpack| DynamicValue { msgpack: msgpack.into(), json: Bytes::new() })
        .map_err(|error| refuse(diags, &error))
        .ok()
}

/// Encodes data that only this provider reads; null becomes an empty byte string.
pub(super) fn keep<T: Serialize>(diags: &mut Diagnostics, value: &T) -> Option<Bytes> {
    let encoded = pack(diags, value)?;
    Some(if encoded == NULL { Bytes::new() } else { encoded.into() })
}

fn pack<T: Serialize>(diags: &mut Diagnostics, value: &T) -> Option<Vec<u8>> {
    rmp_serde::to_vec_named(value).map_err(|error| refuse(diags, &error)).ok()
}

fn refuse(diags: &mut Diagnostics, error: &dyn std::fmt::Display) {
    diags.add_error(diagnostic(
        "The provider's answer cannot be encoded",
        format!("{error}.\nThis is a bug in the provider; please report it."),
        AttributePath::root(),
    ));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use tf_provider::{
        AttributePathStep,
        value::{Value, ValueNumber, ValueSet, ValueString},
    };

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct State<'a> {
        name: ValueString<'a>,
        factor: Value<f64>,
        count: ValueNumber,
        tags: ValueSet<ValueString<'a>>,
    }

    fn shape() -> Shape {
        Shape::Object(BTreeMap::from([
            ("name".into(), Shape::Opaque),
            ("factor".into(), Shape::Number),
            ("count".into(), Shape::Number),
            ("tags".into(), Shape::Elements(Box::new(Shape::Opaque))),
            ("sizes".into(), Shape::Map(Box::new(Shape::Number))),
        ]))
    }

    fn value(value: &impl Serialize) -> DynamicValue {
        DynamicValue { msgpack: rmp_serde::to_vec_named(value).unwrap().into(), json: Bytes::new() }
    }

    #[test]
    fn known_null_and_unknown_values_come_back_as_they_went() {
        let (shape, mut diags) = (shape(), Diagnostics::default());
        let state = State {
            name: Value::Unknown,
            factor: Value::Value(0.1),
            count: Value::Null,
            tags: Value::Value([Value::Unknown, Value::Value("a".into())].into()),
        };
        let sent = send(&mut diags, &state).unwrap();
        let received = Received::new(Some(&sent), &shape, "state");
        assert_eq!(received.decode::<State<'_>>(&mut diags).unwrap(), state);
        assert_eq!(diags, Diagnostics::default());
    }

    #[test]
    fn an_error_names_the_attribute_and_no_value() {
        #[derive(Debug, Deserialize)]
        struct Wrong {
            #[serde(rename = "sizes")]
            _sizes: BTreeMap<String, bool>,
        }
        let (shape, mut diags) = (shape(), Diagnostics::default());
        let sent = value(&BTreeMap::from([("sizes", BTreeMap::from([("k", "hunter2")]))]));
        let received = Received::new(Some(&sent), &shape, "configuration");
        assert!(received.decode::<Wrong>(&mut diags).is_none());
        let error = &diags.errors[0];
        assert_eq!(
            error.attribute.steps,
            [AttributePathStep::Attribute("sizes".into()), AttributePathStep::Key("k".into())]
        );
        assert!(!error.detail.contains("hunter2"), "{}", error.detail);
        assert!(error.detail.starts_with("sizes[\"k\"]: the value has another type."), "{}", error.detail);
    }

    #[test]
    fn null_elements_of_a_configuration_are_refused_and_unknown_ones_are_not() {
        let shape = shape();
        let sizes = |of: Value<i64>| value(&BTreeMap::from([("sizes", BTreeMap::from([("a.b", of)]))]));
        let tags = |of: Value<String>| value(&BTreeMap::from([("tags", [Value::Value("a".to_owned()), of])]));
        let json = DynamicValue { msgpack: Bytes::new(), json: Bytes::from_static(br#"{"sizes":{"k":null}}"#) };
        for (sent, what, places) in [
            (sizes(Value::Null), "configuration", &["sizes[\"a.b\"]"][..]),
            (tags(Value::Null), "provider configuration", &["tags[1]"]),
            (json, "configuration", &["sizes[\"k\"]"]),
            (sizes(Value::Unknown), "configuration", &[]),
            (tags(Value::Unknown), "configuration", &[]),
            (value(&BTreeMap::from([("tags", None::<u8>), ("name", None)])), "configuration", &[]),
            (sizes(Value::Null), "prior state", &[]),
        ] {
            let mut diags = Diagnostics::default();
            let received = Received::new(Some(&sent), &shape, what);
            let decoded = received.decode::<tf_provider::value::ValueAny>(&mut diags);
            let found: Vec<String> = diags.errors.iter().map(|error| error.attribute.to_string()).collect();
            assert_eq!(found, places, "{sent:?}");
            assert_eq!(decoded.is_none(), !places.is_empty(), "{sent:?}");
        }
    }

    #[test]
    fn nothing_and_null_are_null_in_both_encodings() {
        let json =
            |text: &'static str| DynamicValue { msgpack: Bytes::new(), json: Bytes::from_static(text.as_bytes()) };
        for empty in [None, Some(DynamicValue::default()), Some(null()), Some(json("null"))] {
            assert!(is_null(empty.as_ref()));
            let mut diags = Diagnostics::default();
            let received = Received::new(empty.as_ref(), &OWN, "x");
            assert_eq!(received.decode::<Option<bool>>(&mut diags), Some(None));
        }
        assert!(!is_null(Some(&value(&0))));
        assert!(!is_null(Some(&json("{}"))));
    }

    #[test]
    fn an_empty_private_state_takes_no_bytes() {
        let mut diags = Diagnostics::default();
        assert!(keep(&mut diags, &()).unwrap().is_empty());
        assert_eq!(Received::own(&Bytes::new(), "private state").decode::<()>(&mut diags), Some(()));
    }
}
