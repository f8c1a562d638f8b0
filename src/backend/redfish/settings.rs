//! What the backend needs to know, checked.

use std::{collections::BTreeMap, time::Duration};

use secrecy::SecretString;
use url::Url;

/// How requests prove who asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Authentication {
    /// Basic for the first request to a BMC, a session when more follow; basic only, where a BMC has no sessions.
    #[default]
    Session,
    /// Basic, always.
    Basic,
}

/// How a BMC's certificate is judged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Trust {
    /// By the machine's own authorities.
    #[default]
    System,
    /// By these authorities, as PEM.
    Authority(String),
    /// Exactly the certificate with this SHA-256 (of its DER form) is right.
    Fingerprint([u8; 32]),
    /// Any certificate is right. Must be said.
    Anything,
}

/// One server.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// The BMC's address: scheme, host, port.
    pub endpoint: Url,
    /// Which system behind it; `None`: the only one.
    pub system_id: Option<String>,
    /// The key to lock under, instead of the machine's own identity.
    pub lock_key: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// The account.
    pub username: String,
    /// Its password.
    pub password: SecretString,
    /// How the certificate is judged.
    pub trust: Trust,
}

/// The backend.
#[derive(Clone, Debug)]
pub struct RedfishSettings {
    /// Servers by name.
    pub servers: BTreeMap<String, ServerSettings>,
    /// Time limit of one request, its body included.
    pub request_timeout: Duration,
    /// How requests prove who asks.
    pub authentication: Authentication,
}

impl Default for RedfishSettings {
    fn default() -> Self {
        Self {
            servers: BTreeMap::new(),
            request_timeout: Duration::from_secs(10),
            authentication: Authentication::default(),
        }
    }
}
