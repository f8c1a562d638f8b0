//! Server identifiers and their canonical forms.
//!
//! A lock belongs to a server, not to a spelling. Each alias is unique in the store and leads to
//! one lock. Aliases are the system UUID in every spelling, the manufacturer with the serial
//! number, the BMC address with the system path, and the configured name. `identity.rs` contains
//! the rules.

use std::fmt;

use serde::{Deserialize, Serialize};
use shown_text::OneLine;
use uuid::Uuid;

use super::ids::LockKey;

/// The longest accepted identifier, in characters.
const LONGEST: usize = 253;

/// UUIDs that manufacturers ship on many servers. UUIDs that repeat one byte are detected
/// separately. Each entry also matches with its first three fields in the other byte order.
const PLACEHOLDER_UUIDS: [&str; 8] = [
    "03000200-0400-0500-0006-000700080009",
    "12345678-1234-5678-90ab-cddeefaabbcc",
    "12345678-1234-1234-1234-123456789012",
    "12345678-1234-1234-1234-123456789abc",
    "01234567-89ab-cdef-0123-456789abcdef",
    "11111111-2222-3333-4444-555555555555",
    "00010203-0405-0607-0809-0a0b0c0d0e0f",
    "deadbeef-dead-beef-dead-beefdeadbeef",
];

/// Placeholders for a manufacturer or a serial number, in lower case and without punctuation. The
/// first three are AMI's defaults.
const PLACEHOLDER_TEXTS: [&str; 26] = [
    "tobefilledbyoem",
    "defaultstring",
    "systemserialnumber",
    "tobefilled",
    "tbd",
    "oem",
    "none",
    "na",
    "null",
    "nil",
    "empty",
    "unknown",
    "undefined",
    "invalid",
    "notspecified",
    "notavailable",
    "notapplicable",
    "notprovided",
    "notset",
    "serialnumber",
    "serial",
    "sernum",
    "chassisserialnumber",
    "systemmanufacturer",
    "manufacturer",
    "deadbeef",
];

/// A system UUID that identifies one server, in its canonical form.
///
/// SMBIOS before 2.6 did not define the byte order of the first three fields (DSP0134, 7.2.1).
/// Firmware updates and tools therefore swap it, so both orders count as one UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemUuid(Uuid);

impl SystemUuid {
    /// Parses a UUID in any spelling: upper case, without hyphens, in braces, with `urn:uuid:`.
    /// Returns `None` for invalid UUIDs, and for UUIDs that manufacturers ship on many servers.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase();
        let text = text.strip_prefix("urn:uuid:").or_else(|| text.strip_prefix("uuid:")).unwrap_or(&text);
        let text = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        if digits.len() != 32 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let uuid = Self(Uuid::try_parse(&digits).ok()?);
        (!uuid.is_placeholder()).then_some(uuid)
    }

    fn is_placeholder(self) -> bool {
        let bytes = self.0.as_bytes();
        let repeated = bytes.iter().all(|byte| *byte == bytes[0]);
        let listed = |uuid: Uuid| {
            let text = uuid.hyphenated().to_string();
            PLACEHOLDER_UUIDS.contains(&text.as_str())
        };
        repeated || listed(self.0) || listed(self.swapped().0)
    }

    /// Returns this UUID with its first three fields in the other byte order.
    #[must_use]
    pub fn swapped(self) -> Self {
        Self(Uuid::from_bytes_le(self.0.into_bytes()))
    }

    /// Returns a new lock's key, in the reported byte order.
    #[must_use]
    pub fn lock_key(self) -> LockKey {
        LockKey::new(self.0.hyphenated().to_string())
    }

    /// Returns the alias that covers both byte orders.
    #[must_use]
    pub fn alias(self) -> Alias {
        Alias(format!("{UUID}{}", self.0.min(self.swapped().0).hyphenated()).into())
    }
}

