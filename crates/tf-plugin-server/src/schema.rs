//! Converts tf-provider's schemas for the host.
use std::collections::HashMap;

use tf_provider::schema::{
    Attribute, AttributeConstraint, AttributeType, Block, Description, FunctionSchema, NestedBlock, Parameter, Schema,
    StringKind,
};

use super::{extension::IdentitySchema, proto::tfplugin6 as wire};

/// Converts a schema, and marks the attributes in `write_only` (dotted paths).
pub(super) fn to_wire(schema: &Schema, write_only: &[&str]) -> wire::Schema {
    wire::Schema { version: schema.version, block: Some(block(&schema.block, write_only, "")) }
}

fn block(of: &Block, write_only: &[&str], prefix: &str) -> wire::schema::Block {
    let mut block_types: Vec<_> =
        of.blocks.iter().map(|(name, nested)| nested_block(name, nested, write_only, prefix)).collect();
    // Hash maps are unordered; a stable schema can be compared and recorded.
    block_types.sort_by(|a, b| a.type_name.cmp(&b.type_name));
    wire::schema::Block {
        version: of.version,
        attributes: attributes(&of.attributes, write_only, prefix),
        block_types,
        description: of.description.content.clone(),
        description_kind: kind(&of.description),
        deprecated: of.deprecated,
        deprecation_message: String::new(),
    }
}

fn nested_block(name: &str, nested: &NestedBlock, write_only: &[&str], prefix: &str) -> wire::schema::NestedBlock {
    use wire::schema::nested_block::NestingMode;
    // A maximum of zero means no limit. For modes other than lists and sets, hosts reject limits
    // that contradict the mode.
    let (nesting, of, min_items, max_items) = match nested {
        NestedBlock::Single(of) => (NestingMode::Single, of, 1, 1),
        NestedBlock::List(of) => (NestingMode::List, of, 0, 0),
        NestedBlock::Set(of) => (NestingMode::Set, of, 0, 0),
        NestedBlock::Map(of) => (NestingMode::Map, of, 0, 0),
        NestedBlock::Group(of) => (NestingMode::Group, of, 0, 0),
        NestedBlock::Optional(of) => (NestingMode::List, of, 0, 1),
    };
    wire::schema::NestedBlock {
        type_name: name.to_owned(),
        block: Some(block(of, write_only, &format!("{prefix}{name}."))),
        nesting: nesting.into(),
        min_items,
        max_items,
    }
}

fn attributes(of: &HashMap<String, Attribute>, write_only: &[&str], prefix: &str) -> Vec<wire::schema::Attribute> {
    let mut converted: Vec<_> = of.iter().map(|(name, of)| attribute(name, of, write_only, prefix)).collect();
    converted.sort_by(|a, b| a.name.cmp(&b.name));
    converted
}

fn attribute(name: &str, of: &Attribute, write_only: &[&str], prefix: &str) -> wire::schema::Attribute {
    use AttributeConstraint::{Computed, Optional, OptionalComputed, Required};
    let path = format!("{prefix}{name}");
    let nested_type = nested_type(&of.attr_type, write_only, &path);
    wire::schema::Attribute {
        name: name.to_owned(),
        // Hosts reject a schema in which an attribute has both.
        r#type: match nested_type {
            Some(_) => Vec::new(),
            None => of.attr_type.to_string().into_bytes(),
        }
        .into(),
        nested_type,
        description: of.description.content.clone(),
        description_kind: kind(&of.description),
        required: of.constraint == Required,
        optional: matches!(of.constraint, Optional | OptionalComputed),
        computed: matches!(of.constraint, Computed | OptionalComputed),
        sensitive: of.sensitive,
        deprecated: of.deprecated,
        deprecation_message: String::new(),
        write_only: write_only.contains(&path.as_str()),
    }
}

fn nested_type(of: &AttributeType, write_only: &[&str], path: &str) -> Option<wire::schema::Object> {
    use wire::schema::object::NestingMode;
    let (nesting, nested) = match of {
        AttributeType::AttributeSingle(nested) => (NestingMode::Single, nested),
        AttributeType::AttributeList(nested) => (NestingMode::List, nested),
        AttributeType::AttributeSet(nested) => (NestingMode::Set, nested),
        AttributeType::AttributeMap(nested) => (NestingMode::Map, nested),
        _ => return None,
    };
    Some(wire::schema::Object {
        attributes: attributes(nested, write_only, &format!("{path}.")),
        nesting: nesting.into(),
    })
}

