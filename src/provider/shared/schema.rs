//! Short functions for schemas.

use std::collections::HashMap;

use tf_provider::schema::{Attribute, AttributeConstraint, AttributeType, Block, Description, Schema};

/// Attributes by name.
pub(in crate::provider) type Attributes = HashMap<String, Attribute>;

fn attribute(attr_type: AttributeType, constraint: AttributeConstraint, text: &str) -> Attribute {
    Attribute { attr_type, description: Description::markdown(text), constraint, sensitive: false, deprecated: false }
}

/// Builds a required attribute.
pub(in crate::provider) fn required(attr_type: AttributeType, text: &str) -> Attribute {
    attribute(attr_type, AttributeConstraint::Required, text)
}

/// Builds an optional attribute.
pub(in crate::provider) fn optional(attr_type: AttributeType, text: &str) -> Attribute {
    attribute(attr_type, AttributeConstraint::Optional, text)
}

/// Builds an optional attribute whose default is shown in plans.
pub(in crate::provider) fn defaulted(attr_type: AttributeType, text: &str) -> Attribute {
    attribute(attr_type, AttributeConstraint::OptionalComputed, text)
}

/// Builds an attribute that the provider sets.
pub(in crate::provider) fn computed(attr_type: AttributeType, text: &str) -> Attribute {
    attribute(attr_type, AttributeConstraint::Computed, text)
}

/// Builds an optional attribute that plans do not show.
pub(in crate::provider) fn secret(text: &str) -> Attribute {
    Attribute { sensitive: true, ..optional(AttributeType::String, text) }
}

/// Builds attributes from pairs.
pub(in crate::provider) fn attributes<const N: usize>(pairs: [(&str, Attribute); N]) -> Attributes {
    pairs.into_iter().map(|(name, attribute)| (name.to_owned(), attribute)).collect()
}

/// Builds an object with nested attributes.
pub(in crate::provider) fn object<const N: usize>(pairs: [(&str, Attribute); N]) -> AttributeType {
    AttributeType::AttributeSingle(attributes(pairs))
}

/// Builds a type's schema.
pub(in crate::provider) fn schema(text: &str, attributes: Attributes) -> Schema {
    Schema {
        version: 1,
        block: Block {
            version: 1,
            attributes,
            blocks: HashMap::new(),
            description: Description::markdown(text),
            deprecated: false,
        },
    }
}

/// Builds `timeouts` with these operations.
pub(in crate::provider) fn timeouts<const N: usize>(pairs: [(&str, &str); N]) -> Attribute {
    let attributes =
        pairs.into_iter().map(|(name, text)| (name.to_owned(), optional(AttributeType::String, text))).collect();
    optional(
        AttributeType::AttributeSingle(attributes),
        "Time limits, as durations such as `\"90m\"`. Changing them does not affect the server.",
    )
}
