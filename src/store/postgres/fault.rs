//! Maps PostgreSQL errors to store errors.

use std::{ops::Deref, time::Duration};

use crate::{
    maintenance::queue::shown_duration,
    store::{StoreError, fault::StoreErrors},
};

/// Creates one store's errors. Codes:
/// <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
#[derive(Clone, Debug)]
pub(super) struct ErrorMapper {
    about: StoreErrors,
    patience: Duration,
}

impl ErrorMapper {
    pub(super) fn new(address: &str, patience: Duration) -> Self {
        Self { about: StoreErrors::new(address), patience }
    }

    pub(super) fn silent(&self) -> StoreError {
        self.unavailable(format!("it did not answer within {}", shown_duration(self.patience)))
    }

    pub(super) fn sqlx(&self, error: &sqlx::Error) -> StoreError {
        match error {
            sqlx::Error::Decode(_)
            | sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::RowNotFound => self.unreadable(error.to_string()),
            sqlx::Error::Configuration(cause) => self.forbidden(format!("its URL cannot be used: {cause}")),
            sqlx::Error::PoolTimedOut => self.silent(),
            sqlx::Error::Io(cause) => self.unavailable(format!("it cannot be reached ({cause})")),
            _ => match code(error).as_deref() {
                Some("42501") => self.forbidden(format!(
                    "the role does not allow this ({}); the guide about many runners lists each role's permissions",
                    message(error)
                )),
                Some("28P01" | "28000") => self.forbidden(format!("the login was refused ({})", message(error))),
                Some("3D000") => self.forbidden(format!("the database does not exist ({})", message(error))),
                Some("3F000" | "42P01" | "42883" | "42703") => {
                    self.unreadable(format!("its schema does not match this program ({})", message(error)))
                }
                Some("MT001") => self.unreadable(message(error)),
                Some("25006") => self.unwritable(format!(
                    "the server is read-only ({}); is it a standby, or is default_transaction_read_only set?",
                    message(error)
                )),
                Some("53100") => self.unwritable(format!("the server's disk is full ({})", message(error))),
                Some("53300") => self.unavailable(format!("all its connections are in use ({})", message(error))),
                // Transient classes: connection, resources, operator intervention, system,
                // transaction conflict.
                Some(code)
                    if ["08", "53", "57", "58", "40", "55", "25"].iter().any(|class| code.starts_with(class)) =>
                {
                    self.unavailable(message(error))
                }
                Some(code) => self.unreadable(format!("{} (SQLSTATE {code})", message(error))),
                None => self.unavailable(error.to_string()),
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

fn code(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

fn message(error: &sqlx::Error) -> String {
    error.as_database_error().map_or_else(|| error.to_string(), |error| error.message().to_owned())
}

/// Returns true if another lock has an active record with that name.
pub(super) fn is_taken_name(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.constraint() == Some("maintenances_active_name"))
}

/// Returns true if the server accepts no more connections. The pool then waits and reports a
/// timeout.
pub(super) fn has_no_connection_left(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::PoolTimedOut) || code(error).as_deref() == Some("53300")
}
