//! Systems: their representation, the boot override and the reset action.

use std::sync::Arc;

use hyper::header;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::reply::{collection, render, resource};
use super::route::BMC_MANAGER;
use super::{Incoming, Message, Reply};
use crate::bmc::Bmc;
use crate::machine::{BootOverride, Machine, State, Taken, judge};
use crate::personality::{Accepted, AlreadyThere, BootResource, BootRules, MediaPath, SettingsApply, ToldBy};
use crate::words::{BootMode, OverrideEnabled, PowerState, ResetType};

const SYSTEMS: &str = "/redfish/v1/Systems";
const SYSTEM_KIND: &str = "#ComputerSystem.v1_22_0.ComputerSystem";

/// Returns a machine's system path.
pub(crate) fn path(machine: &Machine) -> String {
    format!("{SYSTEMS}/{}", machine.id)
}

/// Returns the `Id` of a machine's manager.
pub(crate) fn manager_id(bmc: &Bmc, machine: &Machine) -> String {
    if bmc.has_node_managers() { machine.id.to_string() } else { BMC_MANAGER.to_owned() }
}

pub(crate) fn timestamp(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

pub(crate) fn list(bmc: &Bmc) -> Value {
    collection(
        SYSTEMS,
        "#ComputerSystemCollection.ComputerSystemCollection",
        "Computer System Collection",
        bmc.systems().iter().map(|machine| path(machine)),
    )
}

/// Returns the system, rendered again after each change.
pub(crate) fn read(bmc: &Bmc, machine: &Machine) -> Reply {
    let mut state = machine.lock();
    if state.rendered.is_none() {
        let value = show(bmc, machine, &state);
        state.rendered = Some(render(&value, bmc.personality.http.etags));
    }
    let (body, etag) = state.rendered.clone().unwrap_or_default();
    drop(state);
    Reply::rendered(200, SYSTEM_KIND, body, etag.as_deref())
}

fn show(bmc: &Bmc, machine: &Machine, state: &State) -> Value {
    let rules = &machine.personality;
    let path = path(machine);
    let mut value = resource(&path, SYSTEM_KIND, &machine.id, &machine.name);
    value["SystemType"] = "Physical".into();
    let identity = &state.identity;
    if let Some(uuid) = identity.uuid.value() {
        value["UUID"] = uuid;
    }
    for (name, text) in [
        ("Manufacturer", &identity.manufacturer),
        ("Model", &identity.model),
        ("SerialNumber", &identity.serial_number),
    ] {
        if let Some(text) = text {
            value[name] = text.as_str().into();
        }
    }
    value["AssetTag"] = state.asset_tag.as_str().into();
    value["LocationIndicatorActive"] = state.indicator.into();
    value["BiosVersion"] = "1.0.0".into();
    value["Status"] = json!({
        "State": if matches!(state.power, PowerState::Off | PowerState::Paused) { "StandbyOffline" } else { "Enabled" },
        "Health": "OK",
    });
    value["PowerState"] = state.power.as_str().into();
    value["ProcessorSummary"] = json!({ "Count": 1, "Model": "Simulated processor" });
    value["Processors"] = json!({ "@odata.id": format!("{path}/Processors") });
    value["EthernetInterfaces"] = json!({ "@odata.id": format!("{path}/EthernetInterfaces") });
    value["MemorySummary"] = json!({ "TotalSystemMemoryGiB": 256 });
    if rules.power.shows_last_reset_time {
        value["LastResetTime"] = timestamp(state.last_reset.wall).into();
    }
    if rules.power.shows_boot_progress {
        value["BootProgress"] = json!({
            "LastState": state.progress.as_str(),
            "LastStateTime": timestamp(state.progress_since.wall),
        });
    }
    if !rules.boot.targets.is_empty() {
        let writable = rules.boot.writable_on != BootResource::Settings;
        value["Boot"] = show_boot(&state.boot, &rules.boot, writable || !rules.boot.settings_list_values);
        if rules.boot.menu {
            value["Boot"]["BootOptions"] = json!({ "@odata.id": format!("{path}/BootOptions") });
        }
    }
    if rules.boot.writable_on != BootResource::System {
        let times = match rules.boot.settings_apply {
            SettingsApply::Immediate => "Immediate",
            SettingsApply::OnReset => "OnReset",
        };
        value["@Redfish.Settings"] = json!({
            "@odata.type": "#Settings.v1_3_5.Settings",
            "SettingsObject": { "@odata.id": format!("{path}/Settings") },
            "SupportedApplyTimes": [times],
        });
    }
    if rules.media.offered_under.contains(&MediaPath::System) {
        value["VirtualMedia"] = json!({ "@odata.id": format!("{path}/VirtualMedia") });
    }
    let manager = manager_id(bmc, machine);
    value["Links"] = json!({ "Chassis": [{ "@odata.id": format!("/redfish/v1/Chassis/{}", machine.id) }] });
    if rules.http.links_managers {
        value["Links"]["ManagedBy"] = json!([{ "@odata.id": format!("/redfish/v1/Managers/{manager}") }]);
    }
    value["Actions"] = json!({ "#ComputerSystem.Reset": show_reset(machine, &path) });
    value
}

fn show_boot(boot: &BootOverride, rules: &BootRules, writable: bool) -> Value {
    let mut value = json!({
        "BootSourceOverrideEnabled": boot.enabled.as_str(),
        "BootSourceOverrideTarget": boot.target.as_str(),
    });
    if !rules.modes.is_empty() {
        value["BootSourceOverrideMode"] = boot.mode.as_str().into();
    }
    if rules.http_boot_uri {
        value["HttpBootUri"] = boot.http_boot_uri.as_deref().map_or(Value::Null, Into::into);
    }
    if rules.menu {
        value["UefiTargetBootSourceOverride"] = boot.uefi_target.as_deref().map_or(Value::Null, Into::into);
        value["BootNext"] = boot.boot_next.as_deref().map_or(Value::Null, Into::into);
    }
    if writable {
        let words = |words: Vec<&str>| Value::from(words);
        value["BootSourceOverrideTarget@Redfish.AllowableValues"] =
            words(rules.targets.iter().map(|target| target.as_str()).collect());
        value["BootSourceOverrideEnabled@Redfish.AllowableValues"] =
            words(rules.enabled.iter().copied().map(OverrideEnabled::as_str).collect());
        if !rules.modes.is_empty() {
            value["BootSourceOverrideMode@Redfish.AllowableValues"] =
                words(rules.modes.iter().copied().map(BootMode::as_str).collect());
        }
    }
    value
}

fn show_reset(machine: &Machine, path: &str) -> Value {
    let rules = &machine.personality.power;
    let mut action = json!({ "target": format!("{path}/Actions/ComputerSystem.Reset") });
    match rules.reset_types_told_by {
        ToldBy::AllowableValues => {
            action["ResetType@Redfish.AllowableValues"] = json!(rules.reset_types);
        }
        ToldBy::ActionInfo => {
            action["@Redfish.ActionInfo"] = format!("{path}/ResetActionInfo").into();
        }
        ToldBy::Nothing => {}
    }
    action
}

pub(crate) fn reset_info(machine: &Machine) -> Value {
    let path = format!("{}/ResetActionInfo", path(machine));
    let mut info = resource(&path, "#ActionInfo.v1_4_2.ActionInfo", "ResetActionInfo", "Reset Action Info");
    info["Parameters"] = json!([{
        "Name": "ResetType",
        "Required": true,
        "DataType": "String",
        "AllowableValues": machine.personality.power.reset_types,
    }]);
    info
}

/// Returns the Settings object: the system's values after the next boot.
pub(crate) fn settings(machine: &Machine) -> Value {
    let path = format!("{}/Settings", path(machine));
    let mut value = resource(&path, SYSTEM_KIND, "Settings", "Computer System Settings");
    let state = machine.lock();
    let boot = state.pending_boot.as_ref().unwrap_or(&state.boot);
    let rules = &machine.personality.boot;
    value["Boot"] = show_boot(boot, rules, rules.settings_list_values);
    value
}

/// Returns the firmware's boot menu: the disk and each filled virtual drive.
fn menu(machine: &Machine) -> Vec<(String, String, String)> {
    let disk = ("Boot0001".to_owned(), "installed system".to_owned(), "HD(1,GPT)".to_owned());
    let state = machine.lock();
    let filled = state.media.iter().filter(|media| media.inserted.is_some());
    let drive = |device: usize| {
        (crate::machine::menu_entry(device), "USB device".to_owned(), crate::machine::device_path(device))
    };
    std::iter::once(disk).chain(filled.map(|media| drive(media.device))).collect()
}

pub(crate) fn boot_options(machine: &Machine) -> Value {
    let path = format!("{}/BootOptions", path(machine));
    let members = menu(machine).into_iter().map(|(id, ..)| format!("{path}/{id}")).collect::<Vec<_>>();
    collection(&path, "#BootOptionCollection.BootOptionCollection", "Boot Options", members)
}

pub(crate) fn boot_option(machine: &Machine, id: &str, at: &str) -> Result<Value, Box<Reply>> {
    let found = menu(machine).into_iter().find(|(entry, ..)| entry == id);
    let Some((entry, name, device)) = found else {
        return Err(Box::new(Reply::error(404, &[Message::missing_resource(at)])));
    };
    let path = format!("{}/BootOptions/{entry}", path(machine));
    let mut value = resource(&path, "#BootOption.v1_0_4.BootOption", &entry, &name);
    value["BootOptionReference"] = entry.into();
    value["DisplayName"] = name.into();
    value["UefiDevicePath"] = device.into();
    value["BootOptionEnabled"] = true.into();
    Ok(value)
}

pub(crate) fn processors(machine: &Machine) -> Value {
    let path = format!("{}/Processors", path(machine));
    let members = vec![format!("{path}/1")];
    collection(&path, "#ProcessorCollection.ProcessorCollection", "Processors", members)
}

/// Ironic's inspection reads its kind, architecture and threads.
pub(crate) fn processor(machine: &Machine) -> Value {
    let path = format!("{}/Processors/1", path(machine));
    let mut value = resource(&path, "#Processor.v1_0_0.Processor", "1", "Processor 1");
    value["ProcessorType"] = "CPU".into();
    value["ProcessorArchitecture"] = "x86".into();
    value["InstructionSet"] = "x86-64".into();
    value["TotalCores"] = 16.into();
    value["TotalThreads"] = 32.into();
    value["Status"] = json!({ "State": "Enabled", "Health": "OK" });
    value
}

pub(crate) fn ethernet_interfaces(machine: &Machine) -> Value {
    let path = format!("{}/EthernetInterfaces", path(machine));
    let members = vec![format!("{path}/1")];
    collection(&path, "#EthernetInterfaceCollection.EthernetInterfaceCollection", "Ethernet interfaces", members)
}

/// Ironic's inspection creates a port for its address, which must be unique among all nodes.
pub(crate) fn ethernet_interface(machine: &Machine) -> Value {
    let path = format!("{}/EthernetInterfaces/1", path(machine));
    let mut value = resource(&path, "#EthernetInterface.v1_4_1.EthernetInterface", "1", "Ethernet interface 1");
    let identity = machine.lock().identity.uuid.value().unwrap_or_default();
    let unique = Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("{} {identity}", machine.name).as_bytes());
    // The first octet marks a locally administered address (IEEE 802).
    let octets = std::iter::once(&2).chain(unique.as_bytes()).take(6);
    let address = octets.map(|octet| format!("{octet:02x}")).collect::<Vec<_>>().join(":");
    value["MACAddress"] = address.as_str().into();
    value["PermanentMACAddress"] = address.into();
    value["SpeedMbps"] = 25_000.into();
    value["Status"] = json!({ "State": "Enabled", "Health": "OK" });
    value
}

