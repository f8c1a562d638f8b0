//! A node's hardware identity. Its Ironic UUID would not match the same machine under Redfish.
//!
//! The system UUID is in the inspection inventory (`system_vendor.system_uuid`; Ironic 39.0.0,
//! drivers/modules/redfish/inspect.py, API 1.81). If the account can read secrets in `driver_info`
//! (policy `show_password`), the BMC itself is queried. Usually Ironic masks them.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
};

use secrecy::SecretString;
use serde_json::Value;

use crate::backend::{
    Backend as _, BackendError,
    redfish::{Authentication, MediaSettings, RedfishBackend, RedfishSettings, ServerSettings, Trust},
};

use super::{
    fleet::IronicNodes,
    node::{LEAST, Node},
};

/// Ironic's mask for a secret.
const MASKED: &str = "******";
/// The API version that introduced inventories.
const INVENTORY: u32 = 81;

/// The known parts of an identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HardwareFacts {
    pub(super) uuid: Option<String>,
    pub(super) manufacturer: Option<String>,
    pub(super) serial_number: Option<String>,
    why: Vec<String>,
}

impl HardwareFacts {
    /// Explains why a server lacks a lock key, including the fix.
    pub(super) fn why_not(&self, server: &str) -> String {
        format!(
            "the node's system UUID is unknown: {}. A node's UUID in Ironic does not identify the hardware. Inspect \
             the node, or set lock_keys = {{ {server:?} = \"<system UUID>\" }}",
            self.why.join("; ")
        )
    }
}

/// Finds a node's identity. An identity with a UUID is cached for the process.
pub(super) async fn find(fleet: &IronicNodes, node: &Node) -> Result<HardwareFacts, BackendError> {
    let known = || fleet.identities.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = known().get(&node.uuid) {
        return Ok(found.clone());
    }
    let found = look_for(fleet, node).await?;
    if found.uuid.is_some() {
        known().insert(node.uuid.clone(), found.clone());
    }
    Ok(found)
}

async fn look_for(fleet: &IronicNodes, node: &Node) -> Result<HardwareFacts, BackendError> {
    let mut found = HardwareFacts::default();
    if fleet.client.has(INVENTORY).await? {
        match fleet.part(node, "/inventory", INVENTORY).await {
            Ok(body) => read_inventory(&body, &mut found),
            Err(BackendError::Rejected { status: 404, transient: false, .. }) => {
                found.why.push("Ironic does not have an inventory of the node".to_owned());
            }
            Err(error @ BackendError::Denied { .. }) => found.why.push(error.to_string()),
            Err(error) => return Err(error),
        }
    } else {
        found.why.push(format!("this Ironic does not support inventories (API 1.{INVENTORY})"));
    }
    if found.uuid.is_none() && fleet.lock_keys.is_empty() {
        ask_bmc(fleet, node, &mut found).await?;
    }
    Ok(found)
}

fn read_inventory(body: &Value, found: &mut HardwareFacts) {
    let vendor = &body["inventory"]["system_vendor"];
    let text = |name: &str| vendor[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    found.uuid = text("system_uuid");
    found.manufacturer = text("manufacturer");
    found.serial_number = text("serial_number");
    if found.uuid.is_none() {
        found.why.push("the inventory does not contain a system UUID (the redfish inspection records it)".to_owned());
    }
}

/// Returns the node's BMC if `driver_info` contains its address and credentials.
fn bmc(driver_info: &Value) -> Result<ServerSettings, String> {
    let text = |name: &str| driver_info[name].as_str().filter(|text| !text.is_empty());
    let address = text("redfish_address").ok_or("the node is not managed by Redfish")?;
    let (Some(username), Some(password)) = (text("redfish_username"), text("redfish_password")) else {
        return Err("driver_info does not contain the BMC's credentials".to_owned());
    };
    if password == MASKED {
        return Err("Ironic masks the BMC's password, so the BMC cannot be queried".to_owned());
    }
    let address = if address.contains("://") { address.to_owned() } else { format!("https://{address}") };
    let trust = match &driver_info["redfish_verify_ca"] {
        Value::Bool(false) => Trust::Anything,
        Value::String(text) if text.eq_ignore_ascii_case("false") => Trust::Anything,
        _ => Trust::System,
    };
    Ok(ServerSettings {
        endpoint: address.parse().map_err(|_| "the BMC's address is not valid".to_owned())?,
        system_id: text("redfish_system_id").map(str::to_owned),
        lock_key: None,
        labels: BTreeMap::new(),
        username: username.to_owned(),
        password: SecretString::from(password.to_owned()),
        media: MediaSettings::default(),
        trust,
    })
}

async fn ask_bmc(fleet: &IronicNodes, node: &Node, found: &mut HardwareFacts) -> Result<(), BackendError> {
    let body = match fleet.part(node, "?fields=driver_info", LEAST).await {
        Ok(body) => body,
        Err(error @ (BackendError::Denied { .. } | BackendError::Rejected { .. })) => {
            found.why.push(error.to_string());
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let server = match bmc(&body["driver_info"]) {
        Ok(server) => server,
        Err(why) => {
            found.why.push(why);
            return Ok(());
        }
    };
    let settings = RedfishSettings {
        servers: BTreeMap::from([(node.uuid.clone(), server)]),
        authentication: Authentication::Basic,
        ..RedfishSettings::default()
    };
    let backend = match RedfishBackend::new(settings, &Arc::clone(&fleet.client.clock)) {
        Ok(backend) => backend,
        Err(why) => {
            found.why.push(why);
            return Ok(());
        }
    };
    match backend.machine(&node.uuid)?.identify().await {
        Ok(identity) => {
            found.uuid = identity.uuid;
            found.manufacturer = identity.manufacturer;
            found.serial_number = identity.serial_number;
            if found.uuid.is_none() {
                found.why.push("the BMC reports no system UUID".to_owned());
            }
        }
        Err(error) => found.why.push(format!("the BMC did not report it ({error})")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_inventory_of_a_redfish_inspection_has_the_uuid() {
        let mut found = HardwareFacts::default();
        read_inventory(
            &json!({ "inventory": { "system_vendor": { "system_uuid": "U", "serial_number": "S" } } }),
            &mut found,
        );
        assert_eq!((found.uuid.as_deref(), found.serial_number.as_deref()), (Some("U"), Some("S")));
        let mut none = HardwareFacts::default();
        read_inventory(&json!({ "inventory": {} }), &mut none);
        assert!(none.why_not("n").contains("lock_keys = { \"n\""), "{}", none.why_not("n"));
    }

    #[test]
    fn a_masked_password_is_not_tried() {
        let info = json!({ "redfish_address": "bmc", "redfish_username": "u", "redfish_password": MASKED });
        assert!(bmc(&info).unwrap_err().contains("masks"));
        let info = json!({ "redfish_address": "bmc", "redfish_username": "u", "redfish_password": "p", "redfish_verify_ca": false });
        let server = bmc(&info).unwrap();
        assert_eq!((server.endpoint.as_str(), server.trust), ("https://bmc/", Trust::Anything));
        assert!(bmc(&json!({ "ipmi_address": "x" })).is_err());
    }
}
