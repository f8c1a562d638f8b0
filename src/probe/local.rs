//! Addresses to which an image host must not redirect a probe.
//!
//! An image host is not trusted. The runner reaches services that the host does not reach: its own
//! loopback services, and the metadata service of its cloud, which returns credentials.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

/// Metadata services outside link-local networks: Alibaba, Oracle and Azure.
const METADATA: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(192, 0, 0, 192), Ipv4Addr::new(168, 63, 129, 16)];

/// The metadata service of AWS over IPv6.
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

/// Returns true for loopback, unspecified, link-local and metadata addresses, even inside IPv6.
pub(super) fn is_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.is_loopback() || v4.octets()[0] == 0 || v4.is_link_local() || METADATA.contains(&v4),
        IpAddr::V6(v6) => {
            let [first, second, .., high, low] = v6.segments();
            // NAT64 (RFC 6052) contains an IPv4 address.
            let translated = first == 0x64 && second == 0xff9b;
            let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_unicast_link_local()
                || v6 == METADATA_V6
                || (translated && is_local(Ipv4Addr::new(a, b, c, d).into()))
        }
    }
}

/// Returns true if a URL names such an address itself. Names are checked when they are resolved.
pub(super) fn names_local(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => is_local(address.into()),
        Some(Host::Ipv6(address)) => is_local(address.into()),
        Some(Host::Domain(name)) => name.trim_end_matches('.').eq_ignore_ascii_case("localhost"),
        None => true,
    }
}

/// Resolves names, and rejects one with such an address. The client connects to the checked
/// addresses.
#[derive(Debug)]
pub(super) struct NoLocalNames;

impl Resolve for NoLocalNames {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            if found.iter().any(|address| is_local(address.ip())) {
                return Err(LOCAL.into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// The cause in an error about a rejected redirect.
pub(super) const LOCAL: &str = "it redirects to a loopback, link-local or metadata address; set \
                                allow_local_image_redirects if that is intended";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_and_of_metadata_are_local_in_every_form() {
        for local in [
            "http://127.0.0.1/",
            "http://127.9.9.9/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://0.0.0.0/",
            "http://169.254.169.254/latest/meta-data",
            "http://100.100.100.200/",
            "http://192.0.0.192/",
            "http://168.63.129.16/",
            "http://[::1]/",
            "http://[::]/",
            "http://[::ffff:169.254.169.254]/",
            "http://[64:ff9b::169.254.169.254]/",
            "http://[fe80::1]/",
            "http://[fd00:ec2::254]/",
            "http://LOCALHOST./",
        ] {
            assert!(names_local(&local.parse().unwrap()), "{local}");
        }
        for other in ["http://10.0.0.1/", "http://192.168.1.1/", "http://[fd00::1]/", "http://images.example/"] {
            assert!(!names_local(&other.parse().unwrap()), "{other}");
        }
    }
}
