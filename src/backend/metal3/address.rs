//! Parses a host's BMC address into protocol and Redfish endpoint. No I/O.
//!
//! The rules follow baremetal-operator v0.14 (`pkg/hardwareutils/bmc/access.go` and its sibling
//! files). The protocol precedes the connection scheme (`redfish-virtualmedia+http`), which
//! defaults to `https`. An address without a protocol is IPMI. A path other than `/` and
//! `/redfish/v1` is the system.

use url::Url;

/// Protocols that use Redfish on the wire, whatever they boot with.
const REDFISH: [&str; 7] = [
    "redfish",
    "redfish-virtualmedia",
    "redfish-uefihttp",
    "idrac-redfish",
    "idrac-virtualmedia",
    "ilo5-redfish",
    "ilo5-virtualmedia",
];

/// Access to a BMC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BmcAddress {
    /// Redfish.
    Redfish {
        endpoint: Url,
        /// The system's path; `None` if there is only one.
        system: Option<String>,
    },
    /// A protocol that this provider does not support.
    Other(String),
    /// An unreadable address.
    Invalid,
}

impl BmcAddress {
    /// Parses `spec.bmc.address`.
    pub(super) fn read(address: &str) -> Self {
        let Some((protocol, rest)) = address.split_once("://") else {
            return if address.is_empty() { Self::Invalid } else { Self::Other("ipmi".to_owned()) };
        };
        let (kind, scheme) = protocol.split_once('+').unwrap_or((protocol, "https"));
        let kind = kind.to_lowercase();
        if !REDFISH.contains(&kind.as_str()) {
            return Self::Other(kind);
        }
        if !matches!(scheme, "http" | "https") {
            return Self::Invalid;
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.is_empty() || authority.contains('@') {
            return Self::Invalid;
        }
        let Ok(endpoint) = Url::parse(&format!("{scheme}://{authority}")) else { return Self::Invalid };
        let trimmed = path.split(['?', '#']).next().unwrap_or_default().trim_matches('/');
        let system = (!trimmed.is_empty() && trimmed != "redfish/v1").then(|| format!("/{trimmed}"));
        Self::Redfish { endpoint, system }
    }

    /// Returns the protocol for display.
    pub(super) fn protocol(&self) -> &str {
        match self {
            Self::Redfish { .. } => "redfish",
            Self::Other(kind) => kind,
            Self::Invalid => "an unreadable address",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_operator_reads_them() {
        let redfish = |endpoint: &str, system: Option<&str>| BmcAddress::Redfish {
            endpoint: Url::parse(endpoint).unwrap(),
            system: system.map(str::to_owned),
        };
        let other = |kind: &str| BmcAddress::Other(kind.to_owned());
        for (address, expected) in [
            ("redfish://10.0.0.1", redfish("https://10.0.0.1", None)),
            ("redfish://10.0.0.1/redfish/v1/", redfish("https://10.0.0.1", None)),
            (
                "redfish-virtualmedia+http://bmc.example:8000/redfish/v1/Systems/a-1",
                redfish("http://bmc.example:8000", Some("/redfish/v1/Systems/a-1")),
            ),
            (
                "redfish-virtualmedia+https://[fd00::1]:8443/redfish/v1/Systems/1/",
                redfish("https://[fd00::1]:8443", Some("/redfish/v1/Systems/1")),
            ),
            ("idrac-virtualmedia://10.0.0.2/redfish/v1/Systems/System.Embedded.1", {
                redfish("https://10.0.0.2", Some("/redfish/v1/Systems/System.Embedded.1"))
            }),
            ("ilo5-virtualmedia://10.0.0.3/", redfish("https://10.0.0.3", None)),
            ("redfish-uefihttp://h", redfish("https://h", None)),
            ("idrac-redfish+http://h", redfish("http://h", None)),
            ("ipmi://10.0.0.4:6230", other("ipmi")),
            ("libvirt://10.0.0.4:6230", other("libvirt")),
            ("idrac://10.0.0.4", other("idrac")),
            ("10.0.0.4:6230", other("ipmi")),
            ("10.0.0.4", other("ipmi")),
            ("redfish+ftp://h", BmcAddress::Invalid),
            ("redfish://", BmcAddress::Invalid),
            ("redfish://user:password@h", BmcAddress::Invalid),
            ("", BmcAddress::Invalid),
        ] {
            assert_eq!(BmcAddress::read(address), expected, "{address}");
        }
    }
}
