//! A node as Ironic returns it. Pure.
//!
//! Fields and their API versions: Ironic 39.0.0, api/controllers/v1/versions.py.

use serde::Deserialize;
use serde_json::Value;

use crate::maintenance::machine::PowerState;

/// The minimum supported API version; it introduced `fault` (1.42).
pub(super) const LEAST: u32 = 42;

/// The requested node fields, with the API versions that introduced them.
const FIELDS: [(&str, u32); 31] = [
    ("uuid", 1),
    ("name", 5),
    ("driver", 1),
    ("maintenance", 1),
    ("maintenance_reason", 1),
    ("fault", 42),
    ("power_state", 1),
    ("target_power_state", 1),
    ("provision_state", 1),
    ("provision_updated_at", 1),
    ("last_error", 1),
    ("reservation", 1),
    ("instance_uuid", 1),
    ("properties", 1),
    ("resource_class", 21),
    ("traits", 37),
    ("power_interface", 31),
    ("management_interface", 31),
    ("boot_interface", 31),
    ("conductor_group", 46),
    ("protected", 48),
    ("protected_reason", 48),
    ("owner", 50),
    ("description", 51),
    ("allocation_uuid", 52),
    ("retired", 61),
    ("retired_reason", 61),
    ("lessee", 65),
    ("boot_mode", 75),
    ("service_step", 87),
    ("disable_power_off", 95),
];

/// Returns the API version for node reads: the lowest with every field that a service up to
/// `newest` supports.
pub(super) fn version_for_nodes(newest: u32) -> u32 {
    FIELDS.iter().map(|(_, since)| *since).filter(|since| *since <= newest).max().unwrap_or(LEAST).max(LEAST)
}

/// A field that lists do not support: Ironic answers 500 (measured with Ironic 39.0.0, "type object
/// 'Node' has no attribute 'allocation_uuid'").
const ALONE: &str = "allocation_uuid";

/// Returns the field names that this version supports. `list` excludes fields that lists do not
/// support.
pub(super) fn fields(version: u32, list: bool) -> String {
    let known = FIELDS.iter().filter(|(name, since)| *since <= version && !(list && *name == ALONE));
    known.map(|(name, _)| *name).collect::<Vec<&str>>().join(",")
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(clippy::struct_excessive_bools, reason = "they are fields of Ironic")]
pub(super) struct Node {
    pub(super) uuid: String,
    pub(super) name: Option<String>,
    pub(super) driver: Option<String>,
    pub(super) maintenance: bool,
    pub(super) maintenance_reason: Option<String>,
    pub(super) fault: Option<String>,
    pub(super) power_state: Option<String>,
    pub(super) target_power_state: Option<String>,
    pub(super) provision_state: Option<String>,
    pub(super) provision_updated_at: Option<String>,
    pub(super) last_error: Option<String>,
    pub(super) reservation: Option<String>,
    pub(super) instance_uuid: Option<String>,
    pub(super) properties: Value,
    pub(super) resource_class: Option<String>,
    pub(super) traits: Option<Vec<String>>,
    pub(super) power_interface: Option<String>,
    pub(super) management_interface: Option<String>,
    pub(super) boot_interface: Option<String>,
    pub(super) conductor_group: Option<String>,
    pub(super) protected: bool,
    pub(super) protected_reason: Option<String>,
    pub(super) owner: Option<String>,
    pub(super) description: Option<String>,
    pub(super) allocation_uuid: Option<String>,
    pub(super) retired: bool,
    pub(super) retired_reason: Option<String>,
    pub(super) lessee: Option<String>,
    pub(super) boot_mode: Option<String>,
    pub(super) service_step: Value,
    pub(super) disable_power_off: bool,
}

/// Provision states that end automatically or that another client's work occupies (Ironic 39.0.0,
/// common/states.py: `UNSTABLE_STATES` and the `* hold` states).
const BUSY: [&str; 19] = [
    "deploying",
    "wait call-back",
    "deploy hold",
    "cleaning",
    "clean wait",
    "clean hold",
    "verifying",
    "deleting",
    "inspecting",
    "inspect wait",
    "adopting",
    "rescuing",
    "rescue wait",
    "unrescuing",
    "servicing",
    "service wait",
    "service hold",
    "rebuild",
    "undeploying",
];

/// Returns true if Ironic hides the value from this account (Ironic 39.0.0,
/// api/controllers/v1/node.py, `node_sanitize`).
fn is_redacted(text: &str) -> bool {
    text.starts_with("** ") && text.contains("edacted")
}

impl Node {
    /// Parses a node and drops redacted values.
    pub(super) fn from_answer(body: Value) -> Result<Self, serde_json::Error> {
        let mut node: Self = serde_json::from_value(body)?;
        for value in [&mut node.last_error, &mut node.reservation] {
            *value = value.take().filter(|text| !is_redacted(text));
        }
        Ok(node)
    }

    /// Returns true if `server` is the node's UUID or name.
    pub(super) fn is_called(&self, server: &str) -> bool {
        self.uuid.eq_ignore_ascii_case(server) || self.name.as_deref() == Some(server)
    }

