//! Finds, fills and empties virtual drives as their own properties describe.

use async_trait::async_trait;
use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::{
    backend::{BackendError, MediaControl},
    maintenance::machine::MediaSlot,
    shown::OneLine,
};

use super::{
    answer::RedfishResponse,
    machine::{RedfishMachine, SYSTEMS, is_within, nothing_sent, nothing_there},
    siblings::{name, supports_reset},
};

/// Attempts to insert an image with different parameters, as the BMC's refusals demand.
const MOST_TRIES: usize = 4;

/// The maximum number of systems to search for sharers of a drive.
const MOST_SHARING: usize = 32;

fn links(list: &Value) -> Vec<String> {
    let paths = list.as_array().into_iter().flatten().filter_map(|link| link["@odata.id"].as_str());
    paths.map(str::to_owned).collect()
}

/// Returns true for two spellings of one path.
fn is_same(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}

/// Returns a drive's action target, if it lists the action.
fn action<'a>(drive: &'a Value, name: &str) -> Option<&'a str> {
    drive["Actions"][format!("#VirtualMedia.{name}")]["target"].as_str()
}

/// Returns true if a drive without the action is filled by PATCH (iLO4, XCC1, Intel). It lists the
/// image, and its `Allow` header does not exclude PATCH.
fn takes_patch(drive: &RedfishResponse) -> bool {
    let allows = drive.allow.as_deref().is_none_or(|methods| methods.to_ascii_uppercase().contains("PATCH"));
    drive.body.get("Image").is_some() && drive.body.get("Inserted").is_some() && allows
}

/// Returns a drive's image and insertion state.
fn content(drive: &Value) -> (Option<String>, bool) {
    // A medium that a person's console provides has a name but no reusable address (DSP2046,
    // ConnectedMethod).
    let lent = drive["ConnectedVia"] == "Applet";
    let image = drive["Image"].as_str().filter(|image| !image.is_empty() && !lent).map(str::to_owned);
    // After an eject, some machines keep Inserted true or the name; both must agree.
    let inserted =
        drive["Inserted"].as_bool().unwrap_or(image.is_some() || lent) && drive["ConnectedVia"] != "NotConnected";
    (image, inserted)
}

/// Returns the next attempt's parameters from a refusal; `None` if all attempts are used up.
fn next_try(sent: &Map<String, Value>, image: &str, refusal: &str) -> Option<Map<String, Value>> {
    let mut next = sent.clone();
    for (name, value) in [
        ("TransferProtocolType", json!(image.split("://").next().unwrap_or_default().to_ascii_uppercase())),
        ("TransferMethod", json!("Stream")),
        // Some BMCs require credentials even if the image server does not.
        ("UserName", json!("none")),
        ("Password", json!("none")),
    ] {
        if refusal.contains(name) && !sent.contains_key(name) {
            next.insert(name.to_owned(), value);
        }
    }
    if next == *sent {
        // Supermicro X11 and X12 reject both extra parameters without always naming them.
        next = std::iter::once(("Image".to_owned(), json!(image))).collect();
    }
    (next != *sent).then_some(next)
}

impl RedfishMachine {
    /// Returns the system's drives, or its manager's drives (DSP0268 moved them to the system in
    /// 2020). Rejects drives that other servers share.
    pub(super) async fn find_drives(&self) -> Result<Vec<String>, BackendError> {
        let system = self.links().await?;
        let mut managers = links(&system["Links"]["ManagedBy"]);
        // Some BMCs list an empty collection at the system and the drives at the manager (Intel).
        if let Some(path) = system["VirtualMedia"]["@odata.id"].as_str() {
            let drives = self.members(path).await?;
            // Some systems list their manager's drives.
            let of_manager = |manager: &&String| drives.iter().any(|drive| is_within(drive, manager));
            if let Some(manager) = managers.iter().find(of_manager) {
                let body = self.bmc.get(manager).await?.body;
                self.refuse_shared(manager, &body).await?;
            }
            if !drives.is_empty() {
                return Ok(drives);
            }
        }
        if managers.is_empty() {
            // Huawei systems do not name a manager. Several managers can belong to other systems,
            // whose drives must not be filled.
            let listed = self.members("/redfish/v1/Managers").await.or_else(nothing_there)?;
            if listed.len() == 1 || (listed.len() > 1 && !self.has_siblings().await?) {
                managers = listed;
            }
        }
        let alone = managers.len() == 1;
        let mut failed = None;
        for manager in &managers {
            // One of several managers can belong to a board that is off.
            let read =
                if alone { self.bmc.get(manager).await.map(|it| it.body) } else { self.bmc.probe(manager).await };
            let listed = match read {
                Ok(listed) => listed,
                Err(error) => {
                    failed.get_or_insert(error);
                    continue;
                }
            };
            if let Some(path) = listed["VirtualMedia"]["@odata.id"].as_str() {
                let drives = self.members(path).await.or_else(nothing_there)?;
                if !drives.is_empty() {
                    self.refuse_shared(manager, &listed).await?;
                    return Ok(drives);
                }
            }
        }
        failed.map_or(Ok(Vec::new()), Err)
    }

