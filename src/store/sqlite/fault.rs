//! What SQLite says, in the words of a store.

use std::{error::Error, sync::Arc, time::Duration};

use sqlx::migrate::MigrateError;

use crate::store::StoreError;

/// Makes errors of one store. <https://www.sqlite.org/rescode.html> has the codes.
#[derive(Clone, Debug)]
pub(super) struct Faults {
    address: Arc<str>,
    patience: Duration,
}

impl Faults {
    pub(super) fn new(address: &str, patience: Duration) -> Self {
        Self { address: address.into(), patience }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn unavailable(&self, cause: impl Into<String>) -> StoreError {
        StoreError::Unavailable { address: self.address.to_string(), cause: cause.into() }
    }

    pub(super) fn unreadable(&self, cause: impl Into<String>) -> StoreError {
        StoreError::Unreadable { address: self.address.to_string(), cause: cause.into() }
    }

    pub(super) fn locked(&self) -> StoreError {
        self.unavailable(format!("it stayed locked by another process for {:?}", self.patience))
    }

    pub(super) fn sqlx(&self, error: &sqlx::Error) -> StoreError {
        match error {
            sqlx::Error::Decode(_)
            | sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::RowNotFound => self.unreadable(error.to_string()),
            _ => match primary_code(error) {
                Some(5 | 6) => self.locked(),
                Some(26) => self.unreadable("it is no SQLite database, or its first page is damaged"),
                Some(11) => self.unreadable("the file is damaged (database disk image is malformed)"),
                Some(8) => self.unavailable("the file or its folder may not be written"),
                Some(13) => self.unavailable("the disk is full"),
                Some(14) => self.unavailable(format!("the file cannot be opened ({error})")),
                _ => self.unavailable(error.to_string()),
            },
        }
    }

    pub(super) fn migration(&self, error: &MigrateError, newest: i64) -> StoreError {
        match error {
            MigrateError::VersionMissing(version) => self.newer(*version, newest),
            MigrateError::VersionMismatch(version) => {
                self.unreadable(format!("part {version} of its schema is not the one of this program"))
            }
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => self.sqlx(error),
            other => self.unavailable(other.to_string()),
        }
    }

    pub(super) fn newer(&self, version: i64, newest: i64) -> StoreError {
        self.unreadable(format!(
            "it was written by a newer version of this program (schema {version}; this one knows up to {newest}): \
             use the newer version for everything that shares it"
        ))
    }

    pub(super) fn record(&self, uid: &str, error: &dyn Error) -> StoreError {
        self.unreadable(format!("the record {uid} is not understood: {error}"))
    }
}

/// The primary result code: the low byte of the extended one.
fn primary_code(error: &sqlx::Error) -> Option<u32> {
    let code: u32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(code & 0xff)
}

/// Whether somebody else has the file locked at the moment.
pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(primary_code(error), Some(5 | 6))
}
