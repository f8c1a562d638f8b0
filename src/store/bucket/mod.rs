//! A store for many machines in one S3 bucket. It does not need a separate server.
//!
//! S3 changes one object at a time, so one object contains everything about a server. Writing it
//! on condition of its `ETag` commits a change. All other objects are derived from it or ignored
//! without it, so a process can die between any two requests.
//!
//! | object | contents | written |
//! |---|---|---|
//! | `store.json` | the store's id and format | created once |
//! | `locks/<key>.json` | a server: revision, records, owner, approvals, commit names, outbox | on condition, never deleted |
//! | `names/<name>.json` | the server for which a name is taken, and its last ended record | on condition, never deleted |
//! | `records/<uid>.json` | a record's server or journal | before its commit, again when it moves |
//! | `audit/<newest>-<oldest>-<key>-<revision>.json` | history that left its lock | created once |
//! | `leases/<process>.json` | a process's lease | by its process |
//! | `bindings.json` | server names and lock keys | on condition, never deleted |
//! | `sweeper.json` | the process that prunes | on condition |
//!
//! - **A commit** adds its events to the lock's outbox. When the outbox has grown, the next
//!   commit first copies it to a journal with `If-None-Match`. A lock that is not used any more
//!   stays as a tombstone with its generation. Pruning deletes only journals, places of ended
//!   records and old leases: no condition refers to them.
//! - **Nothing that changes a server lists objects.** Plans do once in ten seconds, and `queue`,
//!   `history`, `audit`, `store` and pruning.
//! - **An ETag can be a digest** of the content, so two equal contents have one version. Every
//!   write of a conditional object therefore contains a new commit name, revision or token.
//! - **A conflict can be our own write** that the network repeated. The lock's last commit names
//!   show that. `object_store` does not retry (`link.rs`).
//! - **The clock** is the latest `Date` of a reply, carried on with the monotonic clock
//!   (`connector.rs`). A lease has also ended if it stayed unchanged for its length, and it has not
//!   ended before the clocks of two servers can differ (`store/alive.rs`).

mod bindings;
mod commit;
mod connector;
mod export;
mod fault;
mod journal;
mod link;
mod lock;
mod names;
mod objects;
mod probe;
mod prune;
mod url;
mod watch;
mod whole;

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use tokio::sync::watch::Receiver;
use uuid::Uuid;

pub use self::url::BucketOptions;
pub(super) use self::url::parse;

use self::{
    bindings::{Binders, Bindings, Wanted},
    commit::AT_ONCE,
    link::StoreClient,
    lock::{Listed, Row, Rows},
    names::Names,
    objects::{BINDINGS, LOCKS, Meta, Place, Pointer, StoredLease},
    watch::Watch,
};
use super::{
    AuditLine, AuditStart, Contents, LockView, RecordLookup, Store, StoreError, Transition,
    alive::{Alive, LeaseStatus, Look},
    forgotten_before,
    format::{self, FORMAT},
    group::transact,
    history::Limits,
    lease_end,
    optimistic::{Loaded, look},
    recall::OwnProcesses,
    told::ToldTime,
    views::{CachedLock, LockCache, ReadResult},
    watchers::{ChangeTask, Watchers},
};
use crate::{
    clock::Clock,
    maintenance::{
        ids::{LockKey, MaintenanceId, Runner, RunnerId, Uid},
        lock::{AuditEvent, Leases, ServerLock},
        state::Maintenance,
    },
};

/// A store in one bucket.
#[derive(Debug)]
pub struct BucketStore {
    id: String,
    link: Arc<StoreClient>,
    rows: Arc<Rows>,
    alive: Alive,
    own_processes: OwnProcesses,
    names: Names,
    binders: Binders,
    views: LockCache,
    watch: Arc<Watch>,
    lookout: ChangeTask,
}

