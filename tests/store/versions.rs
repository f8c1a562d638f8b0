//! Several provider versions on one store: files as version 0.1.0 left them, and `store migrate`.

use std::{path::Path, time::Duration};

use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection, migrate::Migrator, sqlite::SqliteConnectOptions};
use terraform_provider_metal::store::{SqliteOptions, SqliteStore, Store, StoreError};

use crate::{
    bench::{HandClock, finish, hold, sqlite},
    records::{TTL, id, key, request, runner},
    roles::run,
    support::{kubernetes::Kubernetes, postgres::Postgres},
};

/// The schema of version 0.1.0.
const OF_0_1_0: i64 = 3;

/// The schema of this version.
const NEWEST: i64 = 5;

async fn raw(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new().filename(path).create_if_missing(true).connect().await.unwrap()
}

/// A file with an earlier schema, as the version made it that had it.
pub async fn file_with(path: &Path, schema: i64) {
    let all = Migrator::new(Path::new("migrations/sqlite")).await.unwrap();
    let migrations = all.iter().filter(|migration| migration.version <= schema).cloned().collect();
    let mut db = raw(path).await;
    let migrations = Migrator { migrations, locking: false, ..Migrator::DEFAULT };
    migrations.run_direct(None, &mut db, false).await.unwrap();
    db.close().await.unwrap();
}

async fn schema_of(path: &Path) -> i64 {
    let mut db = raw(path).await;
    let found = sqlx::query_scalar("SELECT max(version) FROM _sqlx_migrations").fetch_one(&mut db).await.unwrap();
    db.close().await.unwrap();
    found
}

/// The heartbeat of version 0.1.0, word for word.
async fn lease_of_0_1_0(path: &Path, n: u32, until: &str) {
    let mut db = raw(path).await;
    sqlx::query(
        "INSERT INTO leases (runner_id, until, runner) VALUES (?, ?, ?) \
         ON CONFLICT (runner_id) DO UPDATE SET until = excluded.until, runner = excluded.runner",
    )
    .bind(&runner(n).id.0)
    .bind(until)
    .bind(serde_json::to_string(&runner(n)).unwrap())
    .execute(&mut db)
    .await
    .unwrap();
    db.close().await.unwrap();
}

#[tokio::test]
async fn a_file_of_version_0_1_0_is_used_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordination.sqlite");
    file_with(&path, OF_0_1_0).await;
    let clock = HandClock::new();
    let store = sqlite(&path, clock.clone()).await.unwrap();
    let (uid, fence) = hold(&store, &key("k"), &request("a", 1)).await;
    assert!(store.view(&key("k")).await.unwrap().leases.0.contains_key(&runner(1).id));
    assert!(store.claim_sweep(&runner(1).id, TTL).await.unwrap());
    lease_of_0_1_0(&path, 7, "2099-01-01T00:00:00.000000000Z").await;
    let usage = store.usage().await.unwrap();
    assert_eq!((usage.schema, usage.newest, usage.alive.len(), usage.too_old().count()), (OF_0_1_0, NEWEST, 2, 1));
    // A lease ends by the wall clock there.
    clock.pass(TTL * 2);
    assert_eq!(store.usage().await.unwrap().alive.len(), 1);
    store.renew(&runner(1), TTL).await.unwrap();
    store.resign(&runner(1).id).await.unwrap();
    finish(&store, &key("k"), &uid, fence).await.unwrap();
    assert!(store.find(&id("a")).await.unwrap().is_some());
    store.prune(Duration::ZERO, 10).await.unwrap();
    store.close().await;
    assert_eq!(schema_of(&path).await, OF_0_1_0);
}

