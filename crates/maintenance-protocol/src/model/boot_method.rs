//! Boot methods.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A boot method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootMethod {
    /// UEFI HTTP boot from a URL that the firmware receives.
    Http,
    /// Network boot by PXE.
    Pxe,
    /// An image in a virtual drive.
    VirtualMedia,
    /// The local disk.
    Disk,
    /// A backend's own method, by its configured name. The backend's external system interprets the
    /// image and boots it.
    External(String),
}

impl BootMethod {
    /// The methods that work without a backend's support, as spelled in the configuration.
    pub const NAMES: [&'static str; 4] = ["http", "pxe", "virtual_media", "disk"];

    /// Parses a method name. A name outside [`Self::NAMES`] belongs to a backend; the configuration
    /// layer checks that such a backend exists.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        match name {
            "http" => Self::Http,
            "pxe" => Self::Pxe,
            "virtual_media" => Self::VirtualMedia,
            "disk" => Self::Disk,
            other => Self::External(other.to_owned()),
        }
    }

    /// Returns the configured name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Http => "http",
            Self::Pxe => "pxe",
            Self::VirtualMedia => "virtual_media",
            Self::Disk => "disk",
            Self::External(name) => name,
        }
    }

    /// Returns true if a backend provides the method.
    #[must_use]
    pub fn is_external(&self) -> bool {
        matches!(self, Self::External(_))
    }

    /// Returns the matching `BootSourceOverrideTarget` (DSP2046 `ComputerSystem.BootSource`). A
    /// backend's method is converted to Redfish spelling: `a_method` becomes `AMethod`.
    #[must_use]
    pub fn target(&self) -> Cow<'static, str> {
        match self {
            Self::Http => "UefiHttp".into(),
            Self::Pxe => "Pxe".into(),
            Self::VirtualMedia => "Cd".into(),
            Self::Disk => "Hdd".into(),
            Self::External(name) => name.split('_').map(capitalized).collect::<String>().into(),
        }
    }
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

impl fmt::Display for BootMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for BootMethod {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for BootMethod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from_name(&Cow::<str>::deserialize(deserializer)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_stored_by_its_name_and_read_back() {
        for name in BootMethod::NAMES.into_iter().chain(["boot_operator", "of_another_backend"]) {
            let method = BootMethod::from_name(name);
            assert_eq!(method.is_external(), !BootMethod::NAMES.contains(&name));
            let stored = serde_json::to_string(&method).unwrap();
            assert_eq!(stored, format!("{name:?}"));
            assert_eq!(serde_json::from_str::<BootMethod>(&stored).unwrap(), method);
        }
        assert_eq!(BootMethod::from_name("boot_operator").target(), "BootOperator");
    }
}
