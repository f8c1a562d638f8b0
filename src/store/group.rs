//! Batches one process's transitions on a lock into one commit.
//!
//! A thousand waiters would otherwise write a lock a thousand times, each write racing the others.
//! The first transition becomes the leader: it loads the lock, applies its own transition and the
//! queued ones in arrival order, and writes the result with one conditional commit. Each member
//! gets its own result:
//!
//! - A refused transition is dropped, and the transitions behind it are applied again. Its refusal
//!   can depend on the others' changes, so it is returned after their commit.
//! - If the store rejects a commit for its content (a taken name, its size), the leader retries
//!   with half of the group, down to one member.
//! - A commit with unknown outcome is resolved for the whole group. The leader sends the same
//!   content under a new name until the lock contains one of the names or has moved on.
//! - If this process wrote the lock last and runs alone, the leader skips the load (see
//!   [`recall`](super::recall)).
//! - A member's task can end at any time. Transitions run in their own tasks, so an ended one is
//!   skipped. If the leader ends, the next member takes over, including a commit with unknown
//!   outcome.

mod line;

use std::{sync::Arc, time::Duration};

use uuid::Uuid;

pub(super) use self::line::WaitingTransitions;
use self::line::{Content, Draft, Entry, Leading, Message, Open};
use super::{
    StoreError, Transition,
    optimistic::{CommitDelta, Conditional, Loaded, look},
    views::{CachedLock, Stored},
};
use crate::{clock::Clock, maintenance::ids::LockKey};

/// How long a change is retried while reads succeed and writes do not answer; equals the read
/// limit.
const GIVE_UP: Duration = Duration::from_secs(10);

/// The first pause after a lost race, and the longest; pauses double.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// Applies a transition, alone or in a group. Returns the stored lock, or `None` if nothing
/// changed.
pub(super) async fn transact(
    store: &dyn Conditional,
    clock: &dyn Clock,
    known: &CachedLock,
    key: &LockKey,
    transition: &mut Transition<'_>,
) -> Result<Option<Stored>, StoreError> {
    let leading = 'enter: loop {
        let mut told = match WaitingTransitions::enter(known.line()) {
            Entry::Lead(leading) => break leading,
            Entry::Wait(told) => told,
        };
        loop {
            match told.recv().await {
                Some(Message::Apply(mut draft, back)) => {
                    let Draft { lock, leases, now } = &mut *draft;
                    let said = transition(lock, leases, *now);
                    let _ = back.send((draft, said));
                }
                Some(Message::Lead(leading)) => break 'enter leading,
                Some(Message::Done(result)) => return result,
                None => continue 'enter,
            }
        }
    };
    lead(store, clock, known, key, transition, leading).await
}

/// What happened to a commit without a reply.
enum Fate {
    /// The commit succeeded; only its reply was lost.
    Made,
    /// Another process committed first. This commit fails its condition, even if it arrives late.
    Overtaken,
    /// The commit could still arrive.
    Open,
    /// The outcome cannot be determined.
    Unknown,
}

fn fate(open: &Open, stored: &Stored, clock: &dyn Clock) -> Fate {
    let commits = &stored.commits;
    if commits.contain(&open.names) {
        return Fate::Made;
    }
    if stored.revision != open.revision {
        // If the list of commit names no longer reaches back, a retry could apply the change twice.
        return if commits.reach(&open.commits) { Fate::Overtaken } else { Fate::Unknown };
    }
    // Different commits at the same revision: the store was restored, and the content is based on
    // lost data.
    let other = **commits != *open.commits || clock.monotonic().saturating_sub(open.since) > GIVE_UP;
    if other { Fate::Unknown } else { Fate::Open }
}