    /// Rejects a manager's drives if they also serve other servers.
    ///
    /// A medium in such a drive reaches every server, and each server has its own lock. One
    /// maintenance would eject another's medium, and a server could boot a foreign image. A system
    /// that fails or does not support reset is not a server.
    async fn refuse_shared(&self, manager: &str, body: &Value) -> Result<(), BackendError> {
        let served = links(&body["Links"]["ManagerForServers"]);
        let is_told = !served.is_empty();
        let mut others = if is_told { served } else { self.members(SYSTEMS).await.or_else(nothing_there)? };
        let own = self.path.get().map(String::as_str).unwrap_or_default();
        others.retain(|path| !is_same(path, own));
        others.truncate(MOST_SHARING);
        let shares = |system: &Value| {
            let managers = links(&system["Links"]["ManagedBy"]);
            is_told || managers.is_empty() || managers.iter().any(|other| is_same(other, manager))
        };
        let read = if others.is_empty() { Vec::new() } else { self.siblings(&others, true).await };
        let sharing =
            read.into_iter().filter(|(_, answer)| supports_reset(answer) && answer.as_ref().is_ok_and(shares));
        let sharing: Vec<String> = sharing.map(|(path, _)| name(path)).collect();
        if sharing.is_empty() {
            return Ok(());
        }
        Err(self.bmc.unsupported(&format!(
            "the virtual drives of {manager} are shared with the system {}: a medium reaches each of these servers, and a lock \
             covers only one. Use method = \"http\" or \"pxe\", or insert the medium by hand and use method = \"disk\"",
            sharing.join(", ")
        )))
    }

    /// Reads a drive; `None` if it cannot be filled, and so is not usable.
    async fn drive(&self, path: &str) -> Result<Option<MediaSlot>, BackendError> {
        let drive = self.bmc.get(path).await?;
        if action(&drive.body, "InsertMedia").is_none() && !takes_patch(&drive) {
            return Ok(None);
        }
        let (image, inserted) = content(&drive.body);
        let kinds = drive.body["MediaTypes"].as_array().into_iter().flatten();
        Ok(Some(MediaSlot {
            slot: path.into(),
            media_types: kinds.filter_map(|kind| kind.as_str().map(OneLine::from)).collect(),
            inserted,
            image: image.map(OneLine::from),
            write_protected: drive.body["WriteProtected"].as_bool(),
        }))
    }

