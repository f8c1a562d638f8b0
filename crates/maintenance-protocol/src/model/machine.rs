//! What a machine is seen to be, and what it can be told: the words shared by rules and backends.
//!
//! Values that a BMC gave are kept in its own spelling, because they are given back to it
//! unchanged.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Whether a system runs. Redfish `ComputerSystem.PowerState` (DSP2046 Resource.PowerState).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PowerState {
    /// Powered on.
    On,
    /// Powered off; auxiliary power may be present.
    Off,
    /// Between off and on.
    PoweringOn,
    /// Between on and off.
    PoweringOff,
    /// Powered, but not executing: the operating system halted, or the firmware's shell waits. Arm
    /// BMCs such as that of BlueField report it. They accept `On` and start nothing.
    Paused,
    /// The machine does not say.
    #[default]
    Unknown,
}

impl PowerState {
    /// Returns the power that the machine reaches without intervention. A machine that is
    /// [`Paused`](Self::Paused) is neither on nor off: it has power and executes nothing.
    #[must_use]
    pub fn settled(self) -> Option<PowerTarget> {
        match self {
            Self::On | Self::PoweringOn => Some(PowerTarget::On),
            Self::Off | Self::PoweringOff => Some(PowerTarget::Off),
            Self::Paused | Self::Unknown => None,
        }
    }

    /// Returns the power that a release restores on a server that was in this state before; `None`
    /// if the machine did not report one. Nothing returns a server to `Paused`, so it ends `On`.
    #[must_use]
    pub fn restored(self) -> Option<PowerTarget> {
        if self == Self::Paused { Some(PowerTarget::On) } else { self.settled() }
    }
}

impl fmt::Display for PowerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "On",
            Self::Off => "Off",
            Self::PoweringOn => "PoweringOn",
            Self::PoweringOff => "PoweringOff",
            Self::Paused => "Paused",
            Self::Unknown => "Unknown",
        })
    }
}

/// The power that somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PowerTarget {
    /// Running.
    On,
    /// Switched off.
    Off,
}

impl From<PowerTarget> for PowerState {
    fn from(target: PowerTarget) -> Self {
        match target {
            PowerTarget::On => Self::On,
            PowerTarget::Off => Self::Off,
        }
    }
}

impl fmt::Display for PowerTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "On",
            Self::Off => "Off",
        })
    }
}

/// Ways to change power. Redfish `Resource.ResetType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ResetType {
    /// Switch on.
    On,
    /// Ask the operating system to shut down.
    GracefulShutdown,
    /// Cut the power without asking.
    ForceOff,
    /// Ask the operating system to restart.
    GracefulRestart,
    /// Restart without asking.
    ForceRestart,
    /// Cut the power and give it again.
    PowerCycle,
    /// Non-maskable interrupt.
    Nmi,
}

impl ResetType {
    /// All values in Redfish's spelling.
    pub const NAMES: [&'static str; 7] =
        ["On", "GracefulShutdown", "ForceOff", "GracefulRestart", "ForceRestart", "PowerCycle", "Nmi"];

    /// The value of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "On" => Self::On,
            "GracefulShutdown" => Self::GracefulShutdown,
            "ForceOff" => Self::ForceOff,
            "GracefulRestart" => Self::GracefulRestart,
            "ForceRestart" => Self::ForceRestart,
            "PowerCycle" => Self::PowerCycle,
            "Nmi" => Self::Nmi,
            _ => return None,
        })
    }
}

impl fmt::Display for ResetType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "On",
            Self::GracefulShutdown => "GracefulShutdown",
            Self::ForceOff => "ForceOff",
            Self::GracefulRestart => "GracefulRestart",
            Self::ForceRestart => "ForceRestart",
            Self::PowerCycle => "PowerCycle",
            Self::Nmi => "Nmi",
        })
    }
}

/// Firmware interface used for a boot. Redfish `Boot.BootSourceOverrideMode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BootMode {
    /// UEFI.
    #[serde(rename = "UEFI")]
    Uefi,
    /// BIOS.
    Legacy,
}

impl BootMode {
    /// Redfish's spelling.
    #[must_use]
    pub fn as_redfish(self) -> &'static str {
        match self {
            Self::Uefi => "UEFI",
            Self::Legacy => "Legacy",
        }
    }
}

