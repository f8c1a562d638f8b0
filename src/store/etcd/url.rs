//! `etcd://user:password@host1:2379,host2:2379/prefix?…`

use std::{sync::Arc, time::Duration};

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use crate::{clock::Clock, files, loopback::is_loopback, store::StoreError};

/// How an etcd cluster is used.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// How long somebody waits for the cluster before the store counts as unavailable.
    pub patience: Duration,
    /// What time it is, instead of the cluster's own clock: for a test that moves it.
    pub time: Option<Arc<dyn Clock>>,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self { patience: Duration::from_secs(10), time: None }
    }
}

/// The port of etcd's clients, by its documentation.
const PORT: u16 = 2379;

/// Below which prefix everything is kept when none is given.
const PREFIX: &str = "metal";

/// What a URL says.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) endpoints: Vec<String>,
    pub(super) prefix: String,
    pub(super) address: String,
    user: Option<(String, SecretString)>,
    pub(super) tls: bool,
    pub(super) authority: Option<String>,
    identity: Option<(String, SecretString)>,
}

/// The prefix that a URL names.
pub(in crate::store) fn prefix_of(url: &SecretString) -> Result<String, StoreError> {
    Ok(parse(url)?.prefix)
}

fn refused(cause: impl Into<String>) -> StoreError {
    StoreError::Forbidden { address: "etcd://".to_owned(), cause: cause.into() }
}

/// Reads a URL. TLS is used unless all hosts are this machine, or `tls=off` says otherwise.
pub(super) fn parse(url: &SecretString) -> Result<Parsed, StoreError> {
    let form = || refused("its URL cannot be read; write etcd://host1:2379,host2:2379/prefix");
    let text = url.expose_secret();
    let rest = text.strip_prefix("etcd://").ok_or_else(form)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (Some(login(user).ok_or_else(form)?), hosts),
        None => (None, authority),
    };
    let hosts = hosts.split(',').map(host).collect::<Option<Vec<_>>>().ok_or_else(form)?;
    let mut tls = !hosts.iter().all(|(_, local)| *local);
    let (mut ca, mut certificate, mut key) = (None, None, None);
    let mut said = None;
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        match (name.as_ref(), value.as_ref()) {
            ("tls", "on") => said = Some(true),
            ("tls", "off") => said = Some(false),
            ("tls", other) => return Err(refused(format!("tls={other:?} is neither on nor off"))),
            ("ca_file", path) => ca = Some(read(path)?),
            ("cert_file", path) => certificate = Some(read(path)?),
            ("key_file", path) => key = Some(read(path)?),
            (other, _) => return Err(refused(format!("its URL has the unknown parameter {other:?}"))),
        }
    }
    tls = said.unwrap_or(tls || ca.is_some() || certificate.is_some());
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, SecretString::from(key))),
        (None, None) => None,
        _ => return Err(refused("cert_file and key_file belong together")),
    };
    if !tls && (ca.is_some() || identity.is_some()) {
        return Err(refused("certificates are given, but tls=off"));
    }
    let scheme = if tls { "https" } else { "http" };
    let names: Vec<String> = hosts.into_iter().map(|(host, _)| host).collect();
    let prefix = match prefix.trim_matches('/') {
        "" => PREFIX,
        given => given,
    };
    Ok(Parsed {
        endpoints: names.iter().map(|name| format!("{scheme}://{name}")).collect(),
        address: format!("etcd://{}/{prefix}", names.join(",")),
        prefix: prefix.to_owned(),
        user,
        tls,
        authority: ca,
        identity,
    })
}

fn read(path: &str) -> Result<String, StoreError> {
    files::read(path, files::SMALL).map_err(|error| refused(error.to_string()))
}

/// `user:password`, percent-encoded.
fn login(text: &str) -> Option<(String, SecretString)> {
    let url = Url::parse(&format!("etcd://{text}@host/")).ok()?;
    let decoded = |part: &str| -> Option<String> {
        let pair = format!("x={}", part.replace('+', "%2B"));
        url::form_urlencoded::parse(pair.as_bytes()).next().map(|(_, value)| value.into_owned())
    };
    Some((decoded(url.username())?, SecretString::from(decoded(url.password().unwrap_or(""))?)))
}

