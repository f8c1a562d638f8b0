//! What the backend needs to know, checked.

use std::{collections::BTreeMap, time::Duration};

use secrecy::SecretString;
use url::Url;

/// How requests prove who asks.
#[derive(Clone, Debug)]
pub enum IronicAccess {
    /// No credentials: `auth_strategy = noauth`.
    Open,
    /// HTTP basic: `auth_strategy = http_basic`.
    Basic {
        /// The account.
        username: String,
        /// Its password.
        password: SecretString,
    },
    /// A Keystone v3 token.
    Keystone(Box<KeystoneSettings>),
}

/// How a token is got from Keystone (API v3, `POST /v3/auth/tokens`).
#[derive(Clone, Debug)]
pub struct KeystoneSettings {
    /// Where Keystone is, with or without `/v3`.
    pub auth_url: Url,
    /// Who asks.
    pub account: KeystoneAccount,
    /// The interface of Ironic in the catalog: `public`, `internal` or `admin`.
    pub interface: String,
    /// Its region there; `None`: the only one.
    pub region: Option<String>,
}

/// Who asks Keystone.
#[derive(Clone, Debug)]
pub enum KeystoneAccount {
    /// A user with a password, in a scope.
    Password {
        /// The user, by name or id.
        user: KeystoneName,
        /// Its password.
        password: SecretString,
        /// What the token is for.
        scope: KeystoneScope,
    },
    /// An application credential, which has its project.
    ApplicationCredential {
        /// Its id; or its name together with the user.
        id: Option<String>,
        /// Its name.
        name: Option<String>,
        /// The user that it belongs to, for a name.
        user: Option<KeystoneName>,
        /// Its secret.
        secret: SecretString,
    },
}

/// A user or project by id, or by name in a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeystoneName {
    /// The id.
    pub id: Option<String>,
    /// The name.
    pub name: Option<String>,
    /// The id of its domain, for a name.
    pub domain_id: Option<String>,
    /// The name of its domain, for a name.
    pub domain_name: Option<String>,
}

/// What a token is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeystoneScope {
    /// A project.
    Project(KeystoneName),
    /// A domain.
    Domain(KeystoneName),
    /// The whole system.
    System,
}

/// How the certificates of Ironic and Keystone are judged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IronicTrust {
    /// By the machine's own authorities.
    #[default]
    System,
    /// By these authorities, as PEM.
    Authority(String),
    /// Any certificate is right. Must be said.
    Anything,
}

/// The backend.
#[derive(Clone, Debug)]
pub struct IronicSettings {
    /// Where Ironic is; `None`: what Keystone's catalog lists.
    pub endpoint: Option<Url>,
    /// How requests prove who asks.
    pub access: IronicAccess,
    /// How certificates are judged.
    pub trust: IronicTrust,
    /// The keys to lock under, by the server's name, instead of the identity that Ironic knows.
    pub lock_keys: BTreeMap<String, String>,
    /// How long Ironic waits for an operating system to shut down; it keeps the node locked
    /// meanwhile.
    pub soft_power_timeout: Duration,
    /// How a BMC gets an image (`image_download_source`): `http`, from its own address, or `local`,
    /// from the conductor.
    pub image_download_source: String,
    /// Sets `protected` on active and rescued nodes for the time of a maintenance (API 1.48):
    /// Ironic then rejects undeploying, rebuilding and deleting them.
    pub protect: bool,
    /// Time limit of one request that may change something: within the lease that allows it.
    pub request_timeout: Duration,
    /// Time limit of one read.
    pub read_timeout: Duration,
    /// How long one change waits for the lock of a node before it is refused for now.
    pub lock_patience: Duration,
}

impl IronicSettings {
    /// Settings with the usual limits.
    #[must_use]
    pub fn new(endpoint: Option<Url>, access: IronicAccess) -> Self {
        Self {
            endpoint,
            access,
            trust: IronicTrust::System,
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
