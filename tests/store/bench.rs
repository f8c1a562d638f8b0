//! Test bench: opens handles on one store and controls the store's clock.

use std::{
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use crate::{
    records::{AGING, TTL},
    support::{
        bucket::{self, Bucket},
        kubernetes::Kubernetes,
        postgres::{Pooler, Postgres},
    },
};
use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use secrecy::SecretString;
use terraform_provider_metal::{
    clock::{Boot, BootTime, Clock, SystemClock},
    maintenance::{
        ids::{Fence, LockKey, Uid},
        lock::{EnqueueRequest, Leases, Refusal, ServerLock},
        queue::{Turn, turn},
        state::{Ending, Phase},
    },
    store::{
        BucketOptions, BucketStore, KubernetesOptions, KubernetesStore, MemoryStore, PostgresOptions, PostgresStore,
        SqliteOptions, SqliteStore, Store, StoreError,
    },
};

/// A store clock that only tests advance; sleeping takes real time.
#[derive(Debug)]
pub struct HandClock {
    seconds: AtomicI64,
    real: SystemClock,
}

impl HandClock {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { seconds: AtomicI64::new(1_800_000_000), real: SystemClock::default() })
    }

    pub fn pass(&self, time: Duration) {
        self.seconds.fetch_add(i64::try_from(time.as_secs()).unwrap(), Ordering::SeqCst);
    }
}

#[async_trait]
impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.seconds.load(Ordering::SeqCst)).unwrap() + SignedDuration::from_micros(120_001)
    }

    fn monotonic(&self) -> Duration {
        self.real.monotonic()
    }

    fn boot(&self) -> Option<BootTime> {
        let boot = Boot { machine: "machine".into(), id: "boot".into(), namespace: String::new() };
        let since = Duration::from_secs(self.seconds.load(Ordering::SeqCst).unsigned_abs() - 1_799_000_000);
        Some(BootTime { boot, since })
    }

    async fn sleep(&self, duration: Duration) {
        self.real.sleep(duration).await;
    }
}

type Opening = Pin<Box<dyn Future<Output = Arc<dyn Store>> + Send>>;

/// Takes the search text and its replacement.
type Replace = Box<dyn Fn(&str, &str) -> Done + Send + Sync>;

/// Damage to a store by another version or a disk fault.
pub struct Damage {
    /// Replaces the record that is active for `k`. `UID` in the new text becomes the record's uid.
    pub record: Replace,
    /// Replaces the lock entry of `k`: its holder and its other lock data.
    pub lock: Box<dyn Fn(&str) -> Done + Send + Sync>,
    /// Sets the schema number, as a migration does. [`THEIRS`] is unsupported; any other value
    /// restores the original.
    pub schema: Box<dyn Fn(i64) -> Done + Send + Sync>,
}

/// Schema number of a much newer version.
pub const THEIRS: i64 = 9999;

type Done = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Backup and restore of a store with open handles.
struct Past {
    /// Creates a backup.
    save: Box<dyn Fn() -> Done + Send + Sync>,
    /// Restores the backup.
    back: Box<dyn Fn() -> Done + Send + Sync>,
}

pub struct Bench {
    pub clock: Arc<HandClock>,
    open: Box<dyn Fn() -> Opening + Send + Sync>,
    /// Sets the store's own clock.
    set: Box<dyn Fn(Timestamp) -> Done + Send + Sync>,
    past: Option<Past>,
    damage: Option<Damage>,
    _folder: Option<tempfile::TempDir>,
}

/// Clock of a machine with the wrong time. Stores must not depend on it.
#[derive(Debug)]
pub struct WrongClock {
    days: i64,
    real: SystemClock,
}

impl WrongClock {
    /// Returns a clock with a different error on each call.
    pub fn next() -> Arc<Self> {
        static COUNT: AtomicI64 = AtomicI64::new(0);
        let count = COUNT.fetch_add(1, Ordering::SeqCst);
        Arc::new(Self { days: (count % 7 - 3) * 400, real: SystemClock::default() })
    }
}

#[async_trait]
impl Clock for WrongClock {
    fn now(&self) -> Timestamp {
        self.real.now() + SignedDuration::from_hours(24 * self.days)
    }

    fn monotonic(&self) -> Duration {
        // Different offsets, because machines boot at different times.
        self.real.monotonic() + Duration::from_secs(self.days.unsigned_abs() * 1000)
    }

    async fn sleep(&self, duration: Duration) {
        self.real.sleep(duration).await;
    }
}

