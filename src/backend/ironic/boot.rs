//! Maps a node's boot device and boot mode to boot overrides.
//!
//! Ironic's API sets a device, either once or permanently. It can neither clear the device nor set
//! an HTTP boot URI (Ironic 39.0.0, api/controllers/v1/node.py, `BootDeviceController`). Reading
//! the device queries the BMC.

use std::sync::PoisonError;

use async_trait::async_trait;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    backend::{BackendError, BootControl},
    maintenance::machine::{BootMode, BootOverride, Capabilities},
    shown::{AsRaw, OneLine},
};

use super::{
    fleet::IronicNodes,
    machine::NodeMachine,
    moment::Boot,
    node::{LEAST, Node},
};

const DEVICE: &str = "/management/boot_device";
/// The API version that changes boot modes.
const SET_MODE: u32 = 76;
/// The device that replaces "no override", because Ironic cannot clear a device.
const DISK: &str = "disk";

/// Ironic's boot devices (common/boot_devices.py) and their Redfish targets.
const DEVICES: [(&str, &str); 6] = [
    ("pxe", "Pxe"),
    ("disk", "Hdd"),
    ("cdrom", "Cd"),
    ("bios", "BiosSetup"),
    ("uefihttp", "UefiHttp"),
    ("floppy", "Floppy"),
];

fn target_of(device: &str) -> Option<&'static str> {
    DEVICES.iter().find(|(name, _)| *name == device).map(|(_, target)| *target)
}

fn device_of(target: &str) -> Option<&'static str> {
    DEVICES.iter().find(|(_, name)| *name == target).map(|(device, _)| *device)
}

fn mode_of(node: &Node) -> Option<OneLine> {
    match node.boot_mode.as_deref() {
        Some("uefi") => Some(BootMode::Uefi.as_redfish().into()),
        Some("bios") => Some(BootMode::Legacy.as_redfish().into()),
        _ => None,
    }
}

/// Converts a boot device into an override; `None` if none is set or Ironic does not report it.
fn view(body: &Value, node: &Node) -> Option<BootOverride> {
    let device = body["boot_device"].as_str()?;
    let enabled = body["persistent"].as_bool().map(|all| if all { "Continuous" } else { "Once" }.to_owned());
    Some(BootOverride {
        enabled: enabled.map(OneLine::from),
        target: Some(target_of(device).map_or_else(|| device.to_owned(), str::to_owned).into()),
        mode: mode_of(node),
        ..BootOverride::default()
    })
}

/// Returns a disabled override if no device is set and `clears` is true, so that a release can
/// restore that state. `clears`: a device can be cleared. `cleared`: we set the disk as the
/// replacement for no device.
fn or_none(seen: Option<BootOverride>, node: &Node, clears: bool, cleared: bool) -> Option<BootOverride> {
    let is_disk = |it: &BootOverride| it.target.as_raw() == target_of(DISK);
    let holds_once = |it: &BootOverride| it.enabled.as_raw() != Some("Continuous");
    if clears && seen.as_ref().is_none_or(|it| cleared && is_disk(it) && holds_once(it)) {
        let enabled = Some("Disabled".to_owned());
        return Some(BootOverride {
            enabled: enabled.map(OneLine::from),
            mode: mode_of(node),
            ..BootOverride::default()
        });
    }
    seen
}

/// Returns true if setting the disk can replace clearing the device.
fn can_clear(devices: &[String]) -> bool {
    devices.len() > 1 && devices.iter().any(|device| device == DISK)
}

/// Returns true if the node's interfaces do not support the request. A missing value is then final.
pub(super) fn is_missing(error: &BackendError) -> bool {
    matches!(error, BackendError::Rejected { status: 400 | 404 | 501, transient: false, .. })
}

/// Returns true if the node's driver cannot read its boot device: Ironic then answers every attempt
/// with 500. A conductor timeout is excluded because it does not concern the node.
fn is_unreadable(error: &BackendError) -> bool {
    match error {
        BackendError::Rejected { status: 500, message, .. } => !message.raw().contains("Timed out waiting for a reply"),
        _ => false,
    }
}

/// Returns a node's boot device; `None` if its management interface lacks one.
///
/// Reading needs the node's lock (measured with Ironic 39.0.0: 409 while the conductor changes
/// power). Other clients cannot change the device through Ironic during that time, so the last
/// value is still valid. It is also reused shortly after a read, unless a change has been sent
/// since.
pub(super) async fn observe(fleet: &IronicNodes, node: &Node) -> Result<Boot, BackendError> {
    let last = fleet.boots.lock().unwrap_or_else(PoisonError::into_inner).get(&node.uuid).cloned();
    let now = fleet.client.clock.monotonic();
    match last.filter(|last| node.is_changing() || fleet.moment.holds(&node.uuid, last, now)) {
        Some(last) => Ok(last),
        None => read(fleet, node).await,
    }
}

