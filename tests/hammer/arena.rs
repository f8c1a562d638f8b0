//! The store under test, and the faults between it and the processes.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use crate::{
    chaos::{Gremlin, Rng},
    past::{File, Past, Replicated},
    support::{
        bucket::{Bucket, url_at},
        kubernetes::Kubernetes,
        postgres::Postgres,
        toxiproxy::Toxiproxy,
    },
};

/// Store types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    Postgres,
    Kubernetes,
    Bucket,
}

/// A store.
pub struct Arena {
    /// URL for the processes.
    pub url: String,
    /// URL for the supervisor, without faults.
    pub direct: String,
    pub gremlins: Vec<Box<dyn Gremlin>>,
    /// Backup and restore, only in runs that need it.
    pub past: Option<Box<dyn Past>>,
    folder: Option<tempfile::TempDir>,
}

impl Arena {
    /// Uses an external store.
    pub fn given(url: &str) -> Self {
        Self { url: url.to_owned(), direct: url.to_owned(), gremlins: Vec::new(), past: None, folder: None }
    }

    /// Creates a store.
    pub fn new(kind: Kind) -> Self {
        match kind {
            Kind::Sqlite => {
                let folder = tempfile::tempdir().unwrap();
                // One scene runs workers as several users, who need a common folder.
                let file = folder.path().join("store").join(File::NAME);
                let url = format!("sqlite://{}?shared=true", file.display());
                Self { folder: Some(folder), ..Self::given(&url) }
            }
            Kind::Postgres => {
                // A killed server loses no commit; lost commits are tested in a separate run.
                let server = Postgres::start(&["synchronous_commit=on"]);
                let database = server.database();
                let direct = server.url("postgres", &database);
                let proxy = Arc::new(Toxiproxy::to(&format!("127.0.0.1:{}", server.port)));
                let url = format!("postgres://postgres@{}/{database}", proxy.host());
                let died = Box::new(Death(Mutex::new(Dies::Postgres(server))));
                Self { direct, gremlins: vec![Box::new(Network(vec![proxy])), died], ..Self::given(&url) }
            }
            Kind::Kubernetes => {
                let cluster = Kubernetes::start();
                let namespace = cluster.namespace();
                let direct = cluster.store(&namespace);
                let proxy = Arc::new(Toxiproxy::to(&cluster.host()));
                let through = cluster.kubeconfig_at(&format!("https://{}", proxy.host()), "admin");
                let url = Kubernetes::store_of(&namespace, &through);
                let died = Box::new(Death(Mutex::new(Dies::Kubernetes(Box::new(cluster)))));
                Self { direct, gremlins: vec![Box::new(Network(vec![proxy])), died], ..Self::given(&url) }
            }
            Kind::Bucket => {
                let (server, prefix) = (Bucket::start(), Bucket::prefix());
                let proxy = Arc::new(Toxiproxy::to(&format!("127.0.0.1:{}", server.port)));
                let url = url_at(&format!("http://{}", proxy.host()), &prefix);
                let direct = server.url(&prefix);
                let died = Box::new(Death(Mutex::new(Dies::Bucket(server))));
                Self { direct, gremlins: vec![Box::new(Network(vec![proxy])), died], ..Self::given(&url) }
            }
        }
    }
}

impl Arena {
    /// Creates a store that can be restored and is not killed.
    pub fn with_past(kind: Kind) -> Self {
        match kind {
            Kind::Sqlite => {
                let arena = Self::new(kind);
                let folder = arena.folder.as_ref().unwrap().path().join("store");
                Self { past: Some(Box::new(File::in_folder(&folder))), ..arena }
            }
            Kind::Postgres => {
                let server = Postgres::start(&["synchronous_commit=on"]);
                let database = server.database();
                let [way, direct] = [(), ()].map(|()| Arc::new(Toxiproxy::to(&format!("127.0.0.1:{}", server.port))));
                let url = |way: &Toxiproxy| format!("postgres://postgres@{}/{database}", way.host());
                let past = Replicated::new(server, vec![Arc::clone(&way), Arc::clone(&direct)]);
                Self {
                    gremlins: vec![Box::new(Network(vec![Arc::clone(&way)]))],
                    past: Some(Box::new(past)),
                    direct: url(&direct),
                    ..Self::given(&url(&way))
                }
            }
            Kind::Kubernetes | Kind::Bucket => unreachable!("its past is a copy of its objects"),
        }
    }

    /// Grants access to workers of other users.
    pub fn open_to_all(&self) {
        let Some(folder) = &self.folder else { return };
        let store = folder.path().join("store");
        let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(folder.path(), mode(0o755)).unwrap();
        std::fs::set_permissions(&store, mode(0o777)).unwrap();
        for entry in std::fs::read_dir(&store).unwrap() {
            std::fs::set_permissions(entry.unwrap().path(), mode(0o666)).unwrap();
        }
    }
}

/// Connections that are cut, delayed or lose replies, until the next fault.
struct Network(Vec<Arc<Toxiproxy>>);

impl Network {
    fn heal(&self) {
        for proxy in &self.0 {
            proxy.heal();
        }
    }
}

#[async_trait]
impl Gremlin for Network {
    async fn strike(&self, chance: &mut Rng) {
        tokio::task::block_in_place(|| {
            self.heal();
            for proxy in &self.0 {
                match chance.below(6) {
                    0 => proxy.cut(),
                    1 => proxy.lose_replies(),
                    2 => proxy.limit_replies(u32::try_from(chance.below(3000)).unwrap()),
                    3 => proxy.delay_replies(u32::try_from(chance.below(400)).unwrap()),
                    _ => {}
                }
            }
        });
    }

    async fn calm(&self) {
        tokio::task::block_in_place(|| self.heal());
    }
}

enum Dies {
    Postgres(Postgres),
    Kubernetes(Box<Kubernetes>),
    Bucket(Bucket),
}

/// A server that is killed and restarts with its disk.
struct Death(Mutex<Dies>);

#[async_trait]
impl Gremlin for Death {
    async fn strike(&self, chance: &mut Rng) {
        if !chance.percent(15) {
            return;
        }
        tokio::task::block_in_place(|| match &mut *self.0.lock().unwrap() {
            Dies::Postgres(server) => {
                server.kill();
                server.start_again();
            }
            Dies::Kubernetes(cluster) => {
                cluster.kill();
                cluster.start_again();
            }
            Dies::Bucket(server) => {
                server.kill();
                server.start_again();
            }
        });
    }

    async fn calm(&self) {}
}
