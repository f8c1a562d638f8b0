//! A backend's or gate's block: its schema and its configured values.

use std::collections::{BTreeMap, HashMap};

use secrecy::SecretString;
use tf_provider::{
    AttributePath, Diagnostics,
    schema::{Attribute, AttributeType},
    value::{Value, ValueAny},
};

use crate::backend::plug::{AttributeKind, Block, Given, Setting};

use crate::provider::{
    shared::block::MayBeUnknown,
    shared::schema::{Attributes, optional, required, secret},
    shared::values::{duration, not_empty},
};

/// Builds a block's schema.
pub(in crate::provider) fn block_attribute(description: &str, settings: &[Setting]) -> Attribute {
    optional(AttributeType::AttributeSingle(attributes(settings)), description)
}

fn attributes(settings: &[Setting]) -> Attributes {
    settings.iter().map(|setting| (setting.name.to_owned(), attribute(setting))).collect::<HashMap<_, _>>()
}

fn attribute(setting: &Setting) -> Attribute {
    use AttributeType::{AttributeMap, Bool, List, Map, String};
    let kind = match setting.kind {
        AttributeKind::Secret => return secret(&setting.description()),
        AttributeKind::Text | AttributeKind::Name | AttributeKind::Duration => String,
        AttributeKind::Flag => Bool,
        AttributeKind::Texts => Map(Box::new(String)),
        AttributeKind::List => List(Box::new(String)),
        AttributeKind::Objects(settings) => AttributeMap(attributes(settings)),
    };
    if setting.required { required(kind, &setting.description()) } else { optional(kind, &setting.description()) }
}

impl MayBeUnknown for ValueAny {
    fn has_unknown(&self) -> bool {
        match self {
            Self::Unknown => true,
            Self::Map(parts) => parts.has_unknown(),
            Self::List(parts) => parts.iter().any(Self::has_unknown),
            _ => false,
        }
    }
}

/// Returns a block's values; nulls are absent. An unknown block has only unknown attributes.
pub(in crate::provider) fn read(
    diags: &mut Diagnostics,
    value: &ValueAny,
    settings: &[Setting],
    at: &AttributePath,
) -> Block {
    let mut block = Block::default();
    if *value == ValueAny::Unknown {
        for setting in settings {
            block.set(setting.name, Given::Unknown);
        }
    }
    let ValueAny::Map(values) = value else { return block };
    for setting in settings {
        let at = at.clone().attribute(setting.name);
        let given = values.get(setting.name).and_then(|value| given(diags, value, &setting.kind, at));
        if let Some(given) = given {
            block.set(setting.name, given);
        }
    }
    block
}