/// Reads the current boot device, for a change that depends on it.
pub(super) async fn read(fleet: &IronicNodes, node: &Node) -> Result<Boot, BackendError> {
    let kept = || fleet.boots.lock().unwrap_or_else(PoisonError::into_inner);
    let begun = fleet.client.clock.monotonic();
    let seen = match fleet.part(node, DEVICE, LEAST).await {
        Ok(body) => {
            let (told, cleared) = (view(&body, node), fleet.is_cleared(&node.uuid));
            let asks = cleared || told.is_none();
            let devices = if asks { supported(fleet, node).await? } else { Vec::new() };
            // A node with a single boot device cannot have an override to clear.
            let shown = told.clone().filter(|_| !cleared || devices.len() > 1);
            let device = or_none(shown, node, cleared || can_clear(&devices), cleared);
            Boot::of_reported(told, device, begun)
        }
        Err(error) if is_missing(&error) => Boot::new(None, begun),
        Err(error @ BackendError::Rejected { transient: true, .. }) => {
            let last = kept().get(&node.uuid).cloned().filter(|last| !last.unclear);
            match last {
                Some(last) => return Ok(last),
                None if is_unreadable(&error) => Boot::unclear(begun),
                None => return Err(error),
            }
        }
        Err(error) => return Err(error),
    };
    kept().insert(node.uuid.clone(), seen.clone());
    Ok(seen)
}

async fn supported(fleet: &IronicNodes, node: &Node) -> Result<Vec<String>, BackendError> {
    let kept = || fleet.devices.lock().unwrap_or_else(PoisonError::into_inner);
    let of = (node.uuid.clone(), node.management_interface.clone());
    if let Some(known) = kept().get(&of) {
        return Ok(known.clone());
    }
    let found = read_supported(fleet, node).await?;
    // An empty list can be temporary, so it is not cached.
    if !found.is_empty() {
        kept().insert(of, found.clone());
    }
    Ok(found)
}

