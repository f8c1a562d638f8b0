//! The provider's `redfish` block.

use std::collections::BTreeMap;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use tf_provider::{
    AttributePath, Diagnostics,
    schema::AttributeType,
    value::{Value, ValueBool},
};

use crate::settings::{RedfishInput, ServerInput};

use super::{
    config::flag,
    schema::{attributes, object, optional, secret},
    values::{Text, Texts, duration, given, texts},
};

/// One server of `redfish.servers`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ServerModel {
    endpoint: Text,
    system_id: Text,
    #[serde(default)]
    boot_target: Text,
    #[serde(default)]
    media_slot: Text,
    lock_key: Text,
    labels: Texts,
    username: Text,
    password: Text,
    password_file: Text,
    ca_certificate_file: Text,
    certificate_sha256: Text,
    insecure: ValueBool,
}

/// `redfish`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RedfishModel {
    inventory_file: Text,
    #[serde(default)]
    inventory_password_env_prefix: Text,
    #[serde(default)]
    inventory_password_folder: Text,
    pub(super) servers: Value<BTreeMap<String, ServerModel>>,
    username: Text,
    password: Text,
    password_file: Text,
    ca_certificate_file: Text,
    pub(super) insecure: ValueBool,
    request_timeout: Text,
    read_timeout: Text,
    authentication: Text,
}

/// The attribute's type.
pub(super) fn redfish_attribute() -> AttributeType {
    use AttributeType::{AttributeMap, Bool, Map, String};
    let server = attributes([
        ("endpoint", optional(String, "The BMC's address, for example `https://10.0.0.9`.")),
        ("system_id", optional(String, "Which system behind it, when there are several.")),
        (
            "boot_target",
            optional(
                String,
                "The `BootSourceOverrideTarget` that boots a filled virtual drive, for example `UsbCd`. Default: chosen by what the BMC lists.",
            ),
        ),
        (
            "media_slot",
            optional(
                String,
                "The virtual drive to fill, by its id, for example `1`. Default: the first free one that takes the image.",
            ),
        ),
        ("lock_key", optional(String, "The hardware identity to lock under, instead of the system's own UUID.")),
        ("labels", optional(Map(Box::new(String)), "Labels, by which `metal_servers` selects.")),
        ("username", optional(String, "The account, when it differs from the common one.")),
        ("password", secret("Its password. Better: an ephemeral value, a file or the environment.")),
        ("password_file", optional(String, "A file that holds the password.")),
        ("ca_certificate_file", optional(String, "The authority that signed the BMC's certificate, as PEM.")),
        (
            "certificate_sha256",
            optional(String, "The certificate's SHA-256 fingerprint: exactly this certificate is trusted."),
        ),
        ("insecure", optional(Bool, "Trust any certificate. Default: `false`.")),
    ]);
    object([
        (
            "inventory_file",
            optional(String, "A YAML or JSON file with servers by name. Default: `METAL_REDFISH_INVENTORY_FILE`."),
        ),
        (
            "inventory_password_env_prefix",
            optional(
                String,
                "How the environment variables begin that the inventory file may name as `password_env`. Default: `METAL_REDFISH_INVENTORY_PASSWORD_ENV_PREFIX`, else `METAL_`.",
            ),
        ),
        (
            "inventory_password_folder",
            optional(
                String,
                "The folder of the files that the inventory file may name as `password_file`. Default: `METAL_REDFISH_INVENTORY_PASSWORD_FOLDER`, else the folder of the inventory file.",
            ),
        ),
        ("servers", optional(AttributeMap(server), "Servers by name, besides or instead of the inventory file.")),
        ("username", optional(String, "The account on the BMCs. Default: `METAL_REDFISH_USERNAME`.")),
        ("password", secret("Its password. Never stored. Default: `METAL_REDFISH_PASSWORD`.")),
        ("password_file", optional(String, "A file that holds the password. Default: `METAL_REDFISH_PASSWORD_FILE`.")),
        (
            "ca_certificate_file",
            optional(
                String,
                "The authority that signed the BMCs' certificates, as PEM. Default: `METAL_REDFISH_CA_CERTIFICATE_FILE`.",
            ),
        ),
        ("insecure", optional(Bool, "Trust any certificate of any BMC. Default: `false`.")),
        (
            "request_timeout",
            optional(
                String,
                "Time limit of one request to a BMC that may change something. Default: `\"10s\"`; at most `\"15s\"`.",
            ),
        ),
        (
            "read_timeout",
            optional(
                String,
                "Time limit of one read. Default: `request_timeout` where that is set, otherwise `\"30s\"`; at most `\"2m\"`.",
            ),
        ),
        (
            "authentication",
            optional(String, "`session` (the default; falls back to basic where a BMC has no sessions) or `basic`."),
        ),
    ])
}

