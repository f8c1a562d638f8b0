//! Creates every client that carries credentials, and restricts its connections.
//!
//! Plain text leaves this machine only if the configuration allows it. Credentials from a cluster
//! go only to the configured networks. Names are resolved here, and a client connects to the
//! checked addresses, so a later DNS answer does not matter.

mod http;
mod kubernetes;
mod networks;
mod postgres;
#[cfg(test)]
mod tests;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use tokio::net::TcpStream;
use url::{Host, Url};

pub(crate) use http::{HttpClient, refusal};
pub(crate) use kubernetes::kubernetes;
pub use networks::Network;
pub(crate) use postgres::{GuardedPostgres, pool};

/// Why credentials were not sent. Temporary problems of the name service are not part of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// The address would receive credentials in plain text.
    #[error(
        "no credentials were sent, because the connection to {host} ({address}) would be plain text: use TLS, or set \
         {opt_in} to allow plain text"
    )]
    PlainText { host: String, address: IpAddr, opt_in: &'static str },
    /// The address is outside the networks that are allowed to receive credentials.
    #[error(
        "no credentials were sent, because {host} ({address}) is not within {setting}{}. If BMCs are there, add \"{}\" to \
         {setting}",
        if *.is_empty { ", which is not set" } else { "" },
        Network::around(*.address)
    )]
    Outside { host: String, address: IpAddr, setting: &'static str, is_empty: bool },
}

/// The networks that are allowed to receive credentials, and their setting for messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Within {
    pub(crate) networks: Arc<[Network]>,
    pub(crate) setting: &'static str,
}

/// The addresses to which a client sends its credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Route {
    /// The only networks; `None` if the configuration itself contains the address.
    within: Option<Within>,
    plain_text: bool,
    /// The setting that allows plain text.
    opt_in: &'static str,
    names: Names,
}

impl Route {
    /// Returns a route to configured addresses. `plain_text` is the setting `opt_in`.
    pub(crate) fn new(plain_text: bool, opt_in: &'static str) -> Self {
        Self { within: None, plain_text, opt_in, names: Names::default() }
    }

    /// Returns a route to these networks only.
    pub(crate) fn within(self, within: Within) -> Self {
        Self { within: Some(within), ..self }
    }

    #[cfg(test)]
    pub(crate) fn named(self, names: &'static [(&'static str, &'static str)]) -> Self {
        Self { names: Names::Fixed(names), ..self }
    }

    /// Returns the host's addresses that are allowed to receive credentials. `secure` means TLS.
    fn allowed(&self, secure: bool, host: &str, found: &[SocketAddr]) -> Result<Vec<SocketAddr>, Refused> {
        let judged = found.iter().map(|address| self.judge(secure, host, address.ip()).map(|()| *address));
        let (allowed, refused): (Vec<_>, Vec<_>) = judged.partition(Result::is_ok);
        match refused.into_iter().find_map(Result::err) {
            Some(refused) if allowed.is_empty() => Err(refused),
            _ => Ok(allowed.into_iter().flatten().collect()),
        }
    }

    fn judge(&self, secure: bool, host: &str, address: IpAddr) -> Result<(), Refused> {
        let host = || host.to_owned();
        if let Some(Within { networks, setting }) = &self.within
            && !networks.iter().any(|network| network.contains(address))
        {
            let address = address.to_canonical();
            return Err(Refused::Outside { host: host(), address, setting, is_empty: networks.is_empty() });
        }
        if !secure && !self.plain_text && !address.to_canonical().is_loopback() {
            return Err(Refused::PlainText { host: host(), address, opt_in: self.opt_in });
        }
        Ok(())
    }

    /// Checks a URL whose host is an address. A name is checked when it is resolved.
    fn literal(&self, url: &Url) -> Result<(), Refused> {
        let (address, secure) = match url.host() {
            Some(Host::Ipv4(address)) => (IpAddr::V4(address), is_secure(url)),
            Some(Host::Ipv6(address)) => (IpAddr::V6(address), is_secure(url)),
            _ => return Ok(()),
        };
        self.judge(secure, &address.to_string(), address)
    }

    /// Resolves a URL's host and checks its addresses, before its credentials are read. A host that
    /// does not resolve fails when it is requested.
    pub(crate) async fn check(&self, url: &Url) -> Result<(), Refused> {
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else { return Ok(()) };
        self.literal(url)?;
        let Ok(found) = self.names.addresses(host, port).await else { return Ok(()) };
        self.allowed(is_secure(url), host, &found).map(drop)
    }

    /// Connects to a URL's host for TLS.
    pub(crate) async fn connect(&self, url: &Url) -> Result<TcpStream, String> {
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return Err("the endpoint does not contain a host".to_owned());
        };
        let found = self.names.addresses(host, port).await.map_err(|error| error.to_string())?;
        let allowed = self.allowed(true, host, &found).map_err(|refused| refused.to_string())?;
        TcpStream::connect(allowed.as_slice()).await.map_err(|error| error.to_string())
    }
}

fn is_secure(url: &Url) -> bool {
    url.scheme() == "https"
}

/// The name service. Tests replace it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum Names {
    #[default]
    System,
    #[cfg(test)]
    Fixed(&'static [(&'static str, &'static str)]),
}

impl Names {
    /// Returns a host's addresses. An IPv6 address can have brackets.
    async fn addresses(&self, host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
        let host = host.trim_matches(['[', ']']);
        match self {
            Self::System => Ok(tokio::net::lookup_host((host, port)).await?.collect()),
            #[cfg(test)]
            Self::Fixed(known) => {
                let found = known.iter().filter(|(name, _)| *name == host).map(|(_, address)| *address);
                let found = found.chain([host]).filter_map(|address| address.parse().ok());
                Ok(found.map(|address: IpAddr| SocketAddr::new(address, port)).collect())
            }
        }
    }
}