/// A boot override as the BMC lists it. A property that it does not list, or lists as null, is
/// `None`. Redfish `ComputerSystem.Boot` (DSP2046).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BootOverride {
    /// `BootSourceOverrideEnabled`: `Disabled`, `Once` or `Continuous`.
    pub enabled: Option<String>,
    /// `BootSourceOverrideTarget`, for example `None`, `Pxe`, `Cd`, `Hdd`, `UefiHttp`.
    pub target: Option<String>,
    /// `BootSourceOverrideMode`: `UEFI` or `Legacy`.
    pub mode: Option<String>,
    /// `HttpBootUri`; may carry a secret in its query and is therefore never logged whole. Where a
    /// server's own maintenance system boots it: the image's name there.
    pub http_boot_uri: Option<String>,
    /// `UefiTargetBootSourceOverride`: the UEFI device path that the target `UefiTarget` boots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uefi_target: Option<String>,
    /// `BootNext`: the boot option that the target `UefiBootNext` boots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_next: Option<String>,
    /// What configures the booted system, where the server's own maintenance system delivers that.
    /// Never read back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignition: Option<Ignition>,
    /// Whether an external system boots it, by a method of its backend.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external: bool,
}

/// Where the configuration of a booted system comes from. Its content is never part of a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ignition {
    /// A Secret that is there, by its name.
    Secret(String),
    /// Content that the configuration gave to this process, by its SHA-256 in hexadecimal digits.
    Content(String),
}

impl BootOverride {
    /// Whether it boots one entry of the firmware's menu, and not only a kind of device.
    #[must_use]
    pub fn names_an_entry(&self) -> bool {
        self.uefi_target.is_some() || self.boot_next.is_some()
    }

    /// Whether the firmware's own order decides, whatever target is still listed.
    #[must_use]
    pub fn is_disabled(&self) -> bool {
        self.enabled.as_deref() == Some("Disabled")
            || self.target.as_deref() == Some("None")
            || (self.enabled.is_none() && self.target.is_none())
    }

    /// Whether it is `wanted` in every property that this names.
    #[must_use]
    pub fn is_like(&self, wanted: &Self) -> bool {
        let same = |found: &Option<String>, wanted: &Option<String>| wanted.is_none() || found == wanted;
        same(&self.enabled, &wanted.enabled)
            && same(&self.target, &wanted.target)
            && same(&self.mode, &wanted.mode)
            && same(&self.http_boot_uri, &wanted.http_boot_uri)
            && same(&self.uefi_target, &wanted.uefi_target)
            && same(&self.boot_next, &wanted.boot_next)
            && (wanted.ignition.is_none() || self.ignition == wanted.ignition)
    }
}

impl fmt::Display for BootOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.enabled.as_deref(), self.target.as_deref()) {
            (None, None) => write!(f, "none"),
            (Some("Disabled"), _) => write!(f, "Disabled"),
            (enabled, target) => {
                write!(f, "{} {}", target.unwrap_or("target unknown"), enabled.unwrap_or("enabled unknown"))
            }
        }
    }
}

/// One virtual drive of a BMC and what is in it. Redfish `VirtualMedia`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaSlot {
    /// The drive's name for this machine: its resource path on the BMC.
    pub slot: String,
    /// What the drive can be, for example `CD`, `DVD`, `USBStick`.
    pub media_types: Vec<String>,
    /// The image's address, while one is inserted.
    pub image: Option<String>,
    /// Whether an image is inserted.
    pub inserted: bool,
    /// Whether the system may not write to it, where the BMC says so.
    pub write_protected: Option<bool>,
}

impl MediaSlot {
    /// What is in the drive, if anything.
    #[must_use]
    pub fn content(&self) -> Option<&str> {
        if self.inserted { self.image.as_deref().or(Some("")) } else { None }
    }

    /// Whether something else is in the drive now, as far as the BMC tells what is in it.
    #[must_use]
    pub fn differs(&self, now: &Self) -> bool {
        match (self.content(), now.content()) {
            (Some(before), Some(now)) => !before.is_empty() && !now.is_empty() && before != now,
            (before, now) => before.is_some() != now.is_some(),
        }
    }

