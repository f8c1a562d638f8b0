//! A node's state, capabilities and power.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use reqwest::Method;
use serde_json::json;

use crate::{
    backend::{BackendError, HardwareIdentity, Machine, MaintenanceSystem, PowerControl, ServiceControl},
    maintenance::{
        gate::ExternalRequest,
        machine::{Capabilities, MachineDescription, MachineView, ResetType},
    },
    shown::OneLine,
};

use super::{
    accepted::Accepted,
    boot, flag,
    fleet::{IronicNodes, path},
    identity,
    node::Node,
};

/// How long a call waits for an accepted change's outcome.
pub(super) const NEXT: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct NodeMachine {
    pub(super) fleet: Arc<IronicNodes>,
    /// The name or UUID, as configured.
    pub(super) server: String,
    /// The maintenance that changes the node; `None` for operations without a maintenance.
    pub(super) held: Option<ExternalRequest>,
    /// True if observations must not be older than the call.
    pub(super) fresh: bool,
}

/// Power interfaces that notify the operating system (Ironic 39.0.0: overrides of
/// `get_supported_power_states`; `ilo` and `irmc` up to their removal).
const SOFT: [&str; 7] = ["fake", "redfish", "ipmitool", "idrac", "idrac-redfish", "ilo", "irmc"];
/// Management interfaces with `inject_nmi`.
const NMI: [&str; 6] = ["redfish", "ipmitool", "idrac", "idrac-redfish", "ilo", "irmc"];

/// Returns the power changes that the node's interfaces accept.
fn resets(node: &Node) -> Vec<ResetType> {
    let power = node.power_interface.as_deref().unwrap_or_default();
    let mut resets = match power {
        // This interface works only while an agent runs.
        "agent" => vec![ResetType::GracefulRestart, ResetType::ForceRestart],
        _ => vec![ResetType::On, ResetType::ForceOff, ResetType::ForceRestart],
    };
    if SOFT.contains(&power) {
        resets.extend([ResetType::GracefulShutdown, ResetType::GracefulRestart]);
    }
    if NMI.contains(&node.management_interface.as_deref().unwrap_or_default()) {
        resets.push(ResetType::Nmi);
    }
    if node.disable_power_off {
        resets.retain(|reset| !matches!(reset, ResetType::ForceOff | ResetType::GracefulShutdown));
    }
    resets
}

/// Returns Ironic's name for a power change (API: `PUT /v1/nodes/{}/states/power`).
fn target(reset: ResetType) -> Option<&'static str> {
    Some(match reset {
        ResetType::On => "power on",
        ResetType::ForceOff => "power off",
        ResetType::GracefulShutdown => "soft power off",
        ResetType::ForceRestart => "rebooting",
        ResetType::GracefulRestart => "soft rebooting",
        ResetType::PowerCycle | ResetType::Nmi => return None,
    })
}

impl NodeMachine {
    /// Returns the node for stable facts such as its capabilities.
    pub(super) async fn node(&self) -> Result<Arc<Node>, BackendError> {
        self.fleet.node(&self.server).await
    }

    /// Returns the node immediately before a change. It must still have our flag, if it is changed
    /// under a maintenance, and its conductor must be idle.
    pub(super) async fn before_change(&self, what: &str) -> Result<Arc<Node>, BackendError> {
        let node = self.fleet.read(&self.server).await?;
        let node = self.fleet.powered(node).await?;
        if let Some(wish) = &self.held {
            if !flag::is_ours(&node, wish) {
                let why = flag::foreign(&node).unwrap_or_else(|| "our maintenance flag was removed".to_owned());
                return Err(self.rejected(what, &why, false));
            }
            if let Some(why) = flag::repurposed(&node, wish) {
                return Err(self.rejected(what, &why, false));
            }
            if let Some(fault) = &node.fault {
                return Err(self.rejected(what, &format!("Ironic recorded the fault {fault:?} on the node"), false));
            }
        } else if let Some(why) = flag::foreign(&node) {
            return Err(self.rejected(what, &why, false));
        }
        // The client retries while only a lock blocks, and distinguishes it from other conflicts.
        match node.working() {
            Some(work) => Err(self.rejected(what, &format!("not sent: waiting for {work}"), true)),
            None => Ok(node),
        }
    }

    pub(super) fn rejected(&self, request: &str, message: &str, transient: bool) -> BackendError {
        BackendError::Rejected {
            address: self.address().into(),
            request: request.into(),
            status: 409,
            message: message.into(),
            retry_after: None,
            transient,
        }
    }
}

#[async_trait]
impl Machine for NodeMachine {
    fn address(&self) -> String {
        format!("{}, node {}", self.fleet.client.address(), self.server)
    }

