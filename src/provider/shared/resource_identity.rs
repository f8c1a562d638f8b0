//! Resource identities, which consist of the import id's parts.

use serde_json::{Value as Json, json};
use tf_provider::schema::AttributeType;

use crate::plugin::{IdentityAttribute, IdentitySchema};

use crate::provider::shared::values::{Text, given};

/// Builds an attribute that an import by identity requires.
const fn text(name: &'static str, description: &'static str) -> IdentityAttribute {
    IdentityAttribute { name, attr_type: AttributeType::String, description, required_for_import: true }
}

/// Builds an identity schema.
///
/// It has version 0, because hosts treat a state without identity as version 0. A higher version
/// would request an upgrade for an identity that such a state does not have.
fn schema(attributes: Vec<IdentityAttribute>) -> IdentitySchema {
    IdentitySchema { version: 0, attributes }
}

/// Builds the schema for resources with a namespace and a name.
pub(in crate::provider) fn named_schema() -> IdentitySchema {
    schema(vec![
        text(
            "namespace",
            "First part of the name. The provider finds the record by both parts, even without a state file.",
        ),
        text("name", "Second part of the name, after `namespace`."),
    ])
}

/// Builds the schema for resources with only an id.
pub(in crate::provider) fn id_schema() -> IdentitySchema {
    schema(vec![text("id", "Its `id`.")])
}

/// Builds an identity from namespace and name; `None` while either is unknown.
pub(in crate::provider) fn of_name(namespace: &Text, name: &Text) -> Option<Json> {
    Some(json!({ "namespace": given(namespace)?, "name": given(name)? }))
}

/// Builds an identity from an id `namespace/name`.
pub(in crate::provider) fn of_joined(id: &Text) -> Option<Json> {
    let (namespace, name) = given(id)?.split_once('/')?;
    Some(json!({ "namespace": namespace, "name": name }))
}

/// Builds the identity of resources with only an id.
pub(in crate::provider) fn of_id(id: &Text) -> Option<Json> {
    Some(json!({ "id": given(id)? }))
}

/// Joins an identity's namespace and name to an import id.
pub(in crate::provider) fn import_name(identity: &Json) -> Option<String> {
    let part = |name: &str| identity.get(name)?.as_str();
    Some(format!("{}/{}", part("namespace")?, part("name")?))
}

/// Returns the import id from an identity with only an id.
pub(in crate::provider) fn import_id(identity: &Json) -> Option<String> {
    identity.get("id")?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tf_provider::value::Value;

    use super::*;

    #[test]
    fn an_identity_and_its_import_id_say_the_same() {
        let known = |text: &str| Value::Value(text.to_owned());
        let named = of_name(&known("tests"), &known("disk-1")).unwrap();
        assert_eq!(named, of_joined(&known("tests/disk-1")).unwrap());
        assert_eq!(import_name(&named).unwrap(), "tests/disk-1");
        assert_eq!(import_id(&of_id(&known("0190")).unwrap()).unwrap(), "0190");
    }

    #[test]
    fn what_is_not_known_has_no_identity() {
        assert_eq!(of_name(&Value::Value("tests".to_owned()), &Value::Unknown), None);
        assert_eq!(of_joined(&Value::Unknown), None);
        assert_eq!(of_id(&Value::Null), None);
        assert_eq!(import_name(&json!({ "namespace": "tests" })), None);
    }
}