/// Properties that clients can read but not write.
const READ_ONLY: &[&str] = &[
    "Id",
    "Name",
    "UUID",
    "Manufacturer",
    "Model",
    "SerialNumber",
    "PowerState",
    "BiosVersion",
    "Status",
    "SystemType",
    "LastResetTime",
    "BootProgress",
    "Links",
    "Actions",
    "VirtualMedia",
    "ProcessorSummary",
    "Processors",
    "EthernetInterfaces",
    "MemorySummary",
];

/// Validates the members of a PATCH except `Boot`.
fn judge_others(members: &Map<String, Value>, boot: &[Message]) -> Vec<Message> {
    let mut faults = boot.to_vec();
    for (name, value) in members {
        let fault = match (name.as_str(), value) {
            ("Boot", _) | ("AssetTag", Value::String(_)) | ("LocationIndicatorActive", Value::Bool(_)) => continue,
            ("AssetTag" | "LocationIndicatorActive", _) => Message::property_value_type(value, name),
            _ if name.contains('@') => continue,
            _ if READ_ONLY.contains(&name.as_str()) => Message::property_not_writable(name),
            _ => Message::property_unknown(name),
        };
        faults.push(fault.about(&format!("/{name}")));
    }
    faults
}

fn changes_something(members: &Map<String, Value>) -> Result<(), Box<Reply>> {
    let message = if members.is_empty() {
        Message::empty_json()
    } else if members.keys().all(|name| name.contains('@')) {
        Message::no_operation()
    } else {
        return Ok(());
    };
    Err(Box::new(Reply::error(400, &[message])))
}