impl BucketStore {
    /// Opens a store. The first process creates its id, and checks that the bucket honours
    /// conditions. Requires a tokio runtime, which also runs the watch. `clock` only measures
    /// waits; the service provides the time.
    pub async fn open(url: &str, clock: Arc<dyn Clock>, options: &BucketOptions) -> Result<Self, StoreError> {
        let time = Arc::new(ToldTime::new(options.time.clone(), Arc::clone(&clock)));
        let link = Arc::new(StoreClient::new(parse(url)?, time, Arc::clone(&clock), options)?);
        let id = link.patience.repeat(|| known(&link)).await?;
        let (lookout, rows) = (ChangeTask::new(), Arc::new(Rows::new(Arc::clone(&link))));
        let stop = lookout.stop();
        Ok(Self {
            id,
            alive: Alive::default(),
            own_processes: OwnProcesses::default(),
            names: Names::default(),
            binders: bindings::binders(Arc::clone(&link)),
            views: LockCache::default(),
            watch: Arc::new(Watch { rows: Arc::clone(&rows), clock, watchers: Watchers::default(), stop }),
            rows,
            link,
            lookout,
        })
    }

    /// Returns a URL's address for messages.
    pub fn address_of(url: &str) -> Result<String, StoreError> {
        Ok(parse(url)?.address)
    }

    /// Returns a warning if a URL leads to a server without TLS.
    pub fn unverified(url: &str) -> Result<Option<String>, StoreError> {
        let place = parse(url)?;
        let warning = || {
            "plain_text=true: the network between this machine and the store can read and change every lock.".to_owned()
        };
        Ok((place.plain_text && place.unencrypted()).then(warning))
    }

    /// Reads the leases of every process attached to these locks.
    async fn leases<'a>(
        &self,
        locks: impl Iterator<Item = &'a ServerLock> + Send,
        now: Timestamp,
    ) -> Result<Leases, StoreError> {
        let attached = locks.flat_map(|lock| &lock.active).filter_map(|record| record.attachment.as_ref());
        let mut runners: HashSet<&RunnerId> = attached.map(|attachment| &attachment.runner.id).collect();
        let mut leases = Leases::default();
        runners.retain(|runner| {
            let own = self.own_processes.until(runner, now);
            leases.0.extend(own.map(|until| ((*runner).clone(), until)));
            own.is_none()
        });
        let asked = self.link.clock.monotonic();
        let names: Vec<String> = runners.into_iter().map(objects::lease).collect();
        let reading = names.iter().map(|name| self.link.read::<StoredLease>(name)).collect::<Vec<_>>();
        let found: Vec<_> = stream::iter(reading).buffer_unordered(AT_ONCE).try_collect().await?;
        let look = Look { asked, answered: self.link.clock.monotonic(), now };
        for (lease, version) in found.into_iter().flatten() {
            let length = Duration::from_millis(lease.length_ms);
            let (until, over, version) = (lease.until, lease.over, version.text());
            let said = LeaseStatus { runner: lease.runner, until, over, length, version };
            let until = self.alive.until(&said, look, self.link.one_clock());
            leases.0.insert(said.runner, until);
        }
        Ok(leases)
    }

    async fn load_once(&self, key: &LockKey) -> Result<Loaded, StoreError> {
        let now = self.link.now().await?;
        let row = self.rows.read(key).await?;
        let leases = self.leases(std::iter::once(&*row.lock), now).await?;
        Ok(Loaded { stored: row.stored(), leases, now })
    }

    async fn snapshot(&self, key: &LockKey, known: &CachedLock) -> ReadResult {
        let Loaded { stored, leases, now } = look(self, known, key).await?;
        Ok(LockView::new(stored.lock, leases, now))
    }

    /// Reads every lock.
    async fn locks(&self) -> Result<Vec<Listed>, StoreError> {
        let listed = self.link.list(LOCKS, None).await?;
        let reading = listed.iter().map(|(name, _)| self.rows.shown(name)).collect::<Vec<_>>();
        let found: Vec<_> = stream::iter(reading).buffered(AT_ONCE).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Returns an ended record, from its journal or from its lock's outbox.
    async fn ended(&self, uid: &Uid) -> Result<Option<RecordLookup>, StoreError> {
        let name = objects::record(uid);
        let mut place = self.link.read::<Place>(&name).await?.map(|(place, _)| place);
        while let Some(Place { key, journal, .. }) = &place {
            let entries = if let Some(journal) = journal {
                let journal = self.link.read::<objects::Journal>(journal).await?;
                journal.map(|(journal, _)| journal.entries).unwrap_or_default()
            } else {
                let row = self.rows.read(key).await?;
                if let Some(found) = self.active(&row, |record| record.uid == *uid, |other| *other == *uid)? {
                    return Ok(Some(found));
                }
                row.outbox.clone()
            };
            let record = entries.into_iter().flat_map(|entry| entry.finished).find(|record| record.uid == *uid);
            if let Some(record) = record {
                return Ok(Some(RecordLookup::Past(Box::new(record))));
            }
            if journal.is_some() {
                break;
            }
            // It can have moved to a journal in between.
            let again = self.link.read::<Place>(&name).await?.map(|(place, _)| place);
            place = again.filter(|place| place.journal.is_some());
        }
        Ok(None)
    }

    /// Returns a lock's active record, or an error if it is unreadable.
    fn active(
        &self,
        row: &Row,
        wanted: impl Fn(&Maintenance) -> bool,
        unreadable: impl Fn(&Uid) -> bool,
    ) -> Result<Option<RecordLookup>, StoreError> {
        if let Some(record) = row.lock.active.iter().find(|record| wanted(record)) {
            return Ok(Some(RecordLookup::Active(Box::new((**record).clone()))));
        }
        let its = row.lock.unreadable.iter().find(|record| unreadable(&record.uid) || record.uid.raw().is_empty());
        its.map_or(Ok(None), |record| Err(self.link.faults.unreadable(record.why.clone())))
    }

    async fn find_once(&self, id: &MaintenanceId) -> Result<Option<RecordLookup>, StoreError> {
        let name = objects::name(id);
        let mut pointer = self.link.read::<Pointer>(&name).await?;
        while let Some((place, version)) = pointer {
            let row = self.rows.read(&place.key).await?;
            let found = self.active(&row, |record| record.id == *id, |uid| *uid == place.uid)?;
            if found.is_some() {
                return Ok(found);
            }
            let past = names::last_ended(&row, &place);
            // The record can have moved to a journal after the pointer was read.
            pointer = self.link.read::<Pointer>(&name).await?.filter(|(_, again)| *again != version);
            if let (None, Some(past)) = (&pointer, past) {
                return self.ended(&past.uid).await;
            }
        }
        Ok(None)
    }
}

