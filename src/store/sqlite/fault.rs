//! What SQLite says, in the words of a store.

use std::{ops::Deref, time::Duration};

use crate::{
    maintenance::queue::shown_duration,
    store::{StoreError, fault::StoreErrors},
};

/// Makes errors of one store. <https://www.sqlite.org/rescode.html> has the codes.
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
            _ => match primary_code(error) {
                Some(5 | 6) => self.locked(),
                Some(26) => self.unreadable("it is not a SQLite database, or its first page is damaged"),
                Some(11) => self.unreadable("the file is damaged (database disk image is malformed)"),
                Some(8) => self.unavailable("the file or its folder may not be written"),
                Some(13) => self.unavailable("the disk is full"),
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

/// The primary result code: the low byte of the extended one.
fn primary_code(error: &sqlx::Error) -> Option<u32> {
    let code: u32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(code & 0xff)
}

/// Whether somebody else has the file locked at the moment.
pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(primary_code(error), Some(5 | 6))
}
