//! What was written, and what it means once the environment and files are read.

use std::{collections::BTreeMap, fs, time::Duration};

use secrecy::{ExposeSecret as _, SecretString};

use crate::backend::redfish::{Authentication, RedfishSettings, ServerSettings, parse_inventory};

use super::{Environment, SettingsError};

/// Everything that can be configured, as it was written.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Where records live.
    pub coordination_url: Option<String>,
    /// Whose maintenances these are.
    pub owner: Option<String>,
    /// How this run is called.
    pub run: Option<String>,
    /// After how long a waiter gains one step of priority.
    pub aging: Option<Duration>,
    /// How long an operating system may take to shut down.
    pub graceful_shutdown_timeout: Option<Duration>,
    /// How long a forced power change may take.
    pub power_timeout: Option<Duration>,
    /// An authority trusted for images and readiness URLs.
    pub image_ca_certificate_file: Option<String>,
    /// BMCs that speak Redfish.
    pub redfish: Option<RedfishInput>,
}

/// The Redfish backend, as it was written.
#[derive(Clone, Debug, Default)]
pub struct RedfishInput {
    /// A file with servers by name.
    pub inventory_file: Option<String>,
    /// Servers by name, besides that file.
    pub servers: BTreeMap<String, ServerInput>,
    /// The common account.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<SecretString>,
    /// A file that holds its password.
    pub password_file: Option<String>,
    /// The common authority.
    pub ca_certificate_file: Option<String>,
    /// Trust any certificate.
    pub insecure: Option<bool>,
    /// Time limit of one request.
    pub request_timeout: Option<Duration>,
    /// `session` or `basic`.
    pub authentication: Option<String>,
}

/// One server, as it was written.
#[derive(Clone, Debug, Default)]
pub struct ServerInput {
    /// The BMC's address.
    pub endpoint: Option<String>,
    /// Which system behind it.
    pub system_id: Option<String>,
    /// The key to lock under.
    pub lock_key: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// The account.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<SecretString>,
    /// A file that holds its password.
    pub password_file: Option<String>,
    /// The authority that signed the certificate.
    pub ca_certificate_file: Option<String>,
    /// The certificate's fingerprint.
    pub certificate_sha256: Option<String>,
    /// Trust any certificate.
    pub insecure: Option<bool>,
}

/// Reads a file that the configuration names.
pub(super) fn read_file(path: &str, attribute: Vec<String>) -> Result<String, SettingsError> {
    fs::read_to_string(path)
        .map_err(|error| SettingsError::Value { attribute, problem: format!("{path:?} cannot be read: {error}") })
}

/// The value of a password file: its text without the line end that editors add.
fn read_password(path: &str, attribute: Vec<String>) -> Result<SecretString, SettingsError> {
    let text = SecretString::from(read_file(path, attribute)?);
    Ok(SecretString::from(text.expose_secret().trim_end_matches(['\r', '\n'])))
}
pub(super) fn redfish_settings(_i: RedfishInput, _e: &Environment) -> Result<RedfishSettings, SettingsError> {
    todo!()
}
