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
            _ => match code(error) {
                Some(code) => self.coded(&code, message(error)),
                None => self.unavailable(error.to_string()),
            },
        }
    }

    /// Maps an error code, which `metal.commit` also returns for one of several changes.
    pub(super) fn coded(&self, code: &str, message: String) -> StoreError {
        match code {
            "42501" => self.forbidden(format!(
                "the role does not allow this ({message}); the guide about many runners lists each role's permissions"
            )),
            "28P01" | "28000" => self.forbidden(format!("the login was refused ({message})")),
            "3D000" => self.forbidden(format!("the database does not exist ({message})")),
            "3F000" | "42P01" | "42883" | "42703" | "42704" => {
                self.unreadable(format!("its schema does not match this program ({message})"))
            }
            "MT001" => self.unreadable(message),
            "25006" => self.unwritable(format!(
                "the server is read-only ({message}); is it a standby, or is default_transaction_read_only set?"
            )),
            "53100" => self.unwritable(format!("the server's disk is full ({message})")),
            "53300" => self.unavailable(format!("all its connections are in use ({message})")),
            "55P03" => self.unavailable(format!("another transaction blocks this server's row ({message})")),
            // Transient classes: connection, resources, operator intervention, system, transaction
            // conflict.
            code if ["08", "53", "57", "58", "40", "55", "25"].iter().any(|class| code.starts_with(class)) => {
                self.unavailable(message)
            }
            code => self.unreadable(format!("{message} (SQLSTATE {code})")),
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

/// Returns true if a table, function or column does not exist.
pub(super) fn is_undefined(error: &sqlx::Error) -> bool {
    code(error).is_some_and(|code| ["3F000", "42P01", "42883", "42703"].contains(&code.as_str()))
}

/// Returns true if the server accepts no more connections. The pool then waits and reports a
/// timeout.
pub(super) fn has_no_connection_left(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::PoolTimedOut) || code(error).as_deref() == Some("53300")
}
