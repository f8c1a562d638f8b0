//! A single operator reboot of a host that stays in use, through the plain annotation
//! `reboot.metal3.io`. No I/O.
//!
//! The operator powers the host off, removes the annotation, and powers the host on
//! (`baremetalhost_controller.go`, `manageHostPower`). It acts only on provisioned hosts. If it
//! must not power the host off, it requests a restart from Ironic and removes the annotation
//! whatever Ironic answers (`tests/metal3/ironic.txt`). Our part of the value identifies the
//! operation; the operator ignores it.

use serde_json::{Value, json};

use crate::{
    backend::cluster::MANAGER,
    maintenance::{
        gate::{ExternalRequest, ExternalState},
        machine::ResetType,
    },
};

use super::{
    host::{Author, Hold, Host, REBOOT},
    standing::beside,
};

/// The supported operations.
pub(super) const RESETS: [ResetType; 3] = [ResetType::GracefulRestart, ResetType::ForceRestart, ResetType::PowerCycle];

/// Returns why the operator would not perform or finish an operation.
pub(super) fn refusal(host: Host<'_>, reset: ResetType, hold: Hold) -> Option<String> {
    if !RESETS.contains(&reset) {
        return Some(format!(
            "with hold = \"{hold}\" the operator can only restart a host ({}), so {reset} is not possible; use hold = \
             \"detach\"",
            RESETS.map(|reset| reset.to_string()).join(", ")
        ));
    }
    let shown = host.shown();
    if host.marked().is_some() {
        return Some(format!("{shown} is in maintenance; hold = \"{hold}\" does not allow operations then"));
    }
    if host.disables_power_off() {
        return Some(format!(
            "with spec.disablePowerOff the operator removes the annotation of {shown} even if Ironic refused the \
             restart, so the outcome is unknown; use hold = \"detach\""
        ));
    }
    if !host.online() {
        return Some(format!("spec.online of {shown} is false: the operator would not switch it on again"));
    }
    (host.is_settled() && !host.is_provisioned()).then(|| {
        format!("the operator reboots provisioned hosts only, but {shown} is {}; use hold = \"detach\"", host.state())
    })
}

/// Builds the patch that requests a reboot; `Err` is the current blocker. Another author's
/// annotation is neither overwritten nor removed.
pub(super) fn change(host: Host<'_>, wish: &ExternalRequest, reset: ResetType) -> Result<Value, String> {
    match beside(host, wish) {
        ExternalState::Absent if host.status() == "OK" => {}
        ExternalState::Absent => return Err(format!("{} is not OK ({})", host.shown(), host.error_text())),
        standing => return Err(standing.to_string()),
    }
    let mode = if reset == ResetType::GracefulRestart { "soft" } else { "hard" };
    let value = json!({ "mode": mode, MANAGER: Author::of(wish) }).to_string();
    Ok(json!({ "metadata": { "annotations": { REBOOT: value } } }))
}
