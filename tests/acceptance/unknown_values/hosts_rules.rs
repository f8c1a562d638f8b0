//! Rules of hosts for planned values: Terraform 1.15, `internal/plans/objchange`.

use std::collections::BTreeMap;

use tf_provider::value::ValueAny;

use super::{Value, value, wire};

use wire::schema::{Attribute, Object, object::NestingMode};

/// An unknown value, as returned by [`super::plain`].
pub(super) const UNKNOWN: &str = "<unknown>";

/// Returns a single nested object's attributes.
fn single(attribute: &Attribute) -> Option<&Object> {
    attribute.nested_type.as_ref().filter(|nested| nested.nesting() == NestingMode::Single)
}

/// Returns the dotted paths of all configurable attributes, including nested objects, list indexes
/// and map keys.
pub(super) fn places(of: &[Attribute], config: &Value, before: &str) -> Vec<String> {
    let mut all = Vec::new();
    for attribute in of.iter().filter(|attribute| attribute.optional || attribute.required) {
        let place = format!("{before}{}", attribute.name);
        let inside = &config[&attribute.name];
        // Elements by key or index. A single nested object contains attributes instead.
        let items: Vec<(String, &Value)> = match inside {
            Value::Object(_) if single(attribute).is_some() => Vec::new(),
            Value::Object(fields) => fields.iter().map(|(key, item)| (key.clone(), item)).collect(),
            Value::Array(items) => items.iter().enumerate().map(|(at, item)| (at.to_string(), item)).collect(),
            _ => Vec::new(),
        };
        if let Some(nested) = single(attribute).filter(|_| inside.is_object()) {
            all.extend(places(&nested.attributes, inside, &format!("{place}.")));
        }
        for (key, item) in items {
            if let Some(nested) = &attribute.nested_type {
                all.extend(places(&nested.attributes, item, &format!("{place}.{key}.")));
            }
            all.push(format!("{place}.{key}"));
        }
        all.push(place);
    }
    all
}

/// Returns a configuration with an unknown value at one path.
pub(super) fn with_unknown(config: &Value, place: &str) -> Value {
    let mut changed = config.clone();
    let at = changed.pointer_mut(&format!("/{}", place.replace('.', "/")));
    *at.unwrap() = UNKNOWN.into();
    changed
}

/// Returns the host's proposal: configured values, and prior values for the rest.
pub(super) fn proposed(of: &[Attribute], prior: &Value, config: &Value) -> Value {
    let merged = |attribute: &Attribute| {
        let (before, now) = (&prior[&attribute.name], &config[&attribute.name]);
        let value = match (single(attribute), now) {
            _ if attribute.write_only => Value::Null,
            (Some(nested), Value::Object(_)) => proposed(&nested.attributes, before, now),
            (_, Value::Null) if attribute.computed => before.clone(),
            _ => now.clone(),
        };
        (attribute.name.clone(), value)
    };
    Value::Object(of.iter().map(merged).collect())
}

/// Collects the paths where the plan differs from the configuration.
pub(super) fn differences(of: &[Attribute], config: &Value, planned: &Value, before: &str, found: &mut Vec<String>) {
    for attribute in of {
        let place = format!("{before}{}", attribute.name);
        let (now, then) = (&config[&attribute.name], &planned[&attribute.name]);
        match (single(attribute), now) {
            _ if attribute.write_only && then.is_null() => {}
            _ if attribute.write_only => found.push(format!("{place} is write-only, but appears in the plan")),
            (_, Value::Null) if attribute.computed => {}
            (Some(nested), Value::Object(_)) if then.is_object() => {
                differences(&nested.attributes, now, then, &format!("{place}."), found);
            }
            _ if now != then => found.push(format!("{place} is configured as {now}, but planned as {then}")),
            _ => {}
        }
    }
}

/// Encodes a value as hosts send it.
pub(super) fn wire_value(of: &Value) -> Option<wire::DynamicValue> {
    value(&any(of))
}

fn any(of: &Value) -> ValueAny {
    match of {
        Value::Null => ValueAny::Null,
        Value::Bool(flag) => ValueAny::Bool(*flag),
        Value::Number(number) => ValueAny::Number(number.as_i64().unwrap()),
        Value::String(text) if text == UNKNOWN => ValueAny::Unknown,
        Value::String(text) => ValueAny::String(text.clone()),
        Value::Array(items) => ValueAny::List(items.iter().map(any).collect()),
        Value::Object(fields) => {
            ValueAny::Map(fields.iter().map(|(key, of)| (key.clone(), any(of))).collect::<BTreeMap<_, _>>())
        }
    }
}