/// Converts a function's schema.
pub(super) fn function_to_wire(of: &FunctionSchema) -> wire::Function {
    wire::Function {
        parameters: of.parameters.iter().map(parameter).collect(),
        variadic_parameter: of.variadic.as_ref().map(parameter),
        r#return: Some(wire::function::Return { r#type: of.return_type.to_string().into_bytes().into() }),
        summary: of.summary.clone(),
        description: of.description.content.clone(),
        description_kind: kind(&of.description),
        // An empty message would mean "not deprecated".
        deprecation_message: match of.deprecated.as_deref() {
            Some("") => "deprecated".to_owned(),
            Some(message) => message.to_owned(),
            None => String::new(),
        },
    }
}

fn parameter(of: &Parameter) -> wire::function::Parameter {
    wire::function::Parameter {
        name: of.name.clone(),
        r#type: of.param_type.to_string().into_bytes().into(),
        allow_null_value: of.allow_null,
        allow_unknown_values: of.allow_unknown,
        description: of.description.content.clone(),
        description_kind: kind(&of.description),
    }
}

/// Converts an identity's schema.
pub(super) fn identity_to_wire(of: &IdentitySchema) -> wire::ResourceIdentitySchema {
    let attribute = |of: &super::extension::IdentityAttribute| wire::resource_identity_schema::IdentityAttribute {
        name: of.name.to_owned(),
        r#type: of.attr_type.to_string().into_bytes().into(),
        required_for_import: of.required_for_import,
        optional_for_import: !of.required_for_import,
        description: of.description.to_owned(),
    };
    wire::ResourceIdentitySchema {
        version: of.version,
        identity_attributes: of.attributes.iter().map(attribute).collect(),
    }
}

fn kind(of: &Description) -> i32 {
    match of.kind {
        StringKind::Plain => wire::StringKind::Plain,
        StringKind::Markdown => wire::StringKind::Markdown,
    }
    .into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tf_provider::map;

    use super::*;

    fn of_type(attr_type: AttributeType) -> Attribute {
        Attribute { attr_type, ..Attribute::default() }
    }

    fn schema() -> Schema {
        Schema {
            version: 3,
            block: Block {
                attributes: map! {
                    "name" => of_type(AttributeType::String),
                    "disks" => of_type(AttributeType::AttributeList(map! {
                        "size" => of_type(AttributeType::Number),
                        "key" => of_type(AttributeType::String),
                    })),
                },
                blocks: map! {
                    "many" => NestedBlock::Set(Block::default()),
                    "maybe" => NestedBlock::Optional(Block::default()),
                },
                ..Block::default()
            },
        }
    }

    #[test]
    fn an_attribute_has_a_type_or_a_nested_type_never_both() {
        fn check(attributes: &[wire::schema::Attribute]) -> usize {
            attributes
                .iter()
                .map(|attribute| {
                    assert_ne!(attribute.r#type.is_empty(), attribute.nested_type.is_none());
                    let nested = attribute.nested_type.as_ref();
                    1 + nested.map_or(0, |nested| check(&nested.attributes))
                })
                .sum()
        }
        assert_eq!(check(&to_wire(&schema(), &[]).block.unwrap().attributes), 4);
    }

    #[test]
    fn write_only_marks_the_attribute_at_that_path_and_no_other() {
        let block = to_wire(&schema(), &["disks.key", "key"]).block.unwrap();
        let disks = block.attributes.iter().find(|a| a.name == "disks").unwrap();
        assert!(!disks.write_only);
        let marked: Vec<_> = disks
            .nested_type
            .as_ref()
            .unwrap()
            .attributes
            .iter()
            .filter(|attribute| attribute.write_only)
            .map(|a| a.name.as_str())
            .collect();
        assert_eq!(marked, ["key"]);
    }

    #[test]
    fn blocks_have_the_limits_of_their_nesting() {
        let block = to_wire(&schema(), &[]).block.unwrap();
        let limits: Vec<_> =
            block.block_types.iter().map(|b| (b.type_name.as_str(), b.nesting, b.min_items, b.max_items)).collect();
        assert_eq!(limits, [("many", 3, 0, 0), ("maybe", 2, 0, 1)]);
    }
}
