//! Transitions of one process as one transaction.
//!
//! The file has one writer at a time and each of its commits waits for the disk, so what comes
//! while a transaction is under way goes into the next one together. Each transition is applied in
//! the task that asked for it, and has its own result: a refused one writes nothing, and the others
//! do not notice.

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

/// How many transitions are one transaction at most: the others of this machine wait for its end.
const MOST: usize = 64;

/// How long a task is waited for that has to apply its transition. It is one of this process, and
/// nearly always at once.
const UNRESPONSIVE: Duration = Duration::from_secs(2);

/// A lock for the task that changes it.
struct Draft {
    lock: ServerLock,
    leases: Leases,
    now: Timestamp,
}

type AppliedDraft = (Box<Draft>, Result<(), Refusal>);

/// A transition that is asked for.
#[derive(Clone)]
pub(super) struct PendingTransition {
    key: LockKey,
    known: Arc<CachedLock>,
    apply: mpsc::UnboundedSender<(Box<Draft>, oneshot::Sender<AppliedDraft>)>,
}

/// What writes, and who is told.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) lane: Lane,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) faults: ErrorMapper,
    pub(super) watch: Arc<Watch>,
}

/// The transitions of this process.
pub(super) type Transitions = Together<PendingTransition, Result<(), StoreError>>;

/// Collects what `writer` writes.
pub(super) fn transitions(writer: &Arc<Writer>) -> Transitions {
    let writer = Arc::clone(writer);
    Together::in_turn(MOST, move |asked| carry(Arc::clone(&writer), asked))
}

/// Applies a transition, alone or with others.
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
                return done.unwrap_or_else(|| Err(faults.unavailable("what came of a change is not known")));
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
            // Nothing was written, and one of them is to blame.
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
    /// Begins the only writer's transaction; rejected after the file's format changed.
    pub(super) async fn begin(&self) -> Result<Transaction<'_>, StoreError> {
        let mut db = self.lane.begin("BEGIN IMMEDIATE").await?;
        let found = schema::version(&mut db, &self.faults).await?;
        if let Err(newer) = format::check_open(found, &self.faults) {
            db.end("ROLLBACK").await?;
            return Err(newer);
        }
        Ok(db)
    }

    /// One transaction: the result of each, or why nothing was written.
    async fn write(&self, asked: &[PendingTransition]) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        let mut db = self.begin().await?;
        let (mut results, mut wrote) = (Vec::with_capacity(asked.len()), false);
        // As this transaction leaves them: nobody else knows of it before its end.
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

    /// The lock as it is in the file, if that has not lost what was seen of it before.
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

    /// What a transition makes of a lock, or why it makes nothing of it.
    async fn apply(
        &self,
        db: &mut Transaction<'_>,
        one: &PendingTransition,
        before: &Stored,
    ) -> Result<Result<ServerLock, StoreError>, StoreError> {
        // What was waited for before it has passed.
        let now = Moment::of(self.clock.as_ref());
        let leases = leases::of_lock(db, &one.key, &now, &self.faults).await?;
        let draft = Box::new(Draft { lock: (*before.lock).clone(), leases, now: now.wall });
        let (back, answer) = oneshot::channel();
        let gone = || Ok(Err(self.faults.unavailable("the task that asked for a change does not answer")));
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
