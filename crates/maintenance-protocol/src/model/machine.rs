//! Observed states and capabilities of machines, shared by rules and backends.
//!
//! Values from a BMC keep its spelling, because they are written to it unchanged.

use std::fmt;

use serde::{Deserialize, Serialize};
use shown_text::{AsRaw, OneLine};

/// A system's power state. Redfish `ComputerSystem.PowerState` (DSP2046 Resource.PowerState).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PowerState {
    /// Powered on.
    On,
    /// Powered off; auxiliary power can be present.
    Off,
    /// Changing from off to on.
    PoweringOn,
    /// Changing from on to off.
    PoweringOff,
    /// Powered, but not executing: the operating system halted, or the firmware waits in its shell.
    /// Arm BMCs such as BlueField's report it. They accept `On`, but nothing starts.
    Paused,
    /// The machine does not report a known state.
    #[default]
    Unknown,
}

impl PowerState {
    /// Returns the power state that the machine reaches without intervention. A
    /// [`Paused`](Self::Paused) machine is neither on nor off.
    #[must_use]
    pub fn settled(self) -> Option<PowerTarget> {
        match self {
            Self::On | Self::PoweringOn => Some(PowerTarget::On),
            Self::Off | Self::PoweringOff => Some(PowerTarget::Off),
            Self::Paused | Self::Unknown => None,
        }
    }

    /// Returns the power state to restore for a server that was in this state before. `Paused`
    /// becomes `On`, because no call pauses a server. Returns `None` for `Unknown`.
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

/// The desired power state.
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

/// Power changes. Redfish `Resource.ResetType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ResetType {
    /// Power on.
    On,
    /// Request a shutdown from the operating system.
    GracefulShutdown,
    /// Cut the power without a shutdown.
    ForceOff,
    /// Request a restart from the operating system.
    GracefulRestart,
    /// Restart without a shutdown.
    ForceRestart,
    /// Cut the power and restore it.
    PowerCycle,
    /// Non-maskable interrupt.
    Nmi,
}

impl ResetType {
    /// All names in Redfish's spelling.
    pub const NAMES: [&'static str; 7] =
        ["On", "GracefulShutdown", "ForceOff", "GracefulRestart", "ForceRestart", "PowerCycle", "Nmi"];

    /// Parses a Redfish name.
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
    /// Returns the name in Redfish's spelling.
    #[must_use]
    pub fn as_redfish(self) -> &'static str {
        match self {
            Self::Uefi => "UEFI",
            Self::Legacy => "Legacy",
        }
    }
}

/// A boot override as the BMC reports it. Missing and null properties are `None`. Redfish
/// `ComputerSystem.Boot` (DSP2046).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BootOverride {
    /// `BootSourceOverrideEnabled`: `Disabled`, `Once` or `Continuous`.
    pub enabled: Option<OneLine>,
    /// `BootSourceOverrideTarget`, for example `None`, `Pxe`, `Cd`, `Hdd`, `UefiHttp`.
    pub target: Option<OneLine>,
    /// `BootSourceOverrideMode`: `UEFI` or `Legacy`.
    pub mode: Option<OneLine>,
    /// `HttpBootUri`. Its query can contain a secret, so it is never logged completely. If an
    /// external system boots the server, it is the image's name there.
    pub http_boot_uri: Option<OneLine>,
    /// `UefiTargetBootSourceOverride`: the UEFI device path that the target `UefiTarget` boots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uefi_target: Option<OneLine>,
    /// `BootNext`: the boot option that the target `UefiBootNext` boots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_next: Option<OneLine>,
    /// The booted system's configuration, if the external system delivers it. It is write-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignition: Option<Ignition>,
    /// True if an external system boots it with a backend's own method.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external: bool,
}

/// Source of a booted system's configuration. Records never contain its content.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ignition {
    /// An existing Secret, by name.
    Secret(String),
    /// Inline content, by its SHA-256 in hexadecimal digits.
    Content(String),
}

impl BootOverride {
    /// Returns true if it boots a specific boot menu entry, not just a device type.
    #[must_use]
    pub fn names_an_entry(&self) -> bool {
        self.uefi_target.is_some() || self.boot_next.is_some()
    }

    /// Returns true if the firmware's own boot order applies, even if a target is still listed.
    #[must_use]
    pub fn is_disabled(&self) -> bool {
        self.enabled.as_raw() == Some("Disabled")
            || self.target.as_raw() == Some("None")
            || (self.enabled.is_none() && self.target.is_none())
    }

    /// Returns true if every property that `wanted` sets has the same value here.
    #[must_use]
    pub fn is_like(&self, wanted: &Self) -> bool {
        let same = |found: &Option<OneLine>, wanted: &Option<OneLine>| wanted.is_none() || found == wanted;
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
        match (self.enabled.as_raw(), self.target.as_raw()) {
            (None, None) => write!(f, "none"),
            (Some("Disabled"), _) => write!(f, "Disabled"),
            _ => {
                let shown =
                    |value: &Option<OneLine>, unknown| value.as_ref().map_or(unknown, OneLine::shown).to_owned();
                write!(f, "{} {}", shown(&self.target, "target unknown"), shown(&self.enabled, "enabled unknown"))
            }
        }
    }
}

