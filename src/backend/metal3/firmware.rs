//! What the operator would do to a host besides power: firmware changes and images that wait for
//! its next start.
//!
//! `manageHostPower` of baremetal-operator v0.14 looks at both before any reboot annotation counts:
//! a host that is off and shall be on is serviced, and may be switched on, although our key is
//! there.

use kube::core::DynamicObject;
use serde_json::Value;

use crate::backend::{
    BackendError,
    cluster::{name, text},
};

use super::hosts::Hosts;

/// Whether a condition is true, for what the object says now.
fn condition(object: &DynamicObject, kind: &str) -> bool {
    let all = object.data.pointer("/status/conditions").and_then(Value::as_array);
    all.into_iter().flatten().any(|one| one["type"] == kind && one["status"] == "True")
}

/// Firmware changes that the operator makes at a reboot, in words; `None`: there are none.
pub(super) async fn pending(hosts: &Hosts, object: &DynamicObject) -> Result<Option<String>, BackendError> {
    let name = name(object);
    let Some(policy) = hosts.optional("HostUpdatePolicy", name).await? else { return Ok(None) };
    // Up to v0.14.0-rc.0 (`doServiceIfNeeded`). No version is known here, so that it counts for
    // all.
    let (wanted, made) = (object.data.pointer("/spec/firmware"), object.data.pointer("/status/provisioning/firmware"));
    if text(&policy, "/spec/firmwareSettings") == Some("onReboot") && wanted != made {
        let namespace = &hosts.namespace;
        return Ok(Some(format!(
            "spec.firmware of BareMetalHost {namespace}/{name} has changes that the operator applies at a reboot (onReboot)"
        )));
    }
    for (field, kind) in
        [("/spec/firmwareSettings", "HostFirmwareSettings"), ("/spec/firmwareUpdates", "HostFirmwareComponents")]
    {
        if text(&policy, field) != Some("onReboot") {
            continue;
        }
        let Some(object) = hosts.optional(kind, name).await? else { continue };
        if condition(&object, "ChangeDetected") && condition(&object, "Valid") {
            let namespace = &hosts.namespace;
            return Ok(Some(format!(
                "{kind} {namespace}/{name} has changes that the operator applies at a reboot (onReboot)"
            )));
        }
    }
    Ok(None)
}

/// An image that the operator attaches or detaches while the host is off, in words.
pub(super) async fn image(hosts: &Hosts, name: &str) -> Result<Option<String>, BackendError> {
    let Some(image) = hosts.optional("DataImage", name).await? else { return Ok(None) };
    let (wanted, there) = (text(&image, "/spec/url"), text(&image, "/status/attachedImage/url"));
    let leaves = image.metadata.deletion_timestamp.is_some();
    Ok((wanted != there || leaves).then(|| {
        format!("DataImage {}/{name} has a change that the operator makes while the host is off", hosts.namespace)
    }))
}
