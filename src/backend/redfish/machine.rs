//! A system behind a BMC.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{
    backend::{BackendError, BmcInspection, HardwareIdentity, Machine, PowerControl},
    maintenance::machine::{BootOverride, Capabilities, MachineView, ResetType},
    shown::OneLine,
};

use super::{answer::RedfishResponse, bmc::Bmc, boot::OverrideHolder, settings::MediaSettings, system};

/// The systems collection (DSP0266, "Resource URI requirements").
pub(super) const SYSTEMS: &str = "/redfish/v1/Systems";
/// The maximum number of pages per collection; a BMC has one or two.
const MOST_PAGES: usize = 50;
/// The reset types to assume if a BMC does not list any.
const UNLISTED_RESETS: [&str; 5] = ["On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart"];

#[derive(Debug)]
pub(super) struct RedfishMachine {
    pub(super) bmc: Arc<Bmc>,
    pub(super) system_id: Option<String>,
    lock_key: Option<String>,
    /// The configured virtual media boot, if any.
    media: MediaSettings,
    /// The system's path, after it was found.
    pub(super) path: OnceCell<String>,
    /// The system's path from an earlier process's record.
    recorded: Mutex<Option<String>>,
    /// The last read of the system, used for its stable links and lists, never for its state.
    last: Mutex<Option<Arc<Value>>>,
    /// The drives, after some were found.
    drives: OnceCell<Vec<String>>,
    /// True if the settings object is readable; unset until the first attempt.
    settings_work: OnceCell<bool>,
    /// The object that accepted the last override write, if two objects list an override.
    pub(super) override_holder: Mutex<Option<OverrideHolder>>,
    /// The last override that this process wrote.
    pub(super) last_override: Mutex<Option<BootOverride>>,
    /// The supported `ResetType` values, after some were read.
    resets: OnceCell<Vec<String>>,
}

impl RedfishMachine {
    pub(super) fn new(
        bmc: Arc<Bmc>,
        system_id: Option<String>,
        lock_key: Option<String>,
        media: MediaSettings,
    ) -> Self {
        Self {
            bmc,
            system_id,
            lock_key,
            media,
            path: OnceCell::new(),
            recorded: Mutex::default(),
            last: Mutex::default(),
            drives: OnceCell::new(),
            settings_work: OnceCell::new(),
            override_holder: Mutex::default(),
            last_override: Mutex::default(),
            resets: OnceCell::new(),
        }
    }