impl Bench {
    /// Opens another handle on the same store, like a separate process.
    pub async fn open(&self) -> Arc<dyn Store> {
        (self.open)().await
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Advances the store's time.
    pub async fn pass(&self, time: Duration) {
        self.clock.pass(time);
        (self.set)(self.now()).await;
    }

    /// Returns the damage functions for `k`, if the store supports them.
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// Creates a backup.
    pub async fn save(&self) {
        (self.past.as_ref().expect("this bench does not support backups").save)().await;
    }

    /// Restores the backup in place. All later commits are lost.
    pub async fn go_back(&self) {
        (self.past.as_ref().expect("this bench does not support backups").back)().await;
    }

    /// A bench in its own namespace of a real cluster, with a manual clock.
    pub async fn kubernetes() -> Self {
        let cluster = tokio::task::spawn_blocking(Kubernetes::shared).await.unwrap();
        let namespace = cluster.namespace();
        let (url, clock) = (cluster.store(&namespace), HandClock::new());
        let time = clock.clone();
        let open = move || -> Opening {
            let (url, time) = (url.clone(), time.clone());
            Box::pin(async move { Arc::new(kubernetes(&url, Some(time)).await.unwrap()) as Arc<dyn Store> })
        };
        let (of_damage, of_lock, of_schema) = (namespace.clone(), namespace.clone(), namespace.clone());
        let schema = move |number: i64| -> Done {
            let namespace = of_schema.clone();
            Box::pin(async move {
                for map in cluster.config_maps(&namespace).await {
                    let Some(meta) = map.data.as_ref().and_then(|data| data.get("meta")) else { continue };
                    let mut meta: serde_json::Value = serde_json::from_str(meta).unwrap();
                    meta["schema"] = number.into();
                    cluster.set_data(&namespace, &map, "meta", &meta.to_string()).await;
                }
                // A migration then writes each lock.
                for map in cluster.config_maps(&namespace).await {
                    if map.data.as_ref().is_some_and(|data| data.contains_key("head")) {
                        cluster.set_data(&namespace, &map, "migrated", &number.to_string()).await;
                    }
                }
            })
        };
        let lock = move |body: &str| -> Done {
            let (namespace, slot): (_, serde_json::Value) = (of_lock.clone(), serde_json::from_str(body).unwrap());
            Box::pin(async move {
                for map in cluster.config_maps(&namespace).await {
                    let Some(head) = map.data.as_ref().and_then(|data| data.get("head")) else { continue };
                    let mut head: serde_json::Value = serde_json::from_str(head).unwrap();
                    if head["key"] == "k" {
                        head["slot"] = slot.clone();
                        cluster.set_data(&namespace, &map, "head", &head.to_string()).await;
                    }
                }
            })
        };
        let record = move |uid: &str, body: &str| -> Done {
            let (namespace, uid, body) = (of_damage.clone(), uid.to_owned(), body.replace("UID", uid));
            Box::pin(async move {
                for map in cluster.config_maps(&namespace).await {
                    let Some(active) = map.data.as_ref().and_then(|data| data.get("active")) else { continue };
                    let mut records: Vec<serde_json::Value> = serde_json::from_str(active).unwrap();
                    if let Some(record) = records.iter_mut().find(|record| record["uid"] == uid.as_str()) {
                        *record = serde_json::from_str(&body).unwrap();
                        let text = serde_json::to_string(&records).unwrap();
                        cluster.set_data(&namespace, &map, "active", &text).await;
                    }
                }
            })
        };
        // Like backup tools that write objects: delete all, then create all.
        let copy = Arc::new(Mutex::new(Vec::new()));
        let (saved, of_save) = (copy.clone(), namespace.clone());
        let save = move || -> Done {
            let (copy, namespace) = (saved.clone(), of_save.clone());
            Box::pin(async move {
                let found = cluster.config_maps(&namespace).await;
                *copy.lock().unwrap() = found;
            })
        };
        let back = move || -> Done {
            let (copy, namespace) = (copy.lock().unwrap().clone(), namespace.clone());
            Box::pin(async move { cluster.replace_config_maps(&namespace, copy).await })
        };
        let past = Some(Past { save: Box::new(save), back: Box::new(back) });
        Self {
            clock,
            open: Box::new(open),
            set: Box::new(nothing),
            past,
            damage: Some(Damage { record: Box::new(record), lock: Box::new(lock), schema: Box::new(schema) }),
            _folder: None,
        }
    }

    /// A bench in its own folder of a real S3 server, with a manual clock.
    pub async fn bucket() -> Self {
        let server = tokio::task::spawn_blocking(Bucket::shared).await.unwrap();
        let (prefix, clock) = (Bucket::prefix(), HandClock::new());
        let (url, time, objects) = (server.url(&prefix), clock.clone(), server.objects(&prefix));
        let open = move || -> Opening {
            let (url, time) = (url.clone(), time.clone());
            Box::pin(async move { Arc::new(bucket(&url, Some(time)).await.unwrap()) as Arc<dyn Store> })
        };
        let (of_schema, of_lock, of_damage) = (objects.clone(), objects.clone(), objects.clone());
        let schema = move |number: i64| -> Done {
            let objects = of_schema.clone();
            Box::pin(async move {
                objects.edit("store.json", |meta| meta["format"] = number.into()).await;
                // A migration then writes each lock.
                objects.edit("locks/", |lock| lock["format"] = number.into()).await;
            })
        };
        let lock = move |body: &str| -> Done {
            let (objects, slot): (_, serde_json::Value) = (of_lock.clone(), serde_json::from_str(body).unwrap());
            Box::pin(async move {
                let damage = |lock: &mut serde_json::Value| {
                    if lock["key"] == "k" {
                        lock["slot"] = slot.clone();
                    }
                };
                objects.edit("locks/", damage).await;
            })
        };
        let record = move |uid: &str, body: &str| -> Done {
            let (objects, uid, body) = (of_damage.clone(), uid.to_owned(), body.replace("UID", uid));
            Box::pin(async move {
                let damage = |lock: &mut serde_json::Value| {
                    let records = lock["active"].as_array_mut().unwrap();
                    if let Some(record) = records.iter_mut().find(|record| record["uid"] == uid.as_str()) {
                        *record = serde_json::from_str(&body).unwrap();
                    }
                };
                objects.edit("locks/", damage).await;
            })
        };
        let copy = Arc::new(Mutex::new(Vec::new()));
        let (saved, of_save) = (copy.clone(), objects.clone());
        let save = move || -> Done {
            let (copy, objects) = (saved.clone(), of_save.clone());
            Box::pin(async move {
                let found = objects.all().await;
                *copy.lock().unwrap() = found;
            })
        };
        // Like a versioned bucket that is restored: newer objects are deleted.
        let back = move || -> Done {
            let (copy, objects) = (copy.lock().unwrap().clone(), objects.clone());
            Box::pin(async move {
                for (name, _) in objects.all().await {
                    objects.delete(&name).await;
                }
                for (name, text) in copy {
                    objects.put(&name, &text).await;
                }
            })
        };
        Self {
            clock,
            open: Box::new(open),
            set: Box::new(nothing),
            past: Some(Past { save: Box::new(save), back: Box::new(back) }),
            damage: Some(Damage { record: Box::new(record), lock: Box::new(lock), schema: Box::new(schema) }),
            _folder: None,
        }
    }

    /// A bench in its own database on a real server, with a manual clock.
    pub async fn postgres(more: &'static str) -> Self {
        Self::postgres_at(Postgres::shared().port, more).await
    }

    /// The same, behind a transaction pooler.
    pub async fn pooled() -> Self {
        Self::postgres_at(Pooler::shared().port, "?notifications=off").await
    }

    async fn postgres_at(port: u16, more: &'static str) -> Self {
        let server = Postgres::shared();
        let database = server.database();
        let url = format!("postgres://postgres@127.0.0.1:{port}/{database}{more}");
        postgres(&url, WrongClock::next()).await.unwrap().close().await;
        server.sql(
            &database,
            "CREATE TABLE hand (at timestamptz); INSERT INTO hand VALUES (now()); \
             CREATE OR REPLACE FUNCTION metal.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
             'SELECT at FROM public.hand'; \
             UPDATE metal.meta SET value = '0' WHERE key = 'audit_age';",
        );
        let (of_save, of_back) = (database.clone(), database.clone());
        let save = move || -> Done {
            let copy = |table: &str| format!("CREATE TABLE saved.{table} AS TABLE metal.{table};");
            let copies: String = TABLES.into_iter().map(copy).collect();
            server.sql(&of_save, &format!("CREATE SCHEMA saved; {copies}"));
            Box::pin(async {})
        };
        let back = move || -> Done {
            let clear: String = TABLES.iter().rev().map(|table| format!("DELETE FROM metal.{table};")).collect();
            let fill =
                |table: &str| format!("INSERT INTO metal.{table} OVERRIDING SYSTEM VALUE SELECT * FROM saved.{table};");
            let fill: String = TABLES.into_iter().map(fill).collect();
            server.sql(&of_back, &format!("BEGIN; {clear} {fill} COMMIT;"));
            Box::pin(async {})
        };
        let past = Some(Past { save: Box::new(save), back: Box::new(back) });
        let (of_damage, of_lock, of_schema) = (database.clone(), database.clone(), database.clone());
        let schema = move |number: i64| -> Done {
            server.sql(&of_schema, &schemas("metal.schema_versions", number));
            Box::pin(async {})
        };
        let lock = move |body: &str| -> Done {
            let more = format!("slot = '{body}', revision = revision + 1");
            server.sql(&of_lock, &format!("UPDATE metal.locks SET {more} WHERE lock_key = 'k'"));
            Box::pin(async {})
        };
        let record = move |uid: &str, body: &str| -> Done {
            let body = body.replace("UID", uid);
            server.sql(&of_damage, &format!("UPDATE metal.maintenances SET body = '{body}' WHERE uid = '{uid}'"));
            Box::pin(async {})
        };
        let set = move |now: Timestamp| -> Done {
            server.sql(&database, &format!("UPDATE hand SET at = '{now}'"));
            Box::pin(async {})
        };
        let clock = HandClock::new();
        set(clock.now()).await;
        let time = clock.clone();
        let open = move || -> Opening {
            let (url, time) = (url.clone(), time.clone());
            let open = async move {
                let options = PostgresOptions { time: Some(time), ..PostgresOptions::default() };
                PostgresStore::open(&SecretString::from(url), WrongClock::next(), &options).await.unwrap()
            };
            Box::pin(async move { Arc::new(open.await) as Arc<dyn Store> })
        };
        Self {
            clock,
            open: Box::new(open),
            set: Box::new(set),
            past,
            damage: Some(Damage { record: Box::new(record), lock: Box::new(lock), schema: Box::new(schema) }),
            _folder: None,
        }
    }

    pub async fn memory() -> Self {
        let clock = HandClock::new();
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(clock.clone()));
        let open = move || -> Opening {
            let store = store.clone();
            Box::pin(async move { store })
        };
        Self { clock, open: Box::new(open), set: Box::new(nothing), past: None, damage: None, _folder: None }
    }

