//! The embedded store's file and locks, including damage and contention.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use sqlx::{SqliteConnection, sqlite::SqliteConnectOptions};
use terraform_provider_metal::{
    clock::SystemClock,
    store::{SqliteOptions, SqliteStore, Store, StoreError},
};

use crate::{
    bench::{Bench, HandClock, apply, finish, hold, join, soon, sqlite},
    records::{TTL, id, key, request, runner},
};

async fn raw(path: &Path) -> SqliteConnection {
    use sqlx::ConnectOptions as _;
    SqliteConnectOptions::new().filename(path).create_if_missing(true).connect().await.unwrap()
}

async fn run(db: &mut SqliteConnection, sql: &'static str) {
    sqlx::query(sql).execute(db).await.unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn file_and_folder_are_for_their_user_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state/terraform-provider-metal/coordination.sqlite");
    let store = sqlite(&path, HandClock::new()).await.unwrap();
    hold(&store, &key("k"), &request("a", 1)).await;
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    let files: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 3, "the file, its log and its shared memory: {files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    assert_eq!(store.address(), format!("sqlite://{}", path.display()));
    store.close().await;
}

#[tokio::test]
async fn what_was_committed_is_on_the_disk_in_full() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a b?c#d%20'e.sqlite");
    let store = sqlite(&path, HandClock::new()).await.unwrap();
    let (uid, _) = hold(&store, &key("k"), &request("a", 1)).await;
    let found = store.id().to_owned();
    store.close().await;
    assert!(path.exists());
    let closed = store.view(&key("k")).await.unwrap_err();
    assert!(closed.to_string().ends_with("it was closed"), "{closed}");
    let mut db = raw(&path).await;
    let journal: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut db).await.unwrap();
    assert_eq!(journal, "wal");
    let again = sqlite(&path, HandClock::new()).await.unwrap();
    assert_eq!(again.id(), found);
    assert!(again.find_uid(&uid).await.unwrap().is_some());
}

#[tokio::test]
async fn a_damaged_file_is_named_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordination.sqlite");
    let garbage = "these are not the bytes you are looking for ".repeat(200);
    fs::write(&path, &garbage).unwrap();
    let error = sqlite(&path, HandClock::new()).await.unwrap_err();
    let StoreError::Unreadable { address, cause } = &error else { panic!("{error}") };
    assert!(address.raw().contains("coordination.sqlite") && cause.raw().contains("not a SQLite database"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), garbage);

    // Damage in the pages, with an intact header.
    let path = folder.path().join("pages.sqlite");
    let store = sqlite(&path, HandClock::new()).await.unwrap();
    hold(&store, &key("k"), &request("a", 1)).await;
    store.close().await;
    let mut bytes = fs::read(&path).unwrap();
    bytes[4096..].fill(0xA5);
    fs::write(&path, &bytes).unwrap();
    let error = async { sqlite(&path, HandClock::new()).await?.view(&key("k")).await }.await.unwrap_err();
    assert!(matches!(&error, StoreError::Unreadable { cause, .. } if cause.raw().contains("damaged")), "{error}");
}

#[tokio::test]
async fn a_record_that_is_not_understood_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordination.sqlite");
    let store = sqlite(&path, HandClock::new()).await.unwrap();
    let (uid, _) = hold(&store, &key("k"), &request("a", 1)).await;
    store.close().await;
    run(&mut raw(&path).await, "UPDATE maintenances SET body = '{\"uid\": 7}'").await;
    let store = sqlite(&path, HandClock::new()).await.unwrap();
    for error in [store.find(&id("a")).await.unwrap_err(), store.find_uid(&uid).await.unwrap_err()] {
        assert!(matches!(&error, StoreError::Unreadable { cause, .. } if cause.raw().contains(uid.raw())), "{error}");
    }
    // Other servers remain usable.
    hold(&store, &key("other"), &request("c", 3)).await;
}

#[tokio::test]
async fn a_file_of_a_newer_version_or_another_program_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordination.sqlite");
    sqlite(&path, HandClock::new()).await.unwrap().close().await;
    let mut db = raw(&path).await;
    run(
        &mut db,
        "INSERT INTO _sqlx_migrations SELECT 9999, description, installed_on, success, checksum, 0 FROM _sqlx_migrations LIMIT 1",
    )
    .await;
    let error = sqlite(&path, HandClock::new()).await.unwrap_err();
    let expected = "newer version of this program (format 9999; this version supports format 1)";
    assert!(matches!(&error, StoreError::Unreadable { cause, .. } if cause.raw().contains(expected)), "{error}");

    let path = folder.path().join("photos.sqlite");
    run(&mut raw(&path).await, "CREATE TABLE photos (id)").await;
    let error = sqlite(&path, HandClock::new()).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Unreadable { cause, .. } if cause.raw().contains("another program")),
        "{error}"
    );
    let tables: i64 =
        sqlx::query_scalar("SELECT count(*) FROM sqlite_schema").fetch_one(&mut raw(&path).await).await.unwrap();
    assert_eq!(tables, 1);
}