    /// Returns the system's links and lists without a request if this process has read them before.
    pub(super) async fn links(&self) -> Result<Arc<Value>, BackendError> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match last {
            Some(last) => Ok(last),
            None => self.system().await.map(|answer| Arc::new(answer.body)),
        }
    }

    /// Like [`Self::links`], but reads again if the last read did not contain the reset action.
    async fn links_with_reset(&self) -> Result<Arc<Value>, BackendError> {
        let links = self.links().await?;
        if system::reset_action(&links).target.is_some() {
            return Ok(links);
        }
        Ok(Arc::new(self.system().await?.body))
    }

    pub(super) async fn system(&self) -> Result<RedfishResponse, BackendError> {
        let answer = self.read_system().await?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(answer.body.clone()));
        Ok(answer)
    }

    async fn identity_in(&self, system: &Value) -> Result<HardwareIdentity, BackendError> {
        let text = |name: &str| system[name].as_str().map(str::to_owned);
        Ok(HardwareIdentity {
            lock_key: self.lock_key.clone(),
            uuid: text("UUID"),
            manufacturer: text("Manufacturer"),
            serial_number: text("SerialNumber"),
            has_siblings: self.has_siblings().await?,
            authority: self.bmc.authority(),
            path: self.path.get().cloned().unwrap_or_default(),
        })
    }

    /// Returns a system's view, including pending settings.
    async fn view_in(&self, system: &Value) -> Result<MachineView, BackendError> {
        let settings = self.settings(system).await?;
        Ok(system::view(system, self.viewed(system, settings.as_ref().map(|answer| &answer.body))))
    }

    /// Stores the system's path from a record. A configured `system_id` takes precedence.
    pub(super) fn remember(&self, path: &str) {
        *self.recorded.lock().unwrap_or_else(PoisonError::into_inner) = Some(path.to_owned());
    }

    /// Reads the system: one request if an earlier read, the configuration or a record provides its
    /// path.
    async fn read_system(&self) -> Result<RedfishResponse, BackendError> {
        if let Some(path) = self.path.get() {
            return self.bmc.get_system(path).await;
        }
        let recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let named = self
            .system_id
            .as_ref()
            .map(|id| if id.starts_with('/') { id.clone() } else { format!("/redfish/v1/Systems/{id}") });
        if let Some(path) = named.or(recorded) {
            match self.bmc.get_system(&path).await {
                Ok(answer) => {
                    let _ = self.path.set(path);
                    return Ok(answer);
                }
                Err(BackendError::Rejected { status: 404, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let path = self.find().await?;
        let answer = self.bmc.get_system(&path).await?;
        let _ = self.path.set(path);
        Ok(answer)
    }

    /// Returns a collection's members from all pages.
    pub(super) async fn members(&self, collection: &str) -> Result<Vec<String>, BackendError> {
        let mut members = Vec::new();
        let mut page = Some(collection.to_owned());
        for _ in 0..MOST_PAGES {
            let Some(path) = page.take() else { break };
            let body = self.bmc.get(&path).await?.body;
            let listed = body["Members"].as_array().into_iter().flatten();
            members.extend(listed.filter_map(|member| member["@odata.id"].as_str().map(str::to_owned)));
            page = body["Members@odata.nextLink"].as_str().map(str::to_owned);
        }
        Ok(members)
    }

    /// Returns true if the BMC has other systems. A system without `system_id` had to be the only
    /// system. A BMC without a list counts as having several, so that the path distinguishes them.
    pub(super) async fn has_siblings(&self) -> Result<bool, BackendError> {
        if self.system_id.is_none() {
            return Ok(false);
        }
        let listed = async || match self.bmc.get(SYSTEMS).await {
            Ok(systems) => Ok(systems.body["Members"].as_array().is_none_or(|members| members.len() != 1)),
            Err(error) if error.is_transient() => Err(error),
            Err(_) => Ok(true),
        };
        self.bmc.has_siblings.get_or_try_init(listed).await.copied()
    }

    /// Returns the settings object if it lists the override. The next boot uses its values, unless
    /// the system itself accepted this process's write.
    ///
    /// A link that never worked is ignored with a warning.
    pub(super) async fn settings(&self, system: &Value) -> Result<Option<RedfishResponse>, BackendError> {
        let Some(path) = system::settings_path(system) else { return Ok(None) };
        if self.override_holder() == Some(OverrideHolder::System) {
            return Ok(None);
        }
        match self.settings_work.get() {
            Some(false) => Ok(None),
            works => match self.bmc.get(path).await {
                Ok(settings) => {
                    let _ = self.settings_work.set(true);
                    Ok(system::lists_override(&settings.body).then_some(settings))
                }
                Err(error @ (BackendError::Rejected { .. } | BackendError::Protocol { .. }))
                    if works.is_none() && !passes(&error) =>
                {
                    tracing::warn!(%error, "the settings object of the system cannot be read; the system's own boot override is used");
                    let _ = self.settings_work.set(false);
                    Ok(None)
                }
                Err(error) => Err(error),
            },
        }
    }

    /// Returns the supported reset values, from the action's own list or from its `ActionInfo`. If
    /// both are empty, any value can be tried, and the BMC rejects unsupported values. Empty lists
    /// are read again, because a BMC that is starting lists less.
    async fn reset_values(&self, system: &Value) -> Result<Vec<String>, BackendError> {
        if let Some(values) = self.resets.get() {
            return Ok(values.clone());
        }
        let action = system::reset_action(system);
        let mut values = action.values.unwrap_or_default();
        if values.is_empty()
            && let Some(info) = action.action_info
        {
            values = system::action_info_values(&self.bmc.get(info).await?.body);
        }
        if values.is_empty() {
            if action.target.is_some() {
                values = UNLISTED_RESETS.map(str::to_owned).to_vec();
            }
        } else {
            let _ = self.resets.set(values.clone());
        }
        Ok(values)
    }

    /// Returns the drives. An empty list is not cached, because a BMC that is starting lists less.
    pub(super) async fn drives(&self) -> Result<&[String], BackendError> {
        if let Some(drives) = self.drives.get() {
            return Ok(drives.as_slice());
        }
        let found = self.find_drives().await?;
        if found.is_empty() {
            return Ok(&[]);
        }
        Ok(self.drives.get_or_init(|| async { found }).await.as_slice())
    }

    /// Patches a resource with its entity tag. After 412 or 428, the tag is read again and tried
    /// unchanged, then in its strong form, then omitted. Some BMCs issue weak tags but compare
    /// strongly, and some reject every tag. A BMC that requires a tag without issuing any gets `*`.
    /// Rejected attempts were not applied.
    pub(super) async fn patch(&self, path: &str, body: &Value, etag: Option<&str>) -> Result<(), BackendError> {
        let first = self.bmc.change(Method::PATCH, path, body, etag).await;
        let Err(mut refusal) = first.map(|_| ()) else { return Ok(()) };
        if !matches!(refusal, BackendError::Rejected { status: 412 | 428, .. }) {
            return Err(refusal);
        }
        let fresh = self.bmc.get(path).await.map_err(nothing_sent)?.etag;
        let needed = matches!(refusal, BackendError::Rejected { status: 428, .. });
        for tag in other_tags(etag, fresh, needed) {
            match self.bmc.change(Method::PATCH, path, body, tag.as_deref()).await {
                Ok(_) => return Ok(()),
                Err(error @ BackendError::Rejected { status: 412 | 428, .. }) => refusal = error,
                Err(error) => return Err(error),
            }
        }
        Err(refusal)
    }
}

#[async_trait]
impl PowerControl for RedfishMachine {
    async fn reset(&self, reset: ResetType) -> Result<(), BackendError> {
        let system = self.links_with_reset().await.map_err(nothing_sent)?;
        let values = self.reset_values(&system).await.map_err(nothing_sent)?;
        let wanted = reset.to_string();
        let value = match reset {
            ResetType::On if !values.contains(&wanted) && values.iter().any(|value| value == "ForceOn") => "ForceOn",
            _ => wanted.as_str(),
        };
        let Some(target) = system::reset_action(&system).target else {
            return Err(self.bmc.unsupported("the system does not support reset"));
        };
        if !values.iter().any(|accepted| accepted == value) {
            let list = values.join(", ");
            return Err(self.bmc.unsupported(&format!("it does not accept the reset type {value}; it lists {list}")));
        }
        self.bmc.change(Method::POST, target, &json!({ "ResetType": value }), None).await.map(|_| ())
    }
}

/// Returns true if a failed read does not concern the resource: the BMC or a proxy requests a
/// pause. Status 500 is excluded, because some BMCs always return it for dangling links.
fn passes(error: &BackendError) -> bool {
    error.is_transient() && !matches!(error, BackendError::Rejected { status: 500, .. })
}

/// Returns the entity tags to try after a rejected tag. `needed` is true if the BMC requires a tag.
fn other_tags(refused: Option<&str>, fresh: Option<String>, needed: bool) -> Vec<Option<String>> {
    let strong = fresh.as_deref().and_then(|tag| tag.strip_prefix("W/")).map(str::to_owned);
    let any = needed || (refused.is_none() && fresh.is_none());
    let last = any.then(|| "*".to_owned());
    let mut tags: Vec<Option<String>> = Vec::new();
    for tag in [fresh, strong, last] {
        if tag.as_deref() != refused && !tags.contains(&tag) {
            tags.push(tag);
        }
    }
    tags
}

/// Returns true if a path equals a resource's path or is below it: `/Systems/10` is not below
/// `/Systems/1`.
pub(super) fn is_within(path: &str, resource: &str) -> bool {
    let rest = path.strip_prefix(resource.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Treats a missing collection as empty.
pub(super) fn nothing_there(error: BackendError) -> Result<Vec<String>, BackendError> {
    match error {
        BackendError::Rejected { status: 404 | 405, .. } => Ok(Vec::new()),
        error => Err(error),
    }
}

/// Converts a read error before a change: the change was not sent, so its outcome is certain.
pub(super) fn nothing_sent(error: BackendError) -> BackendError {
    match error {
        BackendError::ReplyLost { address, cause, .. } => BackendError::Unreachable { address, cause },
        other => other,
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

    fn bmc(&self) -> Option<&dyn BmcInspection> {
        Some(self)
    }

    async fn identify(&self) -> Result<HardwareIdentity, BackendError> {
        self.identity_in(&self.system().await?.body).await
    }

    async fn observe(&self) -> Result<MachineView, BackendError> {
        self.view_in(&self.system().await?.body).await
    }

    async fn recognize(&self) -> (Result<HardwareIdentity, BackendError>, Result<MachineView, BackendError>) {
        match self.system().await {
            Ok(system) => (self.identity_in(&system.body).await, self.view_in(&system.body).await),
            Err(error) => (Err(error.clone()), Err(error)),
        }
    }

    async fn late_answer(&self) -> Option<BackendError> {
        let system = self.path.get()?;
        let drives = self.drives.get().map(Vec::as_slice).unwrap_or_default();
        self.bmc.late_answer(|path| is_within(path, system) || drives.iter().any(|drive| is_within(path, drive))).await
    }

    async fn capabilities(&self) -> Result<Capabilities, BackendError> {
        let system = self.links_with_reset().await?;
        let mut capabilities =
            Capabilities { resets: system::resets(&self.reset_values(&system).await?), ..Capabilities::default() };
        let settings = self.settings(&system).await?;
        system::boot_capabilities(&system, settings.as_ref().map(|answer| &answer.body), &mut capabilities);
        capabilities.boot_menu = system::boot_menu(&system).is_some();
        capabilities.media_target = self.media.boot_target.as_ref().map(OneLine::from);
        capabilities.media_slot = self.media.media_slot.as_ref().map(OneLine::from);
        Ok(capabilities)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tasks_of_another_system_are_not_those_of_this_one() {
        for system in ["/redfish/v1/Systems/1", "/redfish/v1/Systems/1/"] {
            for own in ["/redfish/v1/Systems/1", "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset"] {
                assert!(is_within(own, system), "{own} {system}");
            }
            for other in ["/redfish/v1/Systems/10/Actions/ComputerSystem.Reset", "/redfish/v1/Systems/2"] {
                assert!(!is_within(other, system), "{other} {system}");
            }
        }
    }

    #[test]
    fn every_entity_tag_is_tried_once_and_any_where_none_is_given_out() {
        let of = |refused: Option<&str>, fresh: Option<&str>, needed: bool| {
            let tags = other_tags(refused, fresh.map(str::to_owned), needed);
            tags.into_iter().map(|tag| tag.unwrap_or_else(|| "none".to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(of(Some("W/\"1\""), Some("W/\"1\""), false), ["\"1\"", "none"]);
        assert_eq!(of(Some("\"1\""), Some("\"2\""), false), ["\"2\"", "none"]);
        assert_eq!(of(Some("\"1\""), None, false), ["none"]);
        assert_eq!(of(None, None, true), ["*"]);
        assert_eq!(of(None, None, false), ["*"], "412 to a write without a tag");
    }
}
