//! A store that fails on demand, or stops answering at a given request.

use tokio::sync::watch;

use super::*;
use crate::{
    maintenance::{
        ids::Uid,
        lock::{AuditEvent, Leases, Refusal, ServerLock},
        step::Reply,
    },
    store::{AuditLine, AuditStart, Contents, LockView, RecordLookup, StoreError, Transition},
};

/// How long our stores wait for an unreachable server.
const PATIENCE: Duration = Duration::from_secs(15);

/// The lost part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The request never arrives.
    Request,
    /// The request is carried out, but its reply is lost.
    Reply,
}

/// How a store that answers reads treats a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OneWay {
    /// It rejects the change: a full disk, a read-only primary, a quota.
    Rejects,
    /// It never confirms the change: a primary that waits for a standby.
    Hangs,
    /// It denies the change: a revoked permission.
    Denies,
}

/// More requests than any run sends, so a run that reaches it repeats them without a pause.
const TOO_MANY: usize = 3000;

/// How many of the next requests of each kind fail.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Lookups of records without an answer.
    pub(super) finds: usize,
    /// Commits that succeed but lose their reply.
    pub(super) replies: usize,
    /// Commits that would detach a process and do not arrive.
    pub(super) detaches: usize,
    /// How long the store delays its answer to the first intent. Other requests are not delayed.
    pub(super) slow_intent: Option<Duration>,
    /// Number of the first request without an answer, from 0; later requests fail too.
    pub(super) silent_from: Option<usize>,
    /// Number of the only request without an answer, from 0.
    pub(super) blip: Option<(usize, Lost)>,
    /// Cancelled at the first request without an answer.
    pub(super) stop: CancellationToken,
    /// First change (from 0) at which the store becomes one-way, and how.
    pub(super) one_way: Option<(usize, OneWay)>,
    /// Changes so far.
    pub(super) changes: usize,
    /// Requests so far.
    pub(super) requests: usize,
}

/// A store that fails on demand.
#[derive(Debug)]
pub(super) struct Faulty {
    inner: Arc<MemoryStore>,
    plan: Mutex<Plan>,
}

impl Faulty {
    pub(super) fn of(world: &World) -> Arc<Self> {
        Arc::new(Self { inner: world.store.clone(), plan: Mutex::default() })
    }

    pub(super) fn plan(&self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.plan.lock().unwrap());
    }

    /// Carries a request out. Without an answer it fails after the patience ends.
    async fn asked<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let lost = {
            let mut plan = self.plan.lock().unwrap();
            let number = plan.requests;
            plan.requests += 1;
            assert!(number < TOO_MANY, "a run repeats its requests without a pause");
            let silent = plan.silent_from.is_some_and(|first| number >= first);
            if silent {
                plan.stop.cancel();
            }
            let blip = plan.blip.filter(|(at, _)| *at == number).map(|(_, lost)| lost);
            silent.then_some(Lost::Request).or(blip)
        };
        match lost {
            None => return work.await,
            Some(Lost::Reply) => drop(work.await),
            Some(Lost::Request) => {}
        }
        tokio::time::sleep(PATIENCE).await;
        Err(StoreError::Unavailable { address: "memory://".into(), cause: "silent".into() })
    }

    /// Waits after the first intent's commit, if the plan requires it.
    async fn pauses(&self, key: &LockKey) -> Result<(), StoreError> {
        if self.plan.lock().unwrap().slow_intent.is_none() {
            return Ok(());
        }
        let intended = self.inner.view(key).await?.lock.active.iter().any(|record| waits_for_reply(record));
        let pause = self.plan.lock().unwrap().slow_intent.take_if(|_| intended);
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    fn fails(&self, which: impl FnOnce(&mut Plan) -> &mut usize) -> Result<(), StoreError> {
        let mut plan = self.plan.lock().unwrap();
        let left = which(&mut plan);
        if *left == 0 {
            return Ok(());
        }
        *left -= 1;
        Err(StoreError::Unavailable { address: "memory://".into(), cause: "cut".into() })
    }

    /// Counts a change, and fails if the store is one-way.
    async fn stored(&self) -> Result<(), StoreError> {
        let how = {
            let mut plan = self.plan.lock().unwrap();
            let number = plan.changes;
            plan.changes += 1;
            plan.one_way.filter(|(first, _)| number >= *first).map(|(_, how)| how)
        };
        let (address, cause) = ("memory://".to_owned(), "the disk is full".into());
        match how {
            None => Ok(()),
            Some(OneWay::Rejects) => Err(StoreError::Unwritable { address: address.into(), cause }),
            Some(OneWay::Denies) => Err(StoreError::Forbidden { address: address.into(), cause }),
            Some(OneWay::Hangs) => {
                tokio::time::sleep(PATIENCE).await;
                Err(StoreError::Unavailable { address: address.into(), cause })
            }
        }
    }

    async fn transacted(&self, key: &LockKey, transition: &mut Transition<'_>) -> Result<(), StoreError> {
        if self.plan.lock().unwrap().one_way.is_some() {
            // The store detects that it cannot write after it accepts the transition.
            let mut would = false;
            let mut tried = |lock: &mut ServerLock, leases: &Leases, now| {
                transition(lock, leases, now)?;
                would = true;
                Err(Refusal::Gone)
            };
            let said = self.inner.transact(key, &mut tried).await;
            if !would {
                return said;
            }
            self.stored().await?;
        } else {
            self.plan.lock().unwrap().changes += 1;
        }
        let attached = |lock: &ServerLock| lock.active.iter().filter(|record| record.attachment.is_some()).count();
        let mut cut = Ok(());
        let said = self
            .inner
            .transact(key, &mut |lock, leases, now| {
                let before = attached(lock);
                transition(lock, leases, now)?;
                if attached(lock) < before {
                    cut = self.fails(|plan| &mut plan.detaches);
                }
                if cut.is_err() { Err(Refusal::Gone) } else { Ok(()) }
            })
            .await;
        self.pauses(key).await?;
        cut?;
        said?;
        self.fails(|plan| &mut plan.replies)
    }
}