/// Returns the store's id. The first process to open a new store generates it.
async fn known(link: &StoreClient) -> Result<String, StoreError> {
    let mut found = link.read::<Meta>(objects::STORE).await?;
    if found.is_none() {
        probe::probe(link).await?;
        let new = Meta { store_id: Uuid::new_v4().simple().to_string(), format: FORMAT };
        link.create(objects::STORE, &new).await?;
        found = link.read(objects::STORE).await?;
    }
    let (meta, _) = found.ok_or_else(|| link.faults.unavailable("its id could not be written"))?;
    format::check(meta.format, &link.faults)?;
    Ok(meta.store_id)
}

#[async_trait]
impl Store for BucketStore {
    fn id(&self) -> &str {
        &self.id
    }

    fn address(&self) -> String {
        self.link.faults.address().to_owned()
    }

    fn reach_warning(&self) -> Option<String> {
        None
    }

    fn role_warning(&self) -> Option<String> {
        Some(
            "A bucket policy protects whole objects, and a lock contains its approvals: everything that can lock a server \
             can also approve its own maintenance."
                .to_owned(),
        )
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
        self.link
            .patience
            .repeat(|| async {
                let now = self.link.now().await?;
                let shown = self.locks().await?.into_iter().map(|listed| match listed {
                    Listed::Row(row) => Arc::clone(&row.lock),
                    Listed::Unreadable(lock) => lock,
                });
                let mut locks: Vec<_> = shown.filter(|lock| !lock.is_idle()).collect();
                locks.sort_by(|one, other| one.key.cmp(&other.key));
                let leases = self.leases(locks.iter().map(|lock| &**lock), now).await?;
                Ok(locks.into_iter().map(|lock| LockView::of_several(lock, &leases, now)).collect())
            })
            .await
    }