#[tokio::test]
async fn a_process_that_has_a_file_open_goes_on_after_its_migration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordination.sqlite");
    file_with(&path, OF_0_1_0).await;
    let clock = HandClock::new();
    let (open, other) = (sqlite(&path, clock.clone()).await.unwrap(), sqlite(&path, clock.clone()).await.unwrap());
    let (uid, fence) = hold(&open, &key("k"), &request("a", 1)).await;
    other.migrate().await.unwrap();
    assert_eq!(schema_of(&path).await, NEWEST);
    // Its heartbeats have the boot clock from now on, and it reads those of others.
    open.renew(&runner(1), TTL).await.unwrap();
    other.renew(&runner(2), TTL).await.unwrap();
    let mut db = raw(&path).await;
    let by_boot: i64 = sqlx::query_scalar("SELECT count(*) FROM leases WHERE boot_until IS NOT NULL")
        .fetch_one(&mut db)
        .await
        .unwrap();
    assert_eq!(by_boot, 2);
    assert!(open.view(&key("k")).await.unwrap().leases.0.contains_key(&runner(1).id));
    open.resign(&runner(1).id).await.unwrap();
    finish(&open, &key("k"), &uid, fence).await.unwrap();
}

#[tokio::test]
async fn a_schema_that_is_too_old_is_left_to_store_migrate() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordination.sqlite");
    file_with(&path, 2).await;
    let error = sqlite(&path, HandClock::new()).await.unwrap_err();
    assert!(matches!(&error, StoreError::Unreadable { cause, .. } if cause.contains("store migrate")), "{error}");
    assert_eq!(schema_of(&path).await, 2);
    let said = store(&format!("sqlite://{}", path.display()), &["migrate"]).await.unwrap();
    assert!(said.contains("from schema 2 to 5"), "{said}");
    assert_eq!(schema_of(&path).await, NEWEST);
    sqlite(&path, HandClock::new()).await.unwrap().close().await;
}

/// `terraform-provider-metal store …`: its output, or its error.
async fn store(url: &str, arguments: &[&str]) -> Result<String, String> {
    run(&[&["store"], arguments].concat(), url).await
}

#[tokio::test]
async fn only_store_migrate_migrates_and_not_under_older_processes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordination.sqlite");
    let url = format!("sqlite://{}", path.display());
    file_with(&path, OF_0_1_0).await;
    for command in [vec!["queue"], vec!["claims"], vec!["store", "check"]] {
        run(&command, &url).await.unwrap();
    }
    assert_eq!(schema_of(&path).await, OF_0_1_0, "a command that only looks migrates nothing");
    lease_of_0_1_0(&path, 7, "2099-01-01T00:00:00.000000000Z").await;
    let refused = store(&url, &["migrate"]).await.unwrap_err();
    for part in ["ada on desk (process 7)", "cannot read schema 5", "Nothing was changed", "--even-though-older"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert_eq!(schema_of(&path).await, OF_0_1_0);
    let said = store(&url, &["migrate", "--even-though-older-versions-are-alive"]).await.unwrap();
    assert!(said.contains("ada on desk (process 7)") && said.contains("from schema 3 to 5"), "{said}");
    assert_eq!(schema_of(&path).await, NEWEST);
    // It is in the audit log, and the store is in order.
    let again = store(&url, &["migrate"]).await.unwrap();
    assert!(again.contains("Nothing to migrate") && again.contains("from schema 3 to 5"), "{again}");
    assert!(again.contains("older versions alive: ada on desk (process 7)"), "{again}");
    store(&url, &["check"]).await.unwrap();
}

#[tokio::test]
async fn two_that_migrate_at_once_migrate_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordination.sqlite");
    file_with(&path, OF_0_1_0).await;
    let stores: Vec<SqliteStore> = futures_util::future::join_all(
        (0..4).map(|_| SqliteStore::open(&path, HandClock::new(), SqliteOptions::default())),
    )
    .await
    .into_iter()
    .collect::<Result<_, _>>()
    .unwrap();
    for done in futures_util::future::join_all(stores.iter().map(Store::migrate)).await {
        done.unwrap();
    }
    assert_eq!(schema_of(&path).await, NEWEST);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_there_is_nothing_to_migrate_it_says_so() {
    let server = Postgres::shared();
    let cluster = tokio::task::spawn_blocking(Kubernetes::shared).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    for url in [
        format!("sqlite://{}", folder.path().join("coordination.sqlite").display()),
        server.url("postgres", &server.database()),
        cluster.store(&cluster.namespace()),
    ] {
        let said = store(&url, &["migrate"]).await.unwrap();
        assert!(said.contains("No process is alive") && said.contains("Nothing to migrate"), "{url}: {said}");
    }
}
