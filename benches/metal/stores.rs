//! Coordination stores configured as in production: a commit is on disk before its reply.
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use secrecy::SecretString;
use terraform_provider_metal::{
    clock::SystemClock,
    maintenance::ids::{LockKey, Runner},
    store::{KubernetesOptions, KubernetesStore, PostgresOptions, PostgresStore, SqliteOptions, SqliteStore, Store},
};

use crate::support::{kubernetes::Kubernetes, postgres::Postgres};

/// Returns all stores, or those in `BENCH_STORES`, such as `BENCH_STORES="PostgreSQL SQLite"`.
pub fn kinds() -> impl Iterator<Item = Kind> {
    let named = std::env::var("BENCH_STORES").ok();
    [Kind::Sqlite, Kind::Postgres, Kind::Kubernetes]
        .into_iter()
        .filter(move |kind| named.as_ref().is_none_or(|named| named.split_whitespace().any(|name| name == kind.name())))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    Postgres,
    Kubernetes,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
            Self::Kubernetes => "Kubernetes",
        }
    }
}

/// An empty store with its server.
pub enum Backing {
    Sqlite(tempfile::TempDir),
    Postgres(Box<Postgres>, String),
    Kubernetes(Box<Kubernetes>, String),
}

impl Backing {
    pub fn start(kind: Kind) -> Self {
        match kind {
            Kind::Sqlite => Self::Sqlite(tempfile::tempdir().unwrap()),
            Kind::Postgres => {
                let server = Postgres::durable(&["shared_preload_libraries=pg_stat_statements"]);
                server.sql("postgres", "CREATE EXTENSION pg_stat_statements");
                let database = server.database();
                Self::Postgres(Box::new(server), database)
            }
            Kind::Kubernetes => {
                let cluster = Kubernetes::durable();
                let namespace = cluster.namespace();
                Self::Kubernetes(Box::new(cluster), namespace)
            }
        }
    }

    pub fn file(&self) -> Option<PathBuf> {
        match self {
            Self::Sqlite(folder) => Some(folder.path().join("metal.db")),
            Self::Postgres(..) | Self::Kubernetes(..) => None,
        }
    }

    /// URL for [`open`].
    pub fn url(&self) -> String {
        match self {
            Self::Sqlite(folder) => folder.path().join("metal.db").display().to_string(),
            Self::Postgres(server, database) => server.url("postgres", database),
            Self::Kubernetes(cluster, namespace) => cluster.store(namespace),
        }
    }

    /// Number of statements or requests served so far, if the server counts them.
    pub async fn requests(&self) -> Option<u64> {
        match self {
            Self::Sqlite(_) => None,
            Self::Postgres(server, database) => {
                let counted = server.sql(
                    "postgres",
                    &format!(
                        "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements \
                         WHERE dbid = (SELECT oid FROM pg_database WHERE datname = '{database}')"
                    ),
                );
                Some(counted.parse().unwrap())
            }
            Self::Kubernetes(cluster, _) => Some(cluster.requests().await),
        }
    }
}

/// Opens a handle, like a provider process.
pub async fn open(url: &str) -> Arc<dyn Store> {
    // As in `main`.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let clock = Arc::new(SystemClock::default());
    let secret = SecretString::from(url);
    if url.starts_with("postgres://") {
        Arc::new(PostgresStore::open(&secret, clock, &PostgresOptions::default()).await.unwrap())
    } else if url.starts_with("kubernetes://") {
        Arc::new(KubernetesStore::open(url, clock, KubernetesOptions::default()).await.unwrap())
    } else {
        Arc::new(SqliteStore::open(Path::new(url), clock, SqliteOptions::default()).await.unwrap())
    }
}

/// Process identity for a number.
pub fn runner(number: usize) -> Runner {
    Runner::new(format!("runner-{number}"), "bench", "bench", u32::try_from(number).unwrap())
}

pub fn key(name: &str) -> LockKey {
    LockKey::new(name)
}
