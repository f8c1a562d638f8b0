//! Ironic's maintenance flag as a node's maintenance system, entered and left under our lock.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    backend::{BackendError, ExternalRequestRef, Gate, Machine, MaintenanceSystem, Outlook, Rejection},
    maintenance::{
        gate::{ExternalRequest, ExternalState, ExternalSystem, GateView, QueueAuthority},
        machine::{PowerState, ResetType},
    },
    shown,
    shown::AsRaw,
};

use super::{
    boot,
    flag::{self, BOOT, NODE, NONE, PROTECT},
    fleet::IronicNodes,
    machine::NodeMachine,
    node::{LEAST, Node},
    reason,
};

const FLAG: &str = "/maintenance";
/// The API version that introduced `protected`.
const PROTECTED: u32 = 48;
/// How long a call to leave waits for power confirmation.
const CONFIRM: Duration = Duration::from_secs(5);

/// Reads our request from a node's flag; `None` if another tool set it.
pub(super) fn request(node: &Node) -> Option<ExternalRequestRef> {
    let mark = flag::mark(node)?;
    let server = node.listed_name();
    Some(ExternalRequestRef {
        store: mark.store,
        uid: mark.uid,
        name: format!("the maintenance flag of node {server}"),
        server,
        parks: true,
        gate: None,
        memory: BTreeMap::new(),
    })
}

/// Lists every flag of this provider.
pub(super) async fn requests(fleet: &IronicNodes) -> Result<Vec<ExternalRequestRef>, BackendError> {
    let nodes = fleet.list("&maintenance=true").await?;
    Ok(nodes.iter().filter_map(|node| request(node)).collect())
}

impl NodeMachine {
    fn held_by(&self, wish: &ExternalRequest, fresh: bool) -> Arc<dyn Machine> {
        self.remember(wish);
        let (fleet, server) = (Arc::clone(&self.fleet), self.server.clone());
        Arc::new(Self { fleet, server, held: Some(wish.clone()), fresh })
    }

    /// Restores the recorded node UUID, which finds a renamed node.
    fn remember(&self, wish: &ExternalRequest) {
        if let Some(uuid) = wish.memory.get(NODE).filter(|_| wish.asked) {
            self.fleet.remember(&self.server, uuid);
        }
    }

    async fn put(&self, node: &Node, reason: &str) -> Result<(), BackendError> {
        let body = json!({ "reason": reason });
        self.fleet.change(Method::PUT, node, FLAG, LEAST, Some(&body)).await.map(|_| ())
    }

    async fn update(&self, node: &Node, patch: Value) -> Result<(), BackendError> {
        self.fleet.change(Method::PATCH, node, "", PROTECTED, Some(&patch)).await.map(|_| ())
    }

    /// Prevents undeploying, rebuilding and deleting the node during the maintenance. The record
    /// contains this intent before the call.
    async fn protect(&self, node: &Node, wish: &ExternalRequest) -> Result<(), BackendError> {
        if !wish.memory.contains_key(PROTECT) || node.protected {
            return Ok(());
        }
        let reason = reason::write(wish);
        let set = |path: &str, value: Value| json!({ "op": "add", "path": path, "value": value });
        self.update(node, json!([set("/protected", true.into()), set("/protected_reason", reason.into())])).await
    }

    /// Returns the plan's line about the owner's deletion and redeployment.
    fn protection(&self, node: &Node) -> Option<String> {
        if !self.fleet.protect {
            return None;
        }
        Some(if node.protected {
            "ironic.protect: the node is already protected and stays protected.".to_owned()
        } else if node.can_be_protected() {
            "ironic.protect: its owner cannot undeploy, rebuild or delete the node during the maintenance.".to_owned()
        } else {
            let state = node.provision_state.as_deref().unwrap_or("unknown");
            format!(
                "ironic.protect does nothing in provision state {state:?}: Ironic protects active and rescued nodes \
                 only."
            )
        })
    }

    /// Synchronises Ironic's database with the hardware by requesting the recorded power state. A
    /// difference is corrected now instead of at the next power synchronisation. Returns the node
    /// afterwards.
    async fn confirm_power(&self, node: &Node) -> Result<Arc<Node>, BackendError> {
        let target = match node.power() {
            PowerState::On => "power on",
            PowerState::Off if !node.disable_power_off => "power off",
            // An unknown state cannot be requested.
            _ => return self.fleet.read(&node.uuid).await,
        };
        let request = format!("PUT states/power {target:?}");
        let body = json!({ "target": target });
        self.fleet.change(Method::PUT, node, "/states/power", LEAST, Some(&body)).await?;
        let seen = self.fleet.settled(node, CONFIRM).await?;
        if seen.is_changing() {
            return Err(self.rejected(&request, "the conductor is still working on it", true));
        }
        match &seen.last_error {
            Some(error) => Err(self.rejected(&request, &shown::line(error), true)),
            None => Ok(seen),
        }
    }

