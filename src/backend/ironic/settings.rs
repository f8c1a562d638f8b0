//! The Ironic backend's validated settings.

use std::{collections::BTreeMap, time::Duration};

use secrecy::SecretString;
use url::Url;

/// Authentication of requests.
#[derive(Clone, Debug)]
pub enum IronicAccess {
    /// No credentials: `auth_strategy = noauth`.
    Open,
    /// HTTP basic: `auth_strategy = http_basic`.
    Basic {
        /// The user name.
        username: String,
        /// The password.
        password: SecretString,
    },
    /// A Keystone v3 token.
    Keystone(Box<KeystoneSettings>),
}

/// Access to Keystone tokens (API v3, `POST /v3/auth/tokens`).
#[derive(Clone, Debug)]
pub struct KeystoneSettings {
    /// Keystone's URL, with or without `/v3`.
    pub auth_url: Url,
    /// The account.
    pub account: KeystoneAccount,
    /// Ironic's interface in the catalog: `public`, `internal` or `admin`.
    pub interface: String,
    /// Ironic's region in the catalog; `None` if there is only one.
    pub region: Option<String>,
}

/// A Keystone account.
#[derive(Clone, Debug)]
pub enum KeystoneAccount {
    /// A user with a password, in a scope.
    Password {
        /// The user, by name or ID.
        user: KeystoneName,
        /// The password.
        password: SecretString,
        /// The token's scope.
        scope: KeystoneScope,
    },
    /// An application credential, which implies its project.
    ApplicationCredential {
        /// The ID; otherwise name and user are required.
        id: Option<String>,
        /// The name.
        name: Option<String>,
        /// The credential's user, for lookup by name.
        user: Option<KeystoneName>,
        /// The secret.
        secret: SecretString,
    },
}

/// A user or project by ID, or by name in a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeystoneName {
    /// The ID.
    pub id: Option<String>,
    /// The name.
    pub name: Option<String>,
    /// The domain's ID, for lookup by name.
    pub domain_id: Option<String>,
    /// The domain's name, for lookup by name.
    pub domain_name: Option<String>,
}

/// A token's scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeystoneScope {
    /// A project.
    Project(KeystoneName),
    /// A domain.
    Domain(KeystoneName),
    /// The system scope.
    System,
}

/// Verification of Ironic's and Keystone's certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IronicTrust {
    /// Trusts the machine's own authorities.
    #[default]
    System,
    /// Trusts these PEM authorities.
    Authority(String),
    /// Trusts any certificate. Requires an explicit setting.
    Anything,
}

/// The backend's settings.
#[derive(Clone, Debug)]
pub struct IronicSettings {
    /// Ironic's URL; `None` uses Keystone's catalog.
    pub endpoint: Option<Url>,
    /// Authentication of requests.
    pub access: IronicAccess,
    /// Certificate verification.
    pub trust: IronicTrust,
    /// True if credentials and tokens can be sent to `http` addresses beyond this machine.
    pub plain_http: bool,
    /// Lock keys by server name, which replace Ironic's identity.
    pub lock_keys: BTreeMap<String, String>,
    /// How long Ironic waits for an operating system to shut down. The node stays locked during
    /// that time.
    pub soft_power_timeout: Duration,
    /// How a BMC fetches an image (`image_download_source`): `http` from the image's own address,
    /// `local` from the conductor.
    pub image_download_source: String,
    /// Sets `protected` on active and rescued nodes during a maintenance (API 1.48): Ironic then
    /// rejects undeploying, rebuilding and deleting them.
    pub protect: bool,
    /// Time limit of a request that can change something, within the lease that allows it.
    pub request_timeout: Duration,
    /// Time limit of a read.
    pub read_timeout: Duration,
    /// How long a change waits for a node's lock before it fails as transient.
    pub lock_patience: Duration,
}

impl IronicSettings {
    /// Returns settings with default limits.
    #[must_use]
    pub fn new(endpoint: Option<Url>, access: IronicAccess) -> Self {
        Self {
            endpoint,
            access,
            trust: IronicTrust::System,
            plain_http: false,
            lock_keys: BTreeMap::new(),
            soft_power_timeout: Duration::from_mins(2),
            image_download_source: "http".to_owned(),
            protect: false,
            request_timeout: Duration::from_secs(15),
            read_timeout: Duration::from_secs(30),
            lock_patience: Duration::from_secs(8),
        }
    }
}