#[tokio::test]
async fn a_place_where_no_file_can_be_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    fs::create_dir(folder.path().join("folder.sqlite")).unwrap();
    let mut paths = vec![
        folder.path().join("file/below/coordination.sqlite"),
        folder.path().join("folder.sqlite"),
        "/proc/no-such/coordination.sqlite".into(),
    ];
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
    // Root ignores permissions.
    if fs::write(closed.join("probe"), "").is_err() {
        paths.push(closed.join("coordination.sqlite"));
    }
    for path in paths {
        let error = sqlite(&path, HandClock::new()).await.unwrap_err();
        let StoreError::Unavailable { address, cause } = &error else { panic!("{error}") };
        assert!(address.raw().contains(&path.display().to_string()), "{error}");
        assert!(cause.raw().starts_with("the file cannot be opened or created: "), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_database_is_unavailable_in_time_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordination.sqlite");
    let patience = Duration::from_millis(300);
    let options = SqliteOptions { patience, ..SqliteOptions::default() };
    let store = Arc::new(SqliteStore::open(&path, HandClock::new(), options).await.unwrap());
    let (uid, generation) = hold(&*store, &key("k"), &request("a", 1)).await;
    let mut other = raw(&path).await;
    run(&mut other, "BEGIN IMMEDIATE").await;

    let started = Instant::now();
    let writers: Vec<_> = (0..50)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.renew(&runner(1), TTL).await })
        })
        .collect();
    for writer in writers {
        let error = soon("a refusal", writer).await.unwrap().unwrap_err();
        let StoreError::Unavailable { cause, .. } = &error else { panic!("{error}") };
        assert_eq!(cause, "it stayed locked by another process for 300ms");
    }
    // The calls run in parallel.
    assert!(started.elapsed() < patience * 10, "{:?}", started.elapsed());
    // Readers are not blocked.
    assert_eq!(store.view(&key("k")).await.unwrap().lock.active.len(), 1);

    run(&mut other, "ROLLBACK").await;
    finish(&*store, &key("k"), &uid, generation).await.unwrap();
}

#[tokio::test]
async fn a_database_locked_against_readers_is_unavailable_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordination.sqlite");
    let patience = Duration::from_millis(200);
    let options = SqliteOptions { patience, ..SqliteOptions::default() };
    sqlite(&path, HandClock::new()).await.unwrap().close().await;
    let mut other = raw(&path).await;
    run(&mut other, "PRAGMA locking_mode = EXCLUSIVE").await;
    run(&mut other, "BEGIN EXCLUSIVE").await;
    let started = Instant::now();
    let error = SqliteStore::open(&path, HandClock::new(), options).await.unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable { cause, .. } if cause.raw().contains("locked")), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_was_removed_or_replaced_is_not_used_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordination.sqlite");
    let store = sqlite(&path, HandClock::new()).await.unwrap();
    hold(&store, &key("k"), &request("a", 1)).await;
    let mut changes = store.changes(&key("k"));
    fs::rename(&path, folder.path().join("elsewhere")).unwrap();
    // The waiter wakes up and reads the error.
    soon("a wake", changes.changed()).await.unwrap();
    let gone = store.view(&key("k")).await.unwrap_err();
    assert!(
        matches!(&gone, StoreError::Unavailable { cause, .. } if cause.raw().contains("no longer exists")),
        "{gone}"
    );
    fs::remove_file(folder.path().join("coordination.sqlite-wal")).unwrap();
    fs::remove_file(folder.path().join("coordination.sqlite-shm")).unwrap();
    let other = sqlite(&path, HandClock::new()).await.unwrap();
    assert_ne!(other.id(), store.id());
    let replaced = store.renew(&runner(1), TTL).await.unwrap_err();
    assert!(
        matches!(&replaced, StoreError::Unavailable { cause, .. } if cause.raw().contains("replaced")),
        "{replaced}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_transaction_leaves_nothing_behind() {
    let bench = Bench::sqlite().await;
    let store = bench.open().await;
    let (uid, generation) = hold(&*store, &key("k"), &request("a", 1)).await;
    for n in 0..60u32 {
        let (theirs, wish) = (store.clone(), request(&format!("m{n}"), 10 + n));
        let name = wish.id.clone();
        let joining = tokio::spawn(async move { join(&*theirs, &key("k"), &wish).await });
        for _ in 0..n {
            tokio::task::yield_now().await;
        }
        joining.abort();
        let _ = joining.await;
        // A running commit keeps its lock until it is done.
        apply(&*store, &key("k"), |_, _, _| Ok(())).await.unwrap();
        // The commit is complete or absent.
        let found = bench.open().await.find(&name).await.unwrap().map(|found| found.record().clone());
        let view = store.view(&key("k")).await.unwrap();
        let record = view.lock.active.iter().find(|record| record.id == name);
        assert_eq!(found.as_ref(), record.map(|record| &**record));
        assert!(record.is_none_or(|record| record.attachment.is_some()));
    }
    finish(&*store, &key("k"), &uid, generation).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_another_process_is_noticed_within_250_ms() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordination.sqlite");
    let one = sqlite(&path, HandClock::new()).await.unwrap();
    let two = sqlite(&path, HandClock::new()).await.unwrap();
    let mut changes = one.changes(&key("k"));
    let mut waits = Vec::new();
    for n in 0..20 {
        join(&two, &key("k"), &request(&format!("m{n}"), n)).await.unwrap();
        let committed = Instant::now();
        soon("the change", changes.changed()).await.unwrap();
        waits.push(committed.elapsed());
    }
    waits.sort();
    println!("noticed after {:?} (middle), {:?} (longest)", waits[10], waits[19]);
    // The median, because a busy machine can delay any single call.
    assert!(waits[10] < Duration::from_millis(250), "{waits:?}");
}

