//! Probes URLs: image existence, image digest, and an external preparer's approval.

mod http;
mod local;

use std::fmt::Debug;

use async_trait::async_trait;

pub use http::{HttpProbe, ProbeSettings};

/// A failed probe. Texts are for display and do not contain URL queries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// No answer arrived; a retry can succeed.
    #[error("{url} did not answer: {cause}")]
    NoAnswer {
        /// The requested URL, without credentials and query.
        url: String,
        /// The cause, for display.
        cause: String,
    },
    /// The status is not the expected status.
    #[error("{url} answered {found}, expected {expected}")]
    Status {
        /// The requested URL, without credentials and query.
        url: String,
        /// The received status.
        found: u16,
        /// The expected status.
        expected: String,
    },
    /// The content is larger than the limit.
    #[error("{url} is larger than {greatest} bytes")]
    TooLarge {
        /// The requested URL, without credentials and query.
        url: String,
        /// The limit, in bytes.
        greatest: u64,
    },
    /// The image host redirected to a local address with other content. The message omits that
    /// content's digest, because it would give the host information about an internal service.
    #[error("{url} redirects to a local address whose content does not have the SHA-256 {expected}")]
    LocalDigest {
        /// The requested URL, without credentials and query.
        url: String,
        /// The expected digest.
        expected: String,
    },
    /// The content's digest is not the expected digest.
    #[error("{url} has the SHA-256 {found}, expected {expected}")]
    Digest {
        /// The requested URL, without credentials and query.
        url: String,
        /// The computed digest.
        found: String,
        /// The expected digest.
        expected: String,
    },
}

/// Access to URLs for checks.
#[async_trait]
pub trait Probe: Send + Sync + Debug {
    /// Checks that an image exists and, with a digest, that its content matches. The digest covers
    /// the whole content in lower-case hexadecimal, so the image is read once.
    async fn check_image(&self, url: &str, sha256: Option<&str>) -> Result<(), ProbeError>;

    /// Checks that a GET returns this status.
    async fn check_status(&self, url: &str, status: u16) -> Result<(), ProbeError>;
}