async fn read_supported(fleet: &IronicNodes, node: &Node) -> Result<Vec<String>, BackendError> {
    match fleet.part(node, &format!("{DEVICE}/supported"), LEAST).await {
        Ok(body) => {
            let listed = body["supported_boot_devices"].as_array().into_iter().flatten();
            Ok(listed.filter_map(|device| device.as_str().map(str::to_owned)).collect())
        }
        Err(error) if is_missing(&error) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Adds the node's boot capabilities.
pub(super) async fn capabilities(fleet: &IronicNodes, node: &Node, has: &mut Capabilities) -> Result<(), BackendError> {
    let devices = supported(fleet, node).await?;
    has.boot_targets = devices.iter().filter_map(|device| target_of(device).map(OneLine::from)).collect();
    if has.boot_targets.is_empty() {
        return Ok(());
    }
    has.boot_enabled = vec!["Once".into()];
    // Without a previous device, a permanent setting could not be undone.
    if observe(fleet, node).await?.device.is_some_and(|set| !set.is_disabled()) {
        has.boot_enabled.push("Continuous".into());
    }
    if node.boot_mode.is_some() && fleet.client.has(SET_MODE).await? {
        has.boot_modes = vec![BootMode::Uefi.as_redfish().into(), BootMode::Legacy.as_redfish().into()];
    }
    Ok(())
}

/// Sets the replacement for "no override" if the node supports several devices.
pub(super) async fn clear(fleet: &IronicNodes, node: &Node) -> Result<(), BackendError> {
    let devices = supported(fleet, node).await?;
    if devices.len() <= 1 {
        note_cleared(fleet, node, true);
        return Ok(());
    }
    if !can_clear(&devices) {
        return Err(fleet.client.unsupported(format!(
            "node {}: Ironic cannot remove a boot device, and the node's interface cannot set {DISK:?} instead",
            node.listed_name()
        )));
    }
    set(fleet, node, DISK, false).await?;
    note_cleared(fleet, node, true);
    Ok(())
}

/// Notes whether the node counts as one without an override. A reading that no change has removed
/// stays valid, and follows the note.
fn note_cleared(fleet: &IronicNodes, node: &Node, cleared: bool) {
    if cleared {
        fleet.cleared().insert(node.uuid.clone());
    } else {
        fleet.cleared().remove(&node.uuid);
    }
    if let Some(last) = fleet.boots.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&node.uuid) {
        last.device = if cleared { or_none(None, node, true, true) } else { last.reported.clone() };
    }
}

async fn set(fleet: &IronicNodes, node: &Node, device: &str, persistent: bool) -> Result<(), BackendError> {
    let body = json!({ "boot_device": device, "persistent": persistent });
    fleet.cleared().remove(&node.uuid);
    let result = fleet.change(Method::PUT, node, DEVICE, LEAST, Some(&body)).await.map(|_| ());
    fleet.boots.lock().unwrap_or_else(PoisonError::into_inner).remove(&node.uuid);
    result
}

#[async_trait]
impl BootControl for NodeMachine {
    async fn set_boot_override(&self, wanted: &BootOverride, clear_http_boot_uri: bool) -> Result<(), BackendError> {
        let request = "PUT management/boot_device";
        if wanted.http_boot_uri.is_some() || clear_http_boot_uri || wanted.names_an_entry() {
            return Err(self.fleet.client.unsupported(
                "Ironic's API sets boot devices only, not HTTP boot addresses or boot menu entries".to_owned(),
            ));
        }
        let mut sets_device = wanted.enabled.is_some() || wanted.target.is_some();
        let known = self.node().await?;
        // A node without a choice of devices always boots from its only device, so nothing is sent.
        if sets_device && supported(&self.fleet, &known).await?.len() <= 1 {
            note_cleared(&self.fleet, &known, wanted.is_disabled());
            sets_device = false;
        }
        if !sets_device && wanted.mode.as_ref().is_none_or(|mode| Some(mode) == mode_of(&known).as_ref()) {
            return Ok(());
        }
        let node = self.before_change(request).await?;
        if let Some(mode) = wanted.mode.as_ref().filter(|mode| Some(*mode) != mode_of(&node).as_ref()) {
            self.set_mode(&node, mode.raw()).await?;
        }
        if !sets_device {
            return Ok(());
        }
        if wanted.is_disabled() {
            return clear(&self.fleet, &node).await;
        }
        let found = read(&self.fleet, &node).await?.device;
        let target = wanted.target.clone().or_else(|| found.as_ref().and_then(|found| found.target.clone()));
        let device = target.as_raw().and_then(device_of).ok_or_else(|| {
            let shown = target.as_ref().map_or("none", OneLine::shown);
            self.fleet.client.unsupported(format!("Ironic does not support the boot target {shown}"))
        })?;
        let enabled = wanted.enabled.clone().or_else(|| found.as_ref().and_then(|found| found.enabled.clone()));
        let same = found.as_ref().is_some_and(|found| found.target == target && found.enabled == enabled);
        if same {
            return Ok(());
        }
        set(&self.fleet, &node, device, enabled.as_raw() == Some("Continuous")).await
    }
}

impl NodeMachine {
    /// Sets the boot mode and waits briefly, because Ironic applies it in the background.
    async fn set_mode(&self, node: &Node, mode: &str) -> Result<(), BackendError> {
        let target = if mode == BootMode::Uefi.as_redfish() { "uefi" } else { "bios" };
        let body = json!({ "target": target });
        self.fleet.change(Method::PUT, node, "/states/boot_mode", SET_MODE, Some(&body)).await?;
        let request = format!("PUT states/boot_mode {target:?}");
        let seen = self.fleet.settled(node, super::machine::NEXT).await?;
        if seen.boot_mode.as_deref() == Some(target) {
            return Ok(());
        }
        match &seen.last_error {
            Some(error) if !seen.is_changing() => Err(self.rejected(&request, &crate::shown::line(error), false)),
            _ => Err(self.rejected(&request, "accepted and not done yet", true)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_cannot_read_is_told_from_a_conductor_that_is_away() {
        let told = |status: u16, message: &str| BackendError::Rejected {
            address: String::new().into(),
            request: String::new().into(),
            status,
            message: message.into(),
            retry_after: None,
            transient: true,
        };
        assert!(is_unreadable(&told(500, "IPMI call failed: chassis bootparam get 5.")));
        assert!(!is_unreadable(&told(500, "Timed out waiting for a reply to message ID 1")));
        assert!(!is_unreadable(&told(409, "Node n1 is locked by host c1")));
    }

    #[test]
    fn a_device_is_seen_as_an_override() {
        let node = Node { boot_mode: Some("uefi".into()), ..Node::default() };
        let seen = view(&json!({ "boot_device": "cdrom", "persistent": false }), &node).unwrap();
        assert_eq!(seen.target.as_raw(), Some("Cd"));
        assert_eq!(seen.enabled.as_raw(), Some("Once"));
        assert_eq!(seen.mode.as_raw(), Some("UEFI"));
        assert_eq!(view(&json!({ "boot_device": null, "persistent": null }), &node), None, "unknown, or none");
        let cleared = or_none(None, &node, true, false).unwrap();
        assert!(
            cleared.is_disabled() && cleared.target.is_none() && cleared.mode == seen.mode,
            "a release restores it"
        );
        assert_eq!(or_none(None, &node, false, false), None, "it could not be restored");
        let disk = || view(&json!({ "boot_device": "disk", "persistent": false }), &node);
        assert!(or_none(disk(), &node, true, true).unwrap().is_disabled(), "set in the place of none");
        assert_eq!(or_none(disk(), &node, true, false), disk());
        assert_eq!(or_none(Some(seen.clone()), &node, true, true), Some(seen));
        assert!(can_clear(&["pxe".to_owned(), "disk".to_owned()]) && !can_clear(&["disk".to_owned()]));
        let unknown = view(&json!({ "boot_device": "wanboot", "persistent": null }), &node).unwrap();
        assert_eq!((unknown.target.as_raw(), unknown.enabled), (Some("wanboot"), None));
        assert_eq!(device_of("Hdd"), Some("disk"));
    }
}