/// Converts to lower case with one space between words.
fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// Normalizes a manufacturer or serial number. Returns `None` for placeholders.
fn real(text: &str) -> Option<String> {
    let text = plain(text);
    let letters: String = text.chars().filter(|c| c.is_alphanumeric()).collect();
    let repeated = letters.chars().all(|c| letters.starts_with(c));
    let counted = letters.len() >= 5 && "01234567890123456789".contains(letters.as_str());
    let real = !repeated && !counted && !PLACEHOLDER_TEXTS.contains(&letters.as_str());
    (real && text.chars().count() <= LONGEST).then_some(text)
}

const UUID: &str = "uuid:";
const SERIAL: &str = "serial:";
const ADDRESS: &str = "address:";

/// A server identifier: `uuid:…`, `serial:MANUFACTURER/NUMBER`, `address:HOST/PATH`, or the
/// configured name `OWNER/SERVER`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Alias(OneLine);

impl Alias {
    /// Creates an alias from manufacturer and serial number if both are real. `system` adds the
    /// system path for a chassis whose systems report the same number.
    #[must_use]
    pub fn serial(manufacturer: &str, number: &str, system: Option<&str>) -> Option<Self> {
        let system = system.map(|path| format!("#{path}")).unwrap_or_default();
        Some(Self(format!("{SERIAL}{}/{}{system}", real(manufacturer)?, real(number)?).into()))
    }

    /// Returns the alias of a BMC's host and port with a system path.
    #[must_use]
    pub fn address(authority: &str, path: &str) -> Self {
        Self(format!("{ADDRESS}{}{}", authority.to_ascii_lowercase(), path.trim_end_matches('/')).into())
    }

    /// Creates an alias from a configured name, `OWNER/SERVER`.
    #[must_use]
    pub fn name(bound: &str) -> Self {
        Self(bound.into())
    }

    /// Parses an alias in its displayed form, with a UUID in any spelling. Returns `None` for
    /// configured names and invalid UUIDs.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        if let Some(uuid) = text.strip_prefix(UUID) {
            return SystemUuid::read(uuid).map(SystemUuid::alias);
        }
        (text.starts_with(SERIAL) || text.starts_with(ADDRESS)).then(|| Self(text.into()))
    }

    /// Returns true for hardware identifiers, false for configured names.
    #[must_use]
    pub fn is_hardware(&self) -> bool {
        [UUID, SERIAL, ADDRESS].iter().any(|kind| self.0.raw().starts_with(kind))
    }

    /// Returns true for a UUID.
    #[must_use]
    pub fn is_uuid(&self) -> bool {
        self.0.raw().starts_with(UUID)
    }

    /// Returns the alias as a key in the store. Only configured names contain `/` there, so an
    /// owner called `serial:dell` cannot match hardware.
    #[must_use]
    pub fn stored(&self) -> String {
        let raw = self.0.raw();
        if self.is_hardware() { raw.replace('%', "%25").replace('/', "%2F") } else { raw.to_owned() }
    }

    /// Reverses [`Self::stored`].
    #[must_use]
    pub fn of_stored(text: &str) -> Self {
        let hardware = !text.contains('/') && Self(text.into()).is_hardware();
        Self(if hardware { text.replace("%2F", "/").replace("%25", "%").into() } else { text.into() })
    }
}

