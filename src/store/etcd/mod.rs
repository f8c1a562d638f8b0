//! The store for many machines without a database: an etcd cluster, below one prefix.
//!
//! Every write is one transaction on the condition that nothing it was made from has changed.
//! etcd's leases say which processes are alive, and nothing else hangs on them: a record, a slot or
//! a binding never goes away by itself.

mod chain;
mod commit;
mod conditional;
mod fault;
mod group;
mod keys;
mod leases;
mod link;
mod prune;
mod rights;
mod rows;
mod seals;
mod time;
mod url;
mod watch;
mod whole;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp};
use jiff::Timestamp;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use tokio::sync::watch::Receiver;
use uuid::Uuid;

pub use self::url::EtcdOptions;
pub(super) use self::url::prefix_of;

use self::{
    fault::ErrorMapper,
    group::Groups,
    leases::OwnLeases,
    link::StoreClient,
    rows::{Left, Looked, Read, Reads, RecordPointer, json, text},
    time::ServerTime,
    watch::Watch,
};
use super::{
    AuditProof, ChainEnd, ChainEnds, Contents, LockView, RecordLookup, Store, StoreError, Transition, Usage,
    forgotten_before,
    group::transact,
    lease_end,
    optimistic::{Loaded, look},
    recall::OwnProcesses,
    versions::Supported,
    views::{CachedLock, LockCache, ReadResult, Stored},
    watchers::{ChangeTask, Watchers},
};
use crate::{
    clock::Clock,
    maintenance::{
        ids::{LockKey, MaintenanceId, Runner, RunnerId, Uid},
        lock::AuditEvent,
        state::Maintenance,
    },
};

/// What the keys and values mean. Every change to that is a new number: a program refuses a store
/// with one that it does not know, so that an older one never drops what a newer one wrote.
const SCHEMA: i64 = CHAINED;

/// The schema from which on the audit log has chains.
const CHAINED: i64 = 2;

/// What this version reads and writes.
const SUPPORTED: Supported = Supported { least: 1, newest: SCHEMA };

/// How often a record is looked for that moves while it is read.
const LOOKS: usize = 5;

/// From so many records on, those that have left are not listed where a count says that there are
/// none.
const MANY: usize = 64;

/// What `meta` holds.
#[derive(Debug, Serialize, Deserialize)]
struct Meta {
    store_id: String,
    schema: i64,
    /// The end of the chain of those lines that are older than the chains; nothing until they have
    /// their places in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<ChainEnd>,
}

/// A store in one etcd cluster.
#[derive(Debug)]
pub struct EtcdStore {
    id: String,
    link: Arc<StoreClient>,
    groups: Groups,
    time: ServerTime,
    own_leases: OwnLeases,
    own_processes: OwnProcesses,
    views: LockCache,
    watch: Arc<Watch>,
    lookout: ChangeTask,
    /// What `meta` held when it was read last: each commit is made on the condition that it still
    /// does.
    meta: Mutex<Vec<u8>>,
    /// Whether records had left the long queue that was read last. A hint: then the next read lists
    /// them at once.
    some_left: AtomicBool,
}

impl EtcdStore {
    /// Opens a store, and gives it an id first when it has none. Must be called inside a tokio
    /// runtime, which also runs the watch. `clock` measures waits only; what time it is say the
    /// servers.
    pub async fn open(url: &SecretString, clock: Arc<dyn Clock>, options: EtcdOptions) -> Result<Self, StoreError> {
        let parsed = url::parse(url)?;
        let faults = ErrorMapper::new(&parsed.address, parsed.may_want());
        let time =
            ServerTime::new(options.time, Arc::clone(&clock), parsed.http()?, parsed.endpoints.clone(), faults.clone());
        let link = Arc::new(StoreClient::new(parsed, faults, clock, options.patience));
        let (id, meta) = link.patience.repeat(|| known(&link)).await?;
        link.patience.repeat(|| time.now()).await?;
        let lookout = ChangeTask::new();
        Ok(Self {
            id,
            time,
            own_leases: OwnLeases::default(),
            own_processes: OwnProcesses::default(),
            views: LockCache::default(),
            watch: Arc::new(Watch { link: Arc::clone(&link), watchers: Watchers::default(), stop: lookout.stop() }),
            groups: Groups::new(&link),
            link,
            lookout,
            meta: Mutex::new(meta),
            some_left: AtomicBool::new(false),
        })
    }

    /// The address of a URL, without its credentials.
    pub fn address_of(url: &SecretString) -> Result<String, StoreError> {
        Ok(url::parse(url)?.address)
    }

