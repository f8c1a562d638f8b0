//! What the backend needs to know, checked.

use std::{collections::BTreeMap, time::Duration};

use secrecy::SecretString;
use url::Url;

use super::InventoryServer;

/// How requests prove who asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Authentication {
    /// Basic for the first request to a BMC, a session when more follow; basic only, where a BMC
    /// has no sessions.
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

/// How virtual media are booted on a server, where the configuration says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MediaSettings {
    /// The `BootSourceOverrideTarget` that boots a filled virtual drive.
    pub boot_target: Option<String>,
    /// The drive to fill, by the end of its path.
    pub media_slot: Option<String>,
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
    /// How virtual media are booted.
    pub media: MediaSettings,
    /// How the certificate is judged.
    pub trust: Trust,
}

/// The backend.
#[derive(Clone, Debug)]
pub struct RedfishSettings {
    /// Servers by name.
    pub servers: BTreeMap<String, ServerSettings>,
    /// What an inventory file holds of them, where that is known.
    pub inventory: BTreeMap<String, InventoryServer>,
    /// Time limit of one request that may change something, its body included: within the lease
    /// that allows it.
    pub request_timeout: Duration,
    /// Time limit of one read, its body included.
    pub read_timeout: Duration,
    /// How requests prove who asks.
    pub authentication: Authentication,
    /// How long a BMC that made sense before may make none.
    pub patience: Patience,
}

/// How long a BMC that made sense before may make none: many start anew by themselves, or lose
/// their head for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For how long answers like 404, a web page or half a JSON count as those of a BMC that is
    /// starting anew, where the same resource was read before.
    pub away: Duration,
    /// After how long credentials that were accepted before and then refused are tried once more.
    pub doubt: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { away: Duration::from_secs(90), doubt: Duration::from_secs(30) }
    }
}

impl Default for RedfishSettings {
    fn default() -> Self {
        Self {
            servers: BTreeMap::new(),
            inventory: BTreeMap::new(),
            request_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(30),
            authentication: Authentication::default(),
            patience: Patience::default(),
        }
    }
}