async fn lead(
    store: &dyn Conditional,
    clock: &dyn Clock,
    known: &CachedLock,
    key: &LockKey,
    own: &mut Transition<'_>,
    mut leading: Leading,
) -> Result<Option<Stored>, StoreError> {
    let mut pause = PAUSE.0;
    let inherited = leading.round().open.is_some();
    let mut own_memory = known.own(clock.monotonic()).filter(|_| !inherited);
    loop {
        let recalled = match own_memory.take() {
            Some(own) => store.recall(&own).await,
            None => None,
        };
        let from_memory = recalled.is_some();
        let Loaded { stored, leases, now } = match recalled {
            Some(loaded) => loaded,
            None => match look(store, known, key).await {
                Ok(loaded) => loaded,
                Err(error) => return leading.failed(error),
            },
        };
        let commits = Arc::clone(&stored.commits);
        if let Some(open) = &leading.round().open {
            let unknown = open.error.clone();
            match fate(open, &stored, clock) {
                Fate::Made => return leading.done(Some(&stored)),
                Fate::Unknown => return leading.failed(unknown),
                Fate::Overtaken => leading.round().open = None,
                Fate::Open => {}
            }
        }
        let sent = leading.round().open.as_ref().map(|open| Arc::clone(&open.content));
        let content = if let Some(content) = sent {
            // Refusals already returned to members match this content only.
            content
        } else {
            leading.let_in(store.together());
            let Draft { lock: mut after, .. } = leading.apply(own, &stored, &Arc::new(leases), now).await;
            let finished = std::mem::take(&mut after.finished);
            let events = std::mem::take(&mut after.events);
            let nothing = after == *stored.lock && finished.is_empty() && events.is_empty();
            if from_memory && (nothing || leading.round().refuses()) {
                continue;
            }
            if nothing {
                return leading.done(None);
            }
            Arc::new(Content { after, finished, events })
        };
        let name = Uuid::new_v4().simple().to_string();
        let first = leading.round().open.is_none();
        // Recorded before sending, because this task can end while the commit is in flight.
        let open = leading.round().open.get_or_insert_with(|| Open {
            names: Vec::new(),
            revision: stored.revision,
            commits,
            since: clock.monotonic(),
            error: store.unanswered(),
            content: Arc::clone(&content),
        });
        open.names.push(name.clone());
        let unknown = open.error.clone();
        let change = CommitDelta::new(&stored, &content.after, &content.finished, &content.events, &name);
        let committed = store.commit(&change).await;
        drop(change);
        if let Err(error @ StoreError::Unavailable { .. }) = committed {
            // The next read shows whether it was written. A late arrival fails its condition.
            tracing::debug!(%error, %key, "a commit without a reply");
            if let Some(open) = &mut leading.round().open {
                open.error = error;
            }
        } else {
            // This commit has been answered.
            let round = leading.round();
            if first {
                round.open = None;
            } else if let Some(open) = &mut round.open {
                open.names.pop();
            }
            match committed {
                Ok(Some(written)) => {
                    let after = match Arc::try_unwrap(content) {
                        Ok(content) => content.after,
                        Err(shared) => shared.after.clone(),
                    };
                    let stored = stored.after(&written, after, &name);
                    known.wrote(&stored, clock.monotonic());
                    return leading.done(Some(&stored));
                }
                // The cached lock was stale, or the error could result from a stale cache. Read it.
                Ok(None) | Err(_) if from_memory => continue,
                Ok(None) => {}
                // Every commit failed, and no member caused it.
                Err(StoreError::Unwritable { .. }) if !first => return leading.failed(unknown),
                Err(error @ StoreError::Unwritable { .. }) => return leading.failed(error),
                Err(_) if first && !leading.round().members.is_empty() => {
                    leading.halve();
                    continue;
                }
                // The content came from an earlier leader or several members, so the culprit is
                // unknown.
                Err(_) if !first && (inherited || !leading.round().members.is_empty()) => {
                    return leading.failed(unknown);
                }
                Err(error) => return leading.failed(error),
            }
        }
        clock.sleep(jittered(pause)).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Returns a random duration up to `pause`, so that racers separate.
pub(super) fn jittered(pause: Duration) -> Duration {
    let share = f64::from(Uuid::new_v4().as_fields().0) / f64::from(u32::MAX);
    pause.mul_f64(share)
}

#[cfg(test)]
mod tests;