    /// Since when those are away who have no lease, seen from the time of the read: a later one,
    /// also one told by another server, would let them live on for that difference.
    async fn away(&self, read: &mut [Read], now: Timestamp) -> Result<(), StoreError> {
        let mut gone: Vec<RunnerId> = read.iter_mut().flat_map(|read| std::mem::take(&mut read.gone)).collect();
        gone.sort();
        gone.dedup();
        let mut ended = Vec::new();
        for some in gone.chunks(100) {
            let reads: Vec<TxnOp> = some.iter().map(|runner| TxnOp::get(self.link.keys.seen(runner), None)).collect();
            let mut found = Reads::of(self.link.txn(Txn::new().and_then(reads)).await?.op_responses());
            for runner in some {
                let noted = match found.next(&self.link.faults)?.kvs().first() {
                    Some(pair) => Some(json(pair, &self.link.faults)?),
                    None => leases::note_end(&self.link, runner, now).await?,
                };
                ended.extend(noted.map(|until: Timestamp| (runner.clone(), until)));
            }
        }
        for (runner, until) in ended {
            for read in &mut *read {
                let attached = read.stored.lock.active.iter().filter_map(|record| record.attachment.as_ref());
                if attached.into_iter().any(|attachment| attachment.runner.id == runner) {
                    // The cluster says that it is over, whatever the process counted.
                    read.leases.0.insert(runner.clone(), until.min(now));
                }
            }
        }
        Ok(())
    }

    async fn load_once(&self, key: &LockKey, known: Option<Stored>) -> Result<Loaded, StoreError> {
        let now = self.time.now().await?;
        let mut known = known.filter(|known| known.revision > 0);
        let many = known.as_ref().is_some_and(|known| known.lock.active.len() >= MANY);
        let mut left = if many && !self.some_left.load(Ordering::Relaxed) { Left::Counted } else { Left::Listed };
        let read = loop {
            let reads = rows::reads(&self.link.keys, key, known.as_ref(), left);
            let reply = self.groups.read(key, reads).await?;
            let (found, alive) = (Reads::of(reply.response.op_responses()), &reply.alive);
            match rows::read(found, alive, key, known.take(), now, &self.link.faults)? {
                Looked::Lock(read) => break *read,
                Looked::Again(again) => (known, left) = (again, Left::Listed),
            }
        };
        if many {
            self.some_left.store(read.some_left, Ordering::Relaxed);
        }
        let mut read = [read];
        self.away(&mut read, now).await?;
        let [read] = read;
        Ok(read.loaded(now))
    }

    async fn snapshot(&self, key: &LockKey, known: &CachedLock) -> ReadResult {
        let Loaded { stored, leases, now } = look(self, known, key).await?;
        Ok(LockView::new(stored.lock, leases, now))
    }

    fn meta(&self) -> MutexGuard<'_, Vec<u8>> {
        self.meta.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One key that is there or not.
    async fn get(&self, key: String) -> Result<Option<KeyValue>, StoreError> {
        Ok(self.link.get(key, GetOptions::new()).await?.kvs().first().cloned())
    }

    /// The record that a pointer leads to. It may move from the active ones to the history
    /// meanwhile.
    async fn follow(&self, pointer: &str) -> Result<Option<RecordLookup>, StoreError> {
        for _ in 0..LOOKS {
            let Some(pair) = self.get(pointer.to_owned()).await? else { return Ok(None) };
            let place: RecordPointer = json(&pair, &self.link.faults)?;
            let Some(pair) = self.get(place.record.clone()).await? else { continue };
            let record: Box<Maintenance> = Box::new(json(&pair, &self.link.faults)?);
            let active = place.record.starts_with(&self.link.keys.all("active"));
            return Ok(Some(if active { RecordLookup::Active(record) } else { RecordLookup::Past(record) }));
        }
        Err(self.link.faults.unreadable(format!("{pointer} leads nowhere")))
    }
}

/// The id of the store, and all that `meta` holds; a new store gets its id here from the first
/// process.
async fn known(link: &StoreClient) -> Result<(String, Vec<u8>), StoreError> {
    let mut found = link.get(link.keys.meta(), GetOptions::new()).await?;
    if found.kvs().is_empty() {
        let store_id = Uuid::new_v4().simple().to_string();
        let new = Meta { store_id, schema: SCHEMA, before: Some(ChainEnd::default()) };
        let value = text("meta", &new, &link.faults)?;
        let unless_there = Compare::create_revision(link.keys.meta(), CompareOp::Equal, 0);
        let put = TxnOp::put(link.keys.meta(), value, None::<PutOptions>);
        link.txn(Txn::new().when([unless_there]).and_then([put])).await?;
        found = link.get(link.keys.meta(), GetOptions::new()).await?;
    }
    let first = found.kvs().first().ok_or_else(|| link.faults.unavailable("its id could not be written"))?;
    let meta: Meta = json(first, &link.faults)?;
    SUPPORTED.check(meta.schema, false, &link.faults)?;
    Ok((meta.store_id, first.value().to_vec()))
}

