//! Detects operator actions other than power: firmware changes and images that wait for the host's
//! next start.
//!
//! In baremetal-operator v0.14, `manageHostPower` handles both before reboot annotations. A host
//! that is off with `online: true` is serviced, and can be powered on despite our key.

use kube::core::DynamicObject;
use serde_json::Value;

use crate::backend::{
    BackendError,
    cluster::{name, text},
};

use super::hosts::Hosts;

/// Returns true if a condition is true for the current generation.
fn condition(object: &DynamicObject, kind: &str) -> bool {
    let all = object.data.pointer("/status/conditions").and_then(Value::as_array);
    all.into_iter().flatten().any(|one| one["type"] == kind && one["status"] == "True")
}

/// Describes firmware changes that the operator applies at a reboot; `None` without any.
pub(super) async fn pending(hosts: &Hosts, object: &DynamicObject) -> Result<Option<String>, BackendError> {
    let name = name(object);
    let Some(policy) = hosts.optional("HostUpdatePolicy", name).await? else { return Ok(None) };
    // Needed up to v0.14.0-rc.0 (`doServiceIfNeeded`), but applied to all, because the operator's
    // version is unknown.
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

/// Describes an image that the operator attaches or detaches while the host is off.
pub(super) async fn image(hosts: &Hosts, name: &str) -> Result<Option<String>, BackendError> {
    let Some(image) = hosts.optional("DataImage", name).await? else { return Ok(None) };
    let (wanted, there) = (text(&image, "/spec/url"), text(&image, "/status/attachedImage/url"));
    let leaves = image.metadata.deletion_timestamp.is_some();
    Ok((wanted != there || leaves).then(|| {
        format!("DataImage {}/{name} has a change that the operator applies while the host is off", hosts.namespace)
    }))
}