/// `host:port`, and whether it is this machine.
fn host(text: &str) -> Option<(String, bool)> {
    let url = Url::parse(&format!("http://{text}/")).ok()?;
    if text.is_empty() || url.path() != "/" || !url.username().is_empty() {
        return None;
    }
    let local = is_loopback(url.host_str()?);
    // 80 is not told apart from no port.
    let port = if text.ends_with(":80") { 80 } else { url.port().unwrap_or(PORT) };
    Some((format!("{}:{port}", url.host_str()?), local))
}

impl Parsed {
    /// The name of the login, if the URL has one.
    pub(super) fn user(&self) -> Option<&str> {
        self.user.as_ref().map(|(name, _)| name.as_str())
    }

    pub(super) fn connect_options(&self) -> ConnectOptions {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(Duration::from_secs(3))
            // A connection into a black hole is noticed; etcd itself refuses pings more often than
            // each 5 s.
            .with_keep_alive(Duration::from_secs(8), Duration::from_secs(4))
            .with_auto_token_refresh(true)
            // A member that has lost the others must not answer from what it remembers.
            .with_require_leader(true);
        if let Some((name, password)) = &self.user {
            options = options.with_user(name, password.expose_secret());
        }
        if self.tls {
            let mut tls = TlsOptions::new();
            tls = match &self.authority {
                Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
                None => tls.with_native_roots(),
            };
            if let Some((certificate, key)) = &self.identity {
                tls = tls.identity(Identity::from_pem(certificate, key.expose_secret()));
            }
            options = options.with_tls(tls);
        }
        options
    }

    /// What to try when the servers end each connection.
    pub(super) fn may_want(&self) -> &'static str {
        match (self.tls, &self.identity) {
            (false, _) => "it may want TLS: write tls=on, and ca_file for a private authority",
            (true, None) => "it may want a client certificate: write cert_file and key_file",
            (true, Some(_)) => "it may refuse the client certificate in cert_file",
        }
    }

    /// A client for the same servers over HTTP.
    pub(super) fn http(&self) -> Result<reqwest::Client, StoreError> {
        let cannot = |error: reqwest::Error| refused(format!("its certificates cannot be used ({error})"));
        let mut client = reqwest::Client::builder().timeout(Duration::from_secs(3)).no_proxy();
        if let Some(pem) = &self.authority {
            let certificates = reqwest::Certificate::from_pem_bundle(pem.as_bytes()).map_err(cannot)?;
            client = client.tls_certs_only(certificates);
        }
        if let Some((certificate, key)) = &self.identity {
            let both = format!("{certificate}\n{}", key.expose_secret());
            client = client.identity(reqwest::Identity::from_pem(both.as_bytes()).map_err(cannot)?);
        }
        client.build().map_err(cannot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Parsed, StoreError> {
        parse(&SecretString::from(url))
    }

    #[test]
    fn hosts_prefix_and_login_are_read() {
        let parsed = read("etcd://ci:hunter%402@a.example.com:2379,b.example.com/teams/metal").unwrap();
        assert_eq!(parsed.endpoints, ["https://a.example.com:2379", "https://b.example.com:2379"]);
        assert_eq!(parsed.address, "etcd://a.example.com:2379,b.example.com:2379/teams/metal");
        assert_eq!(parsed.prefix, "teams/metal");
        let (user, password) = parsed.user.unwrap();
        assert_eq!((user.as_str(), password.expose_secret()), ("ci", "hunter@2"));
        let local = read("etcd://127.0.0.1:1,[::1]:2,localhost").unwrap();
        assert_eq!((local.tls, local.prefix.as_str()), (false, "metal"));
        assert!(read("etcd://127.0.0.1:1/?tls=on").unwrap().tls);
        assert!(!read("etcd://etcd.example.com/?tls=off").unwrap().tls);
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_without_the_password() {
        for bad in [
            "etcd://ci:hunter2@/metal",
            "etcd://ci:hunter2@a:port/metal",
            "etcd://ci:hunter2@a,,b/metal",
            "etcd://ci:hunter2@a/metal?tls=maybe",
            "etcd://ci:hunter2@a/metal?tsl=on",
            "etcd://ci:hunter2@a/metal?cert_file=/etc/hostname",
            "etcd://ci:hunter2@a/metal?ca_file=/nowhere",
        ] {
            let problem = read(bad).unwrap_err().to_string();
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }
}
