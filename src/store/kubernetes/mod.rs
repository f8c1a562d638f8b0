//! A store for many machines: ConfigMaps and Leases in one Kubernetes namespace. It does not need a
//! custom resource definition.
//!
//! The API server changes one object at a time, so one object contains everything about a server.
//! Updating it on condition of its `resourceVersion` commits a change. All other objects are
//! derived from it or ignored without it, so a process can die between any two requests.

mod commit;
mod conditional;
mod export;
mod fault;
mod journal;
mod lease;
mod link;
mod lock;
mod names;
mod objects;
mod prune;
mod rights;
mod url;
mod watch;
mod whole;

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::join_all;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::watch::Receiver;
use uuid::Uuid;

pub use self::url::KubernetesOptions;
pub(super) use self::url::namespace_of;

use self::{
    fault::ErrorMapper,
    link::{StoreClient, WriteResult},
    lock::{Row, data, text},
    names::{Names, Pointer},
    objects::{BUSY, KIND},
    watch::Watch,
};
use super::{
    AuditLine, AuditStart, Contents, LockView, RecordLookup, Store, StoreError, Transition,
    alive::{Alive, Look},
    forgotten_before,
    format::{self, FORMAT},
    group::transact,
    history::{self, Entry},
    lease_end,
    optimistic::{Loaded, look},
    recall::OwnProcesses,
    told::ToldTime,
    views::{CachedLock, LockCache, ReadResult},
    watchers::{ChangeTask, Watchers},
};
use crate::{
    clock::Clock,
    kubernetes::{Cluster, ClusterSettings},
    maintenance::{
        ids::{LockKey, MaintenanceId, Runner, RunnerId, Uid},
        lock::{AuditEvent, Leases, ServerLock},
        quarantine::Unreadable,
        state::Maintenance,
    },
};

/// Up to this many Leases are read individually.
const ONE_BY_ONE: usize = 6;

/// The contents of `metal-store`.
#[derive(Debug, Serialize, Deserialize)]
struct Meta {
    store_id: String,
    /// Incremented whenever an object's meaning changes.
    schema: i64,
}

/// A store in one namespace of a Kubernetes cluster.
#[derive(Debug)]
pub struct KubernetesStore {
    id: String,
    link: Arc<StoreClient>,
    time: ToldTime,
    alive: Alive,
    own_processes: OwnProcesses,
    names: Names,
    /// The last rows read, with the data that a commit needs in addition to the lock.
    rows: std::sync::Mutex<HashMap<LockKey, Arc<Row>>>,
    views: LockCache,
    watch: Arc<Watch>,
    lookout: ChangeTask,
}

/// Cached rows. Other rows are decoded at each read.
const ROWS: usize = 4096;

impl KubernetesStore {
    /// Opens a store, and creates its id if it is missing. Requires a tokio runtime, which also
    /// runs the watch. `clock` only measures waits; the API servers provide the time.
    pub async fn open(url: &str, clock: Arc<dyn Clock>, options: KubernetesOptions) -> Result<Self, StoreError> {
        let parsed = url::parse(url)?;
        let faults = ErrorMapper::new(&parsed.address, &parsed.namespace);
        let settings =
            ClusterSettings { request_timeout: Some(options.patience), trust: options.trust, ..parsed.cluster };
        let cluster = Cluster::new(settings, Arc::clone(&clock));
        let time = ToldTime::new(options.time, Arc::clone(&clock));
        let link = Arc::new(StoreClient::new(cluster, parsed.namespace, faults, clock, options.patience));
        let id = link.patience.repeat(|| known(&link)).await?;
        link.patience.repeat(|| time.now(link.time())).await?;
        let lookout = ChangeTask::new();
        Ok(Self {
            id,
            time,
            alive: Alive::default(),
            own_processes: OwnProcesses::default(),
            names: Names::default(),
            rows: std::sync::Mutex::default(),
            views: LockCache::default(),
            watch: Arc::new(Watch { link: Arc::clone(&link), watchers: Watchers::default(), stop: lookout.stop() }),
            link,
            lookout,
        })
    }