    pub async fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path: PathBuf = folder.path().join("coordination.sqlite");
        let clock = HandClock::new();
        let of_store = clock.clone();
        let open = move || -> Opening {
            let (path, clock) = (path.clone(), of_store.clone());
            Box::pin(async move { Arc::new(sqlite(&path, clock).await.unwrap()) as Arc<dyn Store> })
        };
        let (file, copy) = (folder.path().join("coordination.sqlite"), folder.path().join("copy.sqlite"));
        let (of_save, of_back) = ((file.clone(), copy.clone()), (file, copy));
        let save = move || -> Done {
            let (file, copy) = of_save.clone();
            Box::pin(async move { sql_of(&file, &format!("VACUUM INTO '{}'", copy.display())).await })
        };
        // In place, like `.restore` of the `sqlite3` shell.
        let back = move || -> Done {
            let (file, copy) = of_back.clone();
            let tables = ["meta", "locks", "maintenances", "leases", "bindings", "audit"];
            let each: String = tables
                .map(|table| format!("DELETE FROM main.{table}; INSERT INTO main.{table} SELECT * FROM copy.{table};"))
                .concat();
            let sql = format!(
                "PRAGMA foreign_keys = off; ATTACH '{}' AS copy; BEGIN IMMEDIATE; {each} COMMIT;",
                copy.display()
            );
            Box::pin(async move { sql_of(&file, &sql).await })
        };
        let file = folder.path().join("coordination.sqlite");
        let (of_lock, of_schema) = (file.clone(), file.clone());
        let schema = move |number: i64| -> Done {
            let file = of_schema.clone();
            Box::pin(async move { sql_of(&file, &schemas("_sqlx_migrations", number)).await })
        };
        let lock = move |body: &str| -> Done {
            let (file, revision) = (of_lock.clone(), "(SELECT max(revision) + 1 FROM locks)");
            let sql = format!("UPDATE locks SET ownership = '{body}', revision = {revision} WHERE lock_key = 'k'");
            Box::pin(async move { sql_of(&file, &sql).await })
        };
        let record = move |uid: &str, body: &str| -> Done {
            let (file, body) = (file.clone(), body.replace("UID", uid));
            let sql = format!("UPDATE maintenances SET body = '{body}' WHERE uid = '{uid}'");
            Box::pin(async move { sql_of(&file, &sql).await })
        };
        let past = Some(Past { save: Box::new(save), back: Box::new(back) });
        Self {
            clock,
            open: Box::new(open),
            set: Box::new(nothing),
            past,
            damage: Some(Damage { record: Box::new(record), lock: Box::new(lock), schema: Box::new(schema) }),
            _folder: Some(folder),
        }
    }
}

