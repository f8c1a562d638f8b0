//! Names: of a maintenance, of a lock, of a process.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use shown_text as shown;

/// Why a name was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Nothing was given.
    #[error("must not be empty")]
    Empty,
    /// Longer than 253 characters.
    #[error("is {0} characters long; at most 253 are possible")]
    TooLong(usize),
    /// A character that a path or a Kubernetes name could not hold.
    #[error(
        "contains {0:?}; letters, digits, '-', '_' and '.' are possible, and the first and last must be a letter or digit"
    )]
    Character(char),
    /// Not of the form `namespace/name`.
    #[error("must have the form NAMESPACE/NAME")]
    Form,
}

/// Checks one part of a maintenance's name.
pub fn check_name(name: &str) -> Result<(), IdError> {
    if name.is_empty() {
        return Err(IdError::Empty);
    }
    if name.len() > 253 {
        return Err(IdError::TooLong(name.chars().count()));
    }
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if let Some(bad) = name.chars().find(|c| !inner(*c)) {
        return Err(IdError::Character(bad));
    }
    for edge in [name.chars().next(), name.chars().next_back()] {
        if let Some(c) = edge.filter(|c| !c.is_ascii_alphanumeric()) {
            return Err(IdError::Character(c));
        }
    }
    Ok(())
}

/// `namespace/name`: how a maintenance is found again without a state file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct MaintenanceId {
    namespace: String,
    name: String,
}

impl MaintenanceId {
    /// A checked id.
    pub fn new(namespace: &str, name: &str) -> Result<Self, IdError> {
        check_name(namespace)?;
        check_name(name)?;
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// The first part.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The second part.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for MaintenanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for MaintenanceId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let (namespace, name) = text.split_once('/').ok_or(IdError::Form)?;
        if name.contains('/') {
            return Err(IdError::Form);
        }
        Self::new(namespace, name)
    }
}

impl From<MaintenanceId> for String {
    fn from(id: MaintenanceId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for MaintenanceId {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

/// The hardware identity of one machine: what a slot is kept for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LockKey(pub String);

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One incarnation of a maintenance: a UUID that is never used again, also not under the same
/// `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Uid(pub String);

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The fencing token: grows with every attachment to a lock key, is never reset, also not by
/// release.
pub type Generation = u64;

/// One process: a UUID made at its start.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunnerId(pub String);

/// Who runs a process, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runner {
    /// The process.
    pub id: RunnerId,
    /// The user's name on that host.
    pub user: String,
    /// The host's name.
    pub host: String,
    /// The process number on that host.
    pub pid: u32,
    /// What lets a process of the same machine tell whether this one still runs; empty where that
    /// cannot be known.
    pub process: String,
    /// The CI run, for example `ci-4711`, when one was detected or given.
    pub run: Option<String>,
    /// Where the CI run is seen.
    pub url: Option<String>,
    /// The commit of the configuration.
    pub commit: Option<String>,
}

impl Runner {
    /// A process of which is known who runs it and where: no CI run, and nothing that tells whether
    /// it still runs.
    #[must_use]
    pub fn new(id: impl Into<String>, user: &str, host: &str, pid: u32) -> Self {
        let (id, user, host) = (RunnerId(id.into()), user.to_owned(), host.to_owned());
        Self { id, user, host, pid, process: String::new(), run: None, url: None, commit: None }
    }
}

impl fmt::Display for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (user, host) = (shown::line(&self.user), shown::line(&self.host));
        match (self.run.as_deref().map(shown::line), self.url.as_deref().map(shown::line)) {
            (Some(run), Some(url)) => write!(f, "run {run} by {user}, {url}"),
            (Some(run), None) => write!(f, "run {run} by {user}"),
            _ => write!(f, "{user} on {host} (process {})", self.pid),
        }
    }
}

/// A random number that one process draws for one attachment.
///
/// Generations repeat in a store that lost its last commits; a random number does not. The caller
/// draws it, because rules are pure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub uuid::Uuid);

/// What a process shows to prove that it may act on a record: both must be those in force.
///
/// The token stands for the process too: only the one that drew it knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence {
    /// The generation of the attachment.
    pub generation: Generation,
    /// The random number of the attachment.
    pub token: Token,
}

/// The right to act on one record, taken at a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Whose.
    pub runner: Runner,
    /// The fencing token it was taken with.
    pub generation: Generation,
    /// The random number it was taken with.
    pub token: Token,
    /// When, on the store's clock.
    pub since: Timestamp,
}

impl Attachment {
    /// What its process shows.
    #[must_use]
    pub const fn fence(&self) -> Fence {
        Fence { generation: self.generation, token: self.token }
    }

    /// Whether this is the attachment that a process shows.
    #[must_use]
    pub fn is(&self, fence: Fence) -> bool {
        self.fence() == fence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_back_from_its_text() {
        let id: MaintenanceId = "ops/bios-2.19_a".parse().unwrap();
        assert_eq!(id, MaintenanceId::new("ops", "bios-2.19_a").unwrap());
        assert_eq!(id.to_string(), "ops/bios-2.19_a");
    }

    #[test]
    fn names_that_a_path_could_not_hold_are_refused() {
        for (text, error) in [
            ("", IdError::Form),
            ("ops", IdError::Form),
            ("a/b/c", IdError::Form),
            ("/x", IdError::Empty),
            ("ops/", IdError::Empty),
            ("ops/a b", IdError::Character(' ')),
            ("ops/-a", IdError::Character('-')),
            ("ops/a'", IdError::Character('\'')),
        ] {
            assert_eq!(text.parse::<MaintenanceId>(), Err(error), "{text:?}");
        }
        assert!(matches!(MaintenanceId::new(&"x".repeat(254), "a"), Err(IdError::TooLong(254))));
    }
}