    /// Whether a system sees this drive as an optical one. So does one that does not say what it is
    /// (Gigabyte).
    #[must_use]
    pub fn is_optical(&self) -> bool {
        self.media_types.is_empty() || self.media_types.iter().any(|kind| kind == "CD" || kind == "DVD")
    }
}

/// One entry of the firmware's boot menu. Redfish `BootOption`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootOption {
    /// `BootOptionReference`, as `BootNext` takes it.
    pub reference: String,
    /// `DisplayName`, for people.
    pub name: String,
    /// `UefiDevicePath`, as `UefiTargetBootSourceOverride` takes it.
    pub path: Option<String>,
}

/// A machine as one read shows it. Reading it takes one request to a BMC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineView {
    /// Whether it runs.
    pub power: PowerState,
    /// `BootProgress.LastState`, where the BMC tells (Redfish ComputerSystem v1.13 or newer).
    pub boot_progress: Option<String>,
    /// `LastResetTime`, where the BMC tells (Redfish ComputerSystem v1.12 or newer): compared with
    /// itself only.
    pub last_reset: Option<String>,
    /// The boot override, where the BMC has one.
    pub boot: Option<BootOverride>,
    /// Whether it has one and shows it only in part, so that it could not be restored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub boot_unclear: bool,
    /// `Status.Health`, where the BMC tells.
    pub health: Option<String>,
    /// Maker, model and serial number as the BMC tells, for people.
    pub description: MachineDescription,
}

/// What a machine says it is, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineDescription {
    /// Redfish `ComputerSystem.Manufacturer`.
    pub manufacturer: Option<String>,
    /// Redfish `ComputerSystem.Model`.
    pub model: Option<String>,
    /// Redfish `ComputerSystem.SerialNumber`.
    pub serial_number: Option<String>,
    /// Redfish `ComputerSystem.HostName`.
    pub host_name: Option<String>,
}

/// What a machine can be told to do. A capability that is missing is an error at plan, never a
/// surprise at apply.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Accepted power changes.
    pub resets: Vec<ResetType>,
    /// The system that accepts them in the machine's place, by its name.
    pub resets_by: Option<String>,
    /// Accepted boot override targets in the BMC's spelling; empty when it has no override at all.
    pub boot_targets: Vec<String>,
    /// Accepted values of `BootSourceOverrideEnabled`; empty when the BMC does not list them.
    pub boot_enabled: Vec<String>,
    /// Accepted boot modes in the BMC's spelling; empty when it does not list the mode.
    pub boot_modes: Vec<String>,
    /// Whether `HttpBootUri` can be set.
    pub http_boot_uri: bool,
    /// Whether the firmware's boot menu is listed (`BootOptions`), so that one entry of it can be
    /// booted.
    pub boot_menu: bool,
    /// The boot override target of a filled virtual drive, where the configuration names it.
    pub media_target: Option<String>,
    /// The virtual drive to fill, where the configuration names it.
    pub media_slot: Option<String>,
    /// Whether the power that it shows follows only changes that are made through it: a system that
    /// switches itself off is not seen.
    pub power_not_followed: bool,
    /// Whether its external system boots it from the address of a live ISO, and hands no ignition
    /// file over.
    pub live_iso: bool,
    /// Where it has no boot override: why, and what to use instead, in sentences.
    pub instead_of_boot: Option<String>,
}

impl Capabilities {
    /// Whether `reset` is accepted.
    #[must_use]
    pub fn can(&self, reset: ResetType) -> bool {
        self.resets.contains(&reset)
    }
}

/// A URL as people may see it: without user, password, query and fragment, any of which may hold a
/// secret.
#[must_use]
pub fn shown_url(text: &str) -> String {
    match url::Url::parse(text) {
        Ok(url) => {
            let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
            let query = if url.query().is_some() { "?…" } else { "" };
            format!("{}://{}{port}{}{query}", url.scheme(), url.host_str().unwrap_or_default(), url.path())
        }
        Err(_) => "an address that is not a URL".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_url_holds_no_secret() {
        assert_eq!(
            shown_url("https://user:hunter2@images.example:8443/a/b.iso?token=s3cret#x"),
            "https://images.example:8443/a/b.iso?…"
        );
    }
}