impl fmt::Display for Alias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn all_spellings_of_a_uuid_are_one_alias() {
        let alias = |text: &str| SystemUuid::read(text).map(SystemUuid::alias);
        let one = alias("4c4c4544-0037-3010-8052-b4c04f4d3332").unwrap();
        for text in [
            "4C4C4544-0037-3010-8052-B4C04F4D3332",
            "4c4c4544003730108052b4c04f4d3332",
            "{4c4c4544-0037-3010-8052-b4c04f4d3332}",
            "urn:uuid:4c4c4544-0037-3010-8052-b4c04f4d3332",
            "URN:UUID:4C4C4544-0037-3010-8052-B4C04F4D3332",
            "uuid:4c4c4544-0037-3010-8052-b4c04f4d3332",
            "  4c4c4544-0037-3010-8052-b4c04f4d3332\n",
            // The first three fields in the other byte order.
            "44454c4c-3700-1030-8052-b4c04f4d3332",
            "44454C4C370010308052B4C04F4D3332",
        ] {
            assert_eq!(alias(text), Some(one.clone()), "{text:?}");
        }
        assert_ne!(alias("4c4c4544-0037-3010-8052-b4c04f4d3333"), Some(one.clone()));
        // The byte order of the last two fields is fixed.
        assert_ne!(alias("4c4c4544-0037-3010-5280-b4c04f4d3332"), Some(one));
    }

    #[test]
    fn what_many_servers_report_is_no_uuid() {
        for text in [
            "",
            "n/a",
            "4c4c4544",
            "4c4c4544-0037-3010-8052-b4c04f4d333g",
            "4c4c4544-0037-3010-8052-b4c04f4d33321",
            "00000000-0000-0000-0000-000000000000",
            "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
            "ffffffffffffffffffffffffffffffff",
            "fefefefe-fefe-fefe-fefe-fefefefefefe",
            "03000200-0400-0500-0006-000700080009",
            "00020003-0004-0005-0006-000700080009",
            "12345678-1234-5678-90ab-cddeefaabbcc",
            "01234567-89ab-cdef-0123-456789abcdef",
            "11111111-2222-3333-4444-555555555555",
        ] {
            assert_eq!(SystemUuid::read(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_serial_number_counts_with_its_manufacturer() {
        let serial = |maker: &str, number: &str| Alias::serial(maker, number, None).map(|alias| alias.to_string());
        assert_eq!(serial("Maker", "42").as_deref(), Some("serial:maker/42"));
        assert_eq!(serial(" Dell  Inc. ", "CN7475").as_deref(), Some("serial:dell inc./cn7475"));
        let in_chassis = Alias::serial("HPE", "X1", Some("/redfish/v1/Systems/Node0")).unwrap();
        assert_eq!(in_chassis.to_string(), "serial:hpe/x1#/redfish/v1/Systems/Node0");
        for number in [
            "",
            " ",
            "0",
            "00000000",
            "FFFFFFFF",
            "........",
            "xxxxxxxx",
            "0123456789",
            "1234567890",
            "123456789",
            "12345",
            "To be filled by O.E.M.",
            "To Be Filled By O.E.M",
            "Default string",
            "N/A",
            "n.a.",
            "None",
            "Not Specified",
            "System Serial Number",
            "unknown",
            "NULL",
        ] {
            assert_eq!(serial("Maker", number), None, "{number:?}");
            assert_eq!(serial(number, "CN7475"), None, "{number:?}");
        }
        assert_eq!(serial("Maker", &"x1".repeat(200)), None);
    }

    #[test]
    fn a_place_is_host_and_path() {
        let place = Alias::address("BMC7.example:443", "/redfish/v1/Systems/1/");
        assert_eq!(place.to_string(), "address:bmc7.example:443/redfish/v1/Systems/1");
    }

    proptest! {
        #[test]
        fn any_uuid_is_one_alias_in_either_order(bytes: [u8; 16]) {
            let uuid = Uuid::from_bytes(bytes);
            prop_assume!(SystemUuid::read(&uuid.to_string()).is_some());
            let read = SystemUuid::read(&uuid.simple().to_string().to_uppercase()).unwrap();
            let key = read.lock_key();
            prop_assert_eq!(key.raw(), uuid.hyphenated().to_string());
            prop_assert_eq!(read.swapped().alias(), read.alias());
            prop_assert_eq!(read.swapped().swapped(), read);
        }

        #[test]
        fn no_configured_name_is_stored_as_hardware(owner in any::<String>(), server in any::<String>(), number in "[a-z%/#2F5]{1,12}") {
            let name = Alias::name(&format!("{owner}/{server}"));
            prop_assert_eq!(Alias::of_stored(&name.stored()), name.clone());
            let hardware = Alias(format!("serial:maker/{number}").into());
            prop_assert!(!hardware.stored().contains('/'));
            prop_assert_eq!(Alias::of_stored(&hardware.stored()), hardware.clone());
            prop_assert_ne!(hardware.stored(), name.stored());
        }
    }
}
