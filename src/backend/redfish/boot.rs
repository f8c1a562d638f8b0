//! A system's boot override and the firmware's boot menu.

use std::sync::PoisonError;

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use crate::{
    backend::{BackendError, BootControl},
    maintenance::machine::{BootOption, BootOverride},
    shown::OneLine,
};

use super::{
    answer::RedfishResponse,
    machine::{RedfishMachine, nothing_sent, nothing_there},
    system,
};

/// The maximum number of boot menu entries to read.
const MOST_OPTIONS: usize = 40;

/// The object that accepted the last override write, if both system and settings list an override.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverrideHolder {
    Settings,
    System,
}

struct OverrideObject<'a> {
    holder: OverrideHolder,
    object: &'a RedfishResponse,
    path: &'a str,
    /// The current values: a write contains only differences.
    found: BootOverride,
}

#[async_trait]
impl BootControl for RedfishMachine {
    async fn set_boot_override(&self, wanted: &BootOverride, clear_http_boot_uri: bool) -> Result<(), BackendError> {
        let system = self.system().await.map_err(nothing_sent)?;
        let settings = self.settings(&system.body).await.map_err(nothing_sent)?;
        let viewed = self.viewed(&system.body, settings.as_ref().map(|answer| &answer.body));
        let hidden = settings.is_some() && viewed.is_none();
        // The settings are compared with the viewed override. Compared with the system's own
        // override, they could seem to match already.
        let found = system::boot_override(viewed.unwrap_or(&system.body));
        let mut objects = Vec::new();
        if let (Some(settings), Some(path)) = (&settings, system::settings_path(&system.body)) {
            objects.push(OverrideObject { holder: OverrideHolder::Settings, object: settings, path, found });
        }
        if let Some(path) = self.path.get().filter(|_| system::lists_override(&system.body)) {
            let found = system::boot_override(&system.body);
            objects.push(OverrideObject { holder: OverrideHolder::System, object: &system, path, found });
        }
        let is_again = self.is_repeated(wanted);
        // The system ends an override that it armed itself. A repeated write failed in the first
        // object.
        if hidden || is_again {
            objects.reverse();
        }
        let several = objects.len() > 1;
        let mut refused = self.bmc.unsupported("the machine does not support boot overrides");
        for place in &objects {
            match self.write_override(place, wanted, clear_http_boot_uri, is_again).await {
                // Some machines list the override in both objects but accept it in only one.
                Err(error @ BackendError::Rejected { status: 400 | 405, transient: false, .. }) => refused = error,
                Ok(sent) => {
                    if sent && several {
                        self.is_held_by(Some(place.holder));
                    }
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        // The next write tries both again.
        self.is_held_by(None);
        Err(refused)
    }

    async fn boot_menu(&self) -> Result<Vec<BootOption>, BackendError> {
        let system = self.links().await?;
        let Some(collection) = system::boot_menu(&system) else { return Ok(Vec::new()) };
        let mut menu = Vec::new();
        for path in self.members(collection).await.or_else(nothing_there)?.iter().take(MOST_OPTIONS) {
            match self.bmc.get(path).await {
                Ok(option) => menu.push(system::boot_option(&option.body)),
                // Firmware rewrites the menu while it boots.
                Err(BackendError::Rejected { status: 404, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(menu)
    }
}

impl RedfishMachine {
    /// Returns true if this process wrote the same override last.
    fn is_repeated(&self, wanted: &BootOverride) -> bool {
        let mut last = self.last_override.lock().unwrap_or_else(PoisonError::into_inner);
        last.replace(wanted.clone()).as_ref() == Some(wanted)
    }

    fn is_held_by(&self, holder: Option<OverrideHolder>) {
        *self.override_holder.lock().unwrap_or_else(PoisonError::into_inner) = holder;
    }

    /// Returns the object that accepted this process's last override write; `None` if unknown.
    pub(super) fn override_holder(&self) -> Option<OverrideHolder> {
        *self.override_holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the settings if they show the effective override; `None` if the system does. Before
    /// its first write, a process cannot decide which object the firmware uses. So settings without
    /// an override never hide an override armed at the system.
    pub(super) fn viewed<'a>(&self, system: &Value, settings: Option<&'a Value>) -> Option<&'a Value> {
        settings.filter(|settings| match self.override_holder() {
            Some(holder) => holder == OverrideHolder::Settings,
            None => !system::hides_armed(system, settings),
        })
    }

    /// Writes the differences into one object. Returns false without a request if both are equal.
    async fn write_override(
        &self,
        place: &OverrideObject<'_>,
        wanted: &BootOverride,
        clear_http_boot_uri: bool,
        is_again: bool,
    ) -> Result<bool, BackendError> {
        let OverrideObject { object, path, found, .. } = place;
        let clear = clear_http_boot_uri && found.http_boot_uri.is_some();
        let mut boot = changes(wanted, found, clear);
        if boot.is_empty() {
            return Ok(false);
        }
        if clear && is_again {
            // The BMC accepted null, or failed at it, but kept the address.
            boot.insert("HttpBootUri".to_owned(), json!(""));
        }
        let etag = object.etag.as_deref();
        let mut result = self.patch(path, &json!({ "Boot": boot }), etag).await;
        let refused = |result: &Result<(), BackendError>| {
            matches!(result, Err(BackendError::Rejected { status: 400, transient: false, .. }))
        };
        if refused(&result) && clear && !is_again {
            // Some machines require an empty string instead of null.
            boot.insert("HttpBootUri".to_owned(), json!(""));
            result = self.patch(path, &json!({ "Boot": boot }), etag).await;
        }
        if refused(&result) {
            // Some properties must be sent together: AMI requires all three, Supermicro always
            // requires Enabled.
            let mut whole = boot.clone();
            let mut add = |name: &str, wanted: &Option<OneLine>, found: &Option<OneLine>| {
                if let Some(value) = wanted.as_ref().or(found.as_ref()) {
                    whole.entry(name).or_insert_with(|| json!(value));
                }
            };
            add("BootSourceOverrideTarget", &wanted.target, &found.target);
            add("BootSourceOverrideEnabled", &wanted.enabled, &found.enabled);
            add("BootSourceOverrideMode", &wanted.mode, &found.mode);
            if whole != boot {
                result = self.patch(path, &json!({ "Boot": whole }), etag).await;
            }
        }
        for boot in endings(&boot) {
            if !refused(&result) {
                break;
            }
            result = self.patch(path, &json!({ "Boot": boot }), etag).await;
        }
        result.map(|()| true)
    }
}

/// Returns the properties to write.
fn changes(wanted: &BootOverride, found: &BootOverride, clear_http_boot_uri: bool) -> Map<String, Value> {
    let mut boot = Map::new();
    let mut set = |name: &str, wanted: &Option<OneLine>, found: &Option<OneLine>| {
        if let Some(value) = wanted.as_ref().filter(|value| Some(*value) != found.as_ref()) {
            // An empty entry name clears the property.
            boot.insert(name.to_owned(), if value.is_empty() { Value::Null } else { json!(value) });
        }
    };
    set("BootSourceOverrideTarget", &wanted.target, &found.target);
    set("BootSourceOverrideEnabled", &wanted.enabled, &found.enabled);
    set("BootSourceOverrideMode", &wanted.mode, &found.mode);
    set("HttpBootUri", &wanted.http_boot_uri, &found.http_boot_uri);
    set("UefiTargetBootSourceOverride", &wanted.uefi_target, &found.uefi_target);
    set("BootNext", &wanted.boot_next, &found.boot_next);
    // A target that was already consumed is armed again only if both properties are sent.
    if boot.contains_key("BootSourceOverrideEnabled")
        && let Some(target) = wanted.target.as_ref().filter(|target| *target != "None")
    {
        boot.insert("BootSourceOverrideTarget".to_owned(), json!(target));
    }
    if clear_http_boot_uri {
        boot.insert("HttpBootUri".to_owned(), Value::Null);
    }
    boot
}

/// Returns single-property writes that end an override after a combined write was rejected. iLO
/// accepts `Enabled` only together with a target other than `None`, and ends the override by
/// either. The other properties are written after the override has ended.
fn endings(boot: &Map<String, Value>) -> Vec<Value> {
    let target = boot.get("BootSourceOverrideTarget");
    if boot.get("BootSourceOverrideEnabled").is_none_or(|enabled| enabled != "Disabled") {
        return Vec::new();
    }
    let mut endings = vec![json!({ "BootSourceOverrideEnabled": "Disabled" })];
    if target.is_none_or(|target| target == "None") {
        endings.push(json!({ "BootSourceOverrideTarget": "None" }));
    }
    endings.retain(|ending| ending.as_object() != Some(boot));
    endings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_is_ended_by_either_property_where_both_are_refused() {
        let of = |boot: Value| endings(boot.as_object().unwrap());
        let enabled = json!({"BootSourceOverrideEnabled": "Disabled"});
        let target = json!({"BootSourceOverrideTarget": "None"});
        let both = json!({"BootSourceOverrideEnabled": "Disabled", "BootSourceOverrideTarget": "None"});
        assert_eq!(of(both), [enabled.clone(), target.clone()]);
        assert_eq!(of(enabled.clone()), std::slice::from_ref(&target), "it was sent alone already");
        let leftover = json!({"BootSourceOverrideEnabled": "Disabled", "BootSourceOverrideTarget": "Pxe"});
        assert_eq!(of(leftover), [enabled]);
        let armed = json!({"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"});
        assert!(of(armed).is_empty() && of(target).is_empty(), "nothing is ended");
    }
}