    async fn find(&self, id: &MaintenanceId) -> Result<Option<RecordLookup>, StoreError> {
        self.link.patience.repeat(|| self.find_once(id)).await
    }

    async fn find_uid(&self, uid: &Uid) -> Result<Option<RecordLookup>, StoreError> {
        self.link.patience.repeat(|| self.ended(uid)).await
    }

    async fn renew(&self, runner: &Runner, ttl: Duration) -> Result<(), StoreError> {
        let name = objects::lease(&runner.id);
        self.link
            .patience
            .repeat(|| async {
                let now = self.link.now().await?;
                let until = lease_end(now, ttl);
                let length_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
                self.link.put(&name, &StoredLease { runner: runner.id.clone(), until, length_ms, over: false }).await?;
                self.own_processes.renewed(&runner.id, until);
                Ok(())
            })
            .await
    }

    async fn resign(&self, runner: &RunnerId) -> Result<(), StoreError> {
        self.own_processes.ended(runner);
        let name = objects::lease(runner);
        self.link
            .patience
            .repeat(|| async {
                let now = self.link.now().await?;
                let Some((lease, _)) = self.link.read::<StoredLease>(&name).await? else { return Ok(()) };
                let until = now.min(lease.until);
                self.link.put(&name, &StoredLease { until, over: true, ..lease }).await
            })
            .await
    }

    async fn binding(&self, server: &str) -> Result<Option<LockKey>, StoreError> {
        Ok(self.bindings(&[server.to_owned()]).await?.pop().flatten())
    }

    async fn bindings(&self, servers: &[String]) -> Result<Vec<Option<LockKey>>, StoreError> {
        let found = self.link.patience.repeat(|| self.link.read::<Bindings>(BINDINGS)).await?;
        let bindings = found.map(|(bindings, _)| bindings).unwrap_or_default();
        Ok(servers.iter().map(|server| bindings.get(server).cloned()).collect())
    }

    async fn bind(&self, server: &str, key: &LockKey, rebind: bool) -> Result<(), StoreError> {
        let wanted = Wanted { servers: vec![server.to_owned()], key: key.clone(), rebind };
        self.bound(wanted).await
    }

    async fn bind_all(&self, servers: &[String], key: &LockKey) -> Result<(), StoreError> {
        self.bound(Wanted { servers: servers.to_vec(), key: key.clone(), rebind: false }).await
    }

    async fn audit(&self, id: &MaintenanceId, limit: usize) -> Result<Vec<AuditEvent>, StoreError> {
        let lines = self.link.patience.repeat(|| export::all(self, None)).await?;
        let events = lines.into_iter().filter_map(|line| line.event.ok());
        let mut events: Vec<AuditEvent> = events.filter(|event| event.id == *id).collect();
        Ok(events.split_off(events.len().saturating_sub(limit)))
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
        let now = self.link.now().await?;
        let mut limits = Limits::new(forgotten_before(now, keep), most);
        prune::prune(self, &mut limits, now).await
    }

    async fn claim_sweep(&self, runner: &RunnerId, length: Duration) -> Result<bool, StoreError> {
        let now = self.link.now().await?;
        self.link.patience.once(prune::claim(&self.link, runner, now, length)).await
    }

    fn changes(&self, key: &LockKey) -> Receiver<u64> {
        self.lookout.watch(&self.watch.watchers, key, || Box::pin(watch::run(Arc::downgrade(&self.watch))))
    }

    async fn close(&self) {
        self.lookout.end().await;
    }
}

impl BucketStore {
    async fn bound(&self, wanted: Wanted) -> Result<(), StoreError> {
        let key = wanted.key.clone();
        let unknown = || Err(self.link.faults.unavailable("the reply to a change was not awaited"));
        self.binders.send(&key, wanted).await.unwrap_or_else(unknown)
    }
}