    /// Returns the cluster settings from a store's URL.
    ///
    /// # Errors
    /// The URL cannot be read.
    pub fn cluster_of(url: &str) -> Result<ClusterSettings, StoreError> {
        Ok(url::parse(url)?.cluster)
    }

    /// Returns a URL's address for messages.
    pub fn address_of(url: &str) -> Result<String, StoreError> {
        Ok(url::parse(url)?.address)
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.time.now(self.link.time()).await
    }

    fn rows(&self) -> std::sync::MutexGuard<'_, HashMap<LockKey, Arc<Row>>> {
        self.rows.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Reads one lock.
    async fn row(&self, key: &LockKey) -> Result<Arc<Row>, StoreError> {
        let Some(map) = self.link.get(&objects::lock(key)).await? else { return Ok(Arc::new(Row::empty(key))) };
        let revision = link::revision(&map.metadata, &self.link.faults)?;
        let print = lock::print(&map);
        if let Some(known) = self.rows().get(key).filter(|row| row.revision == revision && row.print == print) {
            return Ok(Arc::clone(known));
        }
        let row = Arc::new(Row::of(&map, &self.link.faults)?);
        self.keep(key, &row);
        Ok(row)
    }

    fn keep(&self, key: &LockKey, row: &Arc<Row>) {
        let mut rows = self.rows();
        if rows.len() >= ROWS {
            rows.clear();
        }
        rows.insert(key.clone(), Arc::clone(row));
    }

    /// Reads the leases of every process attached to these locks.
    async fn leases<'a>(
        &self,
        locks: impl Iterator<Item = &'a ServerLock> + Send,
        now: Timestamp,
    ) -> Result<Leases, StoreError> {
        let attached = locks.flat_map(|lock| &lock.active).filter_map(|record| record.attachment.as_ref());
        let mut runners: Vec<&RunnerId> = attached.map(|attachment| &attachment.runner.id).collect();
        runners.sort_unstable();
        runners.dedup();
        let asked = self.link.clock.monotonic();
        let found = if runners.len() <= ONE_BY_ONE {
            let names: Vec<String> = runners.iter().map(|runner| objects::runner(runner)).collect();
            let found = join_all(names.iter().map(|name| self.link.lease(name))).await;
            found.into_iter().filter_map(Result::transpose).collect::<Result<Vec<_>, _>>()?
        } else {
            self.link.all_leases(&objects::all("runner")).await?
        };
        let look = Look { asked, answered: self.link.clock.monotonic(), now };
        let mut leases = Leases::default();
        for one in &found {
            let said = lease::status(one, &self.link.faults)?;
            if runners.binary_search(&&said.runner).is_ok() {
                let until = self.alive.until(&said, look, self.time.is_given());
                leases.0.insert(said.runner, until);
            }
        }
        Ok(leases)
    }

    async fn load_once(&self, key: &LockKey) -> Result<Loaded, StoreError> {
        let now = self.now().await?;
        let row = self.row(key).await?;
        let leases = self.leases(std::iter::once(&*row.lock), now).await?;
        Ok(Loaded { stored: row.stored(), leases, now })
    }

    async fn snapshot(&self, key: &LockKey, known: &CachedLock) -> ReadResult {
        let Loaded { stored, leases, now } = look(self, known, key).await?;
        Ok(LockView::new(stored.lock, leases, now))
    }

    /// Reads the history under a label, in commit order.
    async fn history(&self, label: &str) -> Result<Vec<Entry>, StoreError> {
        let maps = self.link.list(label).await?;
        let (entries, unreadable) = journal::readable(&maps, &self.link.faults)?;
        for (map, cause) in unreadable {
            // An unreadable lock could contain the record itself.
            if objects::kind(&map.metadata) == Some("lock") {
                return Err(self.link.faults.unreadable(cause));
            }
            tracing::warn!("a journal cannot be read and is skipped: {cause}");
        }
        Ok(history::in_order(entries))
    }

    /// Returns the pointer's active record, or the last `wanted` record in the history.
    async fn follow(
        &self,
        pointer: &str,
        label: &str,
        wanted: impl Fn(&Maintenance) -> bool + Send + Sync,
    ) -> Result<Option<RecordLookup>, StoreError> {
        if let Some(map) = self.link.get(pointer).await? {
            let place = Pointer::of(&map, &self.link.faults)?;
            let row = self.row(&place.key).await?;
            if let Some(record) = row.lock.active.iter().find(|record| wanted(record)) {
                return Ok(Some(RecordLookup::Active(Box::new((**record).clone()))));
            }
            let its = |record: &&Unreadable| record.uid == place.uid || record.uid.raw().is_empty();
            if let Some(record) = row.lock.unreadable.iter().find(its) {
                return Err(self.link.faults.unreadable(record.why.clone()));
            }
        }
        let history = self.history(label).await?;
        let mut ended = history.into_iter().rev().flat_map(|entry| entry.finished.into_iter().rev());
        Ok(ended.find(|record| wanted(record)).map(|record| RecordLookup::Past(Box::new(record))))
    }
}

