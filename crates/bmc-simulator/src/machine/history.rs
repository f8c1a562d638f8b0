//! A machine's actual events, independent of Redfish.

use serde::{Deserialize, Serialize};

use crate::clock::Stamp;
use crate::words::{BootMode, BootProgress, BootTarget, OverrideEnabled, PowerState, ResetType};

/// A machine's event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its position in the order of all requests and events. An automatic step gets its number when
    /// the simulator notices it, shortly after `at`.
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

/// An event's kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// The power state changed.
    Power {
        /// The state before.
        from: PowerState,
        /// The state now.
        to: PowerState,
        /// What caused it.
        cause: Cause,
    },
    /// A reset was accepted.
    Reset {
        /// The reset type.
        reset_type: ResetType,
    },
    /// The operating system hung and ignored a graceful request.
    ShutdownIgnored {
        /// The reset type.
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
    /// A boot consumed a one-time override, which is now `Disabled`.
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
        /// True if the machine was on and had booted from this image.
        ejected_while_running: bool,
    },
}

/// What caused a power change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A reset through Redfish.
    Reset,
    /// The machine's own software.
    Software,
    /// An operator at the machine, simulated by the control interface.
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

/// A boot: the override and the actual boot source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootRecord {
    /// The active override.
    pub requested: BootOverride,
    /// The actual boot source.
    pub booted_from: BootSource,
}

/// A boot source.
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
        /// `HttpBootUri`; `None` means an address from DHCP.
        uri: Option<String>,
    },
    /// Network boot by PXE.
    Pxe,
    /// A firmware or device source without further simulation.
    Other {
        /// The override's target.
        target: BootTarget,
    },
}