    /// Returns the state to restore when leaving the node.
    ///
    /// # Errors
    ///
    /// Reading the boot device failed temporarily: without it, a later restore would be impossible.
    /// If the node's interfaces cannot report a device, nothing is restored and this succeeds.
    async fn memory(&self, node: &Node) -> Result<BTreeMap<String, String>, BackendError> {
        let mut memory = flag::purpose(node);
        memory.insert(NODE.to_owned(), node.uuid.clone());
        if self.fleet.protect && node.can_be_protected() && !node.protected {
            memory.insert(PROTECT.to_owned(), "true".to_owned());
        }
        match boot::read(&self.fleet, node).await {
            Ok(seen) if seen.unclear => {
                tracing::warn!(
                    "{}: the BMC does not report its boot device, so the release cannot restore it",
                    self.address()
                );
            }
            Ok(seen) => {
                let device = seen.device.and_then(|seen| seen.target).unwrap_or_else(|| NONE.into());
                memory.insert(BOOT.to_owned(), device.into_raw());
            }
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => tracing::warn!(%error, "the boot device cannot be read"),
        }
        Ok(memory)
    }

    /// Replaces a one-time boot device if none was set before, because Ironic cannot clear it.
    async fn clear_boot(&self, wish: &ExternalRequest, node: &Node) -> Result<(), BackendError> {
        if wish.memory.get(BOOT).map(String::as_str) != Some(NONE) {
            return Ok(());
        }
        let set = boot::read(&self.fleet, node).await?.device.and_then(|seen| seen.target);
        if set.as_raw().is_none_or(|target| target == "Hdd") {
            return Ok(());
        }
        tracing::warn!(
            "{}: no boot device was set before, and Ironic cannot remove one: the next start boots from disk",
            self.address()
        );
        boot::clear(&self.fleet, node).await
    }
}

#[async_trait]
impl Gate for NodeMachine {
    async fn system(&self, operation: bool) -> Result<Option<ExternalSystem>, BackendError> {
        Ok(Some(ExternalSystem::own("Ironic", QueueAuthority::Ours, !operation)))
    }

    async fn look(&self, wish: &ExternalRequest, fresh: bool) -> Result<GateView, BackendError> {
        self.remember(wish);
        let node = if fresh { self.fleet.read(&self.server).await } else { self.fleet.node(&self.server).await };
        let node = match node {
            Ok(node) => node,
            Err(BackendError::NoServer { .. }) if wish.leaving => return Ok(GateView::of(ExternalState::Absent)),
            Err(BackendError::NoServer { what, .. }) if wish.entered => {
                return Ok(GateView::of(ExternalState::Lost(
                    format!("the node was deleted from Ironic: {what}").into(),
                )));
            }
            Err(BackendError::NoServer { what, .. }) => return Ok(GateView::of(ExternalState::Refused(what))),
            Err(error) => return Err(error),
        };
        let standing = flag::standing(&node, wish);
        let memory = match standing {
            ExternalState::Absent if wish.enters && wish.memory.is_empty() => self.memory(&node).await?,
            _ => BTreeMap::new(),
        };
        let behind = match standing {
            ExternalState::Waiting(_) => flag::behind(&node, wish),
            _ => None,
        };
        Ok(GateView { memory, behind, ..GateView::of(standing) })
    }

    async fn enter(&self, wish: &ExternalRequest) -> Result<(), BackendError> {
        self.remember(wish);
        let node = self.fleet.read(&self.server).await?;
        if flag::is_ours(&node, wish) {
            return self.protect(&node, wish).await;
        }
        let node = self.fleet.powered(node).await?;
        let request = "PUT maintenance";
        if let Some(why) = flag::foreign(&node) {
            return Err(self.rejected(request, &why, false));
        }
        if let Some(work) = node.working() {
            return Err(self.rejected(request, &format!("not sent: waiting for {work}"), true));
        }
        // Status 202 does not confirm reason and fault; the next look reads them.
        self.put(&node, &reason::write(wish)).await?;
        self.protect(&node, wish).await
    }

