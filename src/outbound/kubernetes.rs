//! Kubernetes clients.

use std::net::IpAddr;

use kube::{Client, Config};
use url::Url;

use super::{Names, Route};

/// Why no client was created.
pub(crate) type Problem = Box<dyn std::error::Error + Send + Sync>;

/// The kubeconfig's cluster field that allows plain text.
const OPT_IN: &str = "insecure-skip-tls-verify for its cluster in the kubeconfig";

/// Creates a client. An `http` address must be on this machine, unless its kubeconfig disables the
/// verification of the server.
pub(crate) async fn kubernetes(config: Config) -> Result<Client, Problem> {
    guarded(config, Names::default()).await
}

pub(super) async fn guarded(mut config: Config, names: Names) -> Result<Client, Problem> {
    if config.cluster_url.scheme_str() != Some("https") && !config.accept_invalid_certs {
        let mut url = Url::parse(&config.cluster_url.to_string())?;
        let (host, port) = (url.host_str().unwrap_or_default().to_owned(), url.port_or_known_default().unwrap_or(80));
        let found = names.addresses(&host, port).await.map_err(|error| format!("{host}: {error}"))?;
        let route = Route::new(false, OPT_IN);
        let mut allowed = route.allowed(false, &host, &found)?;
        // Servers of this machine listen on IPv4 more often.
        allowed.sort_by_key(|address| address.ip().is_ipv6());
        let address: Option<IpAddr> = allowed.first().map(std::net::SocketAddr::ip);
        let address = address.ok_or_else(|| format!("no address was found for {host}"))?;
        url.set_ip_host(address).map_err(|()| format!("{host} cannot be replaced by its address"))?;
        config.cluster_url = url.as_str().parse()?;
    }
    Ok(Client::try_from(config)?)
}