/// Returns SQL that writes or removes an unsupported schema number.
fn schemas(table: &str, number: i64) -> String {
    if number == THEIRS {
        format!(
            "INSERT INTO {table} SELECT {THEIRS}, description, installed_on, success, checksum, 0 FROM {table} LIMIT 1"
        )
    } else {
        format!("DELETE FROM {table} WHERE version = {THEIRS}")
    }
}

/// Tables of a PostgreSQL store, in foreign-key order.
const TABLES: [&str; 7] = ["meta", "locks", "maintenances", "approvals", "leases", "bindings", "audit"];

pub async fn sql_of(file: &Path, sql: &str) {
    use sqlx::{ConnectOptions as _, Connection as _};
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file).busy_timeout(Duration::from_secs(30));
    let mut db = options.connect().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&mut db).await.unwrap();
    db.close().await.unwrap();
}

/// Clock setter for stores that already use the given clock.
fn nothing(_: Timestamp) -> Done {
    Box::pin(async {})
}

/// Opens a store with the cluster's own clock or a manual one.
pub async fn kubernetes(url: &str, time: Option<Arc<HandClock>>) -> Result<KubernetesStore, StoreError> {
    // As in `main`.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let options = KubernetesOptions { time: time.map(|time| time as Arc<dyn Clock>), ..KubernetesOptions::default() };
    KubernetesStore::open(url, WrongClock::next(), options).await
}

