//! Managers and chassis: mostly links to and from systems.

use serde_json::{Value, json};

use super::reply::{collection, resource};
use super::route::BMC_MANAGER;
use super::systems;
use crate::bmc::Bmc;
use crate::machine::Machine;
use crate::personality::MediaPath;
use crate::words::PowerState;

const MANAGERS: &str = "/redfish/v1/Managers";
const CHASSIS: &str = "/redfish/v1/Chassis";

pub(crate) fn list(bmc: &Bmc) -> Value {
    let bmc_itself = format!("{MANAGERS}/{BMC_MANAGER}");
    let nodes = if bmc.has_node_managers() { bmc.systems() } else { Vec::new() };
    collection(
        MANAGERS,
        "#ManagerCollection.ManagerCollection",
        "Manager Collection",
        std::iter::once(bmc_itself).chain(nodes.iter().map(|machine| format!("{MANAGERS}/{}", machine.id))),
    )
}

fn manager(id: &str, manufacturer: &str, machines: &[&Machine]) -> Value {
    let path = format!("{MANAGERS}/{id}");
    let mut manager = resource(&path, "#Manager.v1_19_0.Manager", id, "Manager");
    manager["ManagerType"] = "BMC".into();
    manager["Manufacturer"] = manufacturer.into();
    manager["Model"] = "Simulated BMC".into();
    manager["FirmwareVersion"] = env!("CARGO_PKG_VERSION").into();
    manager["PowerState"] = "On".into();
    manager["Status"] = json!({ "State": "Enabled", "Health": "OK" });
    let links = |base: &str| -> Vec<Value> {
        machines.iter().map(|machine| json!({ "@odata.id": format!("{base}/{}", machine.id) })).collect()
    };
    manager["Links"] = json!({
        "ManagerForServers": links("/redfish/v1/Systems"),
        "ManagerForChassis": links(CHASSIS),
    });
    manager
}

pub(crate) fn bmc_manager(bmc: &Bmc) -> Value {
    let machines = bmc.systems();
    let machines: Vec<&Machine> = machines.iter().map(AsRef::as_ref).collect();
    let mut value = manager(BMC_MANAGER, &bmc.personality.manufacturer, &machines);
    let path = format!("{MANAGERS}/{BMC_MANAGER}");
    value["UUID"] = bmc.uuid.to_string().into();
    value["ServiceEntryPointUUID"] = bmc.uuid.to_string().into();
    value["NetworkProtocol"] = json!({ "@odata.id": format!("{path}/NetworkProtocol") });
    let offered = bmc.personality.media.offered_under.contains(&MediaPath::Manager);
    if offered && !bmc.has_node_managers() {
        value["VirtualMedia"] = json!({ "@odata.id": format!("{path}/VirtualMedia") });
    }
    value
}

pub(crate) fn node_manager(machine: &Machine) -> Value {
    let rules = &machine.personality;
    let mut value = manager(&machine.id, &rules.manufacturer, &[machine]);
    if rules.media.offered_under.contains(&MediaPath::Manager) {
        let path = format!("{MANAGERS}/{}/VirtualMedia", machine.id);
        value["VirtualMedia"] = json!({ "@odata.id": path });
    }
    value
}

pub(crate) fn network_protocol(bmc: &Bmc) -> Value {
    let path = format!("{MANAGERS}/{BMC_MANAGER}/NetworkProtocol");
    let mut value = resource(
        &path,
        "#ManagerNetworkProtocol.v1_10_0.ManagerNetworkProtocol",
        "NetworkProtocol",
        "Manager Network Protocol",
    );
    let port = bmc.address.get().map_or(0, std::net::SocketAddr::port);
    let open = |enabled: bool| json!({ "ProtocolEnabled": enabled, "Port": port });
    value["HostName"] = bmc.name.as_ref().into();
    value["Status"] = json!({ "State": "Enabled", "Health": "OK" });
    if bmc.tls {
        value["HTTPS"] = open(true);
    } else {
        value["HTTP"] = open(true);
    }
    value["SSDP"] = json!({ "ProtocolEnabled": false });
    value
}

pub(crate) fn chassis(bmc: &Bmc) -> Value {
    collection(
        CHASSIS,
        "#ChassisCollection.ChassisCollection",
        "Chassis Collection",
        bmc.systems().iter().map(|machine| format!("{CHASSIS}/{}", machine.id)),
    )
}

pub(crate) fn enclosure(bmc: &Bmc, machine: &Machine) -> Value {
    let path = format!("{CHASSIS}/{}", machine.id);
    let mut value = resource(&path, "#Chassis.v1_25_0.Chassis", &machine.id, "Chassis");
    let manager = systems::manager_id(bmc, machine);
    let state = machine.lock();
    value["ChassisType"] = "RackMount".into();
    for (name, text) in [
        ("Manufacturer", &state.identity.manufacturer),
        ("Model", &state.identity.model),
        ("SerialNumber", &state.identity.serial_number),
    ] {
        if let Some(text) = text {
            value[name] = text.as_str().into();
        }
    }
    // A chassis shows only `On` and `Off`, without transitions.
    let on = matches!(state.power, PowerState::On | PowerState::PoweringOff);
    value["PowerState"] = if on { "On" } else { "Off" }.into();
    value["Status"] = json!({ "State": "Enabled", "Health": "OK" });
    value["Links"] = json!({
        "ComputerSystems": [{ "@odata.id": systems::path(machine) }],
        "ManagedBy": [{ "@odata.id": format!("{MANAGERS}/{manager}") }],
    });
    value
}
