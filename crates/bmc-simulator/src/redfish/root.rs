//! The service root and its surrounding documents.

use serde_json::{Value, json};

use super::message::REGISTRY;
use super::reply::{collection, resource};
use crate::bmc::Bmc;
use crate::personality::Accepted;

/// Returns `/redfish`, whose content the specification fixes.
pub(crate) fn versions() -> Value {
    json!({ "v1": "/redfish/v1/" })
}

fn services(bmc: &Bmc) -> Vec<&'static str> {
    let rules = &bmc.personality;
    let mut services = vec!["Systems", "Managers", "Chassis", "AccountService", "Registries"];
    if rules.sessions.offered {
        services.push("SessionService");
    }
    if rules.power.accepted == Accepted::Task {
        services.push("TaskService");
    }
    services
}

pub(crate) fn root(bmc: &Bmc) -> Value {
    let mut root = resource("/redfish/v1/", "#ServiceRoot.v1_16_0.ServiceRoot", "RootService", "Root Service");
    root["RedfishVersion"] = "1.20.0".into();
    root["UUID"] = bmc.uuid.to_string().into();
    root["Product"] = "BMC simulator".into();
    root["Vendor"] = bmc.personality.manufacturer.as_str().into();
    root["ProtocolFeaturesSupported"] = json!({
        "ExcerptQuery": false,
        "FilterQuery": false,
        "OnlyMemberQuery": false,
        "SelectQuery": false,
        "ExpandQuery": { "ExpandAll": false, "Levels": false, "Links": false, "NoLinks": false },
    });
    for service in services(bmc) {
        let name = if service == "TaskService" { "Tasks" } else { service };
        root[name] = json!({ "@odata.id": format!("/redfish/v1/{service}") });
    }
    if bmc.personality.sessions.offered {
        root["Links"] = json!({
            "Sessions": { "@odata.id": "/redfish/v1/SessionService/Sessions" },
        });
    }
    root
}

/// Returns the `OData` service document.
pub(crate) fn odata(bmc: &Bmc) -> Value {
    let service = |name: &str, url: &str| json!({ "name": name, "kind": "Singleton", "url": url });
    let mut value = vec![service("Service", "/redfish/v1/")];
    for name in services(bmc) {
        value.push(service(name, &format!("/redfish/v1/{name}")));
    }
    if bmc.personality.sessions.offered {
        value.push(service("Sessions", "/redfish/v1/SessionService/Sessions"));
    }
    json!({ "@odata.context": "/redfish/v1/$metadata", "value": value })
}

/// The offered resources' namespaces.
const NAMESPACES: &[(&str, &str)] = &[
    ("ServiceRoot", "v1_16_0"),
    ("ComputerSystemCollection", ""),
    ("ComputerSystem", "v1_22_0"),
    ("ManagerCollection", ""),
    ("Manager", "v1_19_0"),
    ("ManagerNetworkProtocol", "v1_10_0"),
    ("ChassisCollection", ""),
    ("Chassis", "v1_25_0"),
    ("VirtualMediaCollection", ""),
    ("VirtualMedia", "v1_6_3"),
    ("SessionService", "v1_1_9"),
    ("SessionCollection", ""),
    ("Session", "v1_7_0"),
    ("AccountService", "v1_15_0"),
    ("ManagerAccountCollection", ""),
    ("ManagerAccount", "v1_12_0"),
    ("RoleCollection", ""),
    ("Role", "v1_3_2"),
    ("TaskService", "v1_2_1"),
    ("TaskCollection", ""),
    ("Task", "v1_7_3"),
    ("ActionInfo", "v1_4_2"),
    ("MessageRegistryFileCollection", ""),
    ("MessageRegistryFile", "v1_1_4"),
    ("MessageRegistry", "v1_6_2"),
    ("Message", "v1_2_1"),
];

/// Returns the `OData` metadata document.
pub(crate) fn metadata() -> String {
    use std::fmt::Write as _;

    let mut xml = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <edmx:Edmx xmlns:edmx=\"http://docs.oasis-open.org/odata/ns/edmx\" Version=\"4.0\">\n",
    );
    for (name, version) in NAMESPACES {
        // Writing into a String cannot fail.
        let _ = writeln!(
            xml,
            "  <edmx:Reference Uri=\"http://redfish.dmtf.org/schemas/v1/{name}_v1.xml\">\n    \
             <edmx:Include Namespace=\"{name}\"/>"
        );
        if !version.is_empty() {
            let _ = writeln!(xml, "    <edmx:Include Namespace=\"{name}.{version}\"/>");
        }
        xml.push_str("  </edmx:Reference>\n");
    }
    xml.push_str(
        "  <edmx:Reference Uri=\"http://redfish.dmtf.org/schemas/v1/RedfishExtensions_v1.xml\">\n    \
         <edmx:Include Namespace=\"RedfishExtensions.v1_0_0\" Alias=\"Redfish\"/>\n  \
         </edmx:Reference>\n  \
         <edmx:DataServices>\n    \
         <Schema xmlns=\"http://docs.oasis-open.org/odata/ns/edm\" Namespace=\"Service\">\n      \
         <EntityContainer Name=\"Service\" Extends=\"ServiceRoot.v1_16_0.ServiceContainer\"/>\n    \
         </Schema>\n  </edmx:DataServices>\n</edmx:Edmx>\n",
    );
    xml
}

pub(crate) fn registries() -> Value {
    collection(
        "/redfish/v1/Registries",
        "#MessageRegistryFileCollection.MessageRegistryFileCollection",
        "Message Registry File Collection",
        ["/redfish/v1/Registries/Base".to_owned()],
    )
}

pub(crate) fn registry() -> Value {
    let mut file = resource(
        "/redfish/v1/Registries/Base",
        "#MessageRegistryFile.v1_1_4.MessageRegistryFile",
        "Base",
        "Base Message Registry File",
    );
    file["Registry"] = REGISTRY.into();
    file["Languages"] = json!(["en"]);
    file["Location"] = json!([{ "Language": "en", "Uri": "/redfish/v1/Registries/Base/Base.json" }]);
    file
}

/// Returns a registry with only the general fallback message.
///
/// The complete registry belongs to its publisher; answers contain the full text of their messages.
pub(crate) fn registry_file() -> Value {
    json!({
        "@odata.type": "#MessageRegistry.v1_6_2.MessageRegistry",
        "Id": format!("{REGISTRY}.0"),
        "Name": "Base Message Registry",
        "Language": "en",
        "RegistryPrefix": "Base",
        "RegistryVersion": "1.18.0",
        "OwningEntity": "BMC simulator",
        "Messages": {
            "GeneralError": {
                "Description": "An error occurred.",
                "Message": "An error occurred. See the extended information.",
                "MessageSeverity": "Critical",
                "NumberOfArgs": 0,
                "Resolution": "None.",
            },
        },
    })
}
