//! Names of maintenances, locks and processes.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use shown_text::OneLine;

/// The reason why a name is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The name is empty.
    #[error("must not be empty")]
    Empty,
    /// The name is longer than 253 characters.
    #[error("is {0} characters long; at most 253 are allowed")]
    TooLong(usize),
    /// A path or a Kubernetes name cannot contain this character.
    #[error(
        "contains {0:?}; letters, digits, '-', '_' and '.' are allowed, and the first and last character must be a \
         letter or digit"
    )]
    Character(char),
    /// The text does not have the form `namespace/name`.
    #[error("must have the form NAMESPACE/NAME")]
    Form,
}

/// Checks a namespace or a name.
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

/// Gives an identifier a constructor, its raw text, and an escaped display.
macro_rules! is_raw {
    ($name:ident) => {
        impl $name {
            /// Creates it from its stored text.
            #[must_use]
            pub fn new(text: impl Into<OneLine>) -> Self {
                Self(text.into())
            }

            /// Returns the raw text, to compare it or to store it. Never print it.
            #[must_use]
            pub fn raw(&self) -> &str {
                self.0.raw()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

/// `namespace/name`, which finds a maintenance without a state file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct MaintenanceId {
    namespace: String,
    name: String,
}

impl MaintenanceId {
    /// Validates both parts and creates an ID.
    pub fn new(namespace: &str, name: &str) -> Result<Self, IdError> {
        check_name(namespace)?;
        check_name(name)?;
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// Returns the namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the name without its namespace.
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

/// The hardware identity that is locked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LockKey(OneLine);

is_raw!(LockKey);

/// UID of one record. It is never used again, even for the same `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Uid(OneLine);

is_raw!(Uid);

/// The fencing token. Every attachment to a lock key raises it, and a release does not reset it.
pub type Generation = u64;

/// A process, as a UUID that it generates at startup.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunnerId(OneLine);

is_raw!(RunnerId);

/// A process with its user, host and run, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runner {
    /// The process's ID.
    pub id: RunnerId,
    /// The user's name on that host.
    pub user: OneLine,
    /// The host's name.
    pub host: OneLine,
    /// The operating system's process ID.
    pub pid: u32,
    /// Evidence that other processes of the same machine use to detect whether this process still
    /// runs. Empty without such evidence.
    pub process: String,
    /// The detected or configured CI run, for example `ci-4711`.
    pub run: Option<OneLine>,
    /// URL of the CI run.
    pub url: Option<OneLine>,
    /// The configuration's commit.
    pub commit: Option<OneLine>,
}

impl Runner {
    /// Creates a process without a CI run and without liveness evidence.
    #[must_use]
    pub fn new(id: impl Into<OneLine>, user: &str, host: &str, pid: u32) -> Self {
        let (id, user, host) = (RunnerId::new(id), user.into(), host.into());
        Self { id, user, host, pid, process: String::new(), run: None, url: None, commit: None }
    }
}

impl fmt::Display for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, host, pid, run, url, .. } = self;
        match (run, url) {
            (Some(run), Some(url)) => write!(f, "run {run} by {user}, {url}"),
            (Some(run), None) => write!(f, "run {run} by {user}"),
            _ => write!(f, "{user} on {host} (process {pid})"),
        }
    }
}

/// A random number that a process draws for one attachment.
///
/// Generations repeat in a store that lost its last commits; random numbers do not. Rules are pure,
/// so the caller draws the number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub uuid::Uuid);

/// A process's proof that it is allowed to act on a record. Both values must be current.
///
/// The token also identifies the process, because no other process has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence {
    /// Generation of the attachment.
    pub generation: Generation,
    /// The random number of the attachment.
    pub token: Token,
}

/// The right to act on one record, acquired with a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The attached process.
    pub runner: Runner,
    /// Fencing token of this attachment.
    pub generation: Generation,
    /// Random number of this attachment.
    pub token: Token,
    /// Start of the attachment, on the store's clock.
    pub since: Timestamp,
}

impl Attachment {
    /// Returns the proof that its process presents.
    #[must_use]
    pub const fn fence(&self) -> Fence {
        Fence { generation: self.generation, token: self.token }
    }

    /// Returns true if `fence` belongs to this attachment.
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
