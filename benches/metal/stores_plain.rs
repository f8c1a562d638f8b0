//! Baseline of a store's engine: transactions that write a single row or key.
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use sqlx::{Connection as _, PgPool, SqliteConnection, postgres::PgPoolOptions};
use tokio::sync::Mutex;

use crate::{hand_over, measure::median, stores::Backing, support::kubernetes::Kubernetes};

/// Connections per provider process.
const CONNECTIONS: u32 = 3;

/// Approximate size of a record.
const SIZE: usize = 700;

/// A client without locking logic.
#[derive(Clone)]
pub enum Plain {
    /// A single writer, like SQLite itself; several would poll for its lock.
    Sqlite(Arc<Mutex<SqliteConnection>>),
    Postgres(PgPool),
    Kubernetes(Box<kube::Api<ConfigMap>>),
}

impl Plain {
    pub async fn open(backing: &Backing) -> Self {
        match backing {
            Backing::Sqlite(_) => {
                let mut file = hand_over::open(&backing.file().unwrap()).await;
                for line in ["PRAGMA synchronous = FULL", "CREATE TABLE plain (name TEXT PRIMARY KEY, body TEXT)"] {
                    sqlx::query(line).execute(&mut file).await.unwrap();
                }
                Self::Sqlite(Arc::new(Mutex::new(file)))
            }
            Backing::Postgres(..) => {
                let pool = PgPoolOptions::new().max_connections(CONNECTIONS).test_before_acquire(false);
                let pool = pool.connect(&backing.url()).await.unwrap();
                sqlx::query("CREATE TABLE plain (name text PRIMARY KEY, body text)").execute(&pool).await.unwrap();
                Self::Postgres(pool)
            }
            Backing::Kubernetes(cluster, namespace) => {
                let client = Kubernetes::client(&cluster.kubeconfig()).await;
                Self::Kubernetes(Box::new(kube::Api::namespaced(client, namespace)))
            }
        }
    }

    /// Runs one transaction.
    pub async fn write(&self, name: &str) {
        let body = "x".repeat(SIZE);
        match self {
            Self::Sqlite(file) => {
                let mut file = file.lock().await;
                let mut transaction = file.begin_with("BEGIN IMMEDIATE").await.unwrap();
                let insert = sqlx::query("INSERT INTO plain VALUES (?, ?)").bind(name).bind(body);
                insert.execute(&mut *transaction).await.unwrap();
                transaction.commit().await.unwrap();
            }
            Self::Postgres(pool) => {
                let mut transaction = pool.begin().await.unwrap();
                let insert = sqlx::query("INSERT INTO plain VALUES ($1, $2)").bind(name).bind(body);
                insert.execute(&mut *transaction).await.unwrap();
                transaction.commit().await.unwrap();
            }
            Self::Kubernetes(all) => {
                let name = format!("plain-{name}");
                let map = serde_json::json!({"metadata": {"name": name}, "data": {"body": body}});
                let map = serde_json::from_value(map).unwrap();
                all.create(&kube::api::PostParams::default(), &map).await.unwrap();
            }
        }
    }

    /// Returns the median duration of a single client.
    pub async fn median(&self) -> Duration {
        let mut times = Vec::new();
        for n in 0..200 {
            let begin = Instant::now();
            self.write(&format!("alone-{n}")).await;
            times.push(begin.elapsed());
        }
        median(&times)
    }

    /// Returns the duration of all writes, from parallel tasks that each write sequentially.
    pub async fn all(&self, round: usize, tasks: usize, each: usize) -> Duration {
        let begin = Instant::now();
        let work = (0..tasks).map(|task| {
            let this = self.clone();
            tokio::spawn(async move {
                for n in 0..each {
                    this.write(&format!("{round}-{task}-{n}")).await;
                }
            })
        });
        for done in join_all(work).await {
            done.unwrap();
        }
        begin.elapsed()
    }
}
