//! One system behind a BMC.

use std::sync::Arc;

use async_trait::async_trait;
use reqwest::Method;
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

use crate::{
    backend::{BackendError, BootControl, Identity, IdentityKind, Machine, MediaControl, PowerControl},
    maintenance::machine::{BootOverride, Capabilities, MachineView, MediaSlot, ResetType},
};

use super::{answer::Answer, bmc::Bmc, system};

/// One system behind a BMC.
#[derive(Debug)]
pub(super) struct RedfishMachine {
    bmc: Arc<Bmc>,
    system_id: Option<String>,
    lock_key: Option<String>,
    /// The system's resource, once it was found.
    path: OnceCell<String>,
    /// The drives' collection; `None` inside: there is none.
    drives: OnceCell<Option<String>>,
    /// The accepted values of `ResetType`, once they were read.
    resets: OnceCell<Vec<String>>,
}

impl RedfishMachine {
    pub(super) fn new(bmc: Arc<Bmc>, system_id: Option<String>, lock_key: Option<String>) -> Self {
        Self { bmc, system_id, lock_key, path: OnceCell::new(), drives: OnceCell::new(), resets: OnceCell::new() }
    }

    /// Reads the system: one request once its resource is known, and also at the first time when its id says where it
    /// is.
    async fn system(&self) -> Result<Answer, BackendError> {
        if let Some(path) = self.path.get() {
            return self.bmc.get(path).await;
        }
        if let Some(id) = &self.system_id {
            let path = if id.starts_with('/') { id.clone() } else { format!("/redfish/v1/Systems/{id}") };
            match self.bmc.get(&path).await {
                Ok(answer) => {
                    let _ = self.path.set(path);
                    return Ok(answer);
                }
                Err(BackendError::Rejected { status: 404, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let path = self.find().await?;
        let answer = self.bmc.get(&path).await?;
        let _ = self.path.set(path);
        Ok(answer)
    }

    /// From the service root to the system.
    async fn find(&self) -> Result<String, BackendError> {
        let root = self.bmc.get("/redfish/v1/").await?.body;
        let Some(systems) = root["Systems"]["@odata.id"].as_str() else {
            return Err(self.bmc.unsupported("the service has no systems"));
        };
        let members: Vec<String> = self.bmc.get(systems).await?.body["Members"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|member| member["@odata.id"].as_str().map(str::to_owned))
            .collect();
        let name = |path: &str| path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
        let names = || {
            let shown: Vec<String> = members.iter().take(10).map(|path| name(path)).collect();
            let more = if members.len() > 10 { format!(" and {} more", members.len() - 10) } else { String::new() };
            format!("{}{more}", shown.join(", "))
        };
        match (&self.system_id, members.as_slice()) {
            (Some(id), _) => members.iter().find(|path| *path == id || name(path) == *id).cloned().ok_or_else(|| {
                self.bmc.unsupported(&format!("there is no system {id:?} behind it; there are: {}", names()))
            }),
            (None, [only]) => Ok(only.clone()),
            (None, []) => Err(self.bmc.unsupported("there is no system behind it")),
            (None, _) => Err(self.bmc.unsupported(&format!(
                "there are {} systems behind it; set system_id to one of: {}",
                members.len(),
                names()
            ))),
        }
    }

    /// The settings object, when there is one that lists the override: what is set there is what the next boot uses.
    async fn settings(&self, system: &Value) -> Result<Option<Answer>, BackendError> {
        let Some(path) = system::settings_path(system) else { return Ok(None) };
        let settings = self.bmc.get(path).await?;
        Ok(system::lists_override(&settings.body).then_some(settings))
    }

    /// The values that a reset accepts: from the list beside the action, else from its `ActionInfo`.
    async fn reset_values(&self, system: &Value) -> Result<&Vec<String>, BackendError> {
        self.resets
            .get_or_try_init(|| async {
                let action = system::reset_action(system);
                match (action.values, action.action_info) {
                    (Some(values), _) => Ok(values),
                    (None, Some(info)) => Ok(system::action_info_values(&self.bmc.get(info).await?.body)),
                    (None, None) => Ok(Vec::new()),
                }
            })
            .await
    }

    /// The drives' collection: the system's own, else its manager's (DSP0268 moved it to the system in 2020).
    async fn drives(&self, system: &Value) -> Result<Option<&String>, BackendError> {
        let found = self
            .drives
            .get_or_try_init(|| async {
                if let Some(path) = system["VirtualMedia"]["@odata.id"].as_str() {
                    return Ok(Some(path.to_owned()));
                }
                for manager in system["Links"]["ManagedBy"].as_array().into_iter().flatten() {
                    let Some(path) = manager["@odata.id"].as_str() else { continue };
                    let manager = self.bmc.get(path).await?.body;
                    if let Some(path) = manager["VirtualMedia"]["@odata.id"].as_str() {
                        return Ok(Some(path.to_owned()));
                    }
                }
                Ok::<_, BackendError>(None)
            })
            .await?;
        Ok(found.as_ref())
    }

    /// Changes a resource under its entity tag; when that is outdated, reads it anew and tries once more.
    async fn patch(&self, path: &str, body: &Value, etag: Option<&str>) -> Result<(), BackendError> {
        match self.bmc.change(Method::PATCH, path, body, etag).await {
            Err(BackendError::Rejected { status: 412 | 428, .. }) => {
                let etag = self.bmc.get(path).await?.etag;
                self.bmc.change(Method::PATCH, path, body, etag.as_deref()).await.map(|_| ())
            }
            result => result.map(|_| ()),
        }
    }

    async fn action(&self, slot: &str, name: &str, bodies: &[Value]) -> Result<(), BackendError> {
        let slot = self.bmc.get(slot).await?.body;
        let target = slot["Actions"][format!("#VirtualMedia.{name}")]["target"].as_str();
        let Some(target) = target else {
            return Err(self.bmc.unsupported(&format!("the virtual drive has no action {name}")));
        };
        let mut last = None;
        for body in bodies {
            match self.bmc.change(Method::POST, target, body, None).await {
                Ok(_) => return Ok(()),
                // A refused parameter was not applied; the next body has fewer of them.
                Err(error @ BackendError::Rejected { status: 400, transient: false, .. }) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| self.bmc.protocol("no body was given")))
    }
}

#[async_trait]
impl PowerControl for RedfishMachine {
    async fn reset(&self, reset: ResetType) -> Result<(), BackendError> {
        let system = self.system().await.map_err(nothing_sent)?.body;
        let values = self.reset_values(&system).await.map_err(nothing_sent)?;
        let wanted = reset.to_string();
        let value = match reset {
            ResetType::On if !values.contains(&wanted) && values.iter().any(|value| value == "ForceOn") => "ForceOn",
            _ => wanted.as_str(),
        };
        if !values.iter().any(|accepted| accepted == value) {
            let list = values.join(", ");
            return Err(self.bmc.unsupported(&format!("it does not accept the reset type {value}; it lists {list}")));
        }
        let Some(target) = system::reset_action(&system).target else {
            return Err(self.bmc.unsupported("the system has no reset action"));
        };
        self.bmc.change(Method::POST, target, &json!({ "ResetType": value }), None).await.map(|_| ())
    }
}

/// A read that failed before a change: whatever happened to it, the change was not sent.
fn nothing_sent(error: BackendError) -> BackendError {
    match error {
        BackendError::ReplyLost { address, cause, .. } => BackendError::Unreachable { address, cause },
        other => other,
    }
}

#[async_trait]
impl BootControl for RedfishMachine {
    async fn set_boot_override(&self, wanted: &BootOverride, clear_http_boot_uri: bool) -> Result<(), BackendError> {
        let system = self.system().await.map_err(nothing_sent)?;
        let settings = self.settings(&system.body).await.map_err(nothing_sent)?;
        let own = self.path.get().filter(|_| system::lists_override(&system.body));
        let mut objects = Vec::new();
        if let (Some(settings), Some(path)) = (&settings, system::settings_path(&system.body)) {
            objects.push((settings, path));
        }
        objects.extend(own.map(|path| (&system, path.as_str())));
        let mut refused = self.bmc.unsupported("the machine has no boot override");
        for (object, path) in objects {
            match self.write_override(object, path, wanted, clear_http_boot_uri).await {
                // Listed and yet not writable: some machines take the override only in the other place.
                Err(error @ BackendError::Rejected { status: 400 | 405, transient: false, .. }) => refused = error,
                result => return result,
            }
        }
        Err(refused)
    }
}

impl RedfishMachine {
    async fn write_override(
        &self,
        object: &Answer,
        path: &str,
        wanted: &BootOverride,
        clear_http_boot_uri: bool,
    ) -> Result<(), BackendError> {
        let found = system::boot_override(&object.body);
        let mut boot = Map::new();
        let mut set = |name: &str, wanted: &Option<String>, found: &Option<String>| {
            if let Some(value) = wanted.as_ref().filter(|value| Some(*value) != found.as_ref()) {
                boot.insert(name.to_owned(), json!(value));
            }
        };
        set("BootSourceOverrideTarget", &wanted.target, &found.target);
        set("BootSourceOverrideEnabled", &wanted.enabled, &found.enabled);
        set("BootSourceOverrideMode", &wanted.mode, &found.mode);
        set("HttpBootUri", &wanted.http_boot_uri, &found.http_boot_uri);
        // A target that was set before and has been used up is armed again only when both are sent.
        if boot.contains_key("BootSourceOverrideEnabled")
            && let Some(target) = wanted.target.as_ref().filter(|target| *target != "None")
        {
            boot.insert("BootSourceOverrideTarget".to_owned(), json!(target));
        }
        let clear = clear_http_boot_uri && found.http_boot_uri.is_some();
        if clear {
            boot.insert("HttpBootUri".to_owned(), Value::Null);
        }
        if boot.is_empty() {
            return Ok(());
        }
        let etag = object.etag.as_deref();
        match self.patch(path, &json!({ "Boot": boot }), etag).await {
            Err(BackendError::Rejected { status: 400, .. }) if clear => {
                // Some machines want an empty text instead of null.
                boot.insert("HttpBootUri".to_owned(), json!(""));
                self.patch(path, &json!({ "Boot": boot }), etag).await
            }
            result => result,
        }
    }
}

#[async_trait]
impl MediaControl for RedfishMachine {
    async fn media(&self) -> Result<Vec<MediaSlot>, BackendError> {
        let system = self.system().await?.body;
        let Some(collection) = self.drives(&system).await? else { return Ok(Vec::new()) };
        let members = self.bmc.get(collection).await?.body;
        let mut slots = Vec::new();
        for member in members["Members"].as_array().into_iter().flatten() {
            let Some(path) = member["@odata.id"].as_str() else { continue };
            let drive = self.bmc.get(path).await?.body;
            // A drive that cannot be filled by an action is none of ours.
            if drive["Actions"].get("#VirtualMedia.InsertMedia").is_none() {
                continue;
            }
            let image = drive["Image"].as_str().filter(|image| !image.is_empty()).map(str::to_owned);
            slots.push(MediaSlot {
                slot: path.to_owned(),
                media_types: drive["MediaTypes"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|kind| kind.as_str().map(str::to_owned))
                    .collect(),
                // Some machines leave Inserted true, or the name, after an eject; both must agree.
                inserted: drive["Inserted"].as_bool().unwrap_or(image.is_some())
                    && drive["ConnectedVia"] != "NotConnected",
                image,
                write_protected: drive["WriteProtected"].as_bool(),
            });
        }
        Ok(slots)
    }

    async fn insert_medium(&self, slot: &str, image: &str, write_protected: bool) -> Result<(), BackendError> {
        let bodies = [
            json!({ "Image": image, "Inserted": true, "WriteProtected": write_protected }),
            // Supermicro X11 and X12 refuse both extras.
            json!({ "Image": image }),
        ];
        self.action(slot, "InsertMedia", &bodies).await
    }

    async fn eject_medium(&self, slot: &str) -> Result<(), BackendError> {
        self.action(slot, "EjectMedia", &[json!({})]).await
    }
}

#[async_trait]
impl Machine for RedfishMachine {
    fn address(&self) -> String {
        match &self.system_id {
            Some(id) => format!("{}, system {id}", self.bmc.address()),
            None => self.bmc.address(),
        }
    }

    async fn identify(&self) -> Result<Identity, BackendError> {
        if let Some(key) = &self.lock_key {
            return Ok(Identity { lock_key: key.clone(), kind: IdentityKind::Configured });
        }
        let system = self.system().await?.body;
        if let Some(uuid) = system::uuid(&system) {
            return Ok(Identity { lock_key: uuid, kind: IdentityKind::SystemUuid });
        }
        if let Some(serial) = system::serial(&system) {
            return Ok(Identity { lock_key: serial, kind: IdentityKind::SerialNumber });
        }
        let path = self.path.get().map(String::as_str).unwrap_or_default();
        let lock_key = format!("address:{}{}", self.bmc.authority(), path.trim_end_matches('/'));
        Ok(Identity { lock_key, kind: IdentityKind::Address })
    }

    async fn observe(&self) -> Result<MachineView, BackendError> {
        let system = self.system().await?.body;
        let settings = self.settings(&system).await?;
        Ok(system::view(&system, settings.as_ref().map(|answer| &answer.body)))
    }

    async fn capabilities(&self) -> Result<Capabilities, BackendError> {
        let system = self.system().await?.body;
        let mut capabilities =
            Capabilities { resets: system::resets(self.reset_values(&system).await?), ..Capabilities::default() };
        let settings = self.settings(&system).await?;
        system::boot_capabilities(settings.as_ref().map_or(&system, |answer| &answer.body), &mut capabilities);
        capabilities.virtual_media = self.drives(&system).await?.is_some();
        Ok(capabilities)
    }
}
