//! What can be wrong with any store, said about one of them.

use std::{fmt::Display, sync::Arc};

use sqlx::migrate::MigrateError;

use super::{StoreError, format::FORMAT};

/// Makes errors of one store. Each kind of store adds what its engine says.
#[derive(Clone, Debug)]
pub(super) struct StoreErrors(Arc<str>);

impl StoreErrors {
    /// `address`: without credentials.
    pub(super) fn new(address: &str) -> Self {
        Self(address.into())
    }

    pub(super) fn address(&self) -> &str {
        &self.0
    }

    pub(super) fn unavailable(&self, cause: impl Into<String>) -> StoreError {
        StoreError::Unavailable { address: self.0.to_string(), cause: cause.into() }
    }

    pub(super) fn unwritable(&self, cause: impl Into<String>) -> StoreError {
        StoreError::Unwritable { address: self.0.to_string(), cause: cause.into() }
    }

    pub(super) fn untrusted(&self, cause: impl Into<String>) -> StoreError {
        StoreError::Untrusted { address: self.0.to_string(), cause: cause.into() }
    }

    pub(super) fn unreadable(&self, cause: impl Into<String>) -> StoreError {
        StoreError::Unreadable { address: self.0.to_string(), cause: cause.into() }
    }

    pub(super) fn forbidden(&self, cause: impl Into<String>) -> StoreError {
        StoreError::Forbidden { address: self.0.to_string(), cause: cause.into() }
    }

    /// It shows less than it was seen to hold.
    pub(super) fn went_back(&self, cause: String) -> StoreError {
        StoreError::WentBack { address: self.0.to_string(), cause }
    }

    pub(super) fn no_such_line(&self, id: &str) -> StoreError {
        StoreError::NoSuchLine { address: self.0.to_string(), id: id.to_owned() }
    }

    /// It is not empty.
    pub(super) fn in_use(&self) -> StoreError {
        StoreError::InUse { address: self.0.to_string() }
    }

    pub(super) fn record(&self, what: impl Display, error: impl Display) -> StoreError {
        self.unreadable(format!("the record {what} is not understood: {error}"))
    }

    pub(super) fn newer(&self, format: impl Display, supported: i64) -> StoreError {
        self.unreadable(format!(
            "it was written by a newer version of this program (format {format}; this version supports format {supported}): \
             use the newer version for everything that shares it"
        ))
    }

    /// A migration that failed; `sqlx` says what a statement's failure is.
    pub(super) fn migration(&self, error: &MigrateError, sqlx: impl Fn(&sqlx::Error) -> StoreError) -> StoreError {
        match error {
            MigrateError::VersionMissing(version) => self.newer(version, FORMAT),
            MigrateError::VersionMismatch(version) => {
                self.unreadable(format!("part {version} of its schema is not the one of this program"))
            }
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => sqlx(error),
            other => self.unavailable(other.to_string()),
        }
    }
}
