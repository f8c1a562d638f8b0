//! What a BMC shows of itself beside its systems: what a person who sets it up has to know.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::BackendError;

/// The certificate that a BMC presents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The SHA-256 of its DER form, as `certificate_sha256` takes it.
    pub sha256: String,
    /// Its subject, where it can be read.
    pub subject: Option<String>,
    /// Its issuer, where it can be read.
    pub issuer: Option<String>,
    /// The end of its validity, where it can be read.
    pub expires: Option<Timestamp>,
    /// The setting that decides whether it is trusted.
    pub judged_by: &'static str,
}

/// The account in use on a BMC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub username: String,
    /// Its role, where the BMC tells.
    pub role: Option<String>,
    /// Its privileges in Redfish's spelling, where the BMC tells (DSP0266, "Roles").
    pub privileges: Option<Vec<String>>,
    /// Whether the BMC refuses everything until the password is changed.
    pub must_change_password: bool,
}

/// The time that requests took, and the time that they may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The slowest read so far.
    pub slowest_read: Duration,
    /// The limit of one read.
    pub read_timeout: Duration,
    /// The limit of one change.
    pub request_timeout: Duration,
}

/// A BMC that can be inspected. Only reads.
#[async_trait]
pub trait BmcInspection: Send + Sync {
    /// The certificate that it presents now, trusted or not; `None` without TLS. Sends no
    /// credentials.
    async fn certificate(&self) -> Result<Option<Certificate>, BackendError>;

    /// The account in use, as far as it may read that itself.
    async fn account(&self) -> Result<Account, BackendError>;

    /// The time that requests took in this process.
    fn timing(&self) -> Timing;

    /// This process's requests whose answers were not valid JSON, each with the reason.
    fn flaws(&self) -> Vec<String>;
}