fn given(diags: &mut Diagnostics, value: &ValueAny, kind: &AttributeKind, at: AttributePath) -> Option<Given> {
    match (kind, value) {
        (_, ValueAny::Unknown) => Some(Given::Unknown),
        (AttributeKind::Text, ValueAny::String(text)) => Some(Given::Text(text.clone())),
        (AttributeKind::Name, ValueAny::String(text)) => {
            not_empty(diags, &Value::Value(text.clone()), at);
            Some(Given::Text(text.clone()))
        }
        (AttributeKind::Secret, ValueAny::String(text)) => Some(Given::Secret(SecretString::from(text.as_str()))),
        (AttributeKind::Flag, ValueAny::Bool(flag)) => Some(Given::Flag(*flag)),
        (AttributeKind::Duration, ValueAny::String(text)) => {
            duration(diags, &Value::Value(text.clone()), at).map(Given::Duration)
        }
        (AttributeKind::Texts, ValueAny::Map(_)) | (AttributeKind::List, ValueAny::List(_)) if value.has_unknown() => {
            Some(Given::Unknown)
        }
        (AttributeKind::Texts, ValueAny::Map(texts)) => {
            let texts = texts.iter().filter_map(|(name, text)| match text {
                ValueAny::String(text) => Some((name.clone(), text.clone())),
                _ => None,
            });
            Some(Given::Texts(texts.collect()))
        }
        (AttributeKind::List, ValueAny::List(texts)) => {
            let texts = texts.iter().filter_map(|text| match text {
                ValueAny::String(text) => Some(text.clone()),
                _ => None,
            });
            Some(Given::List(texts.collect()))
        }
        (AttributeKind::Objects(settings), ValueAny::Map(objects)) => {
            let mut blocks = BTreeMap::new();
            for (name, object) in objects {
                blocks.insert(name.clone(), read(diags, object, settings, &at.clone().key(name.clone())));
            }
            Some(Given::Objects(blocks))
        }
        // The host has checked the types.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::plug::plugins;

    fn text(text: &str) -> ValueAny {
        ValueAny::String(text.to_owned())
    }

    fn map<const N: usize>(parts: [(&str, ValueAny); N]) -> ValueAny {
        ValueAny::Map(parts.into_iter().map(|(name, part)| (name.to_owned(), part)).collect())
    }

    #[test]
    fn values_arrive_as_what_the_backend_says_they_are() {
        let redfish = plugins().iter().find(|plugin| plugin.name() == "redfish").unwrap();
        let server = map([
            ("endpoint", text("https://bmc")),
            ("labels", map([("rack", text("1"))])),
            ("insecure", ValueAny::Null),
        ]);
        let unknown = map([("endpoint", ValueAny::Unknown)]);
        let value = map([
            ("servers", map([("node1", server), ("node2", unknown)])),
            ("password", text("secret")),
            ("request_timeout", text("5s")),
            ("read_timeout", text("soon")),
            ("insecure", ValueAny::Bool(true)),
        ]);
        assert!(value.has_unknown());
        let mut diags = Diagnostics::default();
        let block = read(&mut diags, &value, redfish.settings(), &AttributePath::new("redfish"));
        assert_eq!(diags.errors.len(), 1, "the duration: {diags:?}");
        assert!(block.secret("password").is_some() && block.text("password").is_none());
        assert_eq!(block.duration("request_timeout").map(|it| it.as_secs()), Some(5));
        assert_eq!(block.flag("insecure"), Some(true));
        let servers: Vec<_> = block.objects("servers").collect();
        assert_eq!(servers[0].1.texts("labels").get("rack").map(String::as_str), Some("1"));
        assert!(!servers[0].1.has("insecure") && servers[1].1.is_unknown("endpoint"));
    }

    #[test]
    fn an_object_that_is_not_known_lacks_nothing() {
        let redfish = plugins().iter().find(|plugin| plugin.name() == "redfish").unwrap();
        let value = map([("servers", map([("node1", ValueAny::Unknown)]))]);
        let mut diags = Diagnostics::default();
        for (value, problems) in
            [(value, 0), (ValueAny::Unknown, 0), (map([("servers", map([("node1", map([]))]))]), 1)]
        {
            let block = read(&mut diags, &value, redfish.settings(), &AttributePath::new("redfish"));
            assert_eq!(redfish.check(&block).len(), problems, "{block:?}");
            assert_eq!(block.has_unknown(), problems == 0);
        }
    }

    #[test]
    fn an_unknown_value_on_the_wire_is_read_as_one() {
        // MessagePack: {"insecure": extension 0, "servers": {"node1": {"endpoint": extension 0}}}
        let extension = [0xd4, 0x00, 0x00];
        let mut wire = vec![0x82, 0xa8];
        wire.extend(b"insecure");
        wire.extend(extension);
        wire.extend([0xa7]);
        wire.extend(b"servers");
        wire.extend([0x81, 0xa5]);
        wire.extend(b"node1");
        wire.extend([0x81, 0xa8]);
        wire.extend(b"endpoint");
        wire.extend(extension);
        let value: ValueAny = rmp_serde::from_slice(&wire).unwrap();
        let server = map([("endpoint", ValueAny::Unknown)]);
        assert_eq!(value, map([("insecure", ValueAny::Unknown), ("servers", map([("node1", server)]))]));
    }
}
