//! `postgres://user:password@host:port/database?…`

use std::{path::PathBuf, sync::Arc, time::Duration};

use secrecy::{ExposeSecret as _, SecretString};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use url::Url;

use crate::{
    clock::Clock,
    files::{self, FileError, PathTrust, Pipes},
    loopback::is_loopback,
    outbound::GuardedPostgres,
    store::StoreError,
};

/// Options for a database.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// How long requests retry before the store counts as unavailable.
    pub patience: Duration,
    /// The poll interval while notifications work. Without them, the interval is half a second.
    pub watch_interval: Duration,
    /// Replaces the server's time wherever it is extrapolated between two reads. For tests.
    pub time: Option<Arc<dyn Clock>>,
    /// Whether files that other users can change are accepted.
    pub trust: PathTrust,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(10),
            watch_interval: Duration::from_secs(5),
            time: None,
            trust: PathTrust::Checked,
        }
    }
}

/// A parsed URL.
#[derive(Clone, Debug)]
pub(super) struct Parsed {
    pub(super) connect: GuardedPostgres,
    pub(super) address: String,
    pub(super) notifications: bool,
    /// True if the user accepts that a fail-over can lose changes.
    pub(super) accept_lost_commits: bool,
    /// Why the connection could lead to a different server, if it is not verified.
    pub(super) unverified: Option<String>,
}

/// Returns a parameter's canonical name: sqlx accepts aliases, and its last value wins.
fn spelled(name: &str) -> &str {
    match name {
        "ssl-mode" => "sslmode",
        "ssl-root-cert" | "ssl-ca" => "sslrootcert",
        "ssl-cert" => "sslcert",
        "ssl-key" => "sslkey",
        "hostaddr" => "host",
        name => name,
    }
}

/// Returns true for a server on this machine: a socket or a loopback address.
fn is_here(connect: &PgConnectOptions) -> bool {
    connect.get_socket().is_some() || connect.get_host().starts_with('/') || is_loopback(connect.get_host())
}

/// Parameters that name a certificate or key file, which the driver reads.
const CERTIFICATES: [&str; 7] = ["sslrootcert", "sslcert", "sslkey", "ssl-root-cert", "ssl-cert", "ssl-key", "ssl-ca"];

