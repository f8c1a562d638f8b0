//! The boot override of a system and the firmware's boot menu.

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use crate::{
    backend::{BackendError, BootControl},
    maintenance::machine::{BootOption, BootOverride},
};

use super::{
    answer::RedfishResponse,
    machine::{RedfishMachine, nothing_sent, nothing_there},
    system,
};

/// Entries of the firmware's boot menu that are read.
const MOST_OPTIONS: usize = 40;

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
                // Listed and yet not writable: some machines take the override only in the other
                // place.
                Err(error @ BackendError::Rejected { status: 400 | 405, transient: false, .. }) => refused = error,
                result => return result,
            }
        }
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
    async fn write_override(
        &self,
        object: &RedfishResponse,
        path: &str,
        wanted: &BootOverride,
        clear_http_boot_uri: bool,
    ) -> Result<(), BackendError> {
        let found = system::boot_override(&object.body);
        let mut boot = Map::new();
        let mut set = |name: &str, wanted: &Option<String>, found: &Option<String>| {
            if let Some(value) = wanted.as_ref().filter(|value| Some(*value) != found.as_ref()) {
                // An empty name of an entry clears it.
                boot.insert(name.to_owned(), if value.is_empty() { Value::Null } else { json!(value) });
            }
        };
        set("BootSourceOverrideTarget", &wanted.target, &found.target);
        set("BootSourceOverrideEnabled", &wanted.enabled, &found.enabled);
        set("BootSourceOverrideMode", &wanted.mode, &found.mode);
        set("HttpBootUri", &wanted.http_boot_uri, &found.http_boot_uri);
        set("UefiTargetBootSourceOverride", &wanted.uefi_target, &found.uefi_target);
        set("BootNext", &wanted.boot_next, &found.boot_next);
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
        let mut result = self.patch(path, &json!({ "Boot": boot }), etag).await;
        let refused = |result: &Result<(), BackendError>| {
            matches!(result, Err(BackendError::Rejected { status: 400, transient: false, .. }))
        };
        if refused(&result) && clear {
            // Some machines want an empty text instead of null.
            boot.insert("HttpBootUri".to_owned(), json!(""));
            result = self.patch(path, &json!({ "Boot": boot }), etag).await;
        }
        if refused(&result) {
            // What can only be set together is sent together, once: AMI wants all three, Supermicro
            // always Enabled.
            let mut whole = boot.clone();
            let mut add = |name: &str, wanted: &Option<String>, found: &Option<String>| {
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
        result
    }
}