#[async_trait]
impl Store for EtcdStore {
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
        self.link
            .patience
            .repeat(|| async {
                let now = self.time.now().await?;
                let reads = rows::all_reads(&self.link.keys);
                let found = Reads::of(self.link.txn(Txn::new().and_then(reads)).await?.op_responses());
                let mut reads = rows::read_all(found, now, &self.link.faults)?;
                self.away(&mut reads, now).await?;
                let views = reads.into_iter().map(|read| LockView::new(read.stored.lock, read.leases, now));
                Ok(views.collect())
            })
            .await
    }

    async fn find(&self, id: &MaintenanceId) -> Result<Option<RecordLookup>, StoreError> {
        self.link
            .patience
            .repeat(|| async {
                if let Some(found) = self.follow(&self.link.keys.name(id)).await? {
                    return Ok(Some(found));
                }
                // Its records end in the order in which they began.
                let last =
                    GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Descend).with_limit(1);
                let found = self.link.get(self.link.keys.past_all(id), last).await?;
                let record = found.kvs().first().map(|pair| json(pair, &self.link.faults)).transpose()?;
                Ok(record.map(|record| RecordLookup::Past(Box::new(record))))
            })
            .await
    }

    async fn find_uid(&self, uid: &Uid) -> Result<Option<RecordLookup>, StoreError> {
        self.link.patience.repeat(|| async { self.follow(&self.link.keys.uid(uid)).await }).await
    }

    async fn renew(&self, runner: &Runner, ttl: Duration) -> Result<(), StoreError> {
        let until = lease_end(self.time.now().await?, ttl);
        self.link.patience.repeat(|| self.own_leases.renew(&self.link, self.time.now(), runner, ttl)).await?;
        self.own_processes.renewed(&runner.id, until);
        Ok(())
    }

    async fn resign(&self, runner: &RunnerId) -> Result<(), StoreError> {
        self.own_processes.ended(runner);
        self.own_leases.forget(runner);
        self.link.patience.repeat(|| async { leases::end(&self.link, runner, self.time.now().await?).await }).await
    }

    async fn binding(&self, server: &str) -> Result<Option<LockKey>, StoreError> {
        self.link
            .patience
            .repeat(|| async {
                let found = self.get(self.link.keys.bound(server)).await?;
                found.map(|pair| json(&pair, &self.link.faults)).transpose()
            })
            .await
    }

    async fn bindings(&self, servers: &[String]) -> Result<Vec<Option<LockKey>>, StoreError> {
        self.link
            .patience
            .repeat(|| async {
                let gets = servers.iter().map(|server| TxnOp::get(self.link.keys.bound(server), None));
                let reply = self.link.txn(Txn::new().and_then(gets.collect::<Vec<_>>())).await?;
                let mut found = Reads::of(reply.op_responses());
                let one = |_| {
                    found.next(&self.link.faults)?.kvs().first().map(|pair| json(pair, &self.link.faults)).transpose()
                };
                servers.iter().map(one).collect()
            })
            .await
    }

    async fn bind(&self, server: &str, key: &LockKey, rebind: bool) -> Result<(), StoreError> {
        let place = self.link.keys.bound(server);
        let value = text(server, key, &self.link.faults)?;
        let bound = self
            .link
            .patience
            .repeat(|| async {
                let put = TxnOp::put(place.clone(), value.clone(), None::<PutOptions>);
                if rebind {
                    self.link.txn(Txn::new().and_then([put])).await?;
                    return Ok(key.clone());
                }
                let unless_there = Compare::create_revision(place.clone(), CompareOp::Equal, 0);
                let get = TxnOp::get(place.clone(), None);
                let reply = self.link.txn(Txn::new().when([unless_there]).and_then([put]).or_else([get])).await?;
                if reply.succeeded() {
                    return Ok(key.clone());
                }
                let found = Reads::of(reply.op_responses()).next(&self.link.faults)?;
                found.kvs().first().map_or_else(|| Ok(key.clone()), |pair| json(pair, &self.link.faults))
            })
            .await?;
        if bound == *key {
            return Ok(());
        }
        Err(StoreError::OtherIdentity { server: server.to_owned(), bound, found: key.clone() })
    }

    async fn audit(&self, id: &MaintenanceId, limit: usize) -> Result<Vec<AuditEvent>, StoreError> {
        whole::audit(self, id, limit).await
    }

    async fn verify_audit(&self, earlier: &ChainEnds) -> Result<AuditProof, StoreError> {
        chain::verify(self, earlier).await
    }

    async fn contents(&self) -> Result<Contents, StoreError> {
        whole::read(self).await
    }

    async fn fill(&self, contents: &Contents) -> Result<(), StoreError> {
        whole::write(self, contents).await
    }

    async fn prune(&self, keep: Duration, most: u32) -> Result<u64, StoreError> {
        let now = self.time.now().await?;
        self.link.patience.once(prune::prune(self, forgotten_before(now, keep), now, most)).await
    }

    async fn claim_sweep(&self, runner: &RunnerId, length: Duration) -> Result<bool, StoreError> {
        prune::claim(self, runner, self.time.now().await?, length).await
    }

    fn changes(&self, key: &LockKey) -> Receiver<u64> {
        self.lookout.watch(&self.watch.watchers, key, || Box::pin(watch::run(Arc::downgrade(&self.watch))))
    }

    async fn usage(&self) -> Result<Usage, StoreError> {
        self.link.patience.repeat(|| whole::usage(self)).await
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        chain::migrate(self).await
    }

    async fn close(&self) {
        self.lookout.end().await;
    }
}
