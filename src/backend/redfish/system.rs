//! Interprets a `ComputerSystem` (DSP0268): state and capabilities.

use serde_json::Value;

use crate::{
    maintenance::machine::{
        BootOption, BootOverride, Capabilities, MachineDescription, MachineView, PowerState, ResetType,
    },
    shown::{AsRaw, OneLine},
};

fn text(value: &Value) -> Option<OneLine> {
    value.as_str().map(OneLine::from)
}

fn texts<T: for<'a> From<&'a str>>(value: &Value) -> Vec<T> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(T::from).collect()
}

fn power(system: &Value) -> PowerState {
    match system["PowerState"].as_str() {
        Some("On") => PowerState::On,
        Some("Off") => PowerState::Off,
        Some("PoweringOn") => PowerState::PoweringOn,
        Some("PoweringOff") => PowerState::PoweringOff,
        Some("Paused") => PowerState::Paused,
        _ => PowerState::Unknown,
    }
}

/// Returns true if an object is a resource: it has at least one common property (DSP0266, "Common
/// properties").
pub(super) fn is_resource(object: &Value) -> bool {
    ["@odata.id", "Id", "Name"].iter().any(|name| object.get(name).is_some_and(Value::is_string))
}

/// Returns true if an object lists override properties.
pub(super) fn lists_override(object: &Value) -> bool {
    let boot = &object["Boot"];
    boot.get("BootSourceOverrideTarget").is_some() || boot.get("BootSourceOverrideEnabled").is_some()
}

/// Returns the settings object's path, if the system has one.
pub(super) fn settings_path(system: &Value) -> Option<&str> {
    system["@Redfish.Settings"]["SettingsObject"]["@odata.id"].as_str()
}

pub(super) fn boot_menu(system: &Value) -> Option<&str> {
    system["Boot"]["BootOptions"]["@odata.id"].as_str()
}

pub(super) fn boot_option(option: &Value) -> BootOption {
    BootOption {
        reference: text(&option["BootOptionReference"]).or_else(|| text(&option["Id"])).unwrap_or_default(),
        name: text(&option["DisplayName"]).or_else(|| text(&option["Name"])).unwrap_or_default(),
        path: text(&option["UefiDevicePath"]).filter(|path| !path.is_empty()),
    }
}

/// Returns the override that an object lists.
pub(super) fn boot_override(object: &Value) -> BootOverride {
    let boot = &object["Boot"];
    BootOverride {
        ignition: None,
        external: false,
        // Other values could not be restored.
        enabled: text(&boot["BootSourceOverrideEnabled"]).filter(|word| is_known(word.raw())),
        target: text(&boot["BootSourceOverrideTarget"]),
        mode: text(&boot["BootSourceOverrideMode"]),
        http_boot_uri: text(&boot["HttpBootUri"]).filter(|uri| !uri.is_empty()),
        uefi_target: text(&boot["UefiTargetBootSourceOverride"]).filter(|path| !path.is_empty()),
        boot_next: text(&boot["BootNext"]).filter(|option| !option.is_empty()),
    }
}

/// Returns true for a valid `BootSourceOverrideEnabled` value.
fn is_known(enabled: &str) -> bool {
    ["Disabled", "Once", "Continuous"].contains(&enabled)
}

/// Returns true if an object has an override with an unknown state or target.
///
/// DSP2046, ComputerSystem v1.x: `BootSourceOverrideEnabled` is `Disabled`, `Once` or `Continuous`,
/// and null if unknown.
fn is_unclear(object: &Value) -> bool {
    let Some(boot) = object.get("Boot") else { return false };
    if !lists_override(object) {
        return boot.is_null();
    }
    let target = boot["BootSourceOverrideTarget"].as_str();
    match boot["BootSourceOverrideEnabled"].as_str() {
        Some("Disabled") => false,
        Some("Once" | "Continuous") => target.is_none(),
        Some(_) => true,
        None => target.is_some_and(|target| target != "None"),
    }
}

/// Returns true if an object's own override affects a future boot.
fn is_armed(object: &Value) -> bool {
    let boot = boot_override(object);
    matches!(boot.enabled.as_raw(), Some("Once" | "Continuous"))
        && boot.target.as_raw().is_some_and(|target| target != "None")
}

/// Returns true if only the system itself shows a future override, but the settings do not.
pub(super) fn hides_armed(system: &Value, settings: &Value) -> bool {
    is_armed(system) && !is_armed(settings)
}

/// Returns true for a meaningless time: Dell reports the year 0 and BlueField the epoch, whatever
/// happened.
fn is_constant(time: &str) -> bool {
    ["0000-", "0001-", "1970-01-01"].iter().any(|start| time.starts_with(start))
}

/// Converts a system into a view. `settings` is the separate object with the override, if there is
/// one.
pub(super) fn view(system: &Value, settings: Option<&Value>) -> MachineView {
    let boot = settings.unwrap_or(system);
    MachineView {
        power: power(system),
        boot_progress: text(&system["BootProgress"]["LastState"]),
        last_reset: text(&system["LastResetTime"]).filter(|at| !is_constant(at.raw())),
        boot: lists_override(boot).then(|| boot_override(boot)),
        boot_unclear: is_unclear(boot),
        health: text(&system["Status"]["Health"]),
        description: MachineDescription {
            manufacturer: text(&system["Manufacturer"]),
            model: text(&system["Model"]),
            serial_number: text(&system["SerialNumber"]),
            host_name: text(&system["HostName"]).filter(|name| !name.is_empty()),
        },
    }
}