/// Opens a store with the server's own clock or a manual one.
pub async fn bucket(url: &str, time: Option<Arc<HandClock>>) -> Result<BucketStore, StoreError> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let time = time.map(|time| time as Arc<dyn Clock>);
    let options = BucketOptions { time, variables: bucket::account(), ..BucketOptions::default() };
    BucketStore::open(url, WrongClock::next(), &options).await
}

pub async fn postgres(url: &str, clock: Arc<dyn Clock>) -> Result<PostgresStore, StoreError> {
    PostgresStore::open(&SecretString::from(url), clock, &PostgresOptions::default()).await
}

pub async fn sqlite(path: &Path, clock: Arc<HandClock>) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(path, clock, SqliteOptions::default()).await
}

/// Applies a transition and returns its result.
pub async fn apply<T: Send>(
    store: &dyn Store,
    key: &LockKey,
    mut change: impl FnMut(&mut ServerLock, &Leases, Timestamp) -> Result<T, Refusal> + Send,
) -> Result<T, StoreError> {
    let mut said = None;
    store
        .transact(key, &mut |lock, leases, now| {
            said = Some(change(lock, leases, now)?);
            Ok(())
        })
        .await?;
    Ok(said.unwrap())
}

/// Creates a lease, joins the queue and attaches.
pub async fn join(store: &dyn Store, key: &LockKey, request: &EnqueueRequest) -> Result<(Uid, Fence), StoreError> {
    store.renew(&request.runner, TTL).await?;
    apply(store, key, |lock, leases, now| {
        let uid = lock.enqueue(request.clone(), leases, now)?.uid().clone();
        let generation = lock.attach(&uid, request.runner.clone(), crate::records::token(), leases, now)?;
        Ok((uid, generation))
    })
    .await
}

/// Acquires the lock if the record is next in the queue.
pub async fn try_admit(store: &dyn Store, key: &LockKey, uid: &Uid, generation: Fence) -> Result<bool, StoreError> {
    apply(store, key, |lock, leases, now| {
        if turn(lock, leases, uid, AGING, now) != Turn::Yours {
            return Ok(false);
        }
        lock.admit(uid, generation, Phase::InMaintenance { since: now }, now)?;
        Ok(true)
    })
    .await
}

pub async fn finish(store: &dyn Store, key: &LockKey, uid: &Uid, generation: Fence) -> Result<(), StoreError> {
    apply(store, key, |lock, _, now| {
        lock.finish(uid, generation, &Phase::Completed { at: now, ending: Ending::Completed }, now)
    })
    .await
}

/// Joins and acquires the lock.
pub async fn hold(store: &dyn Store, key: &LockKey, request: &EnqueueRequest) -> (Uid, Fence) {
    let (uid, generation) = join(store, key, request).await.unwrap();
    assert!(try_admit(store, key, &uid, generation).await.unwrap(), "{} has to wait", request.id);
    (uid, generation)
}

/// Panics if the future takes longer than a minute.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let Ok(done) = tokio::time::timeout(Duration::from_mins(1), future).await else {
        panic!("{what} did not happen within a minute");
    };
    done
}
