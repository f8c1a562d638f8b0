//! The go-plugin handshake: environment variables from the host, and one line to the host.
use std::{
    env,
    io::{self, Write},
    path::PathBuf,
};

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};

use super::{PluginError, listener::Address};

/// Distinguishes a start by a host from a manual start. Not a secret: every host and every provider
/// contains the same value.
pub(super) const COOKIE_NAME: &str = "TF_PLUGIN_MAGIC_COOKIE";
const COOKIE_VALUE: &str = "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2";
/// Version of go-plugin's own line format.
const CORE_PROTOCOL: u8 = 1;
/// Major version of the provider protocol.
pub(super) const PROVIDER_PROTOCOL: u8 = 6;

/// Returns true if a Terraform or OpenTofu host started this process (the magic cookie is set).
#[must_use]
pub fn is_plugin_start() -> bool {
    env::var(COOKIE_NAME).is_ok_and(|value| value == COOKIE_VALUE)
}

/// The host's values from the environment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HostOffer {
    /// PEM of the only certificate that is allowed to connect.
    pub client_certificate: String,
    /// The host's folder for the socket; `None`: the system's temporary folder.
    pub socket_parent: Option<PathBuf>,
}

impl HostOffer {
    /// Reads the process's environment.
    pub fn from_env() -> Result<Self, PluginError> {
        Self::read(|name| env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, PluginError> {
        let filled = |name| variable(name).filter(|value| !value.is_empty());
        if variable(COOKIE_NAME).as_deref() != Some(COOKIE_VALUE) {
            return Err(PluginError::NotStartedByHost);
        }
        // Hosts without the list support at most version 5, so a missing list is rejected too.
        let offered = variable("PLUGIN_PROTOCOL_VERSIONS").unwrap_or_default();
        let ours = PROVIDER_PROTOCOL.to_string();
        if !offered.split(',').any(|version| version.trim() == ours) {
            return Err(PluginError::Protocol { offered });
        }
        Ok(Self {
            client_certificate: filled("PLUGIN_CLIENT_CERT").ok_or(PluginError::NoClientCertificate)?,
            socket_parent: filled("PLUGIN_UNIX_SOCKET_DIR").map(PathBuf::from),
        })
    }
}

/// Returns the line with the socket address and the server certificate for the host.
pub(super) fn line(address: &Address, certificate_der: &[u8]) -> String {
    format!(
        "{CORE_PROTOCOL}|{PROVIDER_PROTOCOL}|{}|{}|grpc|{}\n",
        address.network,
        address.text,
        STANDARD_NO_PAD.encode(certificate_der),
    )
}

/// Writes the handshake line to standard output. Nothing else is written there, because hosts would
/// treat it as a broken handshake.
pub(super) fn announce(text: &str) -> Result<(), PluginError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(PluginError::Announce)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn host<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        }
    }

    #[test]
    fn a_complete_offer_is_read() {
        let offer = HostOffer::read(host(&[
            (COOKIE_NAME, COOKIE_VALUE),
            ("PLUGIN_PROTOCOL_VERSIONS", "5,6"),
            ("PLUGIN_CLIENT_CERT", "PEM"),
            ("PLUGIN_UNIX_SOCKET_DIR", "/run/host"),
        ]))
        .unwrap();
        assert_eq!(offer.client_certificate, "PEM");
        assert_eq!(offer.socket_parent, Some(PathBuf::from("/run/host")));
    }

    #[test]
    fn a_person_another_protocol_and_a_missing_certificate_are_refused() {
        let person = HostOffer::read(host(&[]));
        assert!(matches!(person, Err(PluginError::NotStartedByHost)));
        // "16" must not count as 6.
        let other = HostOffer::read(host(&[(COOKIE_NAME, COOKIE_VALUE), ("PLUGIN_PROTOCOL_VERSIONS", "5,16")]));
        assert!(matches!(other, Err(PluginError::Protocol { offered }) if offered == "5,16"));
        let open = HostOffer::read(host(&[
            (COOKIE_NAME, COOKIE_VALUE),
            ("PLUGIN_PROTOCOL_VERSIONS", "6"),
            ("PLUGIN_CLIENT_CERT", ""),
        ]));
        assert!(matches!(open, Err(PluginError::NoClientCertificate)));
    }

    #[test]
    fn the_line_has_six_fields_and_an_unpadded_certificate() {
        let at = |network, text: &str| Address { network, text: text.to_owned() };
        assert_eq!(line(&at("unix", "/tmp/x/s"), &[0xff]), "1|6|unix|/tmp/x/s|grpc|/w\n");
        assert_eq!(line(&at("tcp", "127.0.0.1:7"), &[0xff]), "1|6|tcp|127.0.0.1:7|grpc|/w\n");
    }
}
