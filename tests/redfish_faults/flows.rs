//! Flows: one hold or operation each, from the request to the release.

use std::collections::BTreeMap;

use shown_text::OneLine;
use terraform_provider_metal::maintenance::{
    machine::{PowerTarget, ResetType},
    operate::{CompletionProof, OperationSpec, WhenOff},
    spec::{BootMethod, BootSpec, MaintenanceKind, Spec},
};

/// Image URL that is never fetched; the simulator boots it by name.
pub const IMAGE: &str = "http://images.example/rescue.iso";

/// A flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Held in its current state.
    Hold,
    /// Held and switched on.
    PowerOn,
    /// Held, booted from its disk until the release.
    Disk,
    /// Held and switched off.
    PowerOff,
    /// Held, booted over HTTP.
    Http,
    /// Held, booted from an inserted image.
    VirtualMedia,
    /// Held, booted by PXE until the release.
    Pxe,
    /// One forced restart.
    ForceRestart,
    /// One restart by the operating system.
    GracefulRestart,
    /// One power cycle.
    PowerCycle,
    /// One interrupt.
    Nmi,
    /// Switched on once.
    SwitchOn,
    /// Switched off once, without its operating system.
    ForceOff,
    /// Shut down once.
    Shutdown,
}

impl Flow {
    /// Flows of the complete matrix.
    pub const ALL: [Self; 10] = [
        Self::Hold,
        Self::PowerOff,
        Self::Http,
        Self::VirtualMedia,
        Self::Pxe,
        Self::Disk,
        Self::ForceRestart,
        Self::GracefulRestart,
        Self::PowerCycle,
        Self::Nmi,
    ];

    /// Flows tested on each personality.
    pub const ASKED: [Self; 9] = [
        Self::Hold,
        Self::PowerOn,
        Self::PowerOff,
        Self::Http,
        Self::VirtualMedia,
        Self::Pxe,
        Self::Disk,
        Self::ForceRestart,
        Self::PowerCycle,
    ];

    /// Flows that change power.
    pub const POWER: [Self; 12] = [
        Self::Hold,
        Self::PowerOn,
        Self::PowerOff,
        Self::Pxe,
        Self::Disk,
        Self::ForceRestart,
        Self::GracefulRestart,
        Self::PowerCycle,
        Self::Nmi,
        Self::SwitchOn,
        Self::ForceOff,
        Self::Shutdown,
    ];

    /// Flows with one power operation.
    pub const OPERATIONS: [Self; 4] = [Self::ForceRestart, Self::GracefulRestart, Self::PowerCycle, Self::Nmi];

    /// Returns the power operation, for flows with one.
    pub fn operation(self) -> Option<ResetType> {
        Some(match self {
            Self::ForceRestart => ResetType::ForceRestart,
            Self::GracefulRestart => ResetType::GracefulRestart,
            Self::PowerCycle => ResetType::PowerCycle,
            Self::Nmi => ResetType::Nmi,
            Self::SwitchOn => ResetType::On,
            Self::ForceOff => ResetType::ForceOff,
            Self::Shutdown => ResetType::GracefulShutdown,
            _ => return None,
        })
    }

    pub fn spec(self, server: &str) -> Spec {
        let boot = |method, image: Option<&str>, once| {
            Some(BootSpec {
                ignition: None,
                method,
                image: image.map(OneLine::from),
                image_sha256: None,
                once,
                boot_mode: None,
                ready_when: None,
            })
        };
        let held = Spec { triggers: BTreeMap::new(), ..Spec::new(MaintenanceKind::Maintenance, server) };
        let on = Some(PowerTarget::On);
        match self {
            Self::Hold => held,
            Self::PowerOn => Spec { server_power: on, ..held },
            Self::Disk => Spec { server_power: on, boot: boot(BootMethod::Disk, None, true), ..held },
            Self::PowerOff => Spec { server_power: Some(PowerTarget::Off), ..held },
            Self::Http => Spec { server_power: on, boot: boot(BootMethod::Http, Some(IMAGE), true), ..held },
            Self::VirtualMedia => {
                Spec { server_power: on, boot: boot(BootMethod::VirtualMedia, Some(IMAGE), true), ..held }
            }
            Self::Pxe => Spec { server_power: on, boot: boot(BootMethod::Pxe, None, false), ..held },
            Self::ForceRestart
            | Self::GracefulRestart
            | Self::PowerCycle
            | Self::Nmi
            | Self::SwitchOn
            | Self::ForceOff
            | Self::Shutdown => Spec {
                operation: self.operation().map(|reset| OperationSpec {
                    reset,
                    when_off: WhenOff::Error,
                    proof: CompletionProof::Power,
                }),
                ..Spec::new(MaintenanceKind::Operation, server)
            },
        }
    }
}
