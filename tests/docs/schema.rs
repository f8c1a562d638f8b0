//! Reads the provider's schema from the host's JSON.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::page::FLAGS;

/// A type's kind, which determines where its page and example are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Provider,
    Resource,
    DataSource,
    Function,
    ListResource,
    Action,
    Ephemeral,
}

/// Configurability of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Required,
    Optional,
    /// Optional, with a value from the provider if unset.
    OptionalComputed,
    Computed,
}

/// One type of any kind, or the provider block.
#[derive(Clone, Debug)]
pub struct Type {
    pub kind: Kind,
    /// `metal_server`; for functions the bare name; empty for the provider.
    pub name: String,
    /// All attributes and blocks; nested ones as `outer.inner`.
    pub attributes: BTreeMap<String, Attribute>,
}

/// An attribute's schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    pub how: Use,
    /// Flags from [`FLAGS`](crate::page::FLAGS).
    pub flags: Vec<&'static str>,
    pub text: String,
}

impl Attribute {
    fn of(how: Use, value: &Value) -> Self {
        let is = |flag: &&str| value[flag.replace('-', "_")] == true;
        let text = value["description"].as_str().unwrap_or_default().to_owned();
        Self { how, flags: FLAGS.into_iter().filter(is).collect(), text }
    }
}

/// Parses a provider's entry.
pub fn read(provider: &Value) -> Vec<Type> {
    let of = |kind, name: &str, schema: &Value| {
        let mut attributes = BTreeMap::new();
        block(&schema["block"], "", &mut attributes);
        Type { kind, name: name.to_owned(), attributes }
    };
    let mut types = vec![of(Kind::Provider, "", &provider["provider"])];
    for (kind, key) in [
        (Kind::Resource, "resource_schemas"),
        (Kind::DataSource, "data_source_schemas"),
        (Kind::ListResource, "list_resource_schemas"),
        (Kind::Action, "action_schemas"),
        (Kind::Ephemeral, "ephemeral_resource_schemas"),
    ] {
        let schemas = provider[key].as_object().into_iter().flatten();
        types.extend(schemas.map(|(name, schema)| of(kind, name, schema)));
    }
    let functions = provider["functions"].as_object().into_iter().flatten();
    types.extend(functions.map(|(name, signature)| function(name, signature)));
    types
}

fn function(name: &str, signature: &Value) -> Type {
    let parameters = signature["parameters"].as_array().into_iter().flatten();
    let parameters = parameters.chain(signature.get("variadic_parameter"));
    let attributes = parameters.filter_map(|parameter| {
        Some((parameter["name"].as_str()?.to_owned(), Attribute::of(Use::Required, parameter)))
    });
    let attributes = attributes.collect();
    Type { kind: Kind::Function, name: name.to_owned(), attributes }
}

fn block(block: &Value, prefix: &str, found: &mut BTreeMap<String, Attribute>) {
    for (name, attribute) in block["attributes"].as_object().into_iter().flatten() {
        let path = format!("{prefix}{name}");
        found.insert(path.clone(), Attribute::of(how(attribute), attribute));
        self::block(&attribute["nested_type"], &format!("{path}."), found);
    }
    for (name, nested) in block["block_types"].as_object().into_iter().flatten() {
        let path = format!("{prefix}{name}");
        let required = nested["min_items"].as_u64().unwrap_or_default() > 0;
        let how = if required { Use::Required } else { Use::Optional };
        found.insert(path.clone(), Attribute::of(how, &nested["block"]));
        self::block(&nested["block"], &format!("{path}."), found);
    }
}

fn how(attribute: &Value) -> Use {
    let is = |name: &str| attribute[name].as_bool().unwrap_or_default();
    match (is("required"), is("optional"), is("computed")) {
        (true, _, _) => Use::Required,
        (_, true, true) => Use::OptionalComputed,
        (_, true, false) => Use::Optional,
        (_, false, _) => Use::Computed,
    }
}
