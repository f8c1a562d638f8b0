//! Write-only arguments: the host passes them in the configuration, but never stores them in plan
//! or state.

use std::fmt;

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tf_provider::{
    AttributePath, Diagnostics,
    schema::{Attribute, AttributeType},
    value::{Value, ValueNumber},
};

use crate::{
    engine::Engine,
    maintenance::{ids::Uid, spec::Spec},
};

use crate::provider::{
    maintenance::model::MaintenanceModel,
    shared::boot,
    shared::schema::{optional, secret},
    shared::values::{Text, bad, is_given},
};

/// A secret text from the configuration. It encodes as null, all values compare equal, and it
/// prints nothing. So plans, states, comparisons and logs cannot contain it.
#[derive(Clone)]
pub(in crate::provider) struct WriteOnly(Value<SecretString>);

impl WriteOnly {
    /// Returns true if the configuration does not set it.
    pub(in crate::provider) fn is_absent(&self) -> bool {
        self.0.is_null()
    }

    /// Returns the content if it is known.
    pub(in crate::provider) fn content(&self) -> Option<&SecretString> {
        self.0.as_ref_option()
    }

    /// Checks that a version comes with the content, because a plan shows only the version.
    pub(in crate::provider) fn check_version(
        &self,
        diags: &mut Diagnostics,
        version: &ValueNumber,
        at: &AttributePath,
        name: &str,
    ) {
        let path = at.clone().attribute(format!("{name}_version"));
        // An unknown value could turn out to be absent.
        match (self.content().is_some(), is_given(version)) {
            (true, false) if version.is_null() => {
                let detail = format!(
                    "Plan and state do not contain {name}, so the provider cannot detect a change. Set \
                     {name}_version, and raise it with each change."
                );
                bad(diags, path, "A version is needed", detail);
            }
            (false, true) if self.is_absent() => {
                bad(diags, path, "Version without content", format!("Set {name} too, or remove {name}_version."));
            }
            _ => {}
        }
    }
}

impl Default for WriteOnly {
    fn default() -> Self {
        Self(Value::Null)
    }
}

impl fmt::Debug for WriteOnly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WriteOnly")
    }
}

impl PartialEq for WriteOnly {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Serialize for WriteOnly {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Text::Null.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for WriteOnly {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Text::deserialize(deserializer)? {
            Value::Value(text) => Value::Value(SecretString::from(text)),
            Value::Null => Value::Null,
            Value::Unknown => Value::Unknown,
        }))
    }
}

/// Builds the write-only attributes for booting a server.
pub(in crate::provider) fn attributes() -> [(&'static str, Attribute); 2] {
    [
        (
            "ignition_wo",
            secret(&format!(
                "The ignition file's content as text, with {} of `metal_operator`, instead of `ignition`. It can be an ephemeral value; plans, states and records do not contain it. Needs Terraform or OpenTofu 1.11. Older hosts are rejected, because they would store it.",
                boot::with_ignition("`")
            )),
        ),
        (
            "ignition_wo_version",
            optional(
                AttributeType::Number,
                "The version of `ignition_wo`, any number. New content takes effect when this number changes.",
            ),
        ),
    ]
}

/// Keeps the current ignition if its version is unchanged: new content requires a new version.
pub(in crate::provider) async fn keep_unless_raised(
    engine: &Engine,
    uid: &Uid,
    versions: (&ValueNumber, &ValueNumber),
    spec: &mut Spec,
) {
    let (before, now) = versions;
    if now.is_null() || before != now {
        return;
    }
    let Ok(Some(held)) = engine.held(uid).await else { return };
    if let (Some(boot), Some(known)) = (&mut spec.boot, held.record.spec.boot) {
        boot.ignition = known.ignition;
    }
}

impl MaintenanceModel {
    /// Copies the write-only values from the configuration.
    pub(in crate::provider) fn take_write_only(&mut self, config: &Value<Self>) {
        if let (Value::Value(boot), Value::Value(config)) = (&mut self.boot_configuration, config)
            && let Value::Value(given) = &config.boot_configuration
        {
            boot.ignition_wo = given.ignition_wo.clone();
        }
    }

    /// Checks that write-only content and its version come together.
    pub(in crate::provider) fn check_write_only(&self, diags: &mut Diagnostics) {
        if let Value::Value(boot) = &self.boot_configuration {
            boot.check_write_only(diags, &AttributePath::new("boot_configuration"));
        }
    }

    /// Returns the write-only ignition's version.
    pub(in crate::provider) fn ignition_version(&self) -> ValueNumber {
        self.boot_configuration.as_ref_option().map_or(Value::Null, |boot| boot.ignition_wo_version)
    }
}

/// Returns a content's SHA-256 in hexadecimal digits.
pub(in crate::provider) fn sha256(content: &SecretString) -> String {
    use sha2::{Digest as _, Sha256};
    let digest = Sha256::digest(content.expose_secret().as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn given(text: &str) -> WriteOnly {
        WriteOnly(Value::Value(SecretString::from(text.to_owned())))
    }

    #[test]
    fn nothing_of_it_is_written_or_compared() {
        let secret = given("hunter2");
        let packed = rmp_serde::to_vec_named(&secret).unwrap();
        assert_eq!(packed, [0xc0], "null");
        assert_eq!(serde_json::to_string(&secret).unwrap(), "null");
        assert_eq!(format!("{secret:?}"), "WriteOnly");
        assert_eq!(secret, WriteOnly::default());
        let read: WriteOnly = rmp_serde::from_slice(&rmp_serde::to_vec("hunter2").unwrap()).unwrap();
        assert_eq!(read.content().unwrap().expose_secret(), "hunter2");
    }

    #[test]
    fn a_content_and_its_version_come_together() {
        for (content, version, refused) in [
            (WriteOnly::default(), Value::Null, false),
            (given("x"), Value::Value(1), false),
            (WriteOnly(Value::Unknown), Value::Value(1), false),
            (WriteOnly(Value::Unknown), Value::Null, false),
            (given("x"), Value::Unknown, false),
            (WriteOnly::default(), Value::Unknown, false),
            (given("x"), Value::Null, true),
            (WriteOnly::default(), Value::Value(1), true),
        ] {
            let mut diags = Diagnostics::default();
            content.check_version(&mut diags, &version, &AttributePath::root(), "ignition_wo");
            assert_eq!(!diags.errors.is_empty(), refused, "{version:?}");
        }
    }
}
