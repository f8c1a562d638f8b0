//! Errors common to every kind of store.

use std::{fmt::Display, sync::Arc};

use sqlx::migrate::MigrateError;

use crate::shown::OneLine;

use super::{StoreError, format::FORMAT};

/// Creates one store's errors. Each kind of store adds its engine's errors.
#[derive(Clone, Debug)]
pub(super) struct StoreErrors(Arc<str>);

impl StoreErrors {
    /// `address` must not contain credentials.
    pub(super) fn new(address: &str) -> Self {
        Self(address.into())
    }

    pub(super) fn address(&self) -> &str {
        &self.0
    }

    pub(super) fn unavailable(&self, cause: impl Into<OneLine>) -> StoreError {
        StoreError::Unavailable { address: self.0.to_string().into(), cause: cause.into() }
    }

    pub(super) fn unwritable(&self, cause: impl Into<OneLine>) -> StoreError {
        StoreError::Unwritable { address: self.0.to_string().into(), cause: cause.into() }
    }

    pub(super) fn untrusted(&self, cause: impl Into<OneLine>) -> StoreError {
        StoreError::Untrusted { address: self.0.to_string().into(), cause: cause.into() }
    }

    pub(super) fn unreadable(&self, cause: impl Into<OneLine>) -> StoreError {
        StoreError::Unreadable { address: self.0.to_string().into(), cause: cause.into() }
    }

    pub(super) fn forbidden(&self, cause: impl Into<OneLine>) -> StoreError {
        StoreError::Forbidden { address: self.0.to_string().into(), cause: cause.into() }
    }

    /// The store returned older data than before.
    pub(super) fn went_back(&self, cause: String) -> StoreError {
        StoreError::WentBack { address: self.0.to_string().into(), cause: cause.into() }
    }

    pub(super) fn no_such_line(&self, id: &str) -> StoreError {
        StoreError::NoSuchLine { address: self.0.to_string().into(), id: id.into() }
    }

    /// The store is not empty.
    pub(super) fn in_use(&self) -> StoreError {
        StoreError::InUse { address: self.0.to_string().into() }
    }

    pub(super) fn record(&self, what: impl Display, error: impl Display) -> StoreError {
        self.unreadable(format!("the record {what} is not valid: {error}"))
    }

    pub(super) fn newer(&self, format: impl Display, supported: i64) -> StoreError {
        self.unreadable(format!(
            "it was written by a newer version of this program (format {format}; this version supports format {supported}): \
             use the newer version for everything that shares it"
        ))
    }

    /// Maps a failed migration; `sqlx` maps errors in its statements.
    pub(super) fn migration(&self, error: &MigrateError, sqlx: impl Fn(&sqlx::Error) -> StoreError) -> StoreError {
        match error {
            MigrateError::VersionMissing(version) => self.newer(version, FORMAT),
            MigrateError::VersionMismatch(version) => {
                self.unreadable(format!("migration {version} of its schema differs from this program's"))
            }
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => sqlx(error),
            other => self.unavailable(other.to_string()),
        }
    }
}
