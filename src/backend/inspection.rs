//! Inspection of a BMC itself, for the person who sets it up.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::BackendError;

/// A BMC's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// SHA-256 of the DER form, in the format of `certificate_sha256`.
    pub sha256: String,
    /// The subject, if readable.
    pub subject: Option<String>,
    /// The issuer, if readable.
    pub issuer: Option<String>,
    /// The expiry time, if readable.
    pub expires: Option<Timestamp>,
    /// The setting that decides about trust.
    pub judged_by: &'static str,
}

/// The account in use on a BMC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The user name.
    pub username: String,
    /// The role, if the BMC reports it.
    pub role: Option<String>,
    /// The privileges in Redfish spelling, if the BMC reports them (DSP0266, "Roles").
    pub privileges: Option<Vec<String>>,
    /// True if the BMC rejects everything until the password is changed.
    pub must_change_password: bool,
}

/// Observed request durations and their limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The slowest read so far.
    pub slowest_read: Duration,
    /// The time limit of a read.
    pub read_timeout: Duration,
    /// The time limit of a change.
    pub request_timeout: Duration,
}

/// Read-only inspection of a BMC.
#[async_trait]
pub trait BmcInspection: Send + Sync {
    /// Returns the presented certificate, trusted or not; `None` without TLS. Sends no credentials.
    async fn certificate(&self) -> Result<Option<Certificate>, BackendError>;

    /// Returns the account in use, as far as it can read itself.
    async fn account(&self) -> Result<Account, BackendError>;

    /// Returns this process's request durations.
    fn timing(&self) -> Timing;

    /// Returns this process's requests with invalid JSON in the answer, each with the reason.
    fn flaws(&self) -> Vec<String>;
}
