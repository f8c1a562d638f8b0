//! Batches one process's transitions into one transaction.
//!
//! The file has one writer at a time, and each commit waits for the disk. Transitions that arrive
//! during a transaction share the next transaction. Each is applied in its caller's task and has
//! its own result. A refused transition writes nothing and does not affect the others.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio::{
    pin, select,
    sync::{mpsc, oneshot},
};

use super::{
    fault::ErrorMapper,
    lane::{Lane, Transaction},
    leases::{self, Moment},
    rows, schema,
    watch::Watch,
};
use crate::{
    clock::{Clock, within},
    maintenance::{
        ids::LockKey,
        lock::{Leases, Refusal, ServerLock},
    },
    store::{
        StoreError, Transition, capacity, format,
        together::Together,
        views::{CachedLock, Stored},
    },
};

/// The most transitions per transaction, because other processes on this machine wait for its end.
const MOST: usize = 64;

/// How long to wait for a task to apply its transition. It is local and almost always immediate.
const UNRESPONSIVE: Duration = Duration::from_secs(2);

/// A lock that a task changes.
struct Draft {
    lock: ServerLock,
    leases: Leases,
    now: Timestamp,
}

type AppliedDraft = (Box<Draft>, Result<(), Refusal>);

/// A waiting transition.
#[derive(Clone)]
pub(super) struct PendingTransition {
    key: LockKey,
    known: Arc<CachedLock>,
    apply: mpsc::UnboundedSender<(Box<Draft>, oneshot::Sender<AppliedDraft>)>,
}

/// The writer and the watchers that it wakes.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) lane: Lane,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) faults: ErrorMapper,
    pub(super) watch: Arc<Watch>,
}

/// This process's transitions.
pub(super) type Transitions = Together<PendingTransition, Result<(), StoreError>>;

/// Returns a batch queue for `writer`.
pub(super) fn transitions(writer: &Arc<Writer>) -> Transitions {
    let writer = Arc::clone(writer);
    Together::in_turn(MOST, move |asked| carry(Arc::clone(&writer), asked))
}

/// Applies a transition, alone or in a batch.
pub(super) async fn transact(
    transitions: &Transitions,
    known: Arc<CachedLock>,
    key: &LockKey,
    transition: &mut Transition<'_>,
    faults: &ErrorMapper,
) -> Result<(), StoreError> {
    let (apply, mut drafts) = mpsc::unbounded_channel();
    let done = transitions.send(key, PendingTransition { key: key.clone(), known, apply });
    pin!(done);
    loop {
        select! {
            done = &mut done => {
                return done.unwrap_or_else(|| Err(faults.unavailable("the outcome of a change is unknown")));
            }
            Some((mut draft, back)) = drafts.recv() => {
                let Draft { lock, leases, now } = &mut *draft;
                let said = transition(lock, leases, *now);
                let _ = back.send((draft, said));
            }
        }
    }
}

fn carry(writer: Arc<Writer>, asked: Vec<PendingTransition>) -> BoxFuture<'static, Vec<Result<(), StoreError>>> {
    Box::pin(async move {
        match writer.write(&asked).await {
            Ok(results) => results,
            Err(error) if asked.len() == 1 || error.is_transient() => {
                asked.iter().map(|_| Err(error.clone())).collect()
            }
            // Nothing was written, and one of them is the cause. Write each separately.
            Err(_) => {
                let mut each = Vec::with_capacity(asked.len());
                for one in &asked {
                    each.push(writer.write(std::slice::from_ref(one)).await.and_then(|mut results| results.remove(0)));
                }
                each
            }
        }
    })
}

impl Writer {
    /// Begins a write transaction; rejected after the file's format changed.
    pub(super) async fn begin(&self) -> Result<Transaction<'_>, StoreError> {
        let mut db = self.lane.begin("BEGIN IMMEDIATE").await?;
        let found = schema::version(&mut db, &self.faults).await?;
        if let Err(newer) = format::check_open(found, &self.faults) {
            db.end("ROLLBACK").await?;
            return Err(newer);
        }
        Ok(db)
    }

    /// Runs one transaction. Returns each transition's result, or an error if nothing was written.
    async fn write(&self, asked: &[PendingTransition]) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        let mut db = self.begin().await?;
        let (mut results, mut wrote) = (Vec::with_capacity(asked.len()), false);
        // Locks as this transaction leaves them; not cached until it commits.
        let mut written: HashMap<LockKey, (Arc<CachedLock>, Stored)> = HashMap::new();
        for one in asked {
            let before = match written.get(&one.key) {
                Some((_, stored)) => stored.clone(),
                None => match self.load(&mut db, one).await? {
                    Ok(stored) => stored,
                    Err(lost) => {
                        results.push(Err(lost));
                        continue;
                    }
                },
            };
            let after = match self.apply(&mut db, one, &before).await? {
                Ok(after) => after,
                Err(refused) => {
                    results.push(Err(refused));
                    continue;
                }
            };
            wrote |= after != *before.lock || !after.finished.is_empty() || !after.events.is_empty();
            let saved = match rows::save(&mut db, &before, after, &self.faults).await {
                Err(taken @ StoreError::NameTaken { .. }) => {
                    results.push(Err(taken));
                    continue;
                }
                saved => saved?,
            };
            written.extend(saved.map(|stored| (one.key.clone(), (Arc::clone(&one.known), stored))));
            results.push(Ok(()));
        }
        db.end(if wrote { "COMMIT" } else { "ROLLBACK" }).await?;
        for (key, (known, stored)) in written {
            known.remember(&stored);
            self.watch.watchers.moved(&key, stored.revision);
        }
        Ok(results)
    }

    /// Loads a lock, and fails if it lost changes that were read before.
    async fn load(
        &self,
        db: &mut Transaction<'_>,
        one: &PendingTransition,
    ) -> Result<Result<Stored, StoreError>, StoreError> {
        let seen = one.known.seen();
        let before = rows::load(db, &one.key, seen.stored.clone(), &self.faults).await?;
        let settled = one.known.settle(&seen, &before).map_err(|cause| self.watch.went_back(&one.key, cause));
        Ok(settled.map(|()| before))
    }

    /// Returns the changed lock, or the refusal.
    async fn apply(
        &self,
        db: &mut Transaction<'_>,
        one: &PendingTransition,
        before: &Stored,
    ) -> Result<Result<ServerLock, StoreError>, StoreError> {
        // Read the time after the wait for the file's lock.
        let now = Moment::of(self.clock.as_ref());
        let leases = leases::of_lock(db, &one.key, &now, &self.faults).await?;
        let draft = Box::new(Draft { lock: (*before.lock).clone(), leases, now: now.wall });
        let (back, answer) = oneshot::channel();
        let gone = || Ok(Err(self.faults.unavailable("the task that requested a change does not answer")));
        if one.apply.send((draft, back)).is_err() {
            return gone();
        }
        let Some(Ok((draft, said))) = within(UNRESPONSIVE, answer).await else { return gone() };
        if let Err(refusal) = said {
            return Ok(Err(refusal.into()));
        }
        let after = draft.lock;
        let more = after.active.len() > before.lock.active.len();
        let room = || capacity::check(&self.faults, &one.key, after.active.len(), capacity::RECORDS, "records");
        Ok(if more { room() } else { Ok(()) }.map(|()| after))
    }
}