impl RedfishModel {
    pub(super) fn has_unknown(&self) -> bool {
        let servers = match &self.servers {
            Value::Unknown => true,
            Value::Null => false,
            Value::Value(servers) => servers.values().any(ServerModel::has_unknown),
        };
        let texts = [
            &self.inventory_file,
            &self.inventory_password_env_prefix,
            &self.inventory_password_folder,
            &self.username,
            &self.password,
            &self.password_file,
            &self.ca_certificate_file,
            &self.request_timeout,
            &self.read_timeout,
            &self.authentication,
        ];
        servers || self.insecure.is_unknown() || texts.iter().any(|text| text.is_unknown())
    }

    pub(super) fn check(&self, diags: &mut Diagnostics) -> RedfishInput {
        let at = AttributePath::new("redfish");
        let request_timeout = duration(diags, &self.request_timeout, at.clone().attribute("request_timeout"));
        let read_timeout = duration(diags, &self.read_timeout, at.clone().attribute("read_timeout"));
        let servers = match &self.servers {
            Value::Value(servers) => servers.iter().map(|(name, server)| (name.clone(), server.input())).collect(),
            _ => BTreeMap::new(),
        };
        RedfishInput {
            inventory_file: given(&self.inventory_file).map(str::to_owned),
            inventory_password_env_prefix: given(&self.inventory_password_env_prefix).map(str::to_owned),
            inventory_password_folder: given(&self.inventory_password_folder).map(str::to_owned),
            servers,
            username: given(&self.username).map(str::to_owned),
            password: given(&self.password).map(SecretString::from),
            password_file: given(&self.password_file).map(str::to_owned),
            ca_certificate_file: given(&self.ca_certificate_file).map(str::to_owned),
            insecure: flag(self.insecure),
            request_timeout,
            read_timeout,
            authentication: given(&self.authentication).map(str::to_owned),
        }
    }
}

impl ServerModel {
    pub(super) fn has_unknown(&self) -> bool {
        let texts = [
            &self.endpoint,
            &self.system_id,
            &self.boot_target,
            &self.media_slot,
            &self.lock_key,
            &self.username,
            &self.password,
            &self.password_file,
            &self.ca_certificate_file,
            &self.certificate_sha256,
        ];
        self.labels.is_unknown() || self.insecure.is_unknown() || texts.iter().any(|text| text.is_unknown())
    }

    fn input(&self) -> ServerInput {
        ServerInput {
            endpoint: given(&self.endpoint).map(str::to_owned),
            system_id: given(&self.system_id).map(str::to_owned),
            boot_target: given(&self.boot_target).map(str::to_owned),
            media_slot: given(&self.media_slot).map(str::to_owned),
            lock_key: given(&self.lock_key).map(str::to_owned),
            labels: texts(&self.labels),
            username: given(&self.username).map(str::to_owned),
            password: given(&self.password).map(SecretString::from),
            password_file: given(&self.password_file).map(str::to_owned),
            password_env: None,
            ca_certificate_file: given(&self.ca_certificate_file).map(str::to_owned),
            certificate_sha256: given(&self.certificate_sha256).map(str::to_owned),
            insecure: flag(self.insecure),
        }
    }
}
