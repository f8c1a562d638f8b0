//! One file opened through two paths, and a log that does not belong to the file.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command, Stdio},
};

use terraform_provider_metal::store::{Store, StoreError};

use crate::{
    bench::{HandClock, hold, soon, sqlite},
    records::{TTL, key, request, runner},
};

fn untrusted<T: std::fmt::Debug>(said: Result<T, StoreError>, part: &str) {
    let error = said.unwrap_err();
    assert!(matches!(&error, StoreError::Untrusted { cause, .. } if cause.raw().contains(part)), "{part}: {error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_with_two_names_is_used_by_none_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordination.sqlite");
    let store = sqlite(&path, HandClock::new()).await.unwrap();
    hold(&store, &key("k"), &request("a", 1)).await;
    let other = folder.path().join("other.sqlite");
    fs::hard_link(&path, &other).unwrap();
    for name in [&path, &other] {
        untrusted(sqlite(name, HandClock::new()).await, "has 2 names");
    }
    untrusted(store.renew(&runner(1), TTL).await, "has 2 names");
    untrusted(store.view(&key("k")).await, "has 2 names");
    fs::remove_file(&other).unwrap();
    store.renew(&runner(1), TTL).await.unwrap();
    // A second name for the log is refused, too.
    fs::hard_link(folder.path().join("coordination.sqlite-wal"), &other).unwrap();
    untrusted(sqlite(&path, HandClock::new()).await, "-wal has 2 names");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_symbolic_link_leads_to_the_same_locks() {
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("coordination.sqlite"), folder.path().join("link.sqlite"));
    let store = sqlite(&path, HandClock::new()).await.unwrap();
    symlink(&path, &link).unwrap();
    let same = sqlite(&link, HandClock::new()).await.unwrap();
    hold(&store, &key("k"), &request("a", 1)).await;
    assert!(same.view(&key("k")).await.unwrap().lock.slot.is_some());
}

/// Skipped if this user cannot mount.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_mounted_alone_is_not_used() {
    let mount = |from: &Path, to: &Path| {
        Command::new("mount").arg("--bind").args([from, to]).status().is_ok_and(|status| status.success())
    };
    let folder = tempfile::tempdir().unwrap();
    let (host, job) = (folder.path().join("host"), folder.path().join("job"));
    for folder in [&host, &job] {
        fs::create_dir(folder).unwrap();
    }
    let (path, inside) = (host.join("coordination.sqlite"), job.join("coordination.sqlite"));
    let store = sqlite(&path, HandClock::new()).await.unwrap();
    fs::write(&inside, "").unwrap();
    if !mount(&path, &inside) {
        return println!("this user cannot mount: not tested");
    }
    let said = sqlite(&inside, HandClock::new()).await;
    let unmounted = Command::new("umount").arg(&inside).status().unwrap();
    assert!(unmounted.success());
    untrusted(said, "mounted as a single file");
    // Mounting the whole folder works.
    hold(&store, &key("k"), &request("a", 1)).await;
    assert!(mount(&host, &job));
    let same = sqlite(&inside, HandClock::new()).await.unwrap();
    assert!(same.view(&key("k")).await.unwrap().lock.slot.is_some());
    same.close().await;
    let _ = Command::new("umount").arg("-l").arg(&job).status();
}

/// Another process with the file open, like a run.
struct OtherProcess(Child);

impl OtherProcess {
    fn open(path: &Path) -> Self {
        let script = "import sqlite3, sys\nd = sqlite3.connect(sys.argv[1])\nd.execute('SELECT count(*) FROM meta').fetchall()\n\
                      print('open', flush=True)\nsys.stdin.read()\n";
        let mut child = Command::new("python3")
            .args(["-c", script])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        Self(child)
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Neither the process that lost its log nor a later process grants a lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_is_deleted_in_use_ends_all_use() {
    for lost in [&["-wal"][..], &["-shm"], &["-wal", "-shm"]] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("coordination.sqlite");
        let store = sqlite(&path, HandClock::new()).await.unwrap();
        hold(&store, &key("k"), &request("a", 1)).await;
        let other = OtherProcess::open(&path);
        for suffix in lost {
            fs::remove_file(folder.path().join(format!("coordination.sqlite{suffix}"))).unwrap();
        }
        untrusted(store.renew(&runner(1), TTL).await, "deleted or replaced");
        untrusted(store.view(&key("k")).await, "deleted or replaced");
        untrusted(store.renew(&runner(1), TTL).await, "deleted or replaced");
        untrusted(sqlite(&path, HandClock::new()).await, "was deleted");
        drop(other);
        soon("the end", store.close()).await;
        sqlite(&path, HandClock::new()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_of_another_store_is_not_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (folder.path().join("one.sqlite"), folder.path().join("other.sqlite"));
    let store = sqlite(&one, HandClock::new()).await.unwrap();
    hold(&store, &key("k"), &request("a", 1)).await;
    store.close().await;
    let store = sqlite(&other, HandClock::new()).await.unwrap();
    hold(&store, &key("k"), &request("b", 2)).await;
    let log = |path: &Path| path.with_extension("sqlite-wal");
    fs::copy(log(&other), log(&one)).unwrap();
    store.close().await;
    untrusted(sqlite(&one, HandClock::new()).await, "another store");
    fs::remove_file(log(&one)).unwrap();
    let store = sqlite(&one, HandClock::new()).await.unwrap();
    assert!(store.view(&key("k")).await.unwrap().lock.slot.is_some());
}
