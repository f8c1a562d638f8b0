//! Maps SQLite errors to store errors.

use std::{ops::Deref, time::Duration};

use crate::{
    maintenance::queue::shown_duration,
    store::{StoreError, fault::StoreErrors},
};

/// Creates one store's errors. Codes: <https://www.sqlite.org/rescode.html>.
#[derive(Clone, Debug)]
pub(super) struct ErrorMapper {
    about: StoreErrors,
    patience: Duration,
}

impl ErrorMapper {
    pub(super) fn new(address: &str, patience: Duration) -> Self {
        Self { about: StoreErrors::new(address), patience }
    }

    pub(super) fn locked(&self) -> StoreError {
        self.unavailable(format!("it stayed locked by another process for {}", shown_duration(self.patience)))
    }

    pub(super) fn sqlx(&self, error: &sqlx::Error) -> StoreError {
        match error {
            sqlx::Error::Decode(_)
            | sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::RowNotFound => self.unreadable(error.to_string()),
            _ if matches!(code(error), Some(WRITE_FAILED | SHARED_MEMORY_FULL)) => self
                .unwritable(format!("writing the file failed ({error}); a quota or the file system rejects more data")),
            _ => match primary_code(error) {
                Some(5 | 6) => self.locked(),
                Some(26) => self.unreadable("it is not a SQLite database, or its first page is damaged"),
                Some(11) => self.unreadable("the file is damaged (database disk image is malformed)"),
                Some(8) => self.unwritable("the file, its folder or its file system is read-only"),
                Some(13) => self.unwritable("the disk is full"),
                Some(14) => self.unavailable(format!("the file cannot be opened ({error})")),
                _ => self.unavailable(error.to_string()),
            },
        }
    }
}

impl Deref for ErrorMapper {
    type Target = StoreErrors;

    fn deref(&self) -> &StoreErrors {
        &self.about
    }
}

/// `SQLITE_IOERR_WRITE`: the operating system rejected a write for another reason than a full disk.
const WRITE_FAILED: u32 = 0x30a;

/// `SQLITE_IOERR_SHMSIZE`: the file system is too full for the log's shared memory.
const SHARED_MEMORY_FULL: u32 = 0x130a;

/// Returns the extended result code.
fn code(error: &sqlx::Error) -> Option<u32> {
    error.as_database_error()?.code()?.parse().ok()
}

/// Returns the primary result code: the low byte of the extended code.
fn primary_code(error: &sqlx::Error) -> Option<u32> {
    Some(code(error)? & 0xff)
}

/// Returns true if another connection has the file locked.
pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(primary_code(error), Some(5 | 6))
}
