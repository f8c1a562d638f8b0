//! Types of a schema, reduced to the codec's needs.
use std::collections::{BTreeMap, HashMap};

use serde_json::Value;
use tf_provider::{
    AttributePath,
    schema::{Attribute, AttributeType, Block, NestedBlock, Type},
};

/// A value's type, in a single tree for blocks, nested attributes and plain types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A number, which MessagePack can encode as a string.
    Number,
    /// A string, a boolean, or a value that carries its own type.
    Opaque,
    /// A list or a set.
    Elements(Box<Shape>),
    /// A map, whose keys are data.
    Map(Box<Shape>),
    /// An object, whose keys are attributes.
    Object(BTreeMap<String, Shape>),
    /// A tuple, or a function's arguments.
    Tuple(Vec<Shape>),
}

impl Shape {
    /// Returns a block's object shape.
    pub fn of_block(block: &Block) -> Self {
        let mut fields = attributes(&block.attributes);
        for (name, nested) in &block.blocks {
            let shape = match nested {
                NestedBlock::Single(block) | NestedBlock::Group(block) => Self::of_block(block),
                NestedBlock::List(block) | NestedBlock::Set(block) | NestedBlock::Optional(block) => {
                    Self::Elements(Box::new(Self::of_block(block)))
                }
                NestedBlock::Map(block) => Self::Map(Box::new(Self::of_block(block))),
            };
            fields.insert(name.clone(), shape);
        }
        Self::Object(fields)
    }

    fn of_attribute(kind: &AttributeType) -> Self {
        let object = |nested| Box::new(Self::Object(attributes(nested)));
        match kind {
            AttributeType::Number => Self::Number,
            AttributeType::String | AttributeType::Bool | AttributeType::Any => Self::Opaque,
            AttributeType::List(of) | AttributeType::Set(of) => Self::Elements(Box::new(Self::of_attribute(of))),
            AttributeType::Map(of) => Self::Map(Box::new(Self::of_attribute(of))),
            AttributeType::Object(of) => {
                Self::Object(of.iter().map(|(name, kind)| (name.clone(), Self::of_attribute(kind))).collect())
            }
            AttributeType::Tuple(of) => Self::Tuple(of.iter().map(Self::of_attribute).collect()),
            AttributeType::AttributeSingle(of) => *object(of),
            AttributeType::AttributeList(of) | AttributeType::AttributeSet(of) => Self::Elements(object(of)),
            AttributeType::AttributeMap(of) => Self::Map(object(of)),
        }
    }

    /// Returns a function parameter's shape.
    pub fn of_type(kind: &Type) -> Self {
        match kind {
            Type::Number => Self::Number,
            Type::String | Type::Bool | Type::Any => Self::Opaque,
            Type::List(of) | Type::Set(of) => Self::Elements(Box::new(Self::of_type(of))),
            Type::Map(of) => Self::Map(Box::new(Self::of_type(of))),
            Type::Object(of) => {
                Self::Object(of.iter().map(|(name, kind)| (name.clone(), Self::of_type(kind))).collect())
            }
            Type::Tuple(of) => Self::Tuple(of.iter().map(Self::of_type).collect()),
        }
    }

    /// Returns the shape under a map or object key.
    pub fn under(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(fields) => fields.get(key),
            Self::Map(of) => Some(of),
            _ => None,
        }
    }

    /// Returns the shape at an index.
    pub fn at(&self, index: usize) -> Option<&Self> {
        match self {
            Self::Elements(of) => Some(of),
            Self::Tuple(of) => of.get(index),
            _ => None,
        }
    }

    /// Returns true if the value can contain a number.
    pub fn has_number(&self) -> bool {
        match self {
            Self::Number => true,
            Self::Opaque => false,
            Self::Elements(of) | Self::Map(of) => of.has_number(),
            Self::Object(of) => of.values().any(Self::has_number),
            Self::Tuple(of) => of.iter().any(Self::has_number),
        }
    }

    /// Converts a path in a document to an attribute path. Names and keys look alike in the
    /// document, so the shape distinguishes them.
    pub fn path(&self, place: &serde_path_to_error::Path) -> AttributePath {
        use serde_path_to_error::Segment;
        let (mut path, mut shape) = (AttributePath::root(), Some(self));
        for segment in place {
            match segment {
                Segment::Seq { index } => {
                    path.add_index(i64::try_from(*index).unwrap_or(i64::MAX));
                    shape = shape.and_then(|shape| shape.at(*index));
                }
                Segment::Map { key } => {
                    if matches!(shape, Some(Self::Map(_))) {
                        path.add_key(key.clone());
                    } else {
                        path.add_attribute(key.clone());
                    }
                    shape = shape.and_then(|shape| shape.under(key));
                }
                Segment::Enum { .. } | Segment::Unknown => break,
            }
        }
        path
    }

    /// Drops attributes without a schema from a JSON state. Hosts reject states with unknown
    /// attributes, which old states can contain.
    pub fn retain_known(&self, value: &mut Value) {
        match (self, value) {
            (Self::Object(fields), Value::Object(map)) => {
                map.retain(|name, _| fields.contains_key(name));
                for (name, value) in map {
                    if let Some(shape) = fields.get(name) {
                        shape.retain_known(value);
                    }
                }
            }
            (Self::Map(of), Value::Object(map)) => {
                for value in map.values_mut() {
                    of.retain_known(value);
                }
            }
            (Self::Elements(of), Value::Array(items)) => {
                for item in items {
                    of.retain_known(item);
                }
            }
            (Self::Tuple(of), Value::Array(items)) => {
                for (shape, item) in of.iter().zip(items) {
                    shape.retain_known(item);
                }
            }
            _ => {}
        }
    }
}

fn attributes(attributes: &HashMap<String, Attribute>) -> BTreeMap<String, Shape> {
    let shape = |(name, attribute): (&String, &Attribute)| (name.clone(), Shape::of_attribute(&attribute.attr_type));
    attributes.iter().map(shape).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(fields: impl IntoIterator<Item = (&'static str, Shape)>) -> Shape {
        Shape::Object(fields.into_iter().map(|(name, shape)| (name.to_owned(), shape)).collect())
    }

    #[test]
    fn unknown_attributes_go_and_data_keys_stay() {
        let shape = object([
            ("name", Shape::Opaque),
            ("labels", Shape::Map(Box::new(Shape::Opaque))),
            ("disks", Shape::Elements(Box::new(object([("size", Shape::Number)])))),
        ]);
        let mut state = json!({
            "name": "n", "retired": 1, "labels": {"any": "thing"},
            "disks": [{"size": 1, "retired": true}],
        });
        shape.retain_known(&mut state);
        assert_eq!(state, json!({"name": "n", "labels": {"any": "thing"}, "disks": [{"size": 1}]}));
    }
}