/// The reset action: its target, its listed values, and the path of its `ActionInfo`.
pub(super) struct ResetAction<'a> {
    pub(super) target: Option<&'a str>,
    pub(super) values: Option<Vec<String>>,
    pub(super) action_info: Option<&'a str>,
}

pub(super) fn reset_action(system: &Value) -> ResetAction<'_> {
    let action = &system["Actions"]["#ComputerSystem.Reset"];
    let values = &action["ResetType@Redfish.AllowableValues"];
    ResetAction {
        target: action["target"].as_str(),
        values: values.is_array().then(|| texts(values)),
        action_info: action["@Redfish.ActionInfo"].as_str(),
    }
}

/// Returns the `ResetType` values in an `ActionInfo`.
pub(super) fn action_info_values(info: &Value) -> Vec<String> {
    info["Parameters"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|parameter| parameter["Name"] == "ResetType")
        .flat_map(|parameter| texts(&parameter["AllowableValues"]))
        .collect()
}

/// Converts a list of values into power changes.
pub(super) fn resets(values: &[String]) -> Vec<ResetType> {
    let mut resets = Vec::new();
    for value in values {
        let reset = match value.as_str() {
            // Some machines support only the forced power-on.
            "On" | "ForceOn" => ResetType::On,
            "GracefulShutdown" => ResetType::GracefulShutdown,
            "ForceOff" => ResetType::ForceOff,
            "GracefulRestart" => ResetType::GracefulRestart,
            "ForceRestart" => ResetType::ForceRestart,
            "PowerCycle" => ResetType::PowerCycle,
            "Nmi" => ResetType::Nmi,
            _ => continue,
        };
        if !resets.contains(&reset) {
            resets.push(reset);
        }
    }
    resets
}

/// Adds the boot capabilities that the override's object lists. The system supplies values that the
/// settings omit: GH200's and BlueField's settings do not list any.
pub(super) fn boot_capabilities(system: &Value, settings: Option<&Value>, capabilities: &mut Capabilities) {
    let object = settings.unwrap_or(system);
    let boot = &object["Boot"];
    if !lists_override(object) {
        return;
    }
    let listed = |name: &str| {
        let name = format!("{name}@Redfish.AllowableValues");
        let own = texts(&boot[&name]);
        if own.is_empty() { texts(&system["Boot"][&name]) } else { own }
    };
    capabilities.boot_targets = listed("BootSourceOverrideTarget");
    if capabilities.boot_targets.is_empty() {
        // Unlisted values: the minimum that every machine with an override supports (DSP0268,
        // BootSource).
        capabilities.boot_targets = ["None", "Pxe", "Cd", "Hdd"].map(OneLine::from).to_vec();
        if boot.get("HttpBootUri").is_some() {
            capabilities.boot_targets.push("UefiHttp".into());
        }
    }
    capabilities.boot_enabled = listed("BootSourceOverrideEnabled");
    capabilities.boot_modes = listed("BootSourceOverrideMode");
    capabilities.http_boot_uri = boot.get("HttpBootUri").is_some();
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_words_for_on_are_one() {
        let listed = ["On", "ForceOff", "ForceOn", "PushPowerButton"].map(str::to_owned);
        assert_eq!(resets(&listed), [ResetType::On, ResetType::ForceOff]);
    }

    #[test]
    fn the_override_is_read_where_it_is_listed() {
        let system = json!({"PowerState": "On", "Boot": {"BootOrder": []}});
        let settings = json!({"Boot": {"BootSourceOverrideTarget": "Pxe", "BootSourceOverrideEnabled": "Once"}});
        assert_eq!(view(&system, None).boot, None);
        assert_eq!(view(&system, Some(&settings)).boot.unwrap().target.as_raw(), Some("Pxe"));
    }

    #[test]
    fn an_empty_answer_is_no_system() {
        for (object, is) in [
            (Value::Null, false),
            (json!({}), false),
            (json!([]), false),
            (json!({"PowerState": "On"}), false),
            (json!({"Id": "1"}), true),
            (json!({"@odata.id": "/redfish/v1/Systems/1"}), true),
        ] {
            assert_eq!(is_resource(&object), is, "{object}");
        }
    }

    #[test]
    fn settings_hide_only_an_override_to_come_of_the_system() {
        let of = |enabled: &str, target: &str| json!({"Boot": {"BootSourceOverrideTarget": target, "BootSourceOverrideEnabled": enabled}});
        let none = of("Disabled", "None");
        assert!(hides_armed(&of("Once", "Pxe"), &none));
        assert!(hides_armed(&of("Continuous", "Cd"), &of("Once", "None")));
        assert!(!hides_armed(&of("Once", "Pxe"), &of("Once", "Cd")), "the pending override is visible");
        for idle in [of("Disabled", "Pxe"), of("Once", "None"), json!({"Boot": {}}), json!({})] {
            assert!(!hides_armed(&idle, &none), "{idle}");
        }
    }
}