fn waits_for_reply(record: &Maintenance) -> bool {
    let attempts = record.phase.progress().map(|progress| &progress.attempts);
    attempts.and_then(|attempts| attempts.last()).is_some_and(|attempt| attempt.reply == Reply::Unknown)
}

#[async_trait]
impl Store for Faulty {
    fn id(&self) -> &str {
        self.inner.id()
    }

    fn address(&self) -> String {
        self.inner.address()
    }

    fn reach_warning(&self) -> Option<String> {
        self.inner.reach_warning()
    }

    async fn transact(&self, key: &LockKey, transition: &mut Transition<'_>) -> Result<(), StoreError> {
        self.asked(self.transacted(key, transition)).await
    }

    async fn view(&self, key: &LockKey) -> Result<LockView, StoreError> {
        self.asked(self.inner.view(key)).await
    }

    async fn view_all(&self) -> Result<Vec<LockView>, StoreError> {
        self.asked(self.inner.view_all()).await
    }

    async fn find(&self, id: &MaintenanceId) -> Result<Option<RecordLookup>, StoreError> {
        self.asked(self.inner.find(id)).await
    }

    async fn find_uid(&self, uid: &Uid) -> Result<Option<RecordLookup>, StoreError> {
        let found = async {
            self.fails(|plan| &mut plan.finds)?;
            self.inner.find_uid(uid).await
        };
        self.asked(found).await
    }

    async fn renew(&self, runner: &Runner, ttl: Duration) -> Result<(), StoreError> {
        self.asked(async {
            self.stored().await?;
            self.inner.renew(runner, ttl).await
        })
        .await
    }

    async fn resign(&self, runner: &RunnerId) -> Result<(), StoreError> {
        self.asked(async {
            self.stored().await?;
            self.inner.resign(runner).await
        })
        .await
    }

    async fn binding(&self, server: &str) -> Result<Option<LockKey>, StoreError> {
        self.asked(self.inner.binding(server)).await
    }

    async fn bind(&self, server: &str, key: &LockKey, rebind: bool) -> Result<(), StoreError> {
        self.asked(async {
            self.stored().await?;
            self.inner.bind(server, key, rebind).await
        })
        .await
    }

    async fn audit(&self, id: &MaintenanceId, limit: usize) -> Result<Vec<AuditEvent>, StoreError> {
        self.inner.audit(id, limit).await
    }

    async fn export_audit(&self, start: &AuditStart, most: u32) -> Result<Vec<AuditLine>, StoreError> {
        self.inner.export_audit(start, most).await
    }

    async fn contents(&self) -> Result<Contents, StoreError> {
        self.inner.contents().await
    }

    async fn fill(&self, contents: &Contents) -> Result<(), StoreError> {
        self.inner.fill(contents).await
    }

    async fn claim_sweep(&self, runner: &RunnerId, length: Duration) -> Result<bool, StoreError> {
        self.inner.claim_sweep(runner, length).await
    }

    async fn prune(&self, keep: Duration, most: u32) -> Result<u64, StoreError> {
        self.inner.prune(keep, most).await
    }

    fn changes(&self, key: &LockKey) -> watch::Receiver<u64> {
        self.inner.changes(key)
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
