//! HTTP clients.

use std::{net::SocketAddr, sync::Arc};

use reqwest::{
    Client, ClientBuilder, Method, RequestBuilder,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
};
use url::Url;

use super::{Refused, Route, is_secure};

/// An HTTP client that sends its credentials only to allowed addresses and does not follow
/// redirects.
#[derive(Clone, Debug)]
pub(crate) struct HttpClient {
    secure: bool,
    client: Client,
    route: Arc<Route>,
}

impl HttpClient {
    /// Creates a client for https addresses, or for http addresses. `adapt` adds the servers'
    /// settings.
    pub(crate) fn new(
        secure: bool,
        route: Route,
        adapt: impl FnOnce(ClientBuilder) -> Result<ClientBuilder, String>,
    ) -> Result<Self, String> {
        let route = Arc::new(route);
        let builder = Client::builder()
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .https_only(secure)
            .dns_resolver(CheckedNames { secure, route: Arc::clone(&route) })
            .user_agent(concat!("terraform-provider-metal/", env!("CARGO_PKG_VERSION")));
        // A proxy could read requests without TLS.
        let builder = if secure { builder } else { builder.no_proxy() };
        let client = adapt(builder)?.build().map_err(|error| format!("no TLS client: {error}"))?;
        Ok(Self { secure, client, route })
    }

    /// Starts a request with credentials.
    pub(crate) fn request(&self, method: Method, url: Url) -> Result<RequestBuilder, Refused> {
        self.route.literal(&url)?;
        debug_assert_eq!(self.secure, is_secure(&url), "a client is for one scheme");
        Ok(self.client.request(method, url))
    }

    pub(crate) fn route(&self) -> &Route {
        &self.route
    }
}

/// Returns why a failed request was not sent, if its route forbids the address.
pub(crate) fn refusal(error: &reqwest::Error) -> Option<String> {
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        if let Some(refused) = source.downcast_ref::<Refused>() {
            return Some(refused.to_string());
        }
        cause = source.source();
    }
    None
}

/// Resolves names to the addresses that the route allows.
struct CheckedNames {
    secure: bool,
    route: Arc<Route>,
}

impl Resolve for CheckedNames {
    fn resolve(&self, name: Name) -> Resolving {
        let (secure, route) = (self.secure, Arc::clone(&self.route));
        Box::pin(async move {
            let found: Vec<SocketAddr> = route.names.addresses(name.as_str(), 0).await?;
            Ok(Box::new(route.allowed(secure, name.as_str(), &found)?.into_iter()) as Addrs)
        })
    }
}
