//! Values of the Redfish data model, spelled as on the wire.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Declares an enumeration whose variants are spelled on the wire as in Rust.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$vmeta])* $variant),+ }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the spelling on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),+ }
            }

            /// Returns the value spelled `text`; case-sensitive.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str() == text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// `PowerState` of a `ComputerSystem`.
    PowerState {
        /// No main power.
        Off,
        /// Main power is applied.
        On,
        /// On its way from off to on.
        PoweringOn,
        /// On its way from on to off.
        PoweringOff,
        /// Powered without a running operating system, which halted, as on Arm.
        Paused,
    }
}

words! {
    /// `ResetType` of the action `#ComputerSystem.Reset`.
    ResetType {
        /// Power on.
        On,
        /// Power on immediately.
        ForceOn,
        /// Cut the power.
        ForceOff,
        /// A request to the operating system to shut down.
        GracefulShutdown,
        /// A request to the operating system to restart.
        GracefulRestart,
        /// Reset without a request to the operating system.
        ForceRestart,
        /// Off, a pause, on.
        PowerCycle,
        /// Press the front button.
        PushPowerButton,
        /// A non-maskable interrupt; the power is unchanged.
        Nmi,
    }
}

words! {
    /// `BootSourceOverrideEnabled`.
    OverrideEnabled {
        /// The machine uses its own boot order.
        Disabled,
        /// The override is valid for one boot, then returns to `Disabled`.
        Once,
        /// The override is valid until it is changed.
        Continuous,
    }
}

words! {
    /// `BootSourceOverrideMode`.
    BootMode {
        /// BIOS compatibility.
        Legacy,
        /// UEFI.
        UEFI,
    }
}

words! {
    /// `BootSourceOverrideTarget`.
    BootTarget {
        /// The machine's own boot order.
        None,
        /// Network boot by PXE.
        Pxe,
        /// A floppy, real or virtual.
        Floppy,
        /// A CD or DVD, real or virtual.
        Cd,
        /// A USB device, real or virtual.
        Usb,
        /// The disk.
        Hdd,
        /// The firmware's set-up screen.
        BiosSetup,
        /// The manufacturer's utilities.
        Utilities,
        /// The manufacturer's diagnostics.
        Diags,
        /// The UEFI shell.
        UefiShell,
        /// A CD or DVD behind USB.
        UsbCd,
        /// The same with UEFI.
        UefiUsbCd,
        /// A USB stick.
        UsbKey,
        /// The entry of the boot menu named by `BootNext`.
        UefiBootNext,
        /// The device named by `UefiTargetBootSourceOverride`.
        UefiTarget,
        /// An SD card.
        SDCard,
        /// UEFI HTTP boot, from `HttpBootUri` or an address from DHCP.
        UefiHttp,
        /// A remote drive such as iSCSI.
        RemoteDrive,
    }
}

words! {
    /// `BootProgress.LastState`: the states in this simulator.
    BootProgress {
        /// Neither booting nor booted.
        None,
        /// The first processor runs firmware.
        PrimaryProcessorInitializationStarted,
        /// The firmware has initialized the hardware.
        SystemHardwareInitializationComplete,
        /// The boot loader was started.
        OSBootStarted,
        /// The operating system runs.
        OSRunning,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_spelled_the_same_for_serde_and_for_parse() {
        for value in ResetType::ALL {
            let json = serde_json::to_value(value).ok();
            assert_eq!(json, Some(serde_json::Value::from(value.as_str())));
            assert_eq!(ResetType::parse(value.as_str()), Some(*value));
        }
        assert_eq!(ResetType::parse("forceoff"), Option::None);
    }
}
