//! Supported kinds of maintenance for a server, and the missing requirements of the others.

use super::{
    machine::{Capabilities, MediaSlot, PowerTarget, ResetType},
    media::missing_drive,
    prepare::missing_capabilities,
    spec::{BootMethod, BootSpec, MaintenanceKind, Spec},
};

/// Privilege to change a system's power, boot and media (DSP0266, privilege registry:
/// `ComputerSystem`).
const TO_CHANGE_SYSTEMS: &str = "ConfigureComponents";

/// One kind of maintenance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ability {
    /// Name of the kind.
    pub kind: &'static str,
    /// Its configured attributes.
    pub attributes: &'static str,
    /// Its requirements for the server.
    pub needs: &'static str,
    /// Requirements that the server does not meet; empty if it supports the kind.
    pub lacks: Vec<String>,
}

/// Evaluates each kind against a server's capabilities. `privileges` are the account's, if known.
#[must_use]
pub fn abilities(has: &Capabilities, drives: &[MediaSlot], privileges: Option<&[String]>) -> Vec<Ability> {
    let may = privileges.is_none_or(|names| names.iter().any(|name| name == TO_CHANGE_SYSTEMS));
    let boots = |method: BootMethod| {
        let boot = BootSpec { once: method != BootMethod::Disk, ..BootSpec::new(method) };
        Spec { boot: Some(boot), server_power: Some(PowerTarget::On), ..Spec::new(MaintenanceKind::Maintenance, "") }
    };
    let power = |target| Spec { server_power: Some(target), ..Spec::new(MaintenanceKind::Maintenance, "") };
    let rows = [
        ("hold", "nothing more", "nothing: power and boot do not change", Spec::new(MaintenanceKind::Maintenance, "")),
        ("power on", "server_power = \"On\"", "the reset type On", power(PowerTarget::On)),
        (
            "power off",
            "server_power = \"Off\"",
            "GracefulShutdown or ForceOff, and On to restore",
            power(PowerTarget::Off),
        ),
        (
            "http",
            "boot_configuration = { method = \"http\" }",
            "the boot source UefiHttp and HttpBootUri",
            boots(BootMethod::Http),
        ),
        ("pxe", "boot_configuration = { method = \"pxe\" }", "the boot source Pxe", boots(BootMethod::Pxe)),
        (
            "virtual_media",
            "boot_configuration = { method = \"virtual_media\" }",
            "a boot source for virtual drives and an optical virtual drive",
            boots(BootMethod::VirtualMedia),
        ),
        ("disk", "boot_configuration = { method = \"disk\" }", "the boot source Hdd", boots(BootMethod::Disk)),
    ];
    rows.into_iter()
        .map(|(kind, attributes, needs, spec)| {
            let mut lacks: Vec<String> = missing_capabilities(&spec, has).into_iter().map(|(_, text)| text).collect();
            if kind == "power off" && !has.can(ResetType::On) {
                lacks.push(
                    "The machine does not accept the reset type On, so a release could not restore it.".to_owned(),
                );
            }
            lacks.extend(spec.boot.as_ref().and_then(|boot| missing_drive(boot, has, drives)).map(|(_, text)| text));
            if kind != "hold" && !may {
                lacks.push(format!(
                    "The account is not allowed to change it: its role lacks the privilege {TO_CHANGE_SYSTEMS}."
                ));
            }
            Ability { kind, attributes, needs, lacks }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use shown_text::OneLine;

    use super::*;

    fn able() -> Capabilities {
        Capabilities {
            resets: vec![ResetType::On, ResetType::ForceOff],
            boot_targets: ["None", "Pxe", "Cd", "Hdd", "UefiHttp"].map(OneLine::from).to_vec(),
            boot_enabled: Vec::new(),
            boot_modes: Vec::new(),
            http_boot_uri: true,
            ..Capabilities::default()
        }
    }

    fn impossible(has: &Capabilities, drives: &[MediaSlot], privileges: Option<&[&str]>) -> Vec<&'static str> {
        let privileges: Option<Vec<String>> =
            privileges.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        let all = abilities(has, drives, privileges.as_deref());
        all.into_iter().filter(|one| !one.lacks.is_empty()).map(|one| one.kind).collect()
    }

    #[test]
    fn each_kind_lacks_what_the_server_does_not_list() {
        let drive = |kind: &str| MediaSlot {
            slot: "CD1".into(),
            media_types: vec![kind.into()],
            image: None,
            inserted: false,
            write_protected: None,
        };
        let cd = [drive("CD")];
        assert!(impossible(&able(), &cd, None).is_empty());
        assert_eq!(impossible(&able(), &[drive("USBStick")], None), ["virtual_media"]);
        let without_on = Capabilities { resets: vec![ResetType::ForceOff], ..able() };
        assert!(impossible(&without_on, &cd, None).contains(&"power off"));
        let no_uri = Capabilities { http_boot_uri: false, ..able() };
        assert_eq!(impossible(&no_uri, &cd, None), ["http"]);
        for (targets, instead) in [
            (&["Pxe", "Cd"][..], "Instead: method = \"virtual_media\" with an ISO image, or method = \"pxe\""),
            (&["Pxe"], "Instead: method = \"pxe\" where the network's boot server selects the image."),
            (&["Hdd"], "It lists no other way to boot an image."),
        ] {
            let boot_targets = targets.iter().map(|target| (*target).into()).collect();
            let has = Capabilities { boot_targets, ..no_uri.clone() };
            let http = abilities(&has, &cd, None).into_iter().find(|one| one.kind == "http").unwrap();
            assert!(http.lacks.iter().any(|lack| lack.contains(instead)), "{:?}", http.lacks);
        }
        let read_only = impossible(&able(), &cd, Some(&["Login"]));
        assert_eq!(read_only, ["power on", "power off", "http", "pxe", "virtual_media", "disk"]);
        assert!(impossible(&able(), &cd, Some(&["Login", "ConfigureComponents"])).is_empty());
    }
}
