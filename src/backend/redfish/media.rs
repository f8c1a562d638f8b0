//! Virtual drives: found, filled and emptied by what each drive lists.

use async_trait::async_trait;
use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::{
    backend::{BackendError, MediaControl},
    maintenance::machine::MediaSlot,
};

use super::{
    answer::RedfishResponse,
    machine::{RedfishMachine, nothing_sent, nothing_there},
};

/// How often an insertion is sent with other parameters, as the BMC's refusals ask for them.
const MOST_TRIES: usize = 4;

/// A drive's action, where it lists one.
fn action<'a>(drive: &'a Value, name: &str) -> Option<&'a str> {
    drive["Actions"][format!("#VirtualMedia.{name}")]["target"].as_str()
}

/// Whether a drive without the action is filled by writing to it (iLO4, XCC1, Intel): it lists the
/// image, and takes PATCH as far as it tells.
fn takes_patch(drive: &RedfishResponse) -> bool {
    let allows = drive.allow.as_deref().is_none_or(|methods| methods.to_ascii_uppercase().contains("PATCH"));
    drive.body.get("Image").is_some() && drive.body.get("Inserted").is_some() && allows
}

/// What is in a drive, as far as it tells.
fn content(drive: &Value) -> (Option<String>, bool) {
    // What a person's console lends to the server has a name, and no address under which it could
    // be inserted again (DSP2046, ConnectedMethod).
    let lent = drive["ConnectedVia"] == "Applet";
    let image = drive["Image"].as_str().filter(|image| !image.is_empty() && !lent).map(str::to_owned);
    // Some machines leave Inserted true, or the name, after an eject; both must agree.
    let inserted =
        drive["Inserted"].as_bool().unwrap_or(image.is_some() || lent) && drive["ConnectedVia"] != "NotConnected";
    (image, inserted)
}

/// The parameters that a refusal asks for or complains about, and the next try; `None`: nothing
/// more can be tried.
fn next_try(sent: &Map<String, Value>, image: &str, refusal: &str) -> Option<Map<String, Value>> {
    let mut next = sent.clone();
    for (name, value) in [
        ("TransferProtocolType", json!(image.split("://").next().unwrap_or_default().to_ascii_uppercase())),
        ("TransferMethod", json!("Stream")),
        // Some want credentials also where none are needed.
        ("UserName", json!("none")),
        ("Password", json!("none")),
    ] {
        if refusal.contains(name) && !sent.contains_key(name) {
            next.insert(name.to_owned(), value);
        }
    }
    if next == *sent {
        // Supermicro X11 and X12 refuse both extras, and do not always say which.
        next = std::iter::once(("Image".to_owned(), json!(image))).collect();
    }
    (next != *sent).then_some(next)
}

impl RedfishMachine {
    /// The drives: the system's own, else those of its manager (DSP0268 moved them to the system in
    /// 2020).
    pub(super) async fn find_drives(&self) -> Result<Vec<String>, BackendError> {
        let system = self.links().await?;
        // Some list an empty collection at the system and the drives at the manager (Intel).
        if let Some(path) = system["VirtualMedia"]["@odata.id"].as_str() {
            let drives = self.members(path).await?;
            if !drives.is_empty() {
                return Ok(drives);
            }
        }
        let managed = system["Links"]["ManagedBy"].as_array().into_iter().flatten();
        let mut managers: Vec<String> =
            managed.filter_map(|manager| manager["@odata.id"].as_str().map(str::to_owned)).collect();
        if managers.is_empty() {
            // Huawei names none. Of several managers each may be that of another system, whose
            // drives are not ours to fill.
            let listed = self.members("/redfish/v1/Managers").await.or_else(nothing_there)?;
            if listed.len() == 1 || (listed.len() > 1 && !self.has_siblings().await?) {
                managers = listed;
            }
        }
        for link in managers {
            let listed = self.bmc.get(&link).await?.body;
            if let Some(path) = listed["VirtualMedia"]["@odata.id"].as_str() {
                let drives = self.members(path).await.or_else(nothing_there)?;
                if !drives.is_empty() {
                    return Ok(drives);
                }
            }
        }
        Ok(Vec::new())
    }

    /// One drive as it is now; `None` where it cannot be filled and is none of ours.
    async fn drive(&self, path: &str) -> Result<Option<MediaSlot>, BackendError> {
        let drive = self.bmc.get(path).await?;
        if action(&drive.body, "InsertMedia").is_none() && !takes_patch(&drive) {
            return Ok(None);
        }
        let (image, inserted) = content(&drive.body);
        let kinds = drive.body["MediaTypes"].as_array().into_iter().flatten();
        Ok(Some(MediaSlot {
            slot: path.to_owned(),
            media_types: kinds.filter_map(|kind| kind.as_str().map(str::to_owned)).collect(),
            inserted,
            image,
            write_protected: drive.body["WriteProtected"].as_bool(),
        }))
    }

    /// The drives at these places; `None` where one of them is not there, or no drive of ours, any
    /// more.
    async fn drives_at(&self, known: &[MediaSlot]) -> Result<Option<Vec<MediaSlot>>, BackendError> {
        let mut slots = Vec::new();
        for MediaSlot { slot, .. } in known {
            match self.drive(slot).await {
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
                // A refused parameter was not applied.
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
                // Inserted cannot be written on some (iLO4).
                Err(BackendError::Rejected { status: 400, transient: false, .. }) => {
                    self.patch(slot, &json!({ "Image": null }), drive.etag.as_deref()).await
                }
                result => result,
            }
        };
        match result {
            // Some refuse to empty what is empty.
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
