//! What really happened to a machine, as only the machine itself can know.

use serde::{Deserialize, Serialize};

use crate::clock::Stamp;
use crate::words::{BootMode, BootProgress, BootTarget, OverrideEnabled, PowerState, ResetType};

/// One event in the life of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its place in the order of all requests and events of the simulator. A step that the machine
    /// takes by itself gets it when the simulator notices, at most a moment after `at`.
    pub sequence: u64,
    /// When it happened.
    #[serde(flatten)]
    pub at: Stamp,
    /// The machine's name.
    pub system: String,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What can happen to a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// The power state changed.
    Power {
        /// The state before.
        from: PowerState,
        /// The state now.
        to: PowerState,
        /// Whose doing it was.
        cause: Cause,
    },
    /// A reset was accepted.
    Reset {
        /// Which one.
        reset_type: ResetType,
    },
    /// The operating system hung and took no notice of a graceful request.
    ShutdownIgnored {
        /// Which one.
        reset_type: ResetType,
    },
    /// The machine chose a boot source and started from it.
    Booted(BootRecord),
    /// The boot progress changed.
    Progress {
        /// The state now.
        to: BootProgress,
    },
    /// The boot override was written.
    OverrideSet(BootOverride),
    /// A boot took up an override that held once; it is `Disabled` now.
    OverrideConsumed,
    /// Media was inserted.
    MediaInserted {
        /// The device's `Id`.
        device: String,
        /// The image.
        image: String,
    },
    /// Media was ejected.
    MediaEjected {
        /// The device's `Id`.
        device: String,
        /// The image.
        image: String,
        /// Whether the machine was on and had booted from this very image.
        ejected_while_running: bool,
    },
}

/// Whose doing a power edge was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A reset through Redfish.
    Reset,
    /// The machine's own software switched it off.
    Software,
    /// Somebody at the machine, that is the control interface.
    Outside,
}

/// A machine's boot override.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootOverride {
    /// `BootSourceOverrideEnabled`.
    pub enabled: OverrideEnabled,
    /// `BootSourceOverrideTarget`.
    pub target: BootTarget,
    /// `BootSourceOverrideMode`.
    pub mode: BootMode,
    /// `HttpBootUri`.
    pub http_boot_uri: Option<String>,
    /// `UefiTargetBootSourceOverride`.
    #[serde(default)]
    pub uefi_target: Option<String>,
    /// `BootNext`.
    #[serde(default)]
    pub boot_next: Option<String>,
}

impl Default for BootOverride {
    fn default() -> Self {
        Self {
            enabled: OverrideEnabled::Disabled,
            target: BootTarget::None,
            mode: BootMode::UEFI,
            http_boot_uri: None,
            uefi_target: None,
            boot_next: None,
        }
    }
}

/// One boot: what was asked for and what the machine started from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootRecord {
    /// The override that was in force.
    pub requested: BootOverride,
    /// What the machine started from.
    pub booted_from: BootSource,
}

/// What a machine started from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "source", rename_all = "snake_case")]
pub enum BootSource {
    /// Its disk.
    Disk,
    /// An image in virtual media.
    Media {
        /// The device's `Id`.
        device: String,
        /// The image.
        image: String,
    },
    /// UEFI HTTP boot.
    Http {
        /// `HttpBootUri`; nothing when DHCP was to answer.
        uri: Option<String>,
    },
    /// Network boot by PXE.
    Pxe,
    /// Something in the firmware or a device that is not simulated further.
    Other {
        /// The override's target.
        target: BootTarget,
    },
}