/// One virtual drive of a BMC and its medium. Redfish `VirtualMedia`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaSlot {
    /// The drive's name: its resource path on the BMC.
    pub slot: OneLine,
    /// Supported media types, for example `CD`, `DVD`, `USBStick`.
    pub media_types: Vec<OneLine>,
    /// The inserted image's address.
    pub image: Option<OneLine>,
    /// True if an image is inserted.
    pub inserted: bool,
    /// True if the medium is write-protected; `None` if the BMC does not report it.
    pub write_protected: Option<bool>,
}

impl MediaSlot {
    /// Returns the inserted image; an empty string if the BMC does not report its address.
    #[must_use]
    pub fn content(&self) -> Option<&str> {
        if self.inserted { self.image.as_raw().or(Some("")) } else { None }
    }

    /// Returns true if the medium changed, as far as the BMC reports addresses.
    #[must_use]
    pub fn differs(&self, now: &Self) -> bool {
        match (self.content(), now.content()) {
            (Some(before), Some(now)) => !before.is_empty() && !now.is_empty() && before != now,
            (before, now) => before.is_some() != now.is_some(),
        }
    }

    /// Returns true if the system treats this drive as optical. Gigabyte does not list media types;
    /// such drives count as optical.
    #[must_use]
    pub fn is_optical(&self) -> bool {
        self.media_types.is_empty() || self.media_types.iter().any(|kind| kind == "CD" || kind == "DVD")
    }
}

/// A boot menu entry. Redfish `BootOption`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootOption {
    /// `BootOptionReference`, the value for `BootNext`.
    pub reference: OneLine,
    /// `DisplayName`, for people.
    pub name: OneLine,
    /// `UefiDevicePath`, the value for `UefiTargetBootSourceOverride`.
    pub path: Option<OneLine>,
}

/// A machine's state, from one read. Each read sends one request to the BMC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineView {
    /// The power state.
    pub power: PowerState,
    /// `BootProgress.LastState`, if the BMC reports it (Redfish ComputerSystem v1.13 or newer).
    pub boot_progress: Option<OneLine>,
    /// `LastResetTime`, if the BMC reports it (Redfish ComputerSystem v1.12 or newer). It is only
    /// compared with earlier values of the same BMC.
    pub last_reset: Option<OneLine>,
    /// The boot override, if the BMC supports one.
    pub boot: Option<BootOverride>,
    /// True if the BMC reports the override incompletely, so it could not be restored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub boot_unclear: bool,
    /// `Status.Health`, if the BMC reports it.
    pub health: Option<OneLine>,
    /// Manufacturer, model and serial number, for people.
    pub description: MachineDescription,
}

/// A machine's self-description, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineDescription {
    /// Redfish `ComputerSystem.Manufacturer`.
    pub manufacturer: Option<OneLine>,
    /// Redfish `ComputerSystem.Model`.
    pub model: Option<OneLine>,
    /// Redfish `ComputerSystem.SerialNumber`.
    pub serial_number: Option<OneLine>,
    /// Redfish `ComputerSystem.HostName`.
    pub host_name: Option<OneLine>,
}

/// A machine's capabilities. The plan fails if a required capability is missing.
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Supported power changes.
    pub resets: Vec<ResetType>,
    /// Name of the system that accepts them instead of the machine.
    pub resets_by: Option<OneLine>,
    /// Supported boot override targets in the BMC's spelling; empty without an override.
    pub boot_targets: Vec<OneLine>,
    /// Supported values of `BootSourceOverrideEnabled`; empty if the BMC does not list them.
    pub boot_enabled: Vec<OneLine>,
    /// Supported boot modes in the BMC's spelling; empty if the BMC does not list them.
    pub boot_modes: Vec<OneLine>,
    /// True if `HttpBootUri` is writable.
    pub http_boot_uri: bool,
    /// True if the BMC lists the firmware's boot menu (`BootOptions`), so an entry can be booted.
    pub boot_menu: bool,
    /// The configured boot override target for a loaded virtual drive.
    pub media_target: Option<OneLine>,
    /// The configured virtual drive.
    pub media_slot: Option<OneLine>,
    /// True if the reported power does not change without a call through this backend. A shutdown
    /// from the operating system is then invisible.
    pub power_not_followed: bool,
    /// True if the external system boots a live ISO from its URL and does not deliver an ignition
    /// file.
    pub live_iso: bool,
    /// Why it does not support a boot override, and the alternative, as sentences.
    pub instead_of_boot: Option<OneLine>,
}

impl Capabilities {
    /// Returns true if `reset` is supported.
    #[must_use]
    pub fn can(&self, reset: ResetType) -> bool {
        self.resets.contains(&reset)
    }
}

/// Returns a URL without user, password, query and fragment, which can contain secrets.
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
    fn no_value_of_a_bmc_forges_a_line() {
        let hostile = || Some("x\n::error".into());
        let boot = BootOverride { enabled: hostile(), target: hostile(), ..BootOverride::default() };
        assert!(shown_text::is_plain(&boot.to_string()), "{boot}");
    }

    #[test]
    fn a_shown_url_holds_no_secret() {
        assert_eq!(
            shown_url("https://user:hunter2@images.example:8443/a/b.iso?token=s3cret#x"),
            "https://images.example:8443/a/b.iso?…"
        );
    }
}
