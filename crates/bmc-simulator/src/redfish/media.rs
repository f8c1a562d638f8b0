//! Virtual media.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::reply::{collection, resource};
use super::{Incoming, Message, Reply, systems};
use crate::bmc::Bmc;
use crate::machine::{Inserted, Machine};
use crate::personality::MediaPath;

fn base(bmc: &Bmc, under: MediaPath, machine: &Machine) -> String {
    match under {
        MediaPath::System => format!("{}/VirtualMedia", systems::path(machine)),
        MediaPath::Manager => format!("/redfish/v1/Managers/{}/VirtualMedia", systems::manager_id(bmc, machine)),
    }
}

pub(crate) fn list(bmc: &Bmc, under: MediaPath, machine: &Machine) -> Value {
    let base = base(bmc, under, machine);
    collection(
        &base,
        "#VirtualMediaCollection.VirtualMediaCollection",
        "Virtual Media Collection",
        machine.personality.media.devices.iter().map(|device| format!("{base}/{}", device.id)),
    )
}

pub(crate) fn read(bmc: &Bmc, under: MediaPath, machine: &Machine, device: usize) -> Value {
    let rules = &machine.personality.media;
    let about = &rules.devices[device];
    let path = format!("{}/{}", base(bmc, under, machine), about.id);
    let mut value = resource(&path, "#VirtualMedia.v1_6_3.VirtualMedia", &about.id, "Virtual Media");
    // Gigabyte does not list any.
    if !about.media_types.is_empty() {
        value["MediaTypes"] = json!(about.media_types);
    }
    let state = machine.lock();
    let media = &state.media[device];
    let inserted = media.inserted.as_ref().filter(|inserted| inserted.shown_from <= state.now);
    let image = inserted.map(|inserted| &inserted.image).or(media.stale_image.as_ref());
    let text = |text: Option<&String>| text.map_or(Value::Null, |text| text.as_str().into());
    if rules.shows_image {
        value["Image"] = text(image);
    }
    value["ImageName"] = image.and_then(|image| image.rsplit('/').next()).map_or(Value::Null, Into::into);
    value["Inserted"] = inserted.is_some().into();
    value["ConnectedVia"] = if inserted.is_some() { "URI" } else { "NotConnected" }.into();
    value["WriteProtected"] = inserted.is_none_or(|inserted| inserted.write_protected).into();
    value["TransferProtocolType"] = text(inserted.and_then(|inserted| inserted.transfer_protocol.as_ref()));
    value["UserName"] = text(inserted.and_then(|inserted| inserted.user_name.as_ref()));
    value["Password"] = Value::Null;
    if !rules.by_patch {
        value["Actions"] = json!({
            "#VirtualMedia.InsertMedia": { "target": format!("{path}/Actions/VirtualMedia.InsertMedia") },
            "#VirtualMedia.EjectMedia": { "target": format!("{path}/Actions/VirtualMedia.EjectMedia") },
        });
    }
    value
}

/// Fills or empties a device without actions.
pub(crate) fn patch(machine: &Arc<Machine>, device: usize, request: &Incoming) -> Result<Reply, Box<Reply>> {
    let members = request.members()?;
    let rules = &machine.personality.media;
    if members.get("Image").is_some_and(Value::is_null) || members.get("Inserted") == Some(&Value::Bool(false)) {
        machine.lock().eject(device, rules);
    } else {
        let inserted = judge(machine, &members).map_err(|faults| Box::new(Reply::error(400, &faults)))?;
        machine.lock().insert(device, rules, inserted);
    }
    machine.changed();
    Ok(Reply::empty(204))
}

const INSERT: &str = "VirtualMedia.InsertMedia";
const EJECT: &str = "VirtualMedia.EjectMedia";

const PROTOCOLS: &[&str] = &["CIFS", "FTP", "SFTP", "HTTP", "HTTPS", "NFS", "SCP", "TFTP", "OEM"];

/// Validates an insertion's parameters, and names every wrong parameter.
fn judge(machine: &Machine, members: &Map<String, Value>) -> Result<Inserted, Vec<Message>> {
    let rules = &machine.personality.media;
    let mut faults = Vec::new();
    let mut inserted = Inserted {
        image: String::new(),
        write_protected: true,
        transfer_protocol: None,
        user_name: None,
        shown_from: tokio::time::Instant::now() + rules.shown_after,
    };
    for required in std::iter::once("Image").chain(rules.required_parameters.iter().map(String::as_str)) {
        if !members.contains_key(required) {
            faults.push(Message::parameter_missing(INSERT, required));
        }
    }
    for (name, value) in members {
        if rules.refused_parameters.iter().any(|refused| refused == name) {
            faults.push(Message::parameter_not_supported(INSERT, name));
            continue;
        }
        match (name.as_str(), value) {
            ("Image", Value::String(image)) if image.contains("://") => {
                inserted.image.clone_from(image);
            }
            ("WriteProtected", Value::Bool(protected)) => inserted.write_protected = *protected,
            ("TransferProtocolType", Value::String(protocol)) if PROTOCOLS.contains(&protocol.as_str()) => {
                inserted.transfer_protocol = Some(protocol.clone());
            }
            ("TransferProtocolType", Value::String(_)) => {
                faults.push(Message::parameter_value(INSERT, name, value));
            }
            ("UserName", Value::String(user)) => inserted.user_name = Some(user.clone()),
            ("Inserted", Value::Bool(true))
            | ("TransferMethod" | "Password", Value::String(_))
            | ("UserName" | "Password" | "TransferProtocolType", Value::Null) => {}
            ("Password", _) => {
                faults.push(Message::parameter_format(INSERT, name, &Value::from("***")));
            }
            ("Image" | "WriteProtected" | "TransferProtocolType" | "UserName" | "Inserted" | "TransferMethod", _) => {
                faults.push(Message::parameter_format(INSERT, name, value));
            }
            _ if name.contains('@') => {}
            _ => faults.push(Message::parameter_unknown(INSERT, name)),
        }
    }
    if faults.is_empty() { Ok(inserted) } else { Err(faults) }
}

pub(crate) fn insert(machine: &Arc<Machine>, device: usize, request: &Incoming) -> Result<Reply, Box<Reply>> {
    let members = request.members()?;
    let inserted = judge(machine, &members).map_err(|faults| Box::new(Reply::error(400, &faults)))?;
    let rules = &machine.personality.media;
    {
        let mut state = machine.lock();
        if rules.insert_needs_eject && state.media[device].inserted.is_some() {
            return Err(Box::new(Reply::error(409, &[Message::in_use()])));
        }
        state.insert(device, rules, inserted);
    }
    machine.changed();
    Ok(Reply::empty(204))
}

pub(crate) fn eject(machine: &Arc<Machine>, device: usize, request: &Incoming) -> Result<Reply, Box<Reply>> {
    let rules = &machine.personality.media;
    if rules.eject_needs_body || !request.body.is_empty() {
        let members = request.members()?;
        if let Some(name) = members.keys().find(|name| !name.contains('@')) {
            let message = Message::parameter_unknown(EJECT, name);
            return Err(Box::new(Reply::error(400, &[message])));
        }
    }
    let ejected = machine.lock().eject(device, rules);
    if !ejected && rules.eject_empty_refused {
        let message = Message::general("There is no media in the device.");
        return Err(Box::new(Reply::error(400, &[message])));
    }
    machine.changed();
    Ok(Reply::empty(204))
}
