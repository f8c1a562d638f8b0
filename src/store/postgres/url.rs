//! `postgres://user:password@host:port/database?…`

use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use sqlx::postgres::PgConnectOptions;
use url::Url;

use crate::store::StoreError;

/// How a database is used.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// How long somebody waits for the server before the store counts as unavailable.
    pub patience: Duration,
    /// How often changes are looked for while PostgreSQL tells them too; without that they are looked for twice a second.
    pub watch_interval: Duration,
    /// Whether a database with a schema too old for this version is opened, to be migrated.
    pub migrating: bool,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self { patience: Duration::from_secs(10), watch_interval: Duration::from_secs(5), migrating: false }
    }
}

/// What a URL says.
#[derive(Clone, Debug)]
pub(super) struct Parsed {
    pub(super) connect: PgConnectOptions,
    pub(super) address: String,
    pub(super) notifications: bool,
    /// Whether the user knows that a fail-over may lose changes.
    pub(super) accept_lost_commits: bool,
}

/// Reads a URL as libpq does, with two parameters of our own: `notifications=off` for a transaction pooler, which passes
/// neither notifications nor anything else that outlives a transaction, and `accept_lost_commits=yes`.
pub(super) fn parse(url: &SecretString) -> Result<Parsed, StoreError> {
    let refused = |cause: String| StoreError::Forbidden { address: "postgres://".to_owned(), cause };
    let mut parsed = Url::parse(url.expose_secret())
        .map_err(|error| refused(format!("its URL cannot be read ({error}); write postgres://user@host/database")))?;
    let (mut notifications, mut accept_lost_commits) = (true, false);
    let mut others = Vec::new();
    for (name, value) in parsed.query_pairs() {
        match (name.as_ref(), value.as_ref()) {
            ("notifications", "on") | ("accept_lost_commits", "no") => {}
            ("notifications", "off") => notifications = false,
            ("notifications", other) => {
                return Err(refused(format!("notifications={other:?} is neither on nor off")));
            }
            ("accept_lost_commits", "yes") => accept_lost_commits = true,
            ("accept_lost_commits", other) => {
                return Err(refused(format!("accept_lost_commits={other:?} is neither yes nor no")));
            }
            // sqlx passes over what it does not know, and a typing error would be a connection without TLS.
            (
                "sslmode" | "sslrootcert" | "sslcert" | "sslkey" | "host" | "port" | "dbname" | "user" | "password"
                | "application_name" | "options" | "hostaddr" | "ssl-mode" | "ssl-root-cert" | "ssl-cert" | "ssl-key"
                | "ssl-ca",
                _,
            ) => others.push((name.into_owned(), value.into_owned())),
            (other, _) => return Err(refused(format!("its URL has the unknown parameter {other:?}"))),
        }
    }
    if others.is_empty() {
        parsed.set_query(None);
    } else {
        parsed.query_pairs_mut().clear().extend_pairs(&others);
    }
    let connect: PgConnectOptions =
        parsed.as_str().parse().map_err(|error: sqlx::Error| refused(format!("its URL cannot be used ({error})")))?;
    let connect = match connect.get_application_name() {
        Some(_) => connect,
        None => connect.application_name("terraform-provider-metal"),
    };
    let database = connect.get_database().unwrap_or_else(|| connect.get_username()).to_owned();
    let place = match connect.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", connect.get_host(), connect.get_port()),
    };
    Ok(Parsed { address: format!("postgres://{place}/{database}"), connect, notifications, accept_lost_commits })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Parsed, StoreError> {
        parse(&SecretString::from(url))
    }

    #[test]
    fn an_address_names_no_credential() {
        let parsed = read("postgres://runner:hunter2@db.example.com/metal?sslmode=verify-full").unwrap();
        assert_eq!(parsed.address, "postgres://db.example.com:5432/metal");
        assert!(parsed.notifications);
        assert!(!parsed.accept_lost_commits);
        assert!(!read("postgres://runner@db/metal?notifications=off").unwrap().notifications);
        assert!(read("postgres://runner@db/metal?accept_lost_commits=yes").unwrap().accept_lost_commits);
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_without_the_password() {
        for bad in [
            "postgres://runner:hunter2@db/metal?sslmod=require",
            "postgres://runner:hunter2@db/metal?notifications=maybe",
            "postgres://runner:hunter2@db/metal?accept_lost_commits=perhaps",
            "postgres://runner:hunter2@db:port/metal",
            "postgres://runner:hunter2@db/metal?sslmode=sometimes",
        ] {
            let problem = read(bad).unwrap_err().to_string();
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }
}
