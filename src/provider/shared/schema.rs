//! Short words for schemas.

use std::collections::HashMap;

use tf_provider::schema::{Attribute, AttributeConstraint, AttributeType, Block, Description, Schema};

/// Attributes by name.
pub(in crate::provider) type Attributes = HashMap<String, Attribute>;

fn attribute(attr_type: AttributeType, constraint: AttributeConstraint, text: &str) -> Attribute {
    Attribute { attr_type, description: Description::markdown(text), constraint, sensitive: false, deprecated: false }
}

/// Must be given.
pub(in crate::provider) fn required(attr_type: AttributeType, text: &str) -> Attribute {
    attribute(attr_type, AttributeConstraint::Required, text)
}

/// May be given.
pub(in crate::provider) fn optional(attr_type: AttributeType, text: &str) -> Attribute {
    attribute(attr_type, AttributeConstraint::Optional, text)
}

/// May be given; has a default that is shown in plans.
pub(in crate::provider) fn defaulted(attr_type: AttributeType, text: &str) -> Attribute {
    attribute(attr_type, AttributeConstraint::OptionalComputed, text)
}

/// Is told by the provider.
pub(in crate::provider) fn computed(attr_type: AttributeType, text: &str) -> Attribute {
    attribute(attr_type, AttributeConstraint::Computed, text)
}

/// May be given and is shown in no plan.
pub(in crate::provider) fn secret(text: &str) -> Attribute {
    Attribute { sensitive: true, ..optional(AttributeType::String, text) }
}

/// Attributes from pairs.
pub(in crate::provider) fn attributes<const N: usize>(pairs: [(&str, Attribute); N]) -> Attributes {
    pairs.into_iter().map(|(name, attribute)| (name.to_owned(), attribute)).collect()
}

/// An object with attributes of its own.
pub(in crate::provider) fn object<const N: usize>(pairs: [(&str, Attribute); N]) -> AttributeType {
    AttributeType::AttributeSingle(attributes(pairs))
}

/// The schema of one type.
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

/// `timeouts` with the given operations.
pub(in crate::provider) fn timeouts<const N: usize>(pairs: [(&str, &str); N]) -> Attribute {
    let attributes =
        pairs.into_iter().map(|(name, text)| (name.to_owned(), optional(AttributeType::String, text))).collect();
    optional(
        AttributeType::AttributeSingle(attributes),
        "Time limits, as durations such as `\"90m\"`. Changing them changes nothing on the server.",
    )
}