/// Query plans do not depend on the table's content, because SQLite runs without statistics.
#[tokio::test]
async fn no_query_walks_through_the_history() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordination.sqlite");
    sqlite(&path, HandClock::new()).await.unwrap().close().await;
    let mut db = raw(&path).await;
    for query in [
        "EXPLAIN QUERY PLAN SELECT uid, body FROM maintenances WHERE active = 1 AND lock_key = ? ORDER BY id",
        "EXPLAIN QUERY PLAN SELECT lock_key, uid, body FROM maintenances WHERE active = 1 ORDER BY lock_key, id",
        "EXPLAIN QUERY PLAN SELECT lock_key FROM maintenances WHERE active = 1",
        "EXPLAIN QUERY PLAN SELECT runner FROM maintenances WHERE active = 1",
        "EXPLAIN QUERY PLAN SELECT runner FROM maintenances WHERE active = 1 AND lock_key = ?",
        "EXPLAIN QUERY PLAN SELECT body FROM maintenances WHERE active = 1 AND namespace = ? AND name = ?",
        "EXPLAIN QUERY PLAN SELECT body FROM maintenances WHERE namespace = ? AND name = ? ORDER BY id DESC LIMIT 1",
        "EXPLAIN QUERY PLAN SELECT body FROM maintenances WHERE uid = ?",
        "EXPLAIN QUERY PLAN SELECT at FROM audit WHERE namespace = ? AND name = ? ORDER BY id DESC LIMIT ?",
        "EXPLAIN QUERY PLAN SELECT lock_key, revision FROM locks WHERE revision > ? ORDER BY revision",
        "EXPLAIN QUERY PLAN SELECT coalesce(max(revision), 0) + 1 FROM locks",
    ] {
        let plan: Vec<(i64, i64, i64, String)> = sqlx::query_as(query).fetch_all(&mut db).await.unwrap();
        let steps: Vec<_> = plan.into_iter().map(|step| step.3).collect();
        let indexed = |step: &String| step.contains("USING") && !step.contains("B-TREE");
        assert!(steps.iter().all(indexed), "{query}: {steps:?}");
    }
}

#[tokio::test]
async fn a_usual_file_has_no_warning() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordination.sqlite");
    let store = SqliteStore::open(&path, Arc::new(SystemClock::default()), SqliteOptions::default()).await.unwrap();
    assert_eq!(store.reach_warning(), None);
}

#[tokio::test]
async fn a_line_that_cannot_be_read_is_reported_and_hides_no_other() {
    let bench = Bench::sqlite().await;
    let store = bench.open().await;
    hold(&*store, &key("k"), &request("a", 1)).await;
    let path = store.address();
    let path = Path::new(path.strip_prefix("sqlite://").unwrap());
    crate::bench::sql_of(path, "UPDATE audit SET at = 'never' WHERE id = (SELECT min(id) FROM audit)").await;
    let contents = store.contents().await.unwrap();
    assert!(!contents.audit.is_empty(), "the other lines");
    let wrong = contents.violations();
    assert!(wrong.iter().any(|line| line.raw().contains("an audit line cannot be read")), "{wrong:?}");
}