/// Rejects a file that the driver would read endlessly. The driver reports a missing file.
fn check_file(value: &str) -> Result<(), FileError> {
    if value.contains("-----BEGIN") {
        return Ok(());
    }
    match files::check(value.as_ref(), files::SMALL, Pipes::Allowed) {
        Ok(_) | Err(FileError::Unreadable { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Variables that name a certificate, a key or a password file, which the driver reads.
const VARIABLES: [&str; 4] = ["PGSSLROOTCERT", "PGSSLCERT", "PGSSLKEY", "PGPASSFILE"];

/// Rejects files that other users can change and that the driver reads: those of the URL, of the
/// environment, and the user's password file.
pub(super) fn check_trust(url: &SecretString, trust: PathTrust) -> Result<(), StoreError> {
    let of_url = Url::parse(url.expose_secret()).map(|url| {
        let named = url.query_pairs().filter(|(name, _)| CERTIFICATES.contains(&name.as_ref()));
        named.map(|(_, value)| PathBuf::from(value.into_owned())).collect::<Vec<_>>()
    });
    let of_env = VARIABLES.into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let usual = std::env::home_dir().map(|home| home.join(".pgpass"));
    let all = of_url.into_iter().flatten().chain(of_env).chain(usual);
    let is_name = |path: &PathBuf| !path.as_os_str().is_empty() && !path.to_string_lossy().contains("-----BEGIN");
    all.filter(is_name).try_for_each(|path| {
        files::check_existing(&path, trust)
            .map_err(|error| StoreError::Forbidden { address: "postgres://".into(), cause: error.to_string().into() })
    })
}

/// Parses a URL as libpq does, with two more parameters. `notifications=off` is for a transaction
/// pooler, which does not forward notifications or session state. The other is
/// `accept_lost_commits=yes`.
///
/// Unlike in libpq, `sslmode` defaults to `verify-full` for a server on another machine. With
/// libpq's default, `prefer`, the password could be sent unencrypted to an unverified server.
pub(super) fn parse(url: &SecretString) -> Result<Parsed, StoreError> {
    // sqlx reads this variable if the URL does not set the mode.
    parse_beside(url, std::env::var_os("PGSSLMODE").is_some())
}

fn parse_beside(url: &SecretString, said_elsewhere: bool) -> Result<Parsed, StoreError> {
    let refused = |cause: String| StoreError::Forbidden { address: "postgres://".into(), cause: cause.into() };
    let mut parsed = Url::parse(url.expose_secret())
        .map_err(|error| refused(format!("its URL cannot be read ({error}); write postgres://user@host/database")))?;
    let (mut notifications, mut accept_lost_commits) = (true, false);
    let mut others = Vec::new();
    let mut names = Vec::new();
    for (name, value) in parsed.query_pairs() {
        let one = spelled(&name).to_owned();
        if names.contains(&one) {
            return Err(refused(format!("its URL sets {one} twice (here as {name:?}); one value would be ignored")));
        }
        names.push(one);
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
            // sqlx ignores unknown parameters, so a typing error could disable TLS.
            (
                "sslmode" | "sslrootcert" | "sslcert" | "sslkey" | "host" | "port" | "dbname" | "user" | "password"
                | "application_name" | "options" | "hostaddr" | "ssl-mode" | "ssl-root-cert" | "ssl-cert" | "ssl-key"
                | "ssl-ca",
                _,
            ) => {
                if CERTIFICATES.contains(&name.as_ref()) {
                    check_file(&value).map_err(|error| refused(error.to_string()))?;
                }
                others.push((name.into_owned(), value.into_owned()));
            }
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
    let here = is_here(&connect);
    let in_url = names.iter().any(|name| name == "sslmode");
    let said = said_elsewhere || in_url;
    let connect = if said || here { connect } else { connect.ssl_mode(PgSslMode::VerifyFull) };
    let unverified = match connect.get_ssl_mode() {
        _ if here => None,
        PgSslMode::VerifyFull => None,
        PgSslMode::VerifyCa => Some("accepts any server with a certificate of the authority, under any name"),
        PgSslMode::Require => Some("encrypts, and accepts any server"),
        _ => Some("sends the password and everything else unencrypted, to any server"),
    };
    let unverified = unverified.map(|what| {
        let host = connect.get_host();
        format!(
            "The connection to {host} {what}: any server that answers there could read and change the locks. Leave sslmode out of \
             coordination_url, or write sslmode=verify-full, with sslrootcert=FILE for an authority of your own."
        )
    });
    let database = connect.get_database().unwrap_or_else(|| connect.get_username()).to_owned();
    let place = match connect.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", connect.get_host(), connect.get_port()),
    };
    let address = format!("postgres://{place}/{database}");
    let plain_text = in_url && matches!(connect.get_ssl_mode(), PgSslMode::Disable);
    let connect = GuardedPostgres::new(connect, plain_text).map_err(|error| refused(error.to_string()))?;
    Ok(Parsed { connect, address, notifications, accept_lost_commits, unverified })
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
    fn a_server_on_another_machine_is_verified_unless_something_else_is_said() {
        let beside = |url: &str, elsewhere| parse_beside(&SecretString::from(url), elsewhere).unwrap();
        for remote in ["postgres://u@db.example.com/m", "postgres://u@10.0.0.7/m", "postgres://u@[2001:db8::1]/m"] {
            let parsed = beside(remote, false);
            assert!(matches!(parsed.connect.options().get_ssl_mode(), PgSslMode::VerifyFull), "{remote}");
            assert_eq!(parsed.unverified, None, "{remote}");
        }
        for (mode, warns) in [("verify-full", false), ("verify-ca", true), ("require", true), ("disable", true)] {
            let parsed = beside(&format!("postgres://u:hunter2@db.example.com/m?sslmode={mode}"), false);
            assert_eq!(parsed.unverified.is_some(), warns, "{mode}");
            assert!(!parsed.unverified.unwrap_or_default().contains("hunter2"), "{mode}");
        }
        for here in [
            "postgres://u@127.0.0.1/m",
            "postgres://u@localhost/m",
            "postgres://u@[::1]/m",
            "postgres:///m?host=/run/postgresql",
            "postgres://u@127.0.0.1/m?sslmode=disable",
        ] {
            let parsed = beside(here, false);
            assert!(!matches!(parsed.connect.options().get_ssl_mode(), PgSslMode::VerifyFull), "{here}");
            assert_eq!(parsed.unverified, None, "{here}");
        }
    }

    #[test]
    fn only_the_url_allows_plain_text_and_only_by_its_name() {
        for (url, elsewhere) in [
            ("postgres://u:hunter2@192.0.2.1/m?sslmode=prefer", false),
            ("postgres://u:hunter2@192.0.2.1/m?sslmode=allow", false),
            ("postgres://u:hunter2@0.0.0.0/m?sslmode=prefer", false),
            ("postgres://u:hunter2@db.invalid/m?sslmode=prefer", false),
            ("postgres://u:hunter2@192.0.2.1/m", true),
        ] {
            let told = parse_beside(&SecretString::from(url), elsewhere).unwrap_err().to_string();
            assert!(told.contains("sslmode=disable in coordination_url") && !told.contains("hunter2"), "{told}");
        }
        // The driver does not resolve the name again.
        let here = read("postgres://u@localhost/m?sslmode=prefer").unwrap();
        assert!(here.connect.options().get_host().parse::<std::net::IpAddr>().unwrap().is_loopback());
    }

    #[test]
    fn a_parameter_is_said_once() {
        for twice in [
            "sslmode=verify-full&sslmode=disable",
            "sslmode=verify-full&ssl-mode=disable",
            "sslrootcert=/a.pem&ssl-ca=/b.pem",
            "host=db1&hostaddr=10.0.0.1",
            "notifications=on&notifications=off",
        ] {
            let problem = read(&format!("postgres://u@db/m?{twice}")).unwrap_err().to_string();
            assert!(problem.contains("twice"), "{problem}");
        }
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
