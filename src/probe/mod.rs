//! Asks a URL: is an image there, is it the one that was meant, does an external preparer say yes.

mod http;

use std::fmt::Debug;

use async_trait::async_trait;

pub use http::{HttpProbe, ProbeSettings};

/// What a URL did not fulfil. The texts are for people and hold no query of a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// No answer: it may come later.
    #[error("{url} did not answer: {cause}")]
    NoAnswer {
        /// The address that was asked, without credentials and query.
        url: String,
        /// The cause, for people.
        cause: String,
    },
    /// Another status than the one that counts.
    #[error("{url} answered {found}, expected {expected}")]
    Status {
        /// The address that was asked, without credentials and query.
        url: String,
        /// What came.
        found: u16,
        /// What counts.
        expected: String,
    },
    /// There is more than is read.
    #[error("{url} is larger than {greatest} bytes")]
    TooLarge {
        /// The address that was asked, without credentials and query.
        url: String,
        /// The most that is read.
        greatest: u64,
    },
    /// The content is not the one that was meant.
    #[error("{url} has the SHA-256 {found}, expected {expected}")]
    Digest {
        /// The address that was asked, without credentials and query.
        url: String,
        /// What came.
        found: String,
        /// What was meant.
        expected: String,
    },
}

/// Asks URLs.
#[async_trait]
pub trait Probe: Send + Sync + Debug {
    /// Whether an image is there and, when a digest is given, is the one that was meant. The digest
    /// is of the whole content, in lower case hexadecimal digits; checking it reads the image once.
    async fn check_image(&self, url: &str, sha256: Option<&str>) -> Result<(), ProbeError>;

    /// Whether a GET answers with this status.
    async fn check_status(&self, url: &str, status: u16) -> Result<(), ProbeError>;
}
