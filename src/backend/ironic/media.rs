//! A node's virtual media, by device type: Ironic attaches to a type and lists drives (API 1.89 and
//! 1.93).
//!
//! POST and DELETE return 204 before anything happens (measured with Ironic 39.0.0), so the outcome
//! is read afterwards. The conductor always fetches the image and publishes it under a new name.
//! Ironic 39.0.0 drops `image_download_source` between API and conductor (conductor/rpcapi.py,
//! `attach_virtual_media`).

use async_trait::async_trait;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    backend::{BackendError, MediaControl},
    maintenance::machine::MediaSlot,
    shown::OneLine,
};

use super::{accepted::Accepted, boot::is_missing, machine::NodeMachine};

const VMEDIA: &str = "/vmedia";
/// The API versions that introduced attaching and listing.
const ATTACH: u32 = 89;
const LIST: u32 = 93;

/// Ironic's device types and the drives' media types that each accepts
/// (drivers/modules/redfish/management.py, `VMEDIA_DEVICES_MAP`; a DVD drive also counts as a CD
/// drive).
const TYPES: [(&str, &[&str]); 3] = [("cdrom", &["CD", "DVD"]), ("disk", &["USBStick"]), ("floppy", &["Floppy"])];

/// Returns true if the conductor published the image for an attachment (Ironic 39.0.0,
/// conductor/manager.py, `_virtual_media_file_name`). Such an image disappears with its attachment
/// and could not be attached again.
fn is_published(image: &str, node: &str) -> bool {
    let name = image.split(['?', '#']).next().unwrap_or(image).rsplit('/').next().unwrap_or_default();
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    TYPES.iter().any(|(kind, _)| stem.strip_prefix(kind).and_then(|rest| rest.strip_prefix('-')) == Some(node))
}

/// Returns the drives by device type. A drive with several types counts as the first.
fn slots(body: &Value, node: &str) -> Vec<MediaSlot> {
    let list = body.as_array().or_else(|| body["vmedia"].as_array());
    let drives: Vec<&Value> = list.into_iter().flatten().collect();
    let has = |drive: &Value, kinds: &[&str]| {
        drive["media_types"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|kind| kind.as_str().is_some_and(|it| kinds.contains(&it)))
    };
    let mut left = drives;
    let mut found = Vec::new();
    for (name, kinds) in TYPES {
        let (these, rest): (Vec<&Value>, Vec<&Value>) = left.into_iter().partition(|drive| has(drive, kinds));
        left = rest;
        if these.is_empty() {
            continue;
        }
        let filled: Vec<&Value> = these
            .into_iter()
            .filter(|drive| drive["inserted"].as_bool().unwrap_or_else(|| drive["image"].is_string()))
            .collect();
        // Several filled drives of a type can only be emptied together. No image is reported then,
        // so that none is touched.
        let image = match filled.as_slice() {
            [only] => {
                let image = only["image"].as_str().filter(|image| !image.is_empty() && !is_published(image, node));
                image.map(str::to_owned)
            }
            _ => None,
        };
        found.push(MediaSlot {
            slot: name.into(),
            media_types: kinds.iter().map(|kind| (*kind).into()).collect(),
            inserted: !filled.is_empty(),
            image: image.map(OneLine::from),
            write_protected: None,
        });
    }
    found
}

#[async_trait]
impl MediaControl for NodeMachine {
    async fn media(&self, _known: &[MediaSlot]) -> Result<Vec<MediaSlot>, BackendError> {
        // Without the list, an insertion could not be verified.
        if !self.fleet.client.has(LIST).await? {
            return Ok(Vec::new());
        }
        let node = self.node().await?;
        match self.fleet.part(&node, VMEDIA, LIST).await {
            Ok(body) => Ok(slots(&body, &node.uuid)),
            Err(error) if is_missing(&error) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    async fn insert_medium(&self, slot: &str, image: &str, _write_protected: bool) -> Result<(), BackendError> {
        let request = format!("POST vmedia {slot}");
        let node = self.before_change(&request).await?;
        let source = &self.fleet.image_download_source;
        let body = json!({ "device_type": slot, "image_url": image, "image_download_source": source });
        self.fleet.change(Method::POST, &node, VMEDIA, ATTACH, Some(&body)).await?;
        self.soon(&node, Accepted { request, reset: None }).await
    }

    async fn eject_medium(&self, slot: &str) -> Result<(), BackendError> {
        let request = format!("DELETE vmedia {slot}");
        let node = self.before_change(&request).await?;
        self.fleet.change(Method::DELETE, &node, &format!("{VMEDIA}?device_types={slot}"), ATTACH, None).await?;
        self.soon(&node, Accepted { request, reset: None }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_are_seen_by_device_type() {
        let body = json!([
            { "media_types": ["CD", "DVD"], "inserted": true, "image": "http://i/a.iso" },
            { "media_types": ["Floppy", "USBStick"], "inserted": false, "image": "" },
        ]);
        let found = slots(&body, "n");
        let names: Vec<&str> = found.iter().map(|slot| slot.slot.raw()).collect();
        assert_eq!(names, ["cdrom", "disk"]);
        assert_eq!(found[0].content(), Some("http://i/a.iso"));
        assert_eq!(found[1].content(), None);
    }

    #[test]
    fn two_filled_drives_of_a_type_tell_no_image() {
        let drive = |image: &str| json!({ "media_types": ["CD"], "inserted": true, "image": image });
        let found = slots(&json!([drive("http://a"), drive("http://b")]), "n");
        assert_eq!(found[0].content(), Some(""));
        assert!(slots(&json!([]), "n").is_empty());
        // A conductor-published image could not be attached again.
        let found = slots(&json!([drive("http://conductor/redfish/cdrom-n.iso?x=y")]), "n");
        assert_eq!(found[0].content(), Some(""));
        let found = slots(&json!([drive("http://conductor/redfish/cdrom-m.iso")]), "n");
        assert_eq!(found[0].content(), Some("http://conductor/redfish/cdrom-m.iso"));
    }
}