/// Returns the store's id. The first process to open a new store generates it.
async fn known(link: &StoreClient) -> Result<String, StoreError> {
    let mut found = link.get(objects::STORE).await?;
    if found.is_none() {
        let store_id = Uuid::new_v4().simple().to_string();
        let new = Meta { store_id, schema: FORMAT };
        let meta = text(objects::STORE, &new, &link.faults)?;
        let object = json!({"metadata": {"name": objects::STORE, "labels": {KIND: "store"}}, "data": {"meta": meta}});
        found = match link.create(objects::STORE, object).await? {
            WriteResult::Done(map) => Some(*map),
            WriteResult::Moved => link.get(objects::STORE).await?,
        };
    }
    let map = found.ok_or_else(|| link.faults.unavailable("its id could not be written"))?;
    let meta: Option<Meta> = data(&map, "meta", &link.faults)?;
    let meta = meta.ok_or_else(|| link.faults.record("metal-store", "it does not have an id"))?;
    format::check(meta.schema, &link.faults)?;
    Ok(meta.store_id)
}

#[async_trait]
impl Store for KubernetesStore {
    fn id(&self) -> &str {
        &self.id
    }

    fn address(&self) -> String {
        self.link.faults.address().to_owned()
    }

    fn reach_warning(&self) -> Option<String> {
        None
    }

    async fn transact(&self, key: &LockKey, transition: &mut Transition<'_>) -> Result<(), StoreError> {
        let known = self.views.of(key);
        if let Some(stored) = transact(self, &*self.link.clock, &known, key, transition).await? {
            self.watch.watchers.moved(key, stored.revision);
        }
        Ok(())
    }

    async fn view(&self, key: &LockKey) -> Result<LockView, StoreError> {
        let known = self.views.of(key);
        known.read(self.snapshot(key, &known)).await
    }

    async fn view_all(&self) -> Result<Vec<LockView>, StoreError> {
        let busy = format!("{},{BUSY}=true", objects::all("lock"));
        self.link
            .patience
            .repeat(|| async {
                let now = self.now().await?;
                let maps = self.link.list(&busy).await?;
                let shown = maps.iter().map(|map| Row::shown(map, &self.link.faults));
                let mut locks = shown.collect::<Result<Vec<_>, StoreError>>()?;
                locks.sort_by(|one, other| one.key.cmp(&other.key));
                let leases = self.leases(locks.iter().map(|lock| &**lock), now).await?;
                Ok(locks.into_iter().map(|lock| LockView::of_several(lock, &leases, now)).collect())
            })
            .await
    }

    async fn find(&self, id: &MaintenanceId) -> Result<Option<RecordLookup>, StoreError> {
        let (pointer, label) = (objects::name(id), objects::about_name(id));
        self.link.patience.repeat(|| self.follow(&pointer, &label, |record| record.id == *id)).await
    }

    async fn find_uid(&self, uid: &Uid) -> Result<Option<RecordLookup>, StoreError> {
        let (pointer, label) = (objects::uid(uid), objects::about_uid(uid));
        self.link.patience.repeat(|| self.follow(&pointer, &label, |record| record.uid == *uid)).await
    }