    async fn leave(&self, wish: &ExternalRequest) -> Result<(), BackendError> {
        self.remember(wish);
        let node = match self.fleet.read(&self.server).await {
            Err(BackendError::NoServer { .. }) => return Ok(()),
            node => self.fleet.powered(node?).await?,
        };
        if flag::protects(&node, wish) {
            self.update(&node, json!([{ "op": "replace", "path": "/protected", "value": false }])).await?;
        }
        if !flag::is_ours(&node, wish) {
            return Ok(());
        }
        if let Some(fault) = &node.fault {
            // Clearing the flag would hide Ironic's fault. Our reason had replaced Ironic's, so the
            // new reason repeats the fault.
            return self.put(&node, &flag::left_to_ironic(fault, &wish.id)).await;
        }
        // A node that waits for its agent continues only without the flag. A repurposed node must
        // not be restored.
        let restores = !node.waits_for_agent() && flag::repurposed(&node, wish).is_none();
        if let Some(work) = node.working().filter(|_| restores) {
            return Err(self.rejected("DELETE maintenance", &format!("not sent: waiting for {work}"), true));
        }
        if wish.entered && restores {
            self.clear_boot(wish, &node).await?;
            // The flag could have changed hands during the confirmation.
            let node = self.confirm_power(&node).await?;
            if !flag::is_ours(&node, wish) {
                return Ok(());
            }
            if let Some(fault) = &node.fault {
                return self.put(&node, &flag::left_to_ironic(fault, &wish.id)).await;
            }
        }
        self.fleet.change(Method::DELETE, &node, FLAG, LEAST, None).await.map(|_| ())
    }

    async fn requests(&self) -> Result<Vec<ExternalRequestRef>, BackendError> {
        let node = self.fleet.node(&self.server).await?;
        let of_this = |request| ExternalRequestRef { server: self.server.clone(), ..request };
        Ok(request(&node).map(of_this).into_iter().collect())
    }

    async fn discard(&self, request: &ExternalRequestRef) -> Result<(), BackendError> {
        self.leave(&request.wish()).await
    }

    fn by_hand(&self, _wish: &ExternalRequest, _order: QueueAuthority) -> String {
        format!(
            "set the node's power (openstack baremetal node power on|off {0}), then clear the flag (openstack \
             baremetal node maintenance unset {0})",
            self.server
        )
    }

    /// Ironic does not report changes: waiters poll.
    async fn changed(&self) {
        std::future::pending::<()>().await;
    }

    async fn outlook(&self, wish: &ExternalRequest) -> Result<Outlook, BackendError> {
        let node = self.fleet.node(&self.server).await?;
        let mut lines = vec![format!(
            "Ironic: provision state {}, power {}.",
            node.provision_state.as_deref().unwrap_or("unknown"),
            node.power_state.as_deref().unwrap_or("unknown (Ironic does not report it)")
        )];
        let owned =
            |name: &str, value: &Option<String>| value.as_ref().map(|value| format!("{name} {}", shown::line(value)));
        let of: Vec<String> = [
            owned("owner", &node.owner),
            owned("lessee", &node.lessee),
            owned("instance", &node.instance_uuid),
            owned("allocation", &node.allocation_uuid),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !of.is_empty() {
            lines.push(format!("In use: {}.", of.join(", ")));
        }
        for (set, name, why) in
            [(node.protected, "protected", &node.protected_reason), (node.retired, "retired", &node.retired_reason)]
        {
            if set {
                lines.push(format!("The node is {name} ({}).", reason::shown_reason(why.as_deref())));
            }
        }
        lines.extend(self.protection(&node));
        if node.disable_power_off {
            lines.push("disable_power_off is set: the node cannot be switched off.".to_owned());
        }
        let ahead = flag::mark(&node)
            .filter(|mark| mark.id != wish.id)
            .map(|mark| format!("the node is in maintenance for {} of this provider", shown::line(&mark.id)));
        let mut rejection = None;
        match flag::standing(&node, wish) {
            ExternalState::Refused(why) | ExternalState::Failed(why) => {
                rejection = Some(Rejection { why: why.to_string(), by_configuration: node.is_of_baremetal_operator() });
            }
            ExternalState::Waiting(why) => lines.push(format!("It would wait for {why}.")),
            _ => {}
        }
        Ok(Outlook { lines, approval_missing: None, ahead, rejection, unasked: None })
    }
}

#[async_trait]
impl MaintenanceSystem for NodeMachine {
    fn under(&self, wish: &ExternalRequest) -> Arc<dyn Machine> {
        self.held_by(wish, true)
    }

    fn shown(&self, wish: &ExternalRequest) -> Arc<dyn Machine> {
        self.held_by(wish, false)
    }

    async fn would_last(&self, reset: ResetType) -> Result<(), BackendError> {
        let node = self.fleet.read(&self.server).await?;
        match reset {
            ResetType::ForceOff | ResetType::GracefulShutdown if node.disable_power_off => {
                Err(self.fleet.client.unsupported(format!("node {}: disable_power_off is set on it", self.server)))
            }
            _ => Ok(()),
        }
    }
}
