//! IP networks in CIDR notation.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;

/// An IP network, for example `10.0.0.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network(IpNet);

impl Network {
    /// Returns the network that messages suggest for an address: /24 in IPv4, /64 in IPv6.
    pub(super) fn around(address: IpAddr) -> Self {
        let prefix = if address.is_ipv4() { 24 } else { 64 };
        Self(IpNet::new(address, prefix).map_or_else(|_| address.into(), |network| network.trunc()))
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        // An IPv4 address can be written as IPv6 (RFC 4291, section 2.5.5.2).
        self.0.contains(&address.to_canonical())
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |_| format!("{text:?} is not a network. Write it as \"10.0.0.0/24\" or \"fd00::/64\"");
        let network: IpNet = text.trim().parse().map_err(wrong)?;
        if network != network.trunc() {
            return Err(format!("{text:?} is an address within a network. Write the network's first address"));
        }
        Ok(Self(network))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_its_addresses_only() {
        for (network, address, inside) in [
            ("10.1.2.0/24", "10.1.2.255", true),
            ("10.1.2.0/24", "10.1.3.0", false),
            ("10.1.2.0/24", "::ffff:10.1.2.3", true),
            ("10.1.2.3/32", "10.1.2.3", true),
            ("10.1.2.3/32", "10.1.2.2", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "fd00::1", false),
            ("fd00::/64", "fd00::1:2", true),
            ("fd00::/64", "fd00:0:0:1::2", false),
            ("::/0", "10.0.0.1", false),
            ("::/0", "fd00::1", true),
        ] {
            let parsed: Network = network.parse().unwrap();
            assert_eq!(parsed.contains(address.parse().unwrap()), inside, "{network} {address}");
            assert_eq!(parsed.to_string(), network);
        }
        for bad in ["10.0.0.0", "10.0.0.1/24", "10.0.0.0/33", "fd00::/129", "bmc.example/24", "", "/", "10.0.0.0/-1"] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
        assert_eq!(Network::around("10.1.2.3".parse().unwrap()).to_string(), "10.1.2.0/24");
        assert_eq!(Network::around("fd00::1:2".parse().unwrap()).to_string(), "fd00::/64");
    }
}