    async fn renew(&self, runner: &Runner, ttl: Duration) -> Result<(), StoreError> {
        let name = objects::runner(&runner.id);
        self.link
            .patience
            .repeat(|| async {
                let now = self.now().await?;
                self.link.apply_lease(&name, &lease::renewed(runner, now, ttl)).await?;
                self.own_processes.renewed(&runner.id, lease_end(now, ttl));
                Ok(())
            })
            .await
    }

    async fn resign(&self, runner: &RunnerId) -> Result<(), StoreError> {
        self.own_processes.ended(runner);
        let name = objects::runner(runner);
        self.link
            .patience
            .repeat(|| async {
                let now = self.now().await?;
                let Some(found) = self.link.lease(&name).await? else { return Ok(()) };
                let said = lease::status(&found, &self.link.faults)?;
                self.link.apply_lease(&name, &lease::ended(&said, now)).await
            })
            .await
    }

    async fn binding(&self, server: &str) -> Result<Option<LockKey>, StoreError> {
        let name = objects::bound(server);
        let found = self.link.patience.repeat(|| self.link.get(&name)).await?;
        found.map(|map| Ok(whole::bound(&map, &self.link)?.1)).transpose()
    }

    async fn bindings(&self, servers: &[String]) -> Result<Vec<Option<LockKey>>, StoreError> {
        join_all(servers.iter().map(|server| self.binding(server))).await.into_iter().collect()
    }

    async fn bind(&self, server: &str, key: &LockKey, rebind: bool) -> Result<(), StoreError> {
        let name = objects::bound(server);
        let wanted = whole::binding(&name, server, key, &self.link)?;
        let bound = self
            .link
            .patience
            .repeat(|| async {
                loop {
                    if let WriteResult::Done(_) = self.link.create(&name, wanted.clone()).await? {
                        return Ok(key.clone());
                    }
                    if rebind && matches!(self.link.patch(&name, &wanted).await?, WriteResult::Done(_)) {
                        return Ok(key.clone());
                    }
                    if let Some(map) = self.link.get(&name).await? {
                        return Ok(whole::bound(&map, &self.link)?.1);
                    }
                }
            })
            .await?;
        if bound == *key {
            return Ok(());
        }
        Err(StoreError::OtherIdentity { server: server.into(), bound, found: key.clone() })
    }

    async fn audit(&self, id: &MaintenanceId, limit: usize) -> Result<Vec<AuditEvent>, StoreError> {
        let label = objects::about_name(id);
        let entries = self.link.patience.repeat(|| self.history(&label)).await?;
        let lines = entries.into_iter().flat_map(|entry| entry.events);
        let lines = lines.filter(|event| event.id == *id);
        let mut lines: Vec<AuditEvent> = lines.collect();
        Ok(lines.split_off(lines.len().saturating_sub(limit)))
    }

    async fn export_audit(&self, start: &AuditStart, _: u32) -> Result<Vec<AuditLine>, StoreError> {
        self.link.patience.repeat(|| export::read(self, start)).await
    }

    async fn contents(&self) -> Result<Contents, StoreError> {
        whole::read(self).await
    }

    async fn fill(&self, contents: &Contents) -> Result<(), StoreError> {
        whole::write(self, contents).await
    }

    async fn prune(&self, keep: Duration, most: u32) -> Result<u64, StoreError> {
        let now = self.now().await?;
        let before = forgotten_before(now, keep);
        self.link.patience.once(prune::prune(&self.link, before, now, most)).await
    }

    async fn claim_sweep(&self, runner: &RunnerId, length: Duration) -> Result<bool, StoreError> {
        let now = self.now().await?;
        self.link.patience.once(prune::claim(&self.link, runner, now, length)).await
    }

    fn changes(&self, key: &LockKey) -> Receiver<u64> {
        self.lookout.watch(&self.watch.watchers, key, || Box::pin(watch::run(Arc::downgrade(&self.watch))))
    }

    async fn close(&self) {
        self.lookout.end().await;
    }
}
