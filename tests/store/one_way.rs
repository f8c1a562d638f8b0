//! Stores that answer reads and reject changes: a full disk, a read-only primary, a full etcd. All
//! shared and embedded stores run the same case.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use terraform_provider_metal::store::{Store, StoreError};

use crate::{
    bench::{HandClock, finish, hold, join, kubernetes, postgres, soon, sqlite},
    records::{TTL, id, key, request, runner},
    roles,
    support::{kubernetes::Kubernetes, postgres::Postgres},
};

/// A store's timeout with a margin for a busy machine.
const LIMIT: Duration = Duration::from_secs(15);

/// Reads continue; changes fail within the timeout and report that nothing was stored; the next
/// change after the fault succeeds. `all`: even the smallest change fails.
async fn changes_are_rejected_in_time(store: Arc<dyn Store>, all: bool, reject: impl AsyncFn(bool)) {
    let (uid, fence) = hold(&*store, &key("k"), &request("a", 1)).await;
    reject(true).await;
    // A fail-over cuts sessions, so the first change has an unknown outcome.
    let first = soon("a first change", store.bind("team/node-8", &key("k"), false)).await;
    assert!(first.as_ref().err().is_none_or(StoreError::is_transient), "{first:?}");
    let mut rejections = 0;
    let mut rejected = |what: &str, began: Instant, said: Result<(), StoreError>| {
        assert!(began.elapsed() < LIMIT, "{what}: {:?}", began.elapsed());
        match said {
            Err(StoreError::Unwritable { .. }) => rejections += 1,
            Ok(()) if !all => {}
            said => panic!("{what}: {said:?}"),
        }
    };
    let began = Instant::now();
    let waiters: Vec<_> = (10..30u32)
        .map(|n| {
            let (store, wish) = (store.clone(), request(&format!("m{n}"), n));
            tokio::spawn(async move { join(&*store, &key("k"), &wish).await.map(drop) })
        })
        .collect();
    for waiter in waiters {
        rejected("one of many", began, soon("one of many", waiter).await.unwrap());
    }
    let began = Instant::now();
    rejected("a heartbeat", began, soon("a heartbeat", store.renew(&runner(1), TTL)).await);
    let began = Instant::now();
    rejected("a binding", began, soon("a binding", store.bind("team/node-9", &key("k"), false)).await);
    assert!(rejections > 0, "the fault did not reject any request");
    let now = store.view(&key("k")).await.unwrap();
    assert_eq!(now.lock.slot.as_ref().map(|slot| &slot.uid), Some(&uid));
    assert!(store.find(&id("a")).await.unwrap().is_some());
    assert_eq!(store.view_all().await.unwrap().len(), 1);
    reject(false).await;
    soon("the release", async {
        while finish(&*store, &key("k"), &uid, fence).await.is_err_and(|error| error.is_transient()) {}
    })
    .await;
    assert!(store.view(&key("k")).await.unwrap().lock.slot.is_none());
    store.renew(&runner(1), TTL).await.unwrap();
}

/// A file system of a few megabytes, unmounted on drop. `None` if this user cannot mount one.
pub struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    pub fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m,mode=0700", "none"]).arg(folder.path()).status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(folder))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Fills or frees all space.
    pub fn fill(&self, full: bool) {
        if !full {
            return fs::remove_file(self.filler()).unwrap();
        }
        let mut filler = fs::File::create(self.filler()).unwrap();
        for size in [1 << 16, 1 << 12, 1] {
            while filler.write_all(&vec![7; size]).is_ok() {}
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_on_a_full_disk() {
    let Some(disk) = SmallDisk::mount() else { return println!("this user cannot mount a file system: not tested") };
    let store = sqlite(&disk.path().join("coordination.sqlite"), HandClock::new()).await.unwrap();
    changes_are_rejected_in_time(Arc::new(store), false, async |full| disk.fill(full)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_that_is_read_only() {
    let server = Postgres::shared();
    let database = server.database();
    let store = postgres(&server.url("postgres", &database), HandClock::new()).await.unwrap();
    changes_are_rejected_in_time(Arc::new(store), true, async |read_only| {
        let value = if read_only { "on" } else { "off" };
        server.sql("postgres", &format!("ALTER DATABASE {database} SET default_transaction_read_only = {value}"));
        // The setting affects new sessions, as after a fail-over.
        let others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname";
        server.sql("postgres", &format!("{others} = '{database}'"));
    })
    .await;
}

/// A revoked permission is permanent, so the call fails without retries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_with_a_revoked_permission() {
    let server = Postgres::start(&[]);
    let database = server.database();
    postgres(&server.url("postgres", &database), HandClock::new()).await.unwrap().close().await;
    server.sql(&database, &roles::printed("postgres", &server.url("postgres", &database)).await);
    let store = postgres(&server.url("metal_runner", &database), HandClock::new()).await.unwrap();
    let (uid, fence) = hold(&store, &key("k"), &request("a", 1)).await;
    server.sql(&database, "REVOKE EXECUTE ON FUNCTION metal.commit, metal.renew FROM metal_runner");
    let began = Instant::now();
    for said in [finish(&store, &key("k"), &uid, fence).await, store.renew(&runner(1), TTL).await] {
        let error = said.unwrap_err();
        assert!(matches!(error, StoreError::Forbidden { .. }), "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(store.view(&key("k")).await.unwrap().lock.slot.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubernetes_without_space() {
    let cluster = tokio::task::spawn_blocking(Kubernetes::start).await.unwrap();
    let namespace = cluster.namespace();
    let store = kubernetes(&cluster.store(&namespace), None).await.unwrap();
    let etcd = cluster.etcd_host();
    changes_are_rejected_in_time(Arc::new(store), true, async |full| {
        let action = if full { "ACTIVATE" } else { "DEACTIVATE" };
        let body = format!(r#"{{"action": "{action}", "memberID": "0", "alarm": "NOSPACE"}}"#);
        let host = etcd.trim_start_matches("http://");
        let mut http = TcpStream::connect(host).unwrap();
        let request = format!(
            "POST /v3/maintenance/alarm HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        http.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        http.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    })
    .await;
}