fn judged_boot(
    current: &BootOverride,
    members: &Map<String, Value>,
    rules: &BootRules,
) -> Result<Option<BootOverride>, Vec<Message>> {
    match members.get("Boot") {
        None => Ok(None),
        Some(_) if rules.targets.is_empty() => Err(vec![Message::property_unknown("Boot")]),
        Some(wanted) => judge(current, wanted, rules).map(Some),
    }
}

pub(crate) fn patch(bmc: &Bmc, machine: &Arc<Machine>, request: &Incoming) -> Result<Reply, Box<Reply>> {
    let members = request.members()?;
    changes_something(&members)?;
    let rules = &machine.personality.boot;
    {
        let mut state = machine.lock();
        let boot = if rules.writable_on == BootResource::Settings && members.contains_key("Boot") {
            Err(vec![Message::property_not_writable("Boot").about("/Boot")])
        } else {
            judged_boot(&state.boot, &members, rules)
        };
        let faults = judge_others(&members, boot.as_ref().err().map_or(&[], Vec::as_slice));
        if !faults.is_empty() {
            return Err(Box::new(Reply::error(400, &faults)));
        }
        if let Ok(Some(next)) = boot {
            state.set_override(next, SettingsApply::Immediate);
        }
        if let Some(Value::String(tag)) = members.get("AssetTag") {
            state.asset_tag.clone_from(tag);
        }
        if let Some(Value::Bool(active)) = members.get("LocationIndicatorActive") {
            state.indicator = *active;
        }
        state.rendered = None;
    }
    machine.changed();
    Ok(read(bmc, machine))
}