    /// Reads the drives at these paths; `None` if a drive no longer exists or is no longer usable.
    async fn drives_at(&self, known: &[MediaSlot]) -> Result<Option<Vec<MediaSlot>>, BackendError> {
        let mut slots = Vec::new();
        for MediaSlot { slot, .. } in known {
            match self.drive(slot.raw()).await {
                Ok(Some(drive)) => slots.push(drive),
                Ok(None) | Err(BackendError::Rejected { status: 404 | 410, .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(slots).filter(|slots| !slots.is_empty()))
    }

    async fn insert_by_action(&self, target: &str, image: &str, write_protected: bool) -> Result<(), BackendError> {
        let full = json!({ "Image": image, "Inserted": true, "WriteProtected": write_protected });
        let mut body = full.as_object().cloned().unwrap_or_default();
        let mut tried: Vec<Map<String, Value>> = Vec::new();
        loop {
            let refusal = match self.bmc.change(Method::POST, target, &Value::Object(body.clone()), None).await {
                Ok(_) => return Ok(()),
                // A rejected parameter was not applied.
                Err(error @ BackendError::Rejected { status: 400 | 405 | 415, transient: false, .. }) => error,
                Err(error) => return Err(error),
            };
            let next = next_try(&body, image, &refusal.to_string());
            tried.push(body);
            match next.filter(|next| !tried.contains(next) && tried.len() < MOST_TRIES) {
                Some(next) => body = next,
                None => return Err(refusal),
            }
        }
    }
}

#[async_trait]
impl MediaControl for RedfishMachine {
    async fn media(&self, known: &[MediaSlot]) -> Result<Vec<MediaSlot>, BackendError> {
        if let Some(slots) = self.drives_at(known).await? {
            return Ok(slots);
        }
        let mut slots = Vec::new();
        for path in self.drives().await? {
            slots.extend(self.drive(path).await?);
        }
        Ok(slots)
    }

    async fn insert_medium(&self, slot: &str, image: &str, write_protected: bool) -> Result<(), BackendError> {
        let drive = self.bmc.get(slot).await.map_err(nothing_sent)?;
        if let Some(target) = action(&drive.body, "InsertMedia") {
            return self.insert_by_action(target, image, write_protected).await;
        }
        let body = json!({ "Image": image, "Inserted": true, "WriteProtected": write_protected });
        match self.patch(slot, &body, drive.etag.as_deref()).await {
            Err(BackendError::Rejected { status: 400, transient: false, .. }) => {
                self.patch(slot, &json!({ "Image": image }), drive.etag.as_deref()).await
            }
            result => result,
        }
    }

    async fn eject_medium(&self, slot: &str) -> Result<(), BackendError> {
        let drive = self.bmc.get(slot).await.map_err(nothing_sent)?;
        let result = if let Some(target) = action(&drive.body, "EjectMedia") {
            self.bmc.change(Method::POST, target, &json!({}), None).await.map(|_| ())
        } else {
            let both = json!({ "Image": null, "Inserted": false });
            match self.patch(slot, &both, drive.etag.as_deref()).await {
                // Inserted is read-only on some BMCs (iLO4).
                Err(BackendError::Rejected { status: 400, transient: false, .. }) => {
                    self.patch(slot, &json!({ "Image": null }), drive.etag.as_deref()).await
                }
                result => result,
            }
        };
        match result {
            // Some BMCs reject ejecting an empty drive.
            Err(error @ BackendError::Rejected { status: 400 | 404 | 409, .. }) => {
                let (_, inserted) = content(&self.bmc.get(slot).await.map_err(nothing_sent)?.body);
                if inserted { Err(error) } else { Ok(()) }
            }
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_console_lends_has_no_address() {
        let of = |via: &str| {
            content(&json!({"Image": "freeOS.1.1.iso", "Inserted": true, "ConnectedVia": via})).0.unwrap_or_default()
        };
        assert_eq!((of("URI").as_str(), of("Applet").as_str()), ("freeOS.1.1.iso", ""));
        assert_eq!(content(&json!({"Image": null, "Inserted": true, "ConnectedVia": "NotConnected"})), (None, false));
        assert_eq!(content(&json!({"Image": "a.iso", "ConnectedVia": "Applet"})), (None, true));
    }

    #[test]
    fn what_a_refusal_asks_for_is_added_and_extras_are_left_out() {
        let image = "https://images/a.iso";
        let full = json!({"Image": image, "Inserted": true, "WriteProtected": true}).as_object().unwrap().clone();
        let asked = next_try(&full, image, "\"The parameter TransferProtocolType is missing\"").unwrap();
        assert_eq!((asked["TransferProtocolType"].as_str(), asked.len()), (Some("HTTPS"), 4));
        let bare = next_try(&full, image, "\"not supported\"").unwrap();
        assert_eq!(bare.keys().collect::<Vec<_>>(), ["Image"]);
        assert_eq!(next_try(&bare, image, "\"not supported\""), None);
    }
}
