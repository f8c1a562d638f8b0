//! Detects addresses of this machine.

/// Returns true if a URL's host is this machine, so that requests never use the network.
pub(crate) fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is() {
        for (host, is) in [
            ("localhost", true),
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("[::1]", true),
            ("::1", true),
            ("localhost.example", false),
            ("10.0.0.1", false),
            ("[2001:db8::1]", false),
            ("", false),
        ] {
            assert_eq!(is_loopback(host), is, "{host:?}");
        }
    }
}