    /// Returns the name in lists.
    pub(super) fn listed_name(&self) -> String {
        self.name.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| self.uuid.clone())
    }

    /// Returns the power state; Ironic's `null` and `error` are unknown.
    pub(super) fn power(&self) -> PowerState {
        match (self.target_power_state.as_deref(), self.power_state.as_deref()) {
            (Some("power off" | "soft power off"), _) => PowerState::PoweringOff,
            (Some("power on" | "rebooting" | "soft rebooting"), _) => PowerState::PoweringOn,
            (_, Some("power on")) => PowerState::On,
            (_, Some("power off")) => PowerState::Off,
            _ => PowerState::Unknown,
        }
    }

    /// Returns true if Ironic or another client works on the node in a temporary provision state.
    pub(super) fn in_transition(&self) -> bool {
        BUSY.contains(&self.provision_state.as_deref().unwrap_or_default())
    }

    /// Returns true if the node waits for its agent. Ironic ignores the agent during maintenance,
    /// so this wait does not end before the flag is cleared (Ironic 39.0.0, conductor/manager.py,
    /// `heartbeat`).
    pub(super) fn waits_for_agent(&self) -> bool {
        self.provision_state.as_deref().is_some_and(|state| state == "wait call-back" || state.ends_with(" wait"))
    }

    /// Describes the node's temporary work, completing "waiting for"; `None` if it is idle.
    pub(super) fn working(&self) -> Option<String> {
        if self.in_transition() {
            let state = self.provision_state.as_deref().unwrap_or_default();
            return Some(format!("the node to leave the provision state {state:?}"));
        }
        self.target_power_state.as_ref().map(|target| format!("the power change of the node to {target:?}"))
    }

    /// Describes the temporary work or, without any, the node's lock.
    pub(super) fn busy(&self) -> Option<String> {
        let lock = |host| format!("the operation for which conductor {host} has locked the node");
        self.working().or_else(|| self.reservation.as_ref().map(lock))
    }

    /// Returns true if a power change is pending or the node is locked.
    pub(super) fn is_changing(&self) -> bool {
        self.target_power_state.is_some() || self.reservation.is_some()
    }

    /// Returns true if baremetal-operator manages the node, which clears other clients' maintenance
    /// flags. It names nodes `namespace~name` when it registers them (baremetal-operator,
    /// pkg/provisioner/ironic/ironic.go). `instance_uuid` is not usable, because it is set later,
    /// at provisioning.
    pub(super) fn is_of_baremetal_operator(&self) -> bool {
        self.name.as_deref().is_some_and(|name| name.contains('~'))
    }

    /// Returns true if Ironic allows `protected` on the node (Ironic 39.0.0, conductor/manager.py,
    /// `_check_update_protected`).
    pub(super) fn can_be_protected(&self) -> bool {
        matches!(self.provision_state.as_deref(), Some("active" | "rescue"))
    }

    /// Returns a non-empty string from `properties`.
    pub(super) fn property(&self, name: &str) -> Option<String> {
        self.properties.get(name)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_lowest_that_has_the_fields_of_the_service() {
        assert_eq!(version_for_nodes(115), 95);
        assert_eq!(version_for_nodes(94), 87);
        assert_eq!(version_for_nodes(42), 42);
        assert!(fields(42, false).contains("fault") && !fields(42, false).contains("protected"));
        assert!(fields(95, false).contains(ALONE) && !fields(95, true).contains(ALONE));
    }

    #[test]
    fn an_unknown_power_state_is_no_state() {
        let node = |power: Option<&str>, target: Option<&str>| Node {
            power_state: power.map(str::to_owned),
            target_power_state: target.map(str::to_owned),
            ..Node::default()
        };
        assert_eq!(node(None, None).power(), PowerState::Unknown);
        assert_eq!(node(Some("error"), None).power(), PowerState::Unknown);
        assert_eq!(node(Some("power on"), Some("power off")).power(), PowerState::PoweringOff);
        assert_eq!(node(Some("power on"), Some("rebooting")).power(), PowerState::PoweringOn);
        assert_eq!(node(Some("power on"), None).power(), PowerState::On);
    }

    #[test]
    fn an_agent_is_waited_for_in_some_states() {
        let node = |state: &str| Node { provision_state: Some(state.into()), ..Node::default() };
        assert!(["clean wait", "wait call-back", "service wait"].iter().all(|state| node(state).waits_for_agent()));
        assert!(!["active", "cleaning", "clean hold"].iter().any(|state| node(state).waits_for_agent()));
    }

    #[test]
    fn what_is_hidden_from_the_account_is_no_lock_and_no_error() {
        let hidden = "** Redacted - requires baremetal:node:get:reservation permission. **";
        let body = serde_json::json!({ "uuid": "n", "reservation": hidden, "last_error": "** Value Redacted - Requires x **" });
        let node = Node::from_answer(body).unwrap();
        assert_eq!((node.reservation, node.last_error), (None, None));
        let node =
            Node::from_answer(serde_json::json!({ "uuid": "n", "reservation": "host", "properties": null })).unwrap();
        assert_eq!(node.reservation.as_deref(), Some("host"));
    }

    #[test]
    fn a_node_of_baremetal_operator_is_known_by_its_name() {
        let node = Node { name: Some("metal3~host-1".into()), ..Node::default() };
        assert!(node.is_of_baremetal_operator(), "provisioned or not");
        assert!(!Node { name: Some("rack1-node7".into()), ..node }.is_of_baremetal_operator());
        assert!(!Node::default().is_of_baremetal_operator());
    }
}