    async fn identify(&self) -> Result<HardwareIdentity, BackendError> {
        let node = self.node().await?;
        let lock_key = self.fleet.lock_keys.get(&self.server).or_else(|| self.fleet.lock_keys.get(&node.uuid)).cloned();
        let found = identity::find(&self.fleet, &node).await?;
        if lock_key.is_none() && found.uuid.is_none() {
            return Err(BackendError::NoLockKey {
                address: self.address().into(),
                what: found.why_not(&self.server).into(),
            });
        }
        Ok(HardwareIdentity {
            lock_key,
            uuid: found.uuid,
            manufacturer: found.manufacturer,
            serial_number: found.serial_number,
            has_siblings: false,
            authority: self.fleet.client.authority(),
            path: path(&node.uuid, ""),
        })
    }

    async fn observe(&self) -> Result<MachineView, BackendError> {
        let node = self.fleet.seen(&self.server, self.fresh).await?;
        if let Some(error) = node.last_error.as_ref().filter(|_| self.held.is_some() && self.fresh) {
            tracing::warn!("{}: the node's last error: {}", self.address(), crate::shown::line(error));
        }
        // Reading the boot device queries the BMC, so it is limited to nodes that are about to be
        // changed.
        let (boot, boot_unclear) = if self.fresh {
            let seen = boot::observe(&self.fleet, &node).await?;
            (seen.device, seen.unclear)
        } else {
            (None, false)
        };
        Ok(MachineView {
            power: node.power(),
            boot_progress: None,
            last_reset: None,
            boot,
            boot_unclear,
            health: None,
            description: MachineDescription {
                manufacturer: node.property("vendor").map(OneLine::from),
                model: node.property("model").map(OneLine::from),
                serial_number: node.property("serial_number").map(OneLine::from),
                host_name: None,
            },
        })
    }

    async fn late_answer(&self) -> Option<BackendError> {
        self.ended_late().await
    }

    async fn capabilities(&self) -> Result<Capabilities, BackendError> {
        let node = self.node().await?;
        // Ironic's conductor skips nodes in maintenance when it synchronises power (39.0.0,
        // conductor/manager.py, `_sync_power_states`).
        let mut has = Capabilities {
            resets: resets(&node),
            resets_by: Some("Ironic".into()),
            power_not_followed: true,
            ..Capabilities::default()
        };
        boot::capabilities(&self.fleet, &node, &mut has).await?;
        Ok(has)
    }

    fn service(&self) -> Option<&dyn ServiceControl> {
        Some(self)
    }

    fn maintenance_system(&self) -> Option<&dyn MaintenanceSystem> {
        Some(self)
    }
}

#[async_trait]
impl PowerControl for NodeMachine {
    async fn reset(&self, reset: ResetType) -> Result<(), BackendError> {
        let request = target(reset).map_or_else(|| reset.to_string(), |target| format!("PUT states/power {target:?}"));
        let node = self.before_change(&request).await?;
        if !resets(&node).contains(&reset) {
            let listed: Vec<String> = resets(&node).iter().map(ToString::to_string).collect();
            let why = if node.disable_power_off { " (disable_power_off is set on the node)" } else { "" };
            return Err(self.fleet.client.unsupported(format!(
                "node {}: {reset} is not possible{why}; supported: {}",
                self.server,
                listed.join(", ")
            )));
        }
        let Some(target) = target(reset) else {
            let body = json!({});
            return self.fleet.change(Method::PUT, &node, "/management/inject_nmi", 42, Some(&body)).await.map(|_| ());
        };
        let soft = target.starts_with("soft");
        let body = if soft {
            json!({ "target": target, "timeout": self.fleet.soft_power_timeout.as_secs().max(1) })
        } else {
            json!({ "target": target })
        };
        self.fleet.change(Method::PUT, &node, "/states/power", 42, Some(&body)).await?;
        // Status 202 does not confirm the change. An immediate failure is reported with Ironic's
        // message.
        self.soon(&node, Accepted { request, reset: Some(reset) }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interfaces_of_a_node_decide() {
        let node = |power: &str, management: &str| Node {
            power_interface: Some(power.into()),
            management_interface: Some(management.into()),
            ..Node::default()
        };
        assert!(resets(&node("redfish", "redfish")).contains(&ResetType::Nmi));
        assert!(resets(&node("fake", "fake")).contains(&ResetType::GracefulShutdown));
        assert!(!resets(&node("snmp", "noop")).contains(&ResetType::GracefulShutdown));
        let kept_on = Node { disable_power_off: true, ..node("redfish", "redfish") };
        assert!(
            !resets(&kept_on).contains(&ResetType::ForceOff) && resets(&kept_on).contains(&ResetType::ForceRestart)
        );
        assert!(!resets(&node("agent", "noop")).contains(&ResetType::On));
    }
}
