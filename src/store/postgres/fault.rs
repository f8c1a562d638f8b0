//! What PostgreSQL says, in the words of a store.

use std::{error::Error, fmt::Display, sync::Arc, time::Duration};

use sqlx::migrate::MigrateError;

use crate::store::StoreError;

/// Makes errors of one store. <https://www.postgresql.org/docs/current/errcodes-appendix.html> has the codes.
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

    fn forbidden(&self, cause: impl Into<String>) -> StoreError {
        StoreError::Forbidden { address: self.address.to_string(), cause: cause.into() }
    }

    pub(super) fn silent(&self) -> StoreError {
        self.unavailable(format!("it did not answer within {:?}", self.patience))
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
                    "the role may not do this ({}); see the guide about many runners for what each role needs",
                    message(error)
                )),
                Some("28P01" | "28000") => self.forbidden(format!("the login was refused ({})", message(error))),
                Some("3D000") => self.forbidden(format!("there is no such database ({})", message(error))),
                Some("3F000" | "42P01" | "42883" | "42703") => {
                    self.unreadable(format!("its schema is not that of this program ({})", message(error)))
                }
                Some("MT001") => self.unreadable(message(error)),
                Some("53300") => self.unavailable(format!("it has no connection left for us ({})", message(error))),
                // Connection, resources, an operator, the system, a lost race: over after a while.
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

    pub(super) fn record(&self, what: &dyn Display, error: &dyn Error) -> StoreError {
        self.unreadable(format!("the record {what} is not understood: {error}"))
    }
}

fn code(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

fn message(error: &sqlx::Error) -> String {
    error.as_database_error().map_or_else(|| error.to_string(), |error| error.message().to_owned())
}

/// Whether another lock has an active record of that name.
pub(super) fn is_taken_name(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.constraint() == Some("maintenances_active_name"))
}

/// Whether the server takes no more connections. The pool waits for one and says then that its time is over.
pub(super) fn has_no_connection_left(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::PoolTimedOut) || code(error).as_deref() == Some("53300")
}
