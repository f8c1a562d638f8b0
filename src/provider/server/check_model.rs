//! `check` of `metal_server`: the command's output as attributes.

use std::collections::BTreeMap;

use tf_provider::{
    schema::{Attribute, AttributeType},
    value::{Value, ValueBool, ValueList, ValueNumber},
};

use crate::engine::ServerCheck;
use crate::provider::{
    shared::block::table,
    shared::schema::computed,
    shared::values::{Text, known},
};

table! {
    /// The object `check`.
    pub(in crate::provider) struct CheckModel {
        usable: ValueBool => computed(Bool, "True if no failed check prevents a maintenance from locking the server.");
        problems: ValueList<Text> => computed(list_of_text(), "Failed checks, each with a fix.");
        certificate_sha256: Text => computed(
            String,
            "SHA-256 of the certificate that the BMC presents; null without TLS.",
        );
        certificate_expires_at: Text => computed(String, "When the certificate expires (RFC 3339, UTC).");
        username: Text => computed(String, "The account in use.");
        role: Text => computed(String, "The account's role, if the BMC reports it.");
        privileges: ValueList<Text> => computed(list_of_text(), "The account's privileges, if the BMC reports them.");
        identifiers: ValueList<Text> => computed(
            list_of_text(),
            "The lock key's source identifiers, best first.",
        );
        resets: ValueList<Text> => computed(list_of_text(), "Accepted power changes.");
        boot_sources: ValueList<Text> => computed(list_of_text(), "Accepted boot override targets.");
        drives: ValueList<Text> => computed(list_of_text(), "Usable virtual drives.");
        slowest_read_ms: ValueNumber => computed(Number, "The BMC's slowest read in this run, in milliseconds.");
        lacks: Value<BTreeMap<String, ValueList<Text>>> => computed(
            Map(Box::new(list_of_text())),
            "Missing capabilities by kind of maintenance (`hold`, `power on`, `power off`, `http`, `pxe`, `virtual_media`, `disk`). An empty list means that the kind is possible.",
        );
    }
}

/// A list of text in the schema.
fn list_of_text() -> AttributeType {
    AttributeType::List(Box::new(AttributeType::String))
}

/// Builds the schema of `check`.
pub(in crate::provider) fn check_attribute() -> Attribute {
    computed(
        AttributeType::AttributeSingle(CheckModel::settings()),
        "The data that the command `check` shows; null without `check_capabilities = true`.",
    )
}

fn list(values: impl IntoIterator<Item = String>) -> ValueList<Text> {
    Value::Value(values.into_iter().map(Value::Value).collect())
}

impl From<ServerCheck> for CheckModel {
    fn from(check: ServerCheck) -> Self {
        let problems: Vec<String> =
            check.problems().into_iter().map(|(problem, advice)| format!("{problem}. {advice}")).collect();
        let identifiers = check.identity.as_ref().and_then(|identity| identity.as_ref().ok());
        let capabilities = check.capabilities.as_ref();
        Self {
            usable: Value::Value(check.is_usable()),
            problems: list(problems),
            certificate_sha256: known(check.certificate.as_ref().map(|one| one.sha256.clone())),
            certificate_expires_at: known(
                check.certificate.as_ref().and_then(|one| one.expires).map(|at| at.to_string()),
            ),
            username: known(check.account.as_ref().map(|account| account.username.clone())),
            role: known(check.account.as_ref().and_then(|account| account.role.clone())),
            privileges: check.account.and_then(|account| account.privileges).map_or(Value::Null, list),
            identifiers: identifiers.map_or(Value::Null, |(_, all)| list(all.clone())),
            resets: capabilities.map_or(Value::Null, |has| list(has.resets.iter().map(ToString::to_string))),
            boot_sources: capabilities
                .map_or(Value::Null, |has| list(has.boot_targets.iter().map(|target| target.raw().to_owned()))),
            drives: list(check.drives.into_iter().map(|drive| drive.slot.into_raw())),
            slowest_read_ms: check.timing.map_or(Value::Null, |timing| {
                Value::Value(i64::try_from(timing.slowest_read.as_millis()).unwrap_or(i64::MAX))
            }),
            lacks: Value::Value(
                check.abilities.into_iter().map(|one| (one.kind.to_owned(), list(one.lacks))).collect(),
            ),
        }
    }
}