pub(crate) fn patch_settings(bmc: &Bmc, machine: &Arc<Machine>, request: &Incoming) -> Result<Reply, Box<Reply>> {
    let members = request.members()?;
    changes_something(&members)?;
    let rules = &machine.personality.boot;
    {
        let mut state = machine.lock();
        let current = state.pending_boot.clone().unwrap_or_else(|| state.boot.clone());
        let boot = judged_boot(&current, &members, rules);
        let mut faults = boot.as_ref().err().cloned().unwrap_or_default();
        for name in members.keys() {
            if name != "Boot" && !name.contains('@') {
                faults.push(Message::property_unknown(name).about(&format!("/{name}")));
            }
        }
        if !faults.is_empty() {
            return Err(Box::new(Reply::error(400, &faults)));
        }
        if let Ok(Some(next)) = boot {
            state.set_override(next, rules.settings_apply);
        }
    }
    machine.changed();
    Ok(Reply::resource(200, &settings(machine), bmc.personality.http.etags))
}

pub(crate) fn reset(bmc: &Arc<Bmc>, machine: &Arc<Machine>, request: &Incoming) -> Result<Reply, Box<Reply>> {
    const ACTION: &str = "ComputerSystem.Reset";
    let members = request.members()?;
    let refuse = |status, message| Err(Box::new(Reply::error(status, &[message])));
    if let Some(unknown) = members.keys().find(|name| *name != "ResetType" && !name.contains('@')) {
        return refuse(400, Message::parameter_unknown(ACTION, unknown));
    }
    let Some(wanted) = members.get("ResetType") else {
        return refuse(400, Message::parameter_missing(ACTION, "ResetType"));
    };
    let rules = &machine.personality.power;
    let Some(reset) = wanted.as_str().and_then(ResetType::parse).filter(|reset| rules.reset_types.contains(reset))
    else {
        return refuse(400, Message::parameter_value(ACTION, "ResetType", wanted));
    };
    let conflict = || Message::parameter_conflict("ResetType", reset.as_str());
    let busy = {
        let state = machine.lock();
        state.busy_until.is_some_and(|until| state.now < until)
    };
    if busy {
        return refuse(409, Message::general("The operation is not accepted while the power changes."));
    }
    match machine.reset(reset) {
        Taken::Conflict => refuse(409, conflict()),
        Taken::AlreadyThere => match rules.already_there {
            AlreadyThere::NoContent => Ok(Reply::empty(204)),
            AlreadyThere::Conflict => refuse(409, conflict()),
            AlreadyThere::BadRequest => refuse(400, conflict()),
        },
        Taken::Accepted => Ok(match rules.accepted {
            Accepted::NoContent => Reply::empty(204),
            Accepted::Ok => Reply::json(200, &Message::error_body(&[Message::success()])),
            Accepted::Task => {
                let id = bmc.tasks.start(format!("{reset} of {}", machine.id), machine);
                let mut reply = super::tasks::accepted(bmc, id);
                reply.set(header::LOCATION, &super::tasks::monitor_path(id));
                reply
            }
        }),
    }
}
