//! PostgreSQL connections.

use std::{
    net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _},
    time::Duration,
};

use sqlx::{
    PgPool,
    postgres::{PgConnectOptions, PgPoolOptions, PgSslMode},
};

use super::{Refused, Route};

/// The parameter that allows plain text.
const OPT_IN: &str = "sslmode=disable in coordination_url";

/// Checked connection options: they do not send a password in plain text unless that is allowed.
#[derive(Clone, Debug)]
pub(crate) struct GuardedPostgres(PgConnectOptions);

impl GuardedPostgres {
    /// Checks options. `plain_text` is true if the URL itself disables TLS.
    pub(crate) fn new(options: PgConnectOptions, plain_text: bool) -> Result<Self, Refused> {
        let encrypted =
            matches!(options.get_ssl_mode(), PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull);
        let is_socket = options.get_socket().is_some() || options.get_host().starts_with('/');
        if encrypted || is_socket || plain_text {
            return Ok(Self(options));
        }
        let (route, host) = (Route::new(false, OPT_IN), options.get_host().trim_matches(['[', ']']).to_owned());
        let found = (host.as_str(), options.get_port()).to_socket_addrs();
        let mut found: Vec<_> = found.map(Iterator::collect).unwrap_or_default();
        // A name without an address can get one later.
        if found.is_empty() {
            found.push((Ipv4Addr::UNSPECIFIED, options.get_port()).into());
        }
        let mut allowed = route.allowed(false, &host, &found)?;
        // Servers of this machine listen on IPv4 more often.
        allowed.sort_by_key(SocketAddr::is_ipv6);
        Ok(Self(allowed.first().map_or(options.clone(), |address| options.host(&address.ip().to_string()))))
    }

    #[cfg(test)]
    pub(crate) fn options(&self) -> &PgConnectOptions {
        &self.0
    }

    /// Changes options that do not concern where the connection leads.
    pub(crate) fn tuned(self, tune: impl FnOnce(PgConnectOptions) -> PgConnectOptions) -> Self {
        Self(tune(self.0))
    }
}

/// Returns a pool that opens connections on demand and never closes them automatically.
pub(crate) fn pool(guarded: &GuardedPostgres, most: u32, limit: Duration) -> PgPool {
    PgPoolOptions::new()
        .min_connections(0)
        .max_connections(most)
        .idle_timeout(None)
        .max_lifetime(None)
        .acquire_timeout(limit)
        // Saves a round trip; a broken connection shows when it is used.
        .test_before_acquire(false)
        .connect_lazy_with(guarded.0.clone())
}
