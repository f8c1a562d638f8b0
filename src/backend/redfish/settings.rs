//! The backend's validated settings.

use std::{collections::BTreeMap, time::Duration};

use secrecy::SecretString;
use url::Url;

use super::InventoryServer;

/// Authentication of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Authentication {
    /// Basic for a BMC's first request, then a session; always basic if the BMC lacks sessions.
    #[default]
    Session,
    /// Always basic.
    Basic,
}

/// Verification of a BMC's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Trust {
    /// Trusts the machine's own authorities.
    #[default]
    System,
    /// Trusts these PEM authorities.
    Authority(String),
    /// Trusts exactly the certificate with this SHA-256 (of its DER form).
    Fingerprint([u8; 32]),
    /// Trusts any certificate. Requires an explicit setting.
    Anything,
}

/// A server's configured virtual media boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MediaSettings {
    /// The `BootSourceOverrideTarget` that boots a filled virtual drive.
    pub boot_target: Option<String>,
    /// The drive to fill: the end of its path.
    pub media_slot: Option<String>,
}

/// A configured server.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// The BMC's address: scheme, host, port.
    pub endpoint: Url,
    /// The system's ID; `None` if the BMC has only one system.
    pub system_id: Option<String>,
    /// The lock key that replaces the machine's own identity.
    pub lock_key: Option<String>,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The user name.
    pub username: String,
    /// The password.
    pub password: SecretString,
    /// The virtual media boot.
    pub media: MediaSettings,
    /// Certificate verification.
    pub trust: Trust,
}

/// The backend's settings.
#[derive(Clone, Debug)]
pub struct RedfishSettings {
    /// Servers by name.
    pub servers: BTreeMap<String, ServerSettings>,
    /// The servers' inventory file entries, if known.
    pub inventory: BTreeMap<String, InventoryServer>,
    /// Time limit of a request that can change something, including its body, within the lease that
    /// allows it.
    pub request_timeout: Duration,
    /// Time limit of a read, including its body.
    pub read_timeout: Duration,
    /// Authentication of requests.
    pub authentication: Authentication,
    /// Tolerance for senseless answers.
    pub patience: Patience,
}

/// How long a BMC that worked before can return senseless answers. Many BMCs restart on their own
/// or fail for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How long a 404, a web page or truncated JSON counts as a restart, for a resource that was
    /// readable before.
    pub away: Duration,
    /// How long after their rejection previously accepted credentials are tried once more.
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
